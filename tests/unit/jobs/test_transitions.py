"""What becomes of a job at each step: the facts that every engine which keeps records builds on."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import asdict, replace

from mainspring.jobs.commands import Replay
from mainspring.jobs.engine import MAX_CRASHES
from mainspring.jobs.records import (
    STATUS_AFTER,
    Attempt,
    Cause,
    FollowUp,
    JobRecord,
    Lease,
    NewJob,
    Outcome,
    OutcomeKind,
    UniqueKey,
)
from mainspring.jobs.status import TRANSITIONS, JobStatus
from mainspring.jobs.transitions import (
    can_settle,
    canceled,
    copy_of,
    expired,
    has_expired,
    held,
    is_leased,
    keeps_turn,
    lease_of,
    lease_revoked,
    reopened,
    replaced,
    rescued,
    settled,
    started,
    started_by_holder,
    submitted,
)

DUE, NOW = 1_000, 5_000
WORKER, OTHER = 7, 8

NEW = NewJob(
    id="order-42",
    type="shop.pay",
    queue="orders",
    priority=2,
    due=DUE,
    payload=b"{}",
    codec="json",
    origin="letter-1",
    sequence="customer-1",
    steps_aside=True,
    limits=("rate",),
    unique=UniqueKey("order", (JobStatus.PENDING,)),
    expires=90_000,
    schedule="nightly",
    occurrence=3,
    headers={"trace": "1"},
    follow_up=FollowUp("shop.ship", "orders", 2),
)


class Filed(JobRecord, frozen=True):
    """A record with something of its own, as an engine may have it."""

    shelf: int = 0


FILED = submitted(Filed, NEW, NOW, shelf=4)
HELD = held(FILED, WORKER)
RUNNING = started(FILED, WORKER, NOW, is_held=False)
LETTER = replace(
    RUNNING, status=JobStatus.FAILED, owner=None, finished=NOW, error="no", failures=3, timeouts=2, crashes=1
)
STOPPED = replace(RUNNING, stop_requested=True)
ATTEMPT = Attempt(1, NOW, NOW, "failure", "no")


def outcome_of(job: JobRecord, kind: OutcomeKind, **details: Any) -> Outcome:
    is_started = job.status is not JobStatus.PENDING
    return Outcome(lease_of(job, 1, is_started=is_started), kind, **details)


def end(job: Filed, kind: OutcomeKind, **details: Any) -> Filed:
    return settled(job, outcome_of(job, kind, **details), NOW + 1)


def differences(before: JobRecord, after: JobRecord) -> dict[str, Any]:
    """The fields that a step has changed, as they are afterwards."""
    old = asdict(before)
    return {name: value for name, value in asdict(after).items() if value != old[name]}


STEPS = {
    "held": (FILED, HELD),
    "started": (FILED, RUNNING),
    "started by its holder": (HELD, started_by_holder(HELD, NOW)),
    "taken back": (HELD, lease_revoked(HELD)),
    "canceled": (HELD, canceled(HELD, NOW)),
    "expired": (FILED, expired(FILED, NOW)),
    "reopened": (LETTER, reopened(LETTER, NOW)),
    "replaced": (HELD, replaced(HELD, NEW)),
    "rescued from a hand": (HELD, rescued(HELD, NOW)),
    "rescued": (RUNNING, rescued(RUNNING, NOW)),
    "quarantined": (RUNNING, rescued(RUNNING, NOW, 1)),
    "rescued and to stop": (STOPPED, rescued(STOPPED, NOW)),
    **{kind.value: (RUNNING, end(RUNNING, kind)) for kind in OutcomeKind},
}
every_step = pytest.mark.parametrize(("before", "after"), STEPS.values(), ids=STEPS)


@every_step
def test_every_step_keeps_the_kind_of_the_record_and_what_it_has_of_its_own(before: Filed, after: Filed) -> None:
    assert (type(after), after.shelf, after.id) == (Filed, before.shelf, before.id)


@every_step
def test_every_step_is_in_the_table_of_moves(before: Filed, after: Filed) -> None:
    assert after.status is before.status or after.status in TRANSITIONS[before.status]


@every_step
def test_a_job_has_an_end_exactly_if_it_has_ended(before: Filed, after: Filed) -> None:
    assert [job.finished is not None for job in (before, after)] == [before.status.is_final, after.status.is_final]


@every_step
def test_only_a_job_that_runs_is_to_stop_and_none_that_has_ended_is_in_a_hand(before: Filed, after: Filed) -> None:
    for job in (before, after):
        assert job.status is JobStatus.RUNNING or not job.stop_requested
        assert job.owner is None or not job.status.is_final


# -- submitting


def test_a_submitted_job_has_all_that_the_new_one_has() -> None:
    filed = submitted(Filed, NEW, NOW, shelf=4)
    kept_elsewhere = ("unique", "search")  # the key of the first is in the record; the second is an index
    wanted = {name: getattr(NEW, name) for name in NEW.__struct_fields__ if name not in kept_elsewhere}
    assert {name: getattr(filed, name) for name in wanted} == wanted
    assert (filed.unique_key, filed.shelf) == ("order", 4)


def test_a_submitted_job_has_no_past() -> None:
    filed = submitted(Filed, NEW, NOW)
    assert (filed.status, filed.created, filed.owner, filed.token) == (JobStatus.PENDING, NOW, None, 0)
    counters = (filed.starts, filed.failures, filed.timeouts, filed.crashes, filed.interruptions)
    assert (counters, filed.history, filed.progress) == ((0, 0, 0, 0, 0), (), None)
    assert filed.stop_requested is False


def test_a_job_without_a_unique_key_is_submitted_as_a_plain_record() -> None:
    record = submitted(JobRecord, replace(NEW, unique=None), NOW)
    assert (type(record), record.unique_key) == (JobRecord, None)


# -- holding and starting


def test_a_held_job_has_an_owner_and_a_new_token() -> None:
    assert differences(FILED, held(FILED, WORKER)) == {"owner": WORKER, "token": 1}


def test_a_start_from_the_queue_raises_the_token() -> None:
    changes = {"status": JobStatus.RUNNING, "owner": WORKER, "token": 1, "starts": 1, "started": NOW}
    assert differences(FILED, started(FILED, WORKER, NOW, is_held=False)) == changes


def test_a_start_of_a_held_job_keeps_the_token() -> None:
    running = started(HELD, WORKER, NOW, is_held=True)
    assert differences(HELD, running) == {"status": JobStatus.RUNNING, "starts": 1, "started": NOW}
    assert running == started_by_holder(HELD, NOW)


def test_a_start_ahead_of_its_due_time_counts_from_then() -> None:
    assert started_by_holder(HELD, DUE - 1).started == DUE


def test_a_held_job_that_is_taken_back_is_free_and_its_lease_is_no_longer_good() -> None:
    lease = lease_of(HELD, 1, is_started=False)
    free = lease_revoked(HELD)
    assert differences(HELD, free) == {"owner": None, "token": 2}
    assert not is_leased(held(free, WORKER), lease, WORKER, JobStatus.PENDING)


def test_a_job_without_a_holder_is_taken_back_as_it_is() -> None:
    assert lease_revoked(FILED) is FILED


# -- leases


def test_a_lease_carries_what_its_job_has() -> None:
    lease = lease_of(LETTER, "a-ref", is_started=True, at_most_once=True)
    own = ("ref", "is_started", "at_most_once", "kind", "spent", "verified_until")
    names = [name for name in Lease.__struct_fields__ if name not in own]
    assert {name: getattr(lease, name) for name in names} == {name: getattr(LETTER, name) for name in names}
    assert (lease.ref, lease.is_started, lease.at_most_once) == ("a-ref", True, True)
    assert not lease_of(LETTER, "a-ref", is_started=True).at_most_once
    dues = (LETTER.created, LETTER.created + 1)
    jobs = [replace(LETTER, due=due, schedule=None) for due in dues] + [replace(LETTER, schedule="nightly")]
    kinds = [lease_of(job, "a-ref", is_started=True).kind for job in jobs]
    assert kinds == ["immediate", "delayed", "recurring"]


@pytest.mark.parametrize(
    ("job", "worker", "is_good_still"),
    [
        (RUNNING, WORKER, True),
        (RUNNING, OTHER, False),
        (replace(RUNNING, token=2), WORKER, False),
        (replace(RUNNING, status=JobStatus.COMPLETED), WORKER, False),
    ],
    ids=["the same", "another worker", "another token", "another state"],
)
def test_a_lease_is_good_for_one_worker_token_and_state(job: Filed, worker: int, *, is_good_still: bool) -> None:
    outcome = outcome_of(RUNNING, OutcomeKind.COMPLETED)
    assert is_leased(job, outcome.lease, worker, JobStatus.RUNNING) is is_good_still
    assert can_settle(job, outcome, worker) is is_good_still


@pytest.mark.parametrize("kind", OutcomeKind)
def test_what_is_only_held_can_be_handed_back_and_nothing_else(kind: OutcomeKind) -> None:
    assert can_settle(HELD, outcome_of(HELD, kind), WORKER) is (kind is OutcomeKind.HANDED_BACK)


def test_a_held_job_that_runs_by_now_is_not_handed_back_as_held() -> None:
    outcome = outcome_of(HELD, OutcomeKind.HANDED_BACK)
    assert not can_settle(started_by_holder(HELD, NOW), outcome, WORKER)


# -- settling


@pytest.mark.parametrize("kind", OutcomeKind)
def test_an_outcome_leads_to_its_state(kind: OutcomeKind) -> None:
    assert end(RUNNING, kind).status is STATUS_AFTER[kind]


@pytest.mark.parametrize("kind", OutcomeKind)
def test_a_job_that_is_to_stop_never_runs_again(kind: OutcomeKind) -> None:
    wanted = STATUS_AFTER[kind]
    after = end(STOPPED, kind)
    assert after.status is (JobStatus.CANCELED if wanted is JobStatus.PENDING else wanted)
    assert (after.stop_requested, after.finished) == (False, NOW + 1)


def test_a_completed_job_has_its_result_and_the_error_of_an_earlier_attempt_is_forgotten() -> None:
    again = replace(RUNNING, error="no", failures=1, history=(ATTEMPT,))
    after = end(again, OutcomeKind.COMPLETED, result=b"1")
    assert (after.result, after.error, after.failures, after.history) == (b"1", None, 1, (ATTEMPT,))


@pytest.mark.parametrize("kind", [kind for kind in OutcomeKind if kind is not OutcomeKind.COMPLETED])
def test_whatever_does_not_complete_gives_no_result_and_keeps_the_last_error(kind: OutcomeKind) -> None:
    after = end(replace(RUNNING, error="before"), kind, result=b"1")
    assert (after.result, after.error) == (None, "before")


@pytest.mark.parametrize(
    ("cause", "counter"),
    [(Cause.FAILURE, "failures"), (Cause.TIMEOUT, "timeouts"), (Cause.CRASH, "crashes")],
    ids=str,
)
@pytest.mark.parametrize("kind", [OutcomeKind.RETRY, OutcomeKind.FAILED])
def test_an_attempt_is_charged_to_its_cause_and_remembered(kind: OutcomeKind, cause: Cause, counter: str) -> None:
    after = end(RUNNING, kind, cause=cause, error="no", began=NOW - 5)
    counters = {name: getattr(after, name) for name in ("failures", "timeouts", "crashes", "interruptions")}
    assert counters == {**dict.fromkeys(counters, 0), counter: 1}
    assert after.history == (Attempt(1, NOW - 5, NOW + 1, cause.value, "no", "7"),)
    assert (after.error, after.started) == ("no", NOW - 5)


def test_attempts_are_remembered_in_their_order() -> None:
    again = replace(RUNNING, history=(ATTEMPT,), starts=2)
    after = end(again, OutcomeKind.RETRY, cause=Cause.TIMEOUT, error="slow")
    assert after.history == (ATTEMPT, Attempt(2, NOW, NOW + 1, "timeout", "slow", "7"))


def test_an_interrupted_attempt_is_remembered_and_costs_nothing() -> None:
    after = end(RUNNING, OutcomeKind.INTERRUPTED)
    assert (after.interruptions, after.failures, after.starts, after.due) == (1, 0, 1, DUE)
    assert after.history == (Attempt(1, NOW, NOW + 1, "deploy", "interrupted by a shutdown", "7"),)


def test_the_worker_of_an_attempt_has_its_name_and_one_that_is_not_remembered_is_not_looked_up() -> None:
    asked = []

    def name(worker: int) -> str:
        asked.append(worker)
        return f"host:{worker}"

    done = settled(RUNNING, outcome_of(RUNNING, OutcomeKind.COMPLETED), NOW, worker_name=name)
    assert (done.history, asked) == ((), [])
    failed = settled(RUNNING, outcome_of(RUNNING, OutcomeKind.FAILED, cause=Cause.FAILURE), NOW, worker_name=name)
    assert [attempt.worker for attempt in failed.history] == ["host:7"]
    assert [attempt.worker for attempt in rescued(RUNNING, NOW, worker_name=name).history] == ["host:7"]
    assert asked == [WORKER, WORKER]


@pytest.mark.parametrize("kind", [OutcomeKind.RETRY, OutcomeKind.SNOOZED])
def test_a_job_that_runs_later_is_due_then(kind: OutcomeKind) -> None:
    assert end(RUNNING, kind, due=NOW + 100).due == NOW + 100


def test_a_snooze_is_no_attempt_to_be_remembered() -> None:
    after = end(RUNNING, OutcomeKind.SNOOZED, due=NOW + 100)
    assert (after.history, after.starts) == ((), 1)


def test_a_started_job_that_is_handed_back_is_as_if_it_had_not_been_taken() -> None:
    assert differences(FILED, end(RUNNING, OutcomeKind.HANDED_BACK)) == {"token": 1}


def test_a_later_attempt_that_is_handed_back_leaves_the_starts_before_it() -> None:
    after = end(replace(RUNNING, starts=2), OutcomeKind.HANDED_BACK)
    assert (after.starts, after.started) == (1, NOW)


def test_a_held_job_that_is_handed_back_is_free() -> None:
    assert differences(HELD, end(HELD, OutcomeKind.HANDED_BACK)) == {"owner": None}


# -- rescuing


def test_a_held_job_of_a_dead_worker_is_free_and_not_charged() -> None:
    assert differences(HELD, rescued(HELD, NOW)) == {"owner": None}


def test_a_running_job_of_a_dead_worker_is_charged_with_a_crash_and_runs_again() -> None:
    after = rescued(RUNNING, NOW + 1)
    assert differences(RUNNING, after).keys() == {"status", "owner", "crashes", "history", "expires"}
    assert after.expires is None  # it has started in time
    assert (after.status, after.owner, after.crashes) == (JobStatus.PENDING, None, 1)
    assert after.history == (Attempt(1, NOW, NOW + 1, "crash", "its worker 7 died", "7"),)


def test_only_a_job_that_has_not_started_expires() -> None:
    waits = replace(RUNNING, status=JobStatus.PENDING, owner=None, starts=0, expires=NOW)
    assert [has_expired(waits, now) for now in (NOW - 1, NOW, NOW + 1)] == [False, True, True]
    assert not has_expired(replace(waits, expires=None), NOW)
    assert not has_expired(replace(waits, starts=1), NOW + 1)  # the record is of an earlier version


def test_only_a_started_job_of_a_sequence_that_does_not_step_aside_keeps_its_turn() -> None:
    started = replace(RUNNING, starts=1, sequence="key", steps_aside=False)
    assert keeps_turn(started)
    assert not keeps_turn(replace(started, starts=0))
    assert not keeps_turn(replace(started, sequence=None))
    assert not keeps_turn(replace(started, steps_aside=True))


def test_the_last_crash_makes_a_dead_letter() -> None:
    nearly = replace(RUNNING, crashes=MAX_CRASHES - 2)
    assert rescued(nearly, NOW).status is JobStatus.PENDING
    letter = rescued(replace(nearly, crashes=MAX_CRASHES - 1), NOW)
    assert (letter.status, letter.finished) == (JobStatus.FAILED, NOW)
    assert letter.error == f"quarantined: {MAX_CRASHES} workers died while they ran it"


def test_one_crash_makes_a_dead_letter_of_a_job_that_runs_at_most_once() -> None:
    after = rescued(RUNNING, NOW, at_most_once=True)
    assert (after.status, after.finished, after.crashes) == (JobStatus.FAILED, NOW, 1)
    assert after.error == f"at most once: its worker {WORKER} died after it had started"
    held_only = rescued(HELD, NOW, at_most_once=True)
    assert (held_only.status, held_only.owner) == (JobStatus.PENDING, None)


@pytest.mark.parametrize(
    ("job", "once", "status", "error"),
    [
        (RUNNING, False, JobStatus.PENDING, None),
        (replace(RUNNING, crashes=MAX_CRASHES), False, JobStatus.PENDING, None),
        (STOPPED, True, JobStatus.CANCELED, None),
        (RUNNING, True, JobStatus.FAILED, "at most once: it had started, and its worker 7 was removed"),
    ],
)
def test_a_job_whose_worker_was_removed_is_interrupted(
    job: JobRecord, *, once: bool, status: JobStatus, error: str | None
) -> None:
    after = rescued(job, NOW + 1, at_most_once=once, removed="was removed")
    assert (after.status, after.owner, after.crashes, after.interruptions) == (status, None, job.crashes, 1)
    assert (after.error, after.stop_requested) == (error, False)
    assert after.history == (Attempt(1, NOW, NOW + 1, "deploy", "its worker 7 was removed", "7"),)


def test_how_many_crashes_are_too_many_can_be_told() -> None:
    assert [rescued(RUNNING, NOW, most).status for most in (1, 2)] == [JobStatus.FAILED, JobStatus.PENDING]


def test_a_job_that_was_to_stop_when_its_worker_died_is_canceled_even_by_its_last_crash() -> None:
    after = rescued(STOPPED, NOW, 1)
    assert (after.status, after.crashes, after.error) == (JobStatus.CANCELED, 1, None)
    assert (after.stop_requested, after.finished) == (False, NOW)


# -- calling off, expiring, running again


def test_a_canceled_job_says_that_it_never_started() -> None:
    changes = {"status": JobStatus.CANCELED, "owner": None, "finished": NOW, "error": "canceled before it started"}
    assert differences(HELD, canceled(HELD, NOW)) == changes


def test_an_expired_job_says_so_and_remembers_no_attempt() -> None:
    error = "expired: it did not start within its time"
    assert differences(FILED, expired(FILED, NOW)) == {"status": JobStatus.FAILED, "finished": NOW, "error": error}


def test_a_reopened_letter_has_all_its_attempts_again_and_keeps_its_history() -> None:
    letter = replace(LETTER, history=(ATTEMPT,))
    after = reopened(letter, NOW + 9)
    assert differences(letter, after) == {
        "status": JobStatus.PENDING,
        "due": NOW + 9,
        "expires": None,
        "finished": None,
        "error": None,
        "failures": 0,
        "timeouts": 0,
        "crashes": 0,
    }


def test_a_replaced_job_takes_over_arguments_and_times_and_nothing_else() -> None:
    like_it = replace(
        NEW, id="order-43", type="shop.other", queue="else", priority=9, sequence=None, follow_up=None
    )
    other = replace(like_it, due=NOW + 9, payload=b"[]", codec="cbor", limits=(), expires=None, headers=None)
    assert differences(FILED, replaced(FILED, other)) == {
        "due": NOW + 9,
        "payload": b"[]",
        "codec": "cbor",
        "limits": (),
        "expires": None,
        "headers": None,
    }


def test_a_replaced_job_is_taken_from_its_holder() -> None:
    assert replaced(HELD, NEW) == lease_revoked(HELD)


def test_the_copy_of_a_letter_is_like_it_but_for_key_schedule_and_expiry() -> None:
    copy = copy_of(LETTER, Replay(LETTER.id, "copy", NOW + 9))
    like_it = replace(NEW, id="copy", due=NOW + 9, origin="order-42")
    assert copy == replace(like_it, unique=None, schedule=None, occurrence=None, expires=None)


@pytest.mark.parametrize("payload", [b"[1]", b""], ids=repr)
def test_the_copy_of_a_letter_may_get_other_arguments_even_empty_ones(payload: bytes) -> None:
    copy = copy_of(LETTER, Replay(LETTER.id, "copy", NOW, payload, "raw"))
    assert (copy.payload, copy.codec) == (payload, "raw")
