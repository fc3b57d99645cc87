"""Ids of jobs: unique, growing, laid out as UUIDv7; and what users may give as an id."""

import os
from threading import Thread
from uuid import UUID

import pytest

from mainspring import LimitExceeded
from mainspring.jobs import ids as job_ids
from mainspring.jobs.ids import DRAWN, MAX_ID_LENGTH, JobIds, require_id
from tests.programs import program
from tests.support import PATIENCE

NOW = 1_800_000_000_123_456  # microseconds


def test_an_id_is_a_uuid_of_version_seven() -> None:
    made = UUID(JobIds().make(NOW)[0])
    assert (made.version, made.variant) == (7, "specified in RFC 4122")


def test_an_id_begins_with_the_millisecond_of_its_submit() -> None:
    assert int(JobIds().make(NOW)[0][:12], 16) == NOW // 1_000


def test_an_id_is_thirty_two_lower_case_hexadecimal_digits() -> None:
    (made,) = JobIds().make(NOW)
    assert len(made) == 32
    assert set(made) <= set("0123456789abcdef")


def test_ids_of_one_millisecond_grow() -> None:
    ids = JobIds()
    made = ids.make(NOW, 10_000) + ids.make(NOW, 10_000)
    assert made == sorted(set(made))


def test_ids_grow_with_time() -> None:
    ids = JobIds()
    made = [ids.make(NOW + step * 1_000)[0] for step in range(1_000)]
    assert made == sorted(set(made))


def test_ids_grow_although_the_clock_was_set_back() -> None:
    ids = JobIds()
    before = ids.make(NOW)[0]
    assert ids.make(NOW - 3_600_000_000)[0] > before


def test_a_set_back_clock_keeps_the_layout() -> None:
    ids = JobIds()
    ids.make(NOW)
    assert UUID(ids.make(0)[0]).version == 7


def test_no_ids_can_be_asked_for() -> None:
    assert JobIds().make(NOW, 0) == []


def test_two_makers_do_not_meet() -> None:
    one, other = JobIds(), JobIds()
    assert set(one.make(NOW, 1_000)).isdisjoint(other.make(NOW, 1_000))


def test_every_millisecond_has_a_random_part_of_its_own() -> None:
    ids = JobIds()
    made = [ids.make(NOW + step * 1_000)[0] for step in range(3 * DRAWN)]
    assert len({job_id[12:] for job_id in made}) == len(made)


def test_the_system_is_asked_for_randomness_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def urandom(size: int) -> bytes:
        sizes.append(size)
        return bytes(size)

    monkeypatch.setattr(os, "urandom", urandom)
    ids = JobIds()
    for step in range(DRAWN + 1):
        ids.make(NOW + step * 1_000)
    assert len(sizes) == 2


def test_threads_get_different_ids() -> None:
    ids = JobIds()
    made: list[list[str]] = []

    def make() -> None:
        mine: list[str] = []
        for step in range(500):
            mine += ids.make(NOW + step * 100, 3)
        made.append(mine)

    threads = [Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    everything = [job_id for mine in made for job_id in mine]
    assert len(set(everything)) == len(everything) == 8 * 500 * 3


def test_each_thread_sees_its_own_ids_grow() -> None:
    ids = JobIds()
    grew: list[bool] = []

    def make() -> None:
        mine = [ids.make(NOW)[0] for _ in range(2_000)]
        grew.append(mine == sorted(mine))

    threads = [Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert grew == [True] * 4


@pytest.mark.parametrize("after", [0, 1_000], ids=["the same", "the next"])
def test_a_forked_child_makes_other_ids_in_a_millisecond(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    ids = JobIds()
    ids.make(NOW)
    state = {**vars(ids), "_random": ids._random[:]}  # what a child inherits
    parent = ids.make(NOW + after, 1_000)
    vars(ids).update(state)
    monkeypatch.setattr(job_ids, "_forks", job_ids._forks + 1)
    assert set(ids.make(NOW + after, 1_000)).isdisjoint(parent)


FORK = """
import os
from mainspring.jobs.ids import JobIds

ids = JobIds()
ids.make(0)
child = os.fork()
os.write(1, (" ".join(ids.make(0, 3)) + chr(10)).encode())
if child:
    os.waitpid(child, 0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_fork_is_noticed() -> None:
    with program("-c", FORK) as process:
        output, errors = process.communicate(timeout=PATIENCE)
    assert (len(set(output.split())), errors, process.returncode) == (6, "", 0)


@pytest.mark.parametrize("given", ["order-42", "a", "bestellung/ä 7", "x" * MAX_ID_LENGTH])
def test_an_id_of_the_user_is_taken_as_it_is(given: str) -> None:
    assert require_id(given) == given


@pytest.mark.parametrize("given", [42, None, b"order", ["a"]])
def test_an_id_that_is_no_string_is_refused(given: object) -> None:
    with pytest.raises(TypeError, match="id must be a string, got"):
        require_id(given)


@pytest.mark.parametrize("given", ["", "a\n", "\x00", "tab\t", "\u202ehidden"])
def test_an_id_that_cannot_be_printed_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match="non-empty printable string"):
        require_id(given)


def test_a_very_long_id_is_refused_with_its_limit() -> None:
    with pytest.raises(LimitExceeded) as caught:
        require_id("x" * (MAX_ID_LENGTH + 1), "queue")
    assert (caught.value.size, caught.value.limit) == (MAX_ID_LENGTH + 1, MAX_ID_LENGTH)
    assert str(caught.value).startswith(
        f"queue {'x' * 40!r}... has 201 characters, the limit is 200; use a shorter"
    )


def test_the_error_names_the_option_to_blame() -> None:
    with pytest.raises(TypeError, match="queue must be a string, got 7"):
        require_id(7, "queue")
