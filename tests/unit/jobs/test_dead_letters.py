"""Dead letters: looked at, edited, replayed one by one or many at a time, purged; linked with their replays."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from mainspring import (
    ArgumentsTooLarge,
    InvalidArguments,
    InvalidTransition,
    JobFunction,
    JobNotFound,
    JobStatus,
    Mainspring,
    Retry,
    UnknownHandler,
)
from mainspring.jobs import dead_letters
from mainspring.testing import TimeTravel, time_travel
from tests.support import PATIENCE, Background
from tests.unit.jobs.call_log import START

ONCE = Retry(max_attempts=1)


class Letters:
    """An application with a handler that fails while `is_broken`, and dead letters made with it."""

    def __init__(self, app: Mainspring, travel: TimeTravel) -> None:
        self.app = app
        self.travel = travel
        self.is_broken = True
        self.seen: list[Any] = []

        @app.job(name="shop.pay", retry=ONCE)
        def pay(order_id: int, *more: int, note: str = "") -> None:
            if self.is_broken:
                raise ConnectionError("the bank is away")
            self.seen.append((order_id, *more, note) if more or note else order_id)

        self.pay: JobFunction[..., None] = pay

    def make(self, count: int = 1, **options: Any) -> list[str]:
        ids = [self.pay.options(**options).submit(number).id for number in range(count)]
        self.travel.settle()
        return ids


@pytest.fixture
def letters(app: Mainspring) -> Iterator[Letters]:
    with time_travel(app, start=START) as travel:
        yield Letters(app, travel)


def test_a_job_that_was_given_up_is_a_dead_letter(letters: Letters) -> None:
    (job,) = letters.make()
    (letter,) = letters.app.dead_letters.list()
    assert (letter.id, letter.status, letter.attempts) == (job, JobStatus.FAILED, 1)
    assert (letter.error or "").startswith("ConnectionError: the bank is away")
    assert letters.app.dead_letters.get(job) == letter


def test_dead_letters_are_listed_oldest_first_page_by_page(letters: Letters) -> None:
    ids = letters.make(5)
    first = letters.app.dead_letters.list(limit=3)
    second = letters.app.dead_letters.list(limit=3, after=first.next)
    assert [letter.id for letter in first] == ids[:3]
    assert [letter.id for letter in second] == ids[3:]
    assert second.next is None


def test_dead_letters_are_listed_by_queue_and_by_type(letters: Letters) -> None:
    letters.make()
    (other,) = letters.make(queue="other")
    found = letters.app.dead_letters
    assert [letter.id for letter in found.list(queue="other")] == [other]
    assert len(found.list(type="pay")) == len(found.list(type="shop.pay")) == 2
    assert found.list(type="refund") == []


def test_a_job_that_is_no_dead_letter_is_not_read_as_one(letters: Letters) -> None:
    job = letters.pay.after(60).submit(1).id
    with pytest.raises(InvalidTransition, match="it is PENDING"):
        letters.app.dead_letters.get(job)


def test_an_unknown_letter_is_not_found(letters: Letters) -> None:
    for call in (letters.app.dead_letters.get, letters.app.dead_letters.replay, letters.app.dead_letters.purge):
        with pytest.raises(JobNotFound):
            call("order-42")


# -- replaying


def test_a_replay_is_a_new_job_linked_both_ways(letters: Letters) -> None:
    (job,) = letters.make()
    letters.is_broken = False
    (copy,) = letters.app.dead_letters.replay(job)
    letters.travel.settle()
    letter, replay = letters.app.get(job), letters.app.get(copy)
    assert (letter.status, letter.replayed_as) == (JobStatus.FAILED, copy)
    assert (replay.status, replay.origin, replay.arguments) == (JobStatus.COMPLETED, job, letter.arguments)
    assert letters.seen == [0]


def test_a_letter_is_replayed_once(letters: Letters) -> None:
    (job,) = letters.make()
    (copy,) = letters.app.dead_letters.replay(job)
    with pytest.raises(InvalidTransition, match=f"was replayed as {copy}"):
        letters.app.dead_letters.replay(job)


def test_a_letter_that_was_replayed_is_listed_only_on_demand(letters: Letters) -> None:
    ids = letters.make(2)
    letters.is_broken = False
    letters.app.dead_letters.replay(ids[0])
    listed = letters.app.dead_letters.list
    assert [letter.id for letter in listed()] == [ids[1]]
    assert [letter.id for letter in listed(replayed=True)] == [ids[0]]
    assert [letter.id for letter in listed(replayed=None)] == ids


def test_letters_are_listed_by_the_time_of_their_failure(letters: Letters) -> None:
    slow = letters.pay.options(id="slow", delay=60).submit(1).id
    fast = letters.pay.options(id="fast").submit(2).id
    letters.travel.fast_forward(minutes=2)
    last = letters.pay.options(id="last").submit(3).id
    letters.travel.settle()
    listed = letters.app.dead_letters.list
    assert [letter.id for letter in listed()] == [fast, slow, last]
    page = listed(newest_first=True, limit=2)
    assert [letter.id for letter in page] == [last, slow]
    assert [letter.id for letter in listed(newest_first=True, after=page.next)] == [fast]


def test_a_replay_that_fails_is_a_letter_of_its_own(letters: Letters) -> None:
    (job,) = letters.make()
    (copy,) = letters.app.dead_letters.replay(job)
    letters.travel.settle()
    assert [letter.id for letter in letters.app.dead_letters.list()] == [copy]
    assert letters.app.dead_letters.replay(copy)


def test_a_pending_job_cannot_be_replayed(letters: Letters) -> None:
    job = letters.pay.after(60).submit(1).id
    with pytest.raises(InvalidTransition, match="cannot replay"):
        letters.app.dead_letters.replay(job)


def test_a_replay_keeps_queue_and_priority(letters: Letters) -> None:
    (job,) = letters.make(queue="other")
    (copy,) = letters.app.dead_letters.replay(job)
    letter, replay = letters.app.get(job), letters.app.get(copy)
    assert (replay.queue, replay.priority) == (letter.queue, letter.priority) == ("other", letter.priority)


def test_all_letters_are_replayed_in_order(letters: Letters) -> None:
    ids = letters.make(5)
    letters.is_broken = False
    copies = letters.app.dead_letters.replay(all=True)
    letters.travel.settle()
    assert [letters.app.get(copy).origin for copy in copies] == ids
    assert sorted(letters.seen) == [0, 1, 2, 3, 4]


def test_replaying_all_twice_replays_nothing_twice(letters: Letters) -> None:
    letters.make(5)
    letters.is_broken = False
    counts = [len(letters.app.dead_letters.replay(all=True, limit=limit)) for limit in (3, None, None)]
    assert counts == [3, 2, 0]


@pytest.mark.parametrize("name", ["pay", "shop.pay"])
def test_letters_are_replayed_by_type(letters: Letters, name: str) -> None:
    @letters.app.job(name="shop.refund", retry=ONCE)
    def refund() -> None:
        raise ValueError("no")

    letters.make(2)
    refund.submit()
    letters.travel.settle()
    assert len(letters.app.dead_letters.replay(type=name)) == 2


def test_letters_are_replayed_by_queue(letters: Letters) -> None:
    letters.make(2)
    letters.make(3, queue="other")
    assert len(letters.app.dead_letters.replay(queue="other")) == 3


def test_a_rate_spreads_the_due_times(letters: Letters) -> None:
    letters.make(5)
    letters.is_broken = False
    copies = letters.app.dead_letters.replay(all=True, rate=2)
    dues = [letters.app.get(copy).due - letters.travel.now for copy in copies]
    assert dues == [timedelta(seconds=place / 2) for place in range(5)]
    letters.travel.fast_forward(1)
    assert letters.seen == [0, 1, 2]


def test_all_has_to_be_said(letters: Letters) -> None:
    ids = letters.make(2)
    with pytest.raises(ValueError, match=r"say which dead letters: .* and replay\(all=True\) all of them"):
        letters.app.dead_letters.replay()
    with pytest.raises(ValueError, match="which dead letters"):
        letters.app.dead_letters.replay(limit=1, rate=1)
    for others in ({"all": True}, {"type": "pay"}, {"queue": "default"}):
        with pytest.raises(ValueError, match="ids of dead letters cannot be combined"):
            letters.app.dead_letters.replay(ids[0], **others)
    assert len(letters.app.dead_letters.list()) == 2


def test_of_several_ids_all_can_be_replayed_or_none_is(letters: Letters) -> None:
    ids = letters.make(3)
    letters.app.dead_letters.replay(ids[2])
    with pytest.raises(InvalidTransition, match="was replayed as"):
        letters.app.dead_letters.replay(*ids)
    assert len(letters.app.dead_letters.replay(ids[0], ids[1], ids[0])) == 2


@pytest.mark.parametrize("rate", [0, -1, float("nan")])
def test_a_rate_that_is_none_is_refused(letters: Letters, rate: float) -> None:
    with pytest.raises(ValueError, match="rate must be a positive number"):
        letters.app.dead_letters.replay(all=True, rate=rate)


def test_more_letters_than_a_page_are_replayed(letters: Letters, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "PAGE", 4)
    letters.make(10)
    letters.is_broken = False
    assert len(set(letters.app.dead_letters.replay(all=True))) == 10


def test_a_replay_that_is_stopped_tells_exactly_what_was_replayed(
    letters: Letters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "CHUNK", 2)
    ids = letters.make(5)
    letters.is_broken = False
    replaying = letters.app.dead_letters.replaying(all=True)
    assert [letter for letter, _ in next(replaying)] == ids[:2]
    assert [letter.id for letter in letters.app.dead_letters.list()] == ids[2:]
    letters.app.dead_letters.replay(ids[2])  # by another caller
    assert [[letter for letter, _ in pairs] for pairs in replaying] == [[ids[3]], [ids[4]]]


def test_a_replay_that_comes_too_early_ends_and_makes_new_letters(letters: Letters) -> None:
    letters.make(3)
    replayed = Background(lambda: letters.app.dead_letters.replay(all=True))
    try:
        assert len(replayed.result(PATIENCE)) == 3
    finally:
        letters.is_broken = False  # or it would never end
    letters.travel.settle()


# -- editing


def test_an_edited_letter_is_replayed_with_its_new_arguments(letters: Letters) -> None:
    (job,) = letters.make()
    letters.is_broken = False
    letters.app.dead_letters.edit(job, {"order_id": 7, "note": "by hand"})
    letters.app.dead_letters.replay(job)
    letters.travel.settle()
    assert letters.seen == [(7, "by hand")]


def test_arguments_that_are_not_named_stay_as_they_are(letters: Letters) -> None:
    handle = letters.pay.submit(1, 2, 3, note="first")
    letters.travel.settle()
    letters.is_broken = False
    letters.app.dead_letters.edit(handle.id, {"note": "second"})
    letters.app.retry(handle.id)
    letters.travel.settle()
    assert letters.seen == [(1, 2, 3, "second")]


def test_an_edit_is_checked_against_the_handler(letters: Letters) -> None:
    (job,) = letters.make()
    for changes in ({"order_id": "seven"}, {"oder_id": 7}):
        with pytest.raises(InvalidArguments):
            letters.app.dead_letters.edit(job, changes)
    assert letters.app.get(job).arguments == {"order_id": 0}


def test_an_edit_is_bounded_as_a_submit_is(letters: Letters) -> None:
    (job,) = letters.make()
    with pytest.raises(ArgumentsTooLarge):
        letters.app.dead_letters.edit(job, {"note": "x" * 2_000_000})


def test_a_job_that_is_no_dead_letter_cannot_be_edited(letters: Letters) -> None:
    job = letters.pay.after(60).submit(1).id
    with pytest.raises(InvalidTransition, match="cannot edit"):
        letters.app.dead_letters.edit(job, {"order_id": 7})


def test_a_letter_of_an_unknown_handler_cannot_be_edited(letters: Letters) -> None:
    (job,) = letters.make()
    vars(letters.app.registry)["_handlers"].clear()
    with pytest.raises(UnknownHandler):
        letters.app.dead_letters.edit(job, {"order_id": 7})


# -- purging


def test_a_purged_letter_is_gone(letters: Letters) -> None:
    ids = letters.make(3)
    assert letters.app.dead_letters.purge(*ids[:2]) == 2
    assert [letter.id for letter in letters.app.dead_letters.list()] == ids[2:]
    with pytest.raises(JobNotFound):
        letters.app.get(ids[0])


@pytest.mark.parametrize("delay", [0, 60])
def test_a_job_that_is_no_dead_letter_cannot_be_purged(letters: Letters, delay: float) -> None:
    letters.is_broken = False
    job = letters.pay.after(delay).submit(1).id
    letters.travel.settle()
    with pytest.raises(InvalidTransition, match="cannot purge"):
        letters.app.dead_letters.purge(job)
    assert letters.app.get(job).id == job


def test_a_purge_that_names_one_wrong_job_deletes_nothing(
    letters: Letters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "CHUNK", 2)
    ids = letters.make(3)
    letters.is_broken = False
    healthy = letters.pay.submit(1).id
    letters.travel.settle()
    with pytest.raises(InvalidTransition, match="cannot purge"):
        letters.app.dead_letters.purge(*ids, healthy)
    with pytest.raises(JobNotFound):
        letters.app.dead_letters.purge(*ids, "nowhere")
    assert {letter.id for letter in letters.app.dead_letters.list()} == set(ids)


def test_the_replay_of_a_purged_letter_goes_on(letters: Letters) -> None:
    (job,) = letters.make()
    letters.is_broken = False
    (copy,) = letters.app.dead_letters.replay(job, rate=1)
    letters.app.dead_letters.purge(job)
    letters.travel.settle()
    assert letters.app.get(copy).status is JobStatus.COMPLETED
