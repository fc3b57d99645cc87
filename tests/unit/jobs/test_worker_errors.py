"""A worker whose store fails, whose handlers hang, or that has to stop: nothing is lost, nothing runs twice."""

import asyncio
import logging

import pytest

from mainspring import JobStatus, Retry, current_job
from mainspring.jobs.records import Cause, OutcomeKind
from tests.support import Background, Gate
from tests.unit.jobs.manager_fixture import ManagerFixture


@pytest.fixture
def ran(shop: ManagerFixture) -> list[str]:
    """The ids of the jobs that handler `ping` has run."""
    ids: list[str] = []
    shop.manager.register("ping", lambda: ids.append(current_job().id))
    return ids


# -- a store that fails


def test_jobs_that_cannot_be_taken_are_taken_later(
    shop: ManagerFixture, ran: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    shop.manager.start()
    shop.clock.settle()
    shop.engine.fail("take", 3)
    job = shop.manager.submit("ping")
    shop.clock.settle()
    before = list(ran)
    shop.clock.advance(5)
    assert (before, ran) == ([], [job])
    assert "the worker could not fetch jobs and tries again in a second: test: take fails" in caplog.text


def test_a_start_that_cannot_be_stored_is_tried_again_and_runs_once(shop: ManagerFixture, ran: list[str]) -> None:
    shop.manager.start()
    job = shop.manager.submit("ping", delay=0.5)
    shop.clock.settle()
    shop.engine.fail("start")
    shop.clock.advance(5)
    assert ran == [job]
    assert shop.manager.get(job).status is JobStatus.COMPLETED


def test_nothing_runs_whose_start_was_not_stored(shop: ManagerFixture, ran: list[str]) -> None:
    shop.manager.start()
    shop.manager.submit("ping", delay=0.5)
    shop.clock.settle()
    shop.engine.fail("start", 1_000)
    shop.engine.fail("take", 1_000)
    shop.clock.advance(3)
    assert ran == []


def test_an_outcome_that_cannot_be_stored_is_kept_until_it_can(shop: ManagerFixture, ran: list[str]) -> None:
    shop.manager.start()
    shop.engine.fail("settle", 3)
    job = shop.manager.submit("ping")
    shop.clock.settle()
    before = shop.manager.get(job).status
    shop.clock.advance(10)
    assert (before, shop.manager.get(job).status) == (JobStatus.RUNNING, JobStatus.COMPLETED)
    assert ran == [job]


def test_a_worker_that_cannot_enroll_says_so_and_can_be_started_again(
    shop: ManagerFixture, ran: list[str]
) -> None:
    shop.engine.fail("enroll")
    with pytest.raises(Exception, match="enroll fails"):
        shop.manager.start()
    shop.manager.start()
    job = shop.manager.submit("ping")
    shop.clock.settle()
    assert ran == [job]


# -- handlers that take too long


class Hanging:
    """A coroutine function that hangs, and says when it has begun."""

    def __init__(self) -> None:
        self._gate = Gate()
        self._gate.open()
        self.wait_until_entered = self._gate.wait_until_entered

    def register(self, shop: ManagerFixture, max_attempts: int) -> None:
        async def hang() -> None:
            self._gate()
            await asyncio.Event().wait()

        shop.manager.register("hang", hang, timeout=5, retry=Retry(max_attempts=max_attempts, base=1, jitter=0))
        shop.manager.start()


@pytest.fixture
def hanging() -> Hanging:
    return Hanging()


def test_a_coroutine_is_canceled_at_its_timeout_and_tried_again(shop: ManagerFixture, hanging: Hanging) -> None:
    hanging.register(shop, max_attempts=2)
    job = shop.manager.submit("hang")
    hanging.wait_until_entered()
    shop.clock.jump(5)
    outcome = shop.wait_for_outcome()
    info = shop.manager.get(job)
    assert (outcome.kind, outcome.cause) == (OutcomeKind.RETRY, Cause.TIMEOUT)
    assert (info.status, info.timeouts, info.failures) == (JobStatus.PENDING, 1, 0)
    assert [attempt.cause for attempt in info.history] == [Cause.TIMEOUT]


def test_a_coroutine_that_times_out_every_time_is_a_dead_letter(shop: ManagerFixture, hanging: Hanging) -> None:
    hanging.register(shop, max_attempts=2)
    job = shop.manager.submit("hang")
    for _ in range(2):
        hanging.wait_until_entered()
        shop.clock.jump(5)
        shop.engine.wait_for("settle")
        shop.clock.settle()
        if shop.manager.get(job).status is JobStatus.PENDING:
            shop.clock.jump(2)
    info = shop.manager.get(job)
    assert (info.status, info.timeouts, info.attempts) == (JobStatus.FAILED, 2, 2)


def test_a_timeout_is_counted_from_the_start_of_the_handler(shop: ManagerFixture, hanging: Hanging) -> None:
    hanging.register(shop, max_attempts=1)
    job = shop.manager.submit("hang", delay=60)
    shop.clock.advance(59)
    shop.clock.jump(1)
    hanging.wait_until_entered()
    shop.clock.jump(4.9)
    before = shop.manager.get(job).status
    shop.clock.jump(0.1)
    shop.engine.wait_for("settle")
    assert (before, shop.manager.get(job).status) == (JobStatus.RUNNING, JobStatus.FAILED)


def test_a_coroutine_that_ends_in_time_is_left_alone(shop: ManagerFixture) -> None:
    async def handler() -> str:
        await asyncio.sleep(0)
        return "done"

    shop.manager.register("quick", handler, timeout=5)
    shop.manager.start()
    job = shop.manager.submit("quick")
    shop.clock.advance(30)
    assert shop.manager.get(job).result == "done"


def test_a_thread_that_looks_is_stopped_at_its_timeout(shop: ManagerFixture) -> None:
    entered = Gate()
    entered.open()

    def handler() -> None:
        entered()
        while not current_job().cancelled:
            continue
        raise TimeoutError("gave up")

    shop.manager.register("slow", handler, timeout=5, retry=Retry(max_attempts=1))
    shop.manager.start()
    job = shop.manager.submit("slow")
    entered.wait_until_entered()
    shop.clock.jump(5)
    shop.engine.wait_for("settle")
    info = shop.manager.get(job)
    assert (info.status, info.timeouts, info.failures) == (JobStatus.FAILED, 1, 0)


# -- stopping


def test_a_stop_lets_handlers_finish(shop: ManagerFixture) -> None:
    gate = Gate()
    shop.manager.register("gate", gate.__call__)
    shop.manager.start()
    job = shop.manager.submit("gate")
    gate.wait_until_entered()
    stopping = Background(lambda: shop.manager.shutdown(60))
    gate.open()
    assert stopping.result().interrupted == 0
    assert shop.manager.get(job).status is JobStatus.COMPLETED


def test_a_stop_hands_back_what_does_not_finish_in_time_and_uses_up_no_attempt(shop: ManagerFixture) -> None:
    gate = Gate()
    shop.manager.register("gate", gate.__call__)
    shop.manager.start()
    job = shop.manager.submit("gate")
    gate.wait_until_entered()
    assert shop.manager.shutdown(0).interrupted == 1
    info = shop.manager.get(job)
    gate.open()
    assert (info.status, info.attempts, info.interruptions) == (JobStatus.PENDING, 0, 1)
    assert [attempt.cause for attempt in info.history] == [Cause.DEPLOY]


def test_what_an_interrupted_handler_returns_later_is_refused(shop: ManagerFixture) -> None:
    gate = Gate()
    shop.manager.register("gate", gate.__call__)
    shop.manager.start()
    job = shop.manager.submit("gate")
    gate.wait_until_entered()
    shop.manager.shutdown(0)
    gate.open()
    shop.clock.settle()
    assert shop.manager.get(job).status is JobStatus.PENDING


def test_an_interrupted_coroutine_is_canceled_and_runs_again(shop: ManagerFixture) -> None:
    attempts: list[int] = []
    entered = Gate()
    entered.open()

    async def handler() -> None:
        attempts.append(current_job().attempt)
        entered()
        if len(attempts) == 1:
            await asyncio.Event().wait()

    shop.manager.register("slow", handler)
    shop.manager.start()
    job = shop.manager.submit("slow")
    entered.wait_until_entered()
    shop.manager.shutdown(0)
    shop.manager.start()
    entered.wait_until_entered()
    shop.clock.settle()
    assert (shop.manager.get(job).status, attempts) == (JobStatus.COMPLETED, [1, 1])


def test_a_stop_gives_back_what_is_held_at_once(shop: ManagerFixture, ran: list[str]) -> None:
    shop.manager.start()
    job = shop.manager.submit("ping", delay=0.5)
    shop.clock.settle()
    held = shop.manager.get(job).worker
    shop.manager.shutdown()
    info = shop.manager.get(job)
    assert held is not None
    assert (info.worker, info.status, info.starts) == (None, JobStatus.PENDING, 0)


def test_after_a_stop_nothing_is_taken(shop: ManagerFixture, ran: list[str]) -> None:
    shop.manager.start()
    shop.manager.shutdown()
    shop.manager.submit("ping")
    shop.clock.advance(minutes=1)
    assert ran == []


def test_a_stopped_worker_can_be_started_again(shop: ManagerFixture, ran: list[str]) -> None:
    shop.manager.start()
    shop.manager.shutdown()
    job = shop.manager.submit("ping")
    shop.manager.start()
    shop.clock.settle()
    assert ran == [job]


def test_a_stop_can_be_hurried(shop: ManagerFixture) -> None:
    gate = Gate()
    shop.manager.register("gate", gate.__call__)
    shop.manager.start()
    job = shop.manager.submit("gate")
    gate.wait_until_entered()
    stopping = Background(lambda: shop.manager.shutdown(3_600))
    shop.manager.hurry()
    assert stopping.result().interrupted == 1
    gate.open()
    assert shop.manager.get(job).status is JobStatus.PENDING


def test_every_outcome_that_was_given_back_tells_its_kind(shop: ManagerFixture, ran: list[str]) -> None:
    shop.manager.start()
    shop.manager.submit("ping", delay=0.5)
    shop.clock.settle()
    shop.manager.shutdown()
    outcome = shop.wait_for_outcome()
    assert outcome.kind is OutcomeKind.HANDED_BACK


# -- what is said


def test_a_dead_letter_is_an_error_in_the_log_and_a_retry_a_warning(
    shop: ManagerFixture, caplog: pytest.LogCaptureFixture
) -> None:
    def handler() -> None:
        raise ValueError("no")

    shop.manager.register("fails", handler, retry=Retry(max_attempts=2, base=1, jitter=0))
    shop.manager.start()
    job = shop.manager.submit("fails")
    shop.clock.advance(5)
    retried, given_up = caplog.records
    assert retried.levelno == logging.WARNING
    assert retried.getMessage().startswith(f"job {job} (fails) failed in attempt 1 and runs again in 1.0 s, at 20")
    assert retried.getMessage().endswith(" UTC: ValueError: no")
    assert (given_up.levelno, given_up.getMessage()) == (
        logging.ERROR,
        f"job {job} (fails) failed in attempt 2 and is given up: ValueError: no",
    )
    for record in caplog.records:
        assert record.exc_info is not None
        assert isinstance(record.exc_info[1], ValueError)
        assert record.__dict__["job"] == job


def test_a_retry_that_a_handler_asks_for_has_no_exception_in_the_log(
    shop: ManagerFixture, caplog: pytest.LogCaptureFixture
) -> None:
    def handler() -> None:
        raise Retry.Later(1)

    shop.manager.register("later", handler, retry=Retry(max_attempts=2, jitter=0))
    shop.manager.start()
    shop.manager.submit("later")
    shop.clock.advance(0.5)
    (record,) = caplog.records
    assert record.exc_info is None
    assert "runs again in 1.0 s" in record.getMessage()


def test_a_job_that_goes_well_is_a_line_at_its_start_and_one_at_its_end(
    shop: ManagerFixture, ran: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "mainspring.worker"):
        shop.manager.start()
        job = shop.manager.submit("ping", delay=1)
        shop.clock.advance(5)
    said = [(record.levelno, record.getMessage()) for record in caplog.records if job in record.getMessage()]
    assert said == [
        (logging.DEBUG, f"job {job} (ping) runs: attempt 1, lateness 0.000 s"),
        (logging.DEBUG, f"job {job} (ping) completed: attempt 1, lateness 0.000 s, duration 0.000 s"),
    ]


def test_a_job_that_goes_well_says_nothing(
    shop: ManagerFixture, ran: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    shop.manager.start()
    shop.manager.submit("ping")
    shop.clock.advance(5)
    assert caplog.records == []
    assert len(ran) == 1
