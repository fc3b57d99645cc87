"""A job as its users see it, and what the log says of jobs."""

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from mainspring import JobStatus, Mainspring, Priority, Retry
from mainspring.engines.sqlite.memory import MemoryEngine
from mainspring.jobs.backlog import WaitingJobs
from mainspring.jobs.engine import Swept
from mainspring.jobs.info import to_info
from mainspring.jobs.records import Attempt, Cause, JobRecord, NewJob, Outcome, OutcomeKind, Progress, Query
from mainspring.jobs.serializers import BUILT_IN
from mainspring.jobs.worker.attempt_log import log_refusal
from mainspring.jobs.worker.maintenance import log_rescue
from mainspring.testing import time_travel
from tests.unit.jobs.leases import make_lease

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def make_record(**fields: Any) -> JobRecord:
    """The record of a job that was just submitted, with other values for some of its fields."""
    engine = MemoryEngine()
    engine.submit([NewJob("a", "ping", "default", 1, engine.now(), b"{}", "json")])
    return replace(engine.find(Query(ids=("a",))).records[0], **fields)


def test_the_life_of_a_job_is_told_in_aware_instants(app: Mainspring) -> None:
    @app.job(queue="orders", priority=Priority.USER_BLOCKING, retry=Retry(base=10, jitter=0))
    def handler(number: int) -> int:
        if travel.now < NOON + timedelta(minutes=1):
            raise ValueError("too early")
        return number

    with time_travel(app, start=NOON) as travel:
        handle = handler.after(30).submit(7)
        travel.fast_forward(minutes=2)
        info = handle.info()
    assert (info.created, info.due) == (NOON, NOON + timedelta(minutes=1))
    assert info.started == info.finished == NOON + timedelta(seconds=60)
    assert (info.status, info.queue, info.priority) == (JobStatus.COMPLETED, "orders", Priority.USER_BLOCKING)
    assert (info.arguments, info.result, info.starts, info.failures) == ({"number": 7}, 7, 3, 2)
    assert info.worker is None
    assert [(attempt.number, attempt.started, attempt.cause) for attempt in info.history] == [
        (1, NOON + timedelta(seconds=30), Cause.FAILURE),
        (2, NOON + timedelta(seconds=40), Cause.FAILURE),
    ]


def test_a_job_that_has_not_started_has_no_lateness() -> None:
    info = to_info(make_record())
    assert (info.lateness, info.started, info.finished, info.result) == (None, None, None, None)


def test_lateness_is_the_start_after_the_due_time() -> None:
    info = to_info(make_record(due=1_000_000, started=1_250_000))
    assert info.lateness == 0.25


@pytest.mark.parametrize(
    ("later", "updated"),
    [
        ({}, 1),
        ({"started": 2_000_000}, 2),
        ({"started": 2_000_000, "history": (Attempt(1, None, 3_000_000, "crash", "died"),)}, 3),
        ({"started": 4_000_000, "progress": Progress(1, 2, None, 5_000_000)}, 5),
        ({"started": 4_000_000, "finished": 6_000_000}, 6),
    ],
)
def test_a_job_is_updated_by_its_last_change(later: dict[str, Any], updated: int) -> None:
    info = to_info(make_record(created=1_000_000, **later))
    assert info.updated == datetime.fromtimestamp(updated, UTC)


def test_a_job_that_is_due_again_for_a_retry_has_no_lateness() -> None:
    assert to_info(make_record(due=5_000_000, started=1_000_000)).lateness is None
    assert to_info(make_record(due=1_000_000, started=1_000_000)).lateness == 0


def test_attempts_are_failures_and_timeouts() -> None:
    assert to_info(make_record(failures=2, timeouts=1, crashes=5, interruptions=7)).attempts == 3


def test_an_attempt_that_never_started_is_told_too() -> None:
    (attempt,) = to_info(make_record(history=(Attempt(1, None, 2_000_000, "crash", "died"),))).history
    assert (attempt.started, attempt.error) == (None, "died")


def test_a_snapshot_cannot_bemake_record() -> None:
    info = to_info(make_record())
    with pytest.raises(dataclasses.FrozenInstanceError):
        info.status = JobStatus.FAILED  # type: ignore[misc]


@pytest.mark.parametrize(
    ("data", "codec", "shown"),
    [
        (b'{"a":1}', "json", {"a": 1}),
        (b"\x81\xa1a\x01", "msgpack", {"a": 1}),
        (b"{", "json", b"{"),
        (b"\xff", "json", b"\xff"),
        (b"\xc1", "msgpack", b"\xc1"),
    ],
)
def test_what_cannot_be_read_is_shown_as_it_is(data: bytes, codec: str, shown: Any) -> None:
    assert BUILT_IN.decode_any(data, codec) == shown


def test_a_few_of_many_rescued_jobs_are_named(caplog: pytest.LogCaptureFixture) -> None:
    log_rescue(Swept([f"job-{number}" for number in range(100)], [], ()))
    assert caplog.messages == [
        (
            "rescued 100 jobs from workers that died or were removed, to run again; job ids: "
            "job-0, job-1, job-2, job-3, job-4, ..."
        )
    ]


def test_quarantined_jobs_are_an_error_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    log_rescue(Swept([], ["order-42"], ()))
    assert caplog.messages == [
        (
            "1 job moved to the dead letters, because too many workers died during an attempt, or because "
            "at_most_once allows no further attempt: order-42"
        ),
    ]


def test_a_sweep_that_found_nothing_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    log_rescue(Swept([], [], (WaitingJobs("ping", "default", "", 1),)))
    assert caplog.messages == []


def test_an_outcome_that_was_refused_is_told(caplog: pytest.LogCaptureFixture) -> None:
    log_refusal(Outcome(make_lease(), OutcomeKind.COMPLETED))
    (message,) = caplog.messages
    assert message == (
        "the outcome of job order-42 was refused, because this worker no longer has its lease: the job was taken "
        "over by another worker, or was canceled or changed meanwhile"
    )
