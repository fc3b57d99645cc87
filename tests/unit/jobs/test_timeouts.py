"""Timeouts and requests to stop: what they do to a thread and to a coroutine, and what is charged to what."""

import asyncio
from typing import Any

import pytest

from mainspring import JobContext, JobStatus, Retry, Snooze, current_job
from mainspring.jobs.records import Cause, OutcomeKind
from mainspring.testing import ManualClock
from tests.support import Background, Gate, eventually
from tests.unit.jobs.manager_fixture import ManagerFixture, running_manager


@pytest.fixture
def entered() -> Gate:
    """An open gate, for handlers to say that they have begun."""
    gate = Gate()
    gate.open()
    return gate


class Looking:
    """A handler that works until it is asked to stop, and then ends as it was told."""

    def __init__(self, entered: Gate, error: BaseException | None = None) -> None:
        self._entered = entered
        self._error = error

    def plain(self) -> str:
        self._entered()
        while not current_job().cancelled:
            continue
        return self._end()

    async def coroutine(self) -> str:
        self._entered()
        while not current_job().cancelled:  # noqa: ASYNC110 - as handlers do
            await asyncio.sleep(0)
        return self._end()

    def _end(self) -> str:
        if self._error is not None:
            raise self._error
        return "ended in order"


def start(shop: ManagerFixture, handler: Any, entered: Gate, **options: Any) -> str:
    """Submit a job and wait until its handler has begun."""
    shop.manager.register("slow", handler, **{"retry": Retry(max_attempts=1), **options})
    shop.manager.start()
    job = shop.manager.submit("slow")
    entered.wait_until_entered()
    return job


# -- soft timeouts


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_at_its_soft_timeout_a_handler_is_asked_to_stop_and_may_end_in_order(
    shop: ManagerFixture, entered: Gate, kind: str
) -> None:
    job = start(shop, getattr(Looking(entered), kind), entered, soft_timeout=5, timeout=60)
    shop.clock.jump(4.9)
    before = [context.cancelled for context in shop.manager.active_jobs()]
    shop.clock.jump(0.1)
    shop.engine.wait_for("settle")
    info = shop.manager.get(job)
    assert before == [False]
    assert (info.status, info.result, info.timeouts) == (JobStatus.COMPLETED, "ended in order", 0)


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_what_a_handler_raises_after_its_soft_timeout_is_charged_to_the_timeout(
    shop: ManagerFixture, entered: Gate, kind: str
) -> None:
    looking = Looking(entered, TimeoutError("half done"))
    start(shop, getattr(looking, kind), entered, soft_timeout=5, retry=Retry(max_attempts=2, jitter=0))
    shop.clock.jump(5)
    outcome = shop.wait_for_outcome()
    assert (outcome.kind, outcome.cause) == (OutcomeKind.RETRY, Cause.TIMEOUT)
    assert (outcome.error or "").startswith("timeout after 5 s: TimeoutError: half done")


def test_a_handler_may_snooze_at_its_soft_timeout(shop: ManagerFixture, entered: Gate) -> None:
    start(shop, Looking(entered, Snooze(60)).plain, entered, soft_timeout=5)
    shop.clock.jump(5)
    outcome = shop.wait_for_outcome()
    assert (outcome.kind, outcome.cause) == (OutcomeKind.SNOOZED, None)


def test_after_its_soft_timeout_a_coroutine_is_canceled_at_its_timeout(
    shop: ManagerFixture, entered: Gate
) -> None:
    contexts: list[JobContext] = []

    async def handler() -> None:
        contexts.append(current_job())
        entered()
        await asyncio.Event().wait()

    start(shop, handler, entered, soft_timeout=5, timeout=6)
    shop.clock.jump(5)
    while not contexts[0].cancelled:
        continue
    running = shop.manager.counts()[JobStatus.RUNNING]
    shop.clock.jump(1)
    outcome = shop.wait_for_outcome()
    assert running == 1
    assert (outcome.kind, outcome.cause) == (OutcomeKind.FAILED, Cause.TIMEOUT)
    assert (outcome.error or "").startswith("timeout after 6 s: CancelledError")


