"""Handlers in processes, run by a worker: their results, their crashes, and that they can be killed."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import active_children
from typing import Any

import pytest

from mainspring import JobContext, JobStatus, Retry
from mainspring.jobs.middleware import Middleware, Middlewares
from mainspring.jobs.policies import ProcessSettings
from mainspring.jobs.records import Cause, FollowUp, OutcomeKind
from mainspring.testing import ManualClock
from tests.support import Background, Gate, eventually
from tests.unit.jobs import process_handlers as work
from tests.unit.jobs.manager_fixture import ManagerFixture, running_manager
from tests.unit.jobs.process_requests import watched


@pytest.fixture
def shop(clock: ManualClock) -> Iterator[ManagerFixture]:
    with running_manager(clock, threads=1, processes=ProcessSettings(count=2)) as shop:
        yield shop


def register(shop: ManagerFixture, function: Callable[..., Any], **options: Any) -> None:
    options = {"retry": Retry(max_attempts=1), **options}
    shop.manager.register("work", function, execution="process", **options)
    shop.manager.start()


def run(shop: ManagerFixture, function: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    """Run a job to its end."""
    register(shop, function, **options)
    job = shop.manager.submit("work", arguments)
    shop.clock.settle()
    return job


def begin(shop: ManagerFixture, function: Callable[..., Any], **options: Any) -> tuple[str, int]:
    """Submit a job and wait until its handler has begun; return its id and the process."""
    register(shop, function, **options)
    job = shop.manager.submit("work")
    (report,) = shop.engine.wait_for("report")
    return job, int(report.progress.done)


# -- what comes of it


def test_a_handler_runs_in_a_process_of_its_own_and_its_result_comes_back(shop: ManagerFixture) -> None:
    job = run(shop, work.process_id)
    info = shop.manager.get(job)
    assert info.status is JobStatus.COMPLETED
    assert info.result not in (None, os.getpid())


def test_without_such_handlers_nothing_is_started(shop: ManagerFixture) -> None:
    before = active_children()
    shop.manager.register("ping", lambda: None)
    shop.manager.start()
    shop.manager.submit("ping")
    shop.clock.settle()
    assert active_children() == before


def test_what_a_handler_raises_there_is_charged_to_its_job(shop: ManagerFixture) -> None:
    job = run(shop, work.fail)
    info = shop.manager.get(job)
    assert (info.status, info.failures) == (JobStatus.FAILED, 1)
    assert (info.error or "").startswith("ShopClosed: it is late")


def test_an_error_that_no_repetition_cures_is_known_by_its_class(shop: ManagerFixture) -> None:
    job = run(shop, work.fail, retry=Retry(max_attempts=6, give_up_on=(LookupError,), jitter=0))
    assert shop.manager.get(job).status is JobStatus.FAILED


def test_progress_comes_from_the_process(shop: ManagerFixture) -> None:
    job, process = begin(shop, work.until_canceled)
    progress = shop.manager.record(job).progress
    assert progress is not None
    assert progress.done == process != os.getpid()


def test_a_result_that_is_not_kept_is_passed_on_to_a_follow_up(shop: ManagerFixture) -> None:
    class Then:
        def follow_up(self) -> FollowUp:
            return FollowUp("next", "default", 1, argument="process")

    seen: list[int] = []

    def following(process: int) -> None:
        seen.append(process)

    shop.manager.register("next", following)
    job = run(shop, work.process_id, keep_result=False, then=Then())
    shop.clock.settle()
    assert shop.manager.get(job).result is None
    assert len(seen) == 1


def test_threads_for_plain_handlers_are_not_used_up(shop: ManagerFixture) -> None:
    ran = Gate()
    ran.open()
    shop.manager.register("ping", ran.__call__)
    begin(shop, work.hang)
    shop.manager.submit("ping")
    ran.wait_until_entered()


def test_no_more_run_at_once_than_there_are_processes(shop: ManagerFixture) -> None:
    register(shop, work.hang)
    ids = [shop.manager.submit("work") for _ in range(3)]
    shop.engine.wait_for_all("report", 2)
    assert [shop.manager.get(job).status for job in ids] == [
        JobStatus.RUNNING,
        JobStatus.RUNNING,
        JobStatus.PENDING,
    ]


def test_processes_are_replaced_as_the_settings_say(clock: ManualClock) -> None:
    with running_manager(clock, processes=ProcessSettings(count=1, max_jobs=1)) as shop:
        register(shop, work.process_id)
        ids = [shop.manager.submit("work") for _ in range(2)]
        shop.clock.settle()
        assert len({shop.manager.get(job).result for job in ids}) == 2


# -- stopping


@pytest.mark.parametrize("handler", [work.hang, work.hang_on_a_loop], ids=["def", "async def"])
def test_a_cancel_kills_the_process_of_a_handler(shop: ManagerFixture, handler: Callable[..., Any]) -> None:
    job, process = begin(shop, handler)
    with watched(process) as wait_for_end:
        shop.manager.cancel(job)
        wait_for_end()
    outcome = shop.wait_for_outcome()
    assert outcome.kind is OutcomeKind.CANCELED
    assert outcome.error == "stopped on request (the handler's process was killed)"


def test_a_timeout_kills_the_process_of_a_handler(shop: ManagerFixture) -> None:
    _, process = begin(shop, work.hang, timeout=5)
    with watched(process) as wait_for_end:
        shop.clock.jump(5)
        wait_for_end()
    outcome = shop.wait_for_outcome()
    assert (outcome.kind, outcome.cause) == (OutcomeKind.FAILED, Cause.TIMEOUT)
    assert outcome.error == "timeout after 5 s: the handler's process was killed"


@pytest.mark.parametrize("handler", [work.until_canceled, work.until_canceled_on_a_loop], ids=["def", "async def"])
def test_at_its_soft_timeout_a_handler_may_end_in_order(shop: ManagerFixture, handler: Callable[..., Any]) -> None:
    job, _ = begin(shop, handler, soft_timeout=5, timeout=60)
    shop.clock.jump(5)
    shop.engine.wait_for("settle")
    info = shop.manager.get(job)
    assert (info.status, info.result) == (JobStatus.COMPLETED, {"stopping": False, "cancelled": True})


def test_what_a_handler_raises_after_its_soft_timeout_is_charged_to_the_timeout(shop: ManagerFixture) -> None:
    begin(shop, work.fail_after_canceled, soft_timeout=5)
    shop.clock.jump(5)
    outcome = shop.wait_for_outcome()
    assert outcome.cause is Cause.TIMEOUT
    assert (outcome.error or "").startswith("timeout after 5 s: TimeoutError: half done")


def test_a_job_that_is_canceled_before_its_process_is_there_does_not_run_on(shop: ManagerFixture) -> None:
    register(shop, work.hang)
    job = shop.manager.submit("work")
    assert eventually(lambda: shop.manager.get(job).status is JobStatus.RUNNING)
    assert not shop.manager.cancel(job)  # else it would be canceled before its worker has claimed it
    assert shop.wait_for_outcome().kind is OutcomeKind.CANCELED


def test_a_stop_kills_what_does_not_finish_in_time_and_uses_up_no_attempt(shop: ManagerFixture) -> None:
    job, process = begin(shop, work.hang)
    with watched(process) as wait_for_end:
        assert shop.manager.shutdown(0).interrupted == 1
        wait_for_end()
    info = shop.manager.get(job)
    assert (info.status, info.attempts, info.crashes, info.interruptions) == (JobStatus.PENDING, 0, 0, 1)


def test_a_stop_leaves_no_process_behind(shop: ManagerFixture) -> None:
    job = run(shop, work.process_id)
    with watched(shop.manager.get(job).result) as wait_for_end:
        shop.manager.shutdown()
        wait_for_end()


def test_a_handler_learns_of_a_shutdown_in_its_process(shop: ManagerFixture) -> None:
    job, _ = begin(shop, work.until_stopping)
    assert Background(lambda: shop.manager.shutdown(60)).result().interrupted == 0
    info = shop.manager.get(job)
    assert (info.status, info.result) == (JobStatus.COMPLETED, {"stopping": True, "cancelled": False})


# -- crashes


def test_a_job_whose_process_dies_runs_again_at_once_and_is_a_dead_letter_the_third_time(
    shop: ManagerFixture,
) -> None:
    job = run(shop, work.raise_signal, signal.SIGSEGV, retry=Retry(max_attempts=1))
    outcomes = [shop.wait_for_outcome() for _ in range(3)]
    info = shop.manager.get(job)
    assert [(outcome.kind, outcome.cause) for outcome in outcomes] == [
        (OutcomeKind.RETRY, Cause.CRASH),
        (OutcomeKind.RETRY, Cause.CRASH),
        (OutcomeKind.FAILED, Cause.CRASH),
    ]
    assert (info.status, info.crashes, info.failures) == (JobStatus.FAILED, 3, 0)
    assert info.error == (
        "quarantined: its process or its worker died in 3 attempts (the handler's process was killed by SIGSEGV)"
    )


def test_a_process_that_exits_by_itself_has_crashed(shop: ManagerFixture) -> None:
    run(shop, work.leave, 3)
    outcome = shop.wait_for_outcome()
    assert (outcome.kind, outcome.cause) == (OutcomeKind.RETRY, Cause.CRASH)
    assert outcome.error == "the handler's process ended with exit code 3"


def test_a_crash_is_charged_to_no_other_job(shop: ManagerFixture) -> None:
    shop.manager.register("bystander", work.until_canceled, execution="process")
    shop.manager.register("work", work.leave, execution="process")
    shop.manager.start()
    bystander = shop.manager.submit("bystander")
    shop.engine.wait_for("report")
    shop.manager.submit("work", (3,))
    for _ in range(3):
        shop.engine.wait_for("settle")
    info = shop.manager.get(bystander)
    assert (info.status, info.crashes) == (JobStatus.RUNNING, 0)


def test_a_process_that_is_asked_to_end_from_outside_was_interrupted(shop: ManagerFixture) -> None:
    job, process = begin(shop, work.until_canceled)
    os.kill(process, signal.SIGTERM)  # as a service manager does, to all processes of a service
    outcome = shop.wait_for_outcome()
    info = shop.manager.get(job)
    assert outcome.kind is OutcomeKind.INTERRUPTED
    assert (info.crashes, info.failures) == (0, 0)


# -- batches


def test_a_batch_is_one_call_in_one_process(shop: ManagerFixture) -> None:
    shop.manager.register("work", work.double_all, execution="process", batch=10, retry=Retry(max_attempts=1))
    ids = [shop.manager.submit("work", (number,)) for number in (6, 7, 8)]
    shop.manager.start()
    shop.clock.settle()
    infos = [shop.manager.get(job) for job in ids]
    assert [(info.status, info.result) for info in infos] == [
        (JobStatus.COMPLETED, 12),
        (JobStatus.FAILED, None),
        (JobStatus.COMPLETED, 16),
    ]
    reported = [shop.manager.record(job).progress for job in ids]
    assert [progress and progress.done for progress in reported] == [6, 7, 8]


def test_a_timeout_kills_the_process_of_a_batch(shop: ManagerFixture) -> None:
    options: dict[str, Any] = {"batch": 10, "timeout": 5, "retry": Retry(max_attempts=1)}
    shop.manager.register("work", work.hang_all, execution="process", **options)
    ids = [shop.manager.submit("work", (number,)) for number in range(3)]
    shop.manager.start()
    shop.engine.wait_for("report")
    shop.clock.jump(5)
    shop.engine.wait_for("settle")
    shop.clock.settle()
    infos = [shop.manager.get(job) for job in ids]
    assert [(info.status, info.timeouts) for info in infos] == [(JobStatus.FAILED, 1)] * 3


def test_in_the_end_the_job_that_kills_its_process_is_the_only_one_given_up(shop: ManagerFixture) -> None:
    shop.manager.register("work", work.leave_with_number_seven, execution="process", batch=10)
    ids = [shop.manager.submit("work", (number,)) for number in (6, 7, 8)]
    shop.manager.start()
    shop.clock.settle()
    infos = [shop.manager.get(job) for job in ids]
    assert [info.status for info in infos] == [JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.COMPLETED]
    assert [info.crashes for info in infos] == [2, 3, 2]


# -- middleware


def test_middleware_is_beside_the_process(clock: ManualClock) -> None:
    seen: list[tuple[str, int]] = []

    class Watching(Middleware):
        @contextmanager
        def attempting(self, job: JobContext) -> Iterator[None]:
            seen.append((job.id, os.getpid()))
            yield

    middlewares = Middlewares()
    middlewares.add(Watching())
    with running_manager(clock, middlewares=middlewares) as shop:
        job = run(shop, work.process_id)
    assert seen == [(job, os.getpid())]
