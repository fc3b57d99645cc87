"""The recorder counts what the store has confirmed, by queue and type, in total and for each minute."""

from threading import Thread
from typing import Any

import pytest
from msgspec.structs import replace

from mainspring.jobs.activity import MINUTE, OTHER, ActivityRecorder, EngineNote
from mainspring.jobs.records import (
    DELAYED,
    IMMEDIATE,
    RECURRING,
    Cause,
    Conflict,
    ConflictKind,
    NewJob,
    Outcome,
    OutcomeKind,
    kind_of,
)
from mainspring.jobs.recurrence.schedule_records import Fired, Firing
from tests.unit.jobs.leases import DUE, make_lease

LEASE = make_lease()
PAIR = (LEASE.queue, LEASE.type)


class Minutes:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.minute = 100

    def now(self) -> int:
        return self.minute * MINUTE


def make_recorder(**options: Any) -> ActivityRecorder:
    return ActivityRecorder(Minutes().now, **options)


def job(queue: str = "mail", type_: str = "send", id_: str = "a") -> NewJob:
    return NewJob(id_, type_, queue, 1, 0, b"{}", "json")


def test_stored_jobs_are_counted_by_queue_and_type() -> None:
    recorder = make_recorder()
    recorder.count_submits([job()], [None])
    recorder.count_submits([job(), job(), job("mail", "fetch"), job("other queue")], [None] * 4)
    assert recorder.snapshot().submitted == {
        ("mail", "send"): 3,
        ("mail", "fetch"): 1,
        ("other queue", "send"): 1,
    }


def test_a_single_submit_counts_as_a_submit_and_a_commit() -> None:
    recorder = make_recorder()
    recorder.count_single_submit(job(), 3_000_000)
    assert recorder.has_news
    activity = recorder.snapshot()
    assert activity.submitted == {("mail", "send"): 1}
    assert (activity.commit_seconds.sum, activity.commit_operations.counts[0]) == (3_000, 1)


def test_a_job_that_was_not_stored_is_not_counted() -> None:
    recorder = make_recorder()
    conflict = Conflict("b", ConflictKind.UNIQUE)
    recorder.count_submits([job()], [conflict])
    recorder.count_submits([job(), job()], [conflict, None])
    assert recorder.snapshot().submitted == {("mail", "send"): 1}


@pytest.mark.parametrize(
    ("kind", "cause", "outcome"),
    [
        (OutcomeKind.COMPLETED, None, "completed"),
        (OutcomeKind.CANCELED, None, "canceled"),
        (OutcomeKind.SNOOZED, None, "snoozed"),
        (OutcomeKind.INTERRUPTED, None, "interrupted"),
        (OutcomeKind.FAILED, Cause.FAILURE, "failed"),
        (OutcomeKind.FAILED, None, "failed"),
        (OutcomeKind.FAILED, Cause.TIMEOUT, "timeout"),
        (OutcomeKind.FAILED, Cause.CRASH, "crashed"),
        (OutcomeKind.FAILED, Cause.DEPLOY, "interrupted"),
        (OutcomeKind.RETRY, Cause.FAILURE, "failed"),
        (OutcomeKind.RETRY, Cause.TIMEOUT, "timeout"),
        (OutcomeKind.RETRY, Cause.CRASH, "crashed"),
    ],
)
def test_an_accepted_outcome_is_counted(kind: OutcomeKind, cause: Cause | None, outcome: str) -> None:
    recorder = make_recorder()
    recorder.count_outcomes([Outcome(LEASE, kind, cause=cause)] * 2, [True, False])
    activity = recorder.snapshot()
    assert activity.attempts == {(*PAIR, outcome): 1}
    assert activity.retries == ({PAIR: 1} if kind is OutcomeKind.RETRY else {})
    assert not activity.lateness  # the handler did not begin
    assert not activity.duration


def test_a_job_that_was_handed_back_is_no_attempt() -> None:
    recorder = make_recorder()
    recorder.count_outcomes([Outcome(LEASE, OutcomeKind.HANDED_BACK)], [True])
    assert not recorder.snapshot().attempts


def test_lateness_and_duration_are_counted_by_kind() -> None:
    recorder = make_recorder()
    outcomes = [
        Outcome(replace(LEASE, kind=kind), OutcomeKind.COMPLETED, began=DUE + late, took=took)
        for kind, late, took in ((IMMEDIATE, 400, 3_000), (IMMEDIATE, 600, 5_000), (DELAYED, 7_000, 9_000))
    ]
    failed = Outcome(LEASE, OutcomeKind.FAILED, began=DUE + 100, took=2_000, cause=Cause.FAILURE)
    recorder.count_outcomes([*outcomes, failed], [True] * 4)
    activity = recorder.snapshot()
    assert {key: (h.count, h.sum) for key, h in activity.lateness.items()} == {
        (*PAIR, IMMEDIATE): (3, 1_100),
        (*PAIR, DELAYED): (1, 7_000),
    }
    assert {key: (h.count, h.sum) for key, h in activity.duration.items()} == {
        (*PAIR, IMMEDIATE): (3, 10_000),
        (*PAIR, DELAYED): (1, 9_000),
    }
    assert activity.attempts == {(*PAIR, "completed"): 3, (*PAIR, "failed"): 1}


def test_a_follow_up_job_counts_as_submitted() -> None:
    recorder = make_recorder()
    outcomes = [Outcome(LEASE, OutcomeKind.COMPLETED, follow_up=job("mail", "notify"))] * 2
    recorder.count_outcomes(outcomes, [True, False])
    assert recorder.snapshot().submitted == {("mail", "notify"): 1}