def test_a_thread_that_returns_after_its_timeout_has_completed(shop: ManagerFixture, entered: Gate) -> None:
    job = start(shop, Looking(entered).plain, entered, timeout=5)
    shop.clock.jump(5)
    shop.engine.wait_for("settle")
    assert shop.manager.get(job).status is JobStatus.COMPLETED


def test_a_handler_that_ends_in_time_hears_of_no_timeout(
    shop: ManagerFixture, caplog: pytest.LogCaptureFixture
) -> None:
    contexts: list[JobContext] = []
    options: dict[str, Any] = {"soft_timeout": 5, "timeout": 6}
    shop.manager.register("quick", lambda: contexts.append(current_job()), **options)
    shop.manager.start()
    shop.manager.submit("quick")
    shop.clock.advance(60)
    assert [context.cancelled for context in contexts] == [False]
    assert caplog.records == []


def test_a_timeout_is_a_warning_that_says_how_long_it_was(
    shop: ManagerFixture, entered: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    job = start(shop, Looking(entered).plain, entered, timeout=2.5)
    shop.clock.jump(2.5)
    shop.engine.wait_for("settle")
    assert f"job {job} (slow) has run into the timeout of 2.5 s; its thread cannot be killed" in caplog.text


def test_a_soft_timeout_is_a_warning_that_says_so(
    shop: ManagerFixture, entered: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    job = start(shop, Looking(entered).plain, entered, soft_timeout=2.5)
    shop.clock.jump(2.5)
    shop.engine.wait_for("settle")
    assert f"job {job} (slow) has run into the soft timeout of 2.5 s; current_job().cancelled asks" in caplog.text


# -- requests


def test_a_coroutine_that_is_canceled_while_it_waits_for_its_place_does_not_run(clock: ManualClock) -> None:
    with running_manager(clock, coroutines=1) as shop:
        entered, ran = Gate(), []
        entered.open()
        release: list[Any] = []

        async def handler() -> None:
            ran.append(current_job().id)
            event = asyncio.Event()
            release.append((asyncio.get_running_loop(), event))
            entered()
            await event.wait()

        shop.manager.register("slow", handler)
        shop.manager.start()
        ids = {shop.manager.submit("slow", delay=0.5) for _ in range(2)}
        shop.clock.settle()
        shop.clock.jump(0.5)
        entered.wait_until_entered()
        (waiting,) = ids - set(ran)
        assert eventually(lambda: shop.manager.get(waiting).status is JobStatus.RUNNING)
        assert not shop.manager.cancel(waiting)
        assert eventually(lambda: any(context.cancelled for context in shop.manager.active_jobs()))
        loop, event = release[0]
        loop.call_soon_threadsafe(event.set)
        shop.clock.settle()
        assert waiting not in ran
        assert shop.manager.get(waiting).status is JobStatus.CANCELED


def test_a_request_to_stop_reaches_a_coroutine_that_has_ignored_its_soft_timeout(
    shop: ManagerFixture, entered: Gate
) -> None:
    contexts: list[JobContext] = []

    async def handler() -> None:
        contexts.append(current_job())
        entered()
        await asyncio.Event().wait()

    job = start(shop, handler, entered, soft_timeout=5)
    shop.clock.jump(5)
    while not contexts[0].cancelled:
        continue
    shop.manager.cancel(job)
    shop.engine.wait_for("settle")
    assert shop.manager.get(job).status is JobStatus.CANCELED


# -- the end of the worker


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_handler_learns_of_a_shutdown_while_there_is_time_to_end_in_order(
    shop: ManagerFixture, entered: Gate, kind: str
) -> None:
    seen: list[tuple[bool, bool]] = []

    def look(job: JobContext) -> bool:
        is_stopping = job.stopping
        if is_stopping:
            seen.append((is_stopping, job.cancelled))
        return is_stopping

    def plain() -> None:
        entered()
        while not look(current_job()):
            continue

    async def coroutine() -> None:
        entered()
        while not look(current_job()):  # noqa: ASYNC110 - as handlers do
            await asyncio.sleep(0)

    job = start(shop, plain if kind == "def" else coroutine, entered)
    assert [context.stopping for context in shop.manager.active_jobs()] == [False]
    assert Background(lambda: shop.manager.shutdown(60)).result().interrupted == 0
    assert seen == [(True, False)]
    assert shop.manager.get(job).status is JobStatus.COMPLETED
