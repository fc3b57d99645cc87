"""The rule by which a worker on NATS counts as dead: how often and how long it was absent, and who confirms it."""

import pytest

from mainspring.engines.nats.presence import (
    ABSENCE_SECONDS,
    SERVER_KEPT_SECONDS,
    WATCHED,
    AbsenceCounter,
    Presence,
    ServerAnswer,
    ServerRoster,
    Sign,
    _ConnectionList,
    _ServerIdentity,
    choose_watched,
    is_closed,
)
from mainspring.engines.nats.workers import CONFIRMED_SECONDS

PRESENCE = Presence("token", "ID-A", 17)


def sign(worker: int = 1, revision: int = 5, token: str = "token") -> Sign:
    return Sign(worker, revision, Presence(token, "ID-A", 17))


# -- counting


def test_a_worker_is_dead_after_three_absences_over_two_seconds() -> None:
    counter = AbsenceCounter()
    times = (10.0, 11.0, 12.1)
    assert [counter.absent(sign(), sent=at, answered=at + 0.01) for at in times] == [False, False, True]


def test_two_absences_are_not_enough() -> None:
    counter = AbsenceCounter()
    assert not counter.absent(sign(), sent=0, answered=0)
    assert not counter.absent(sign(), sent=60, answered=60)
    assert counter.absent(sign(), sent=61, answered=61)


def test_the_time_counts_from_the_first_answer_to_the_last_message() -> None:
    """Answers that were held back by the network tell nothing about the time in between."""
    counter = AbsenceCounter()
    assert not counter.absent(sign(), sent=0.0, answered=0.9)
    assert not counter.absent(sign(), sent=1.0, answered=1.9)
    assert not counter.absent(sign(), sent=2.0, answered=2.9)
    assert not counter.absent(sign(), sent=2.89, answered=9.9)
    assert counter.absent(sign(), sent=2.9, answered=2.9)


def test_a_sign_of_life_starts_the_count_again() -> None:
    counter = AbsenceCounter()
    for at in (0, 1):
        counter.absent(sign(), sent=at, answered=at)
    counter.present(sign())
    assert [counter.absent(sign(), sent=at, answered=at) for at in (2, 3, 4)] == [False, False, True]


def test_a_heartbeat_starts_the_count_again() -> None:
    counter = AbsenceCounter()
    for at in (0, 1):
        counter.absent(sign(), sent=at, answered=at)
    later = sign(revision=6)
    assert [counter.absent(later, sent=at, answered=at) for at in (2, 3, 4)] == [False, False, True]


def test_workers_are_counted_apart_and_those_that_are_not_watched_are_forgotten() -> None:
    counter = AbsenceCounter()
    for at in (0, 1):
        counter.absent(sign(1), sent=at, answered=at)
        counter.absent(sign(2), sent=at, answered=at)
    counter.keep([1])
    assert counter.absent(sign(1), sent=2, answered=2)
    assert not counter.absent(sign(2), sent=2, answered=2)
    counter.clear()
    assert not counter.absent(sign(1), sent=3, answered=3)


def test_a_worker_that_is_cut_off_stops_starting_jobs_before_it_can_be_declared_dead() -> None:
    assert CONFIRMED_SECONDS <= ABSENCE_SECONDS / 2


# -- confirming


def answer(name: str, *, cluster: str = "", connections: int | None = 0) -> ServerAnswer:
    data = None if connections is None else _ConnectionList(connections)
    return ServerAnswer(_ServerIdentity(name, f"ID-{name}", cluster), data)


def answers(*given: ServerAnswer) -> dict[str, ServerAnswer]:
    return {answer.server.name: answer for answer in given}


def test_the_server_of_the_connection_confirms_that_it_is_closed() -> None:
    assert is_closed(PRESENCE, answers(answer("A")), set())
    assert not is_closed(PRESENCE, answers(answer("A", connections=1)), set())
    assert not is_closed(PRESENCE, answers(answer("A", connections=None)), set())  # it refused to answer


def test_another_server_or_none_confirms_nothing() -> None:
    assert not is_closed(PRESENCE, {}, set())
    assert not is_closed(PRESENCE, answers(answer("B", cluster="C")), set())


def test_in_a_cluster_no_server_may_be_missing() -> None:
    both = answers(answer("A", cluster="C"), answer("B", cluster="C", connections=1))
    assert is_closed(PRESENCE, both, {"A", "B"})  # the number of a connection on another server means nothing
    assert not is_closed(PRESENCE, both, {"A", "B", "C"})
    assert is_closed(PRESENCE, answers(answer("A")), {"A", "name before a restart"})  # no cluster: it is alone


def test_a_server_that_has_not_answered_for_long_is_not_missed() -> None:
    roster = ServerRoster()
    roster.add(["A", "B"], 0.0)
    roster.add(["A"], 100.0)
    assert roster.names(SERVER_KEPT_SECONDS - 1) == {"A", "B"}
    assert roster.names(SERVER_KEPT_SECONDS) == {"A"}


# -- who watches whom


@pytest.mark.parametrize("count", [2, 3, WATCHED + 1, 10])
def test_every_process_is_watched_by_as_many_others(count: int) -> None:
    signs = [sign(number, token=f"process {number}") for number in range(count)]
    watched = [
        process[0].worker
        for own in range(count)
        for process in choose_watched((other for other in signs if other.worker != own), own)
    ]
    assert sorted(watched) == sorted(list(range(count)) * min(WATCHED, count - 1))


def test_the_workers_of_a_process_are_watched_together() -> None:
    signs = [sign(4, token="a"), sign(2, token="b"), sign(3, token="a")]
    assert choose_watched(signs, 9) == [[signs[1]], [signs[2], signs[0]]]