def test_the_stored_jobs_of_a_firing_count_as_submitted() -> None:
    recorder = make_recorder()
    jobs = (job(id_="a"), job(id_="b"))
    firing = Firing("nightly", 1, None, None, None, jobs, "skip", ())  # type: ignore[arg-type]
    recorder.count_firings([firing, firing], [Fired(True, ("b",)), Fired(False)])
    assert recorder.snapshot().submitted == {("mail", "send"): 1}


def test_notes_of_the_engine_are_counted() -> None:
    recorder = make_recorder()
    recorder.count_notes(
        [
            EngineNote("submitted", "letters", "tell", 2),
            EngineNote("crashed", "mail", "send"),
            EngineNote("expired", "mail", "send", 3),
        ]
    )
    activity = recorder.snapshot()
    assert activity.submitted == {("letters", "tell"): 2}
    assert activity.attempts == {("mail", "send", "crashed"): 1, ("mail", "send", "expired"): 3}


def test_commits_are_counted_with_their_time_and_their_size() -> None:
    recorder = make_recorder()
    recorder.count_commit(2_000_000, 7)
    recorder.count_commit(500_000, 1)
    activity = recorder.snapshot()
    assert (activity.commit_seconds.count, activity.commit_seconds.sum) == (2, 2_500)
    assert (activity.commit_operations.count, activity.commit_operations.sum) == (2, 8)


def test_further_pairs_are_counted_as_other() -> None:
    recorder = make_recorder(max_pairs=2)
    for n in range(4):
        recorder.count_submits([job(f"queue {n}")], [None])
    recorder.count_notes([EngineNote("expired", "queue 0", "send"), EngineNote("expired", "queue 9", "send")])
    activity = recorder.snapshot()
    assert activity.submitted == {("queue 0", "send"): 1, ("queue 1", "send"): 1, (OTHER, OTHER): 2}
    assert activity.attempts == {("queue 0", "send", "expired"): 1, (OTHER, OTHER, "expired"): 1}


def test_later_counts_do_not_change_a_snapshot() -> None:
    recorder = make_recorder()
    recorder.count_outcomes([Outcome(LEASE, OutcomeKind.COMPLETED, began=DUE, took=1)], [True])
    before = recorder.snapshot()
    recorder.count_outcomes([Outcome(LEASE, OutcomeKind.COMPLETED, began=DUE, took=1)], [True])
    assert before.attempts == {(*PAIR, "completed"): 1}
    assert before.duration[*PAIR, IMMEDIATE].count == 1


def test_each_minute_has_its_own_counts_and_is_taken_once() -> None:
    clock = Minutes()
    recorder = ActivityRecorder(clock.now, keeps_minutes=True)
    assert not recorder.has_news
    recorder.count_submits([job()], [None])
    clock.minute = 101
    recorder.count_submits([job(), job()], [None, None])
    recorder.count_outcomes([Outcome(LEASE, OutcomeKind.COMPLETED, began=DUE, took=1)], [True])
    assert recorder.has_news
    minutes = recorder.take_minutes()
    assert {minute: tally.submitted for minute, tally in minutes.items()} == {
        100: {("mail", "send"): 1},
        101: {("mail", "send"): 2},
    }
    assert minutes[101].attempts == {(*PAIR, "completed"): 1}
    assert not recorder.has_news
    assert recorder.take_minutes() == {}
    recorder.count_submits([job()], [None])
    assert recorder.snapshot().submitted == {("mail", "send"): 4}  # taken minutes count, and those not taken


def test_notes_do_not_pile_up() -> None:
    recorder = make_recorder()
    for _ in range(1_000):
        recorder.count_submits([job()], [None])
        recorder.count_outcomes([Outcome(LEASE, OutcomeKind.COMPLETED)], [True])
        recorder.count_commit(1, 1)
        recorder.count_single_submit(job(), 1)
    waiting = (recorder._submits, recorder._single_submits, recorder._attempts, recorder._commits)
    assert all(len(notes) < 256 for notes in waiting)
    activity = recorder.snapshot()
    assert activity.submitted == {("mail", "send"): 2_000}
    assert activity.attempts == {(*PAIR, "completed"): 1_000}
    assert activity.commit_seconds.count == 2_000


def test_threads_lose_no_counts() -> None:
    recorder = make_recorder(keeps_minutes=True)
    taken = 0

    def submit() -> None:
        for _ in range(1_500):
            recorder.count_submits([job()], [None])
            recorder.count_single_submit(job(), 1)

    threads = [Thread(target=submit) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        taken += sum(sum(tally.submitted.values()) for tally in recorder.take_minutes().values())
        recorder.snapshot()
    taken += sum(sum(tally.submitted.values()) for tally in recorder.take_minutes().values())
    assert taken == 12_000
    assert recorder.snapshot().submitted == {("mail", "send"): 12_000}


def test_a_signal_handler_may_count_in_the_middle_of_counting(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Minutes()
    recorder = ActivityRecorder(clock.now)
    count = recorder._add_submits

    def interrupted(*arguments: Any) -> None:
        monkeypatch.undo()
        for _ in range(300):
            recorder.count_single_submit(job(), 1)
        count(*arguments)

    monkeypatch.setattr(recorder, "_add_submits", interrupted)
    recorder.count_submits([job()], [None])
    assert recorder.snapshot().submitted == {("mail", "send"): 301}


@pytest.mark.parametrize(
    ("due", "schedule", "kind"),
    [(100, None, IMMEDIATE), (99, None, IMMEDIATE), (101, None, DELAYED), (99, "nightly", RECURRING)],
)
def test_the_kind_of_a_job(due: int, schedule: str | None, kind: str) -> None:
    assert kind_of(due=due, created=100, schedule=schedule) == kind
