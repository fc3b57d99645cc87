"""Progress: the first report at once, further ones twice a second, the last before the job ends."""

import asyncio
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import Any

import pytest

from mainspring import JobContext, JobStatus, Retry, current_job
from mainspring.jobs.records import Progress, ProgressReport
from tests.support import PATIENCE, Gate
from tests.unit.jobs.leases import make_lease
from tests.unit.jobs.manager_fixture import ManagerFixture

Step = Callable[[], object]


class Steps:
    """A handler that does what a test tells it, one step after another."""

    def __init__(self, shop: ManagerFixture, **options: Any) -> None:
        self._shop = shop
        self._steps: SimpleQueue[Step | None] = SimpleQueue()
        self._done: SimpleQueue[None] = SimpleQueue()
        shop.manager.register("steps", self._run, **options)
        shop.manager.start()
        self.job = shop.manager.submit("steps")

    def _run(self) -> None:
        while (step := self._steps.get(timeout=PATIENCE)) is not None:
            step()
            self._done.put(None)

    def do(self, step: Step) -> None:
        """Let the handler do something, and wait until it has."""
        self._steps.put(step)
        self._done.get(timeout=PATIENCE)

    def report(self, done: float) -> None:
        self.do(lambda: current_job().progress(done, 10, "pages"))

    def stored(self) -> list[float]:
        """Wait for a call of the store; return what was reported with it."""
        return [report.progress.done for report in self._shop.engine.wait_for("report")]

    def end(self) -> None:
        self._steps.put(None)
        self._shop.clock.settle()


@pytest.fixture
def steps(shop: ManagerFixture) -> Iterator[Steps]:
    steps = Steps(shop)
    yield steps
    steps.end()


def test_the_first_report_is_stored_at_once(shop: ManagerFixture, steps: Steps) -> None:
    steps.report(1)
    (report,) = shop.engine.wait_for("report")
    assert report.lease.id == steps.job
    assert report.progress == Progress(1, 10, "pages", shop.engine.now())
    assert shop.manager.record(steps.job).progress == report.progress


def test_what_follows_within_half_a_second_waits_and_only_the_latest_is_stored(
    shop: ManagerFixture, steps: Steps
) -> None:
    for done in (1, 2, 3, 4):
        steps.report(done)
    first = steps.stored()
    shop.clock.jump(0.499)
    steps.report(5)
    shop.clock.jump(0.001)
    assert (first, steps.stored()) == ([1], [5])


def test_a_report_after_half_a_second_of_silence_is_stored_at_once(shop: ManagerFixture, steps: Steps) -> None:
    steps.report(1)
    stored = [steps.stored()]
    shop.clock.jump(0.5)
    steps.report(2)
    stored.append(steps.stored())
    assert stored == [[1], [2]]


def test_a_busy_handler_is_stored_twice_a_second(shop: ManagerFixture, steps: Steps) -> None:
    steps.report(0)
    stored = steps.stored()
    for done in range(1, 31):  # every tenth of a second, for three seconds
        steps.report(done)
        shop.clock.jump(0.1)
        if done % 5 == 0:
            stored += steps.stored()
    assert stored == [0, 5, 10, 15, 20, 25, 30]


def test_the_last_report_is_stored_before_the_job_ends(shop: ManagerFixture) -> None:
    steps = Steps(shop)
    for done in (1, 2, 10):
        steps.report(done)
    steps.end()
    record = shop.manager.record(steps.job)
    assert record.status is JobStatus.COMPLETED
    assert record.progress is not None
    assert record.progress.done == 10


def test_the_last_report_is_stored_however_slow_the_store_is(shop: ManagerFixture) -> None:
    steps = Steps(shop)
    steps.do(lambda: None)  # the handler has begun, so that the slow store does not hold up its claim
    slow = shop.engine.gate = Gate()
    steps.report(1)
    slow.wait_until_entered()
    steps.report(10)
    steps._steps.put(None)
    slow.open()
    shop.clock.settle()
    record = shop.manager.record(steps.job)
    assert (record.status, record.progress and record.progress.done) == (JobStatus.COMPLETED, 10)


def test_a_report_that_cannot_be_stored_does_not_keep_the_job_from_ending(shop: ManagerFixture) -> None:
    steps = Steps(shop)
    shop.engine.fail("report", 100)
    steps.report(1)
    steps.report(2)
    steps.end()
    assert shop.manager.get(steps.job).status is JobStatus.COMPLETED


def test_an_interrupted_job_keeps_what_it_reported_last(shop: ManagerFixture) -> None:
    steps = Steps(shop)
    steps.report(1)
    steps.report(7)
    assert shop.manager.shutdown(0).interrupted == 1
    steps.end()
    record = shop.manager.record(steps.job)
    assert (record.status, record.progress and record.progress.done) == (JobStatus.PENDING, 7)


def test_a_thread_that_a_handler_left_behind_reports_for_no_job(shop: ManagerFixture) -> None:
    contexts: list[JobContext] = []
    shop.manager.register("quick", lambda: contexts.append(current_job()))
    shop.manager.start()
    job = shop.manager.submit("quick")
    shop.clock.settle()
    contexts[0].progress(1)
    shop.clock.settle()
    assert shop.manager.record(job).progress is None


def test_a_coroutine_reports_as_well(shop: ManagerFixture) -> None:
    async def handler() -> None:
        for done in range(1, 4):
            current_job().progress(done, 3)
            await asyncio.sleep(0)

    shop.manager.register("pages", handler)
    shop.manager.start()
    job = shop.manager.submit("pages")
    shop.clock.settle()
    progress = shop.manager.record(job).progress
    assert progress is not None
    assert (progress.done, progress.total, progress.note) == (3, 3, None)


def test_jobs_are_throttled_each_on_its_own(shop: ManagerFixture) -> None:
    gate = Gate()

    def handler() -> None:
        current_job().progress(1)
        gate()

    shop.manager.register("gate", handler)
    shop.manager.start()
    ids = {shop.manager.submit("gate") for _ in range(2)}
    gate.wait_until_entered(2)
    reports: list[ProgressReport] = []
    while len(reports) < 2:
        reports += shop.engine.wait_for("report")
    gate.open()
    assert {report.lease.id for report in reports} == ids


def test_a_job_that_reports_nothing_costs_nothing(shop: ManagerFixture) -> None:
    shop.manager.register("ping", lambda: None)
    shop.manager.start()
    shop.manager.submit("ping")
    shop.clock.settle()
    with pytest.raises(Empty):
        shop.engine._done["report"].get_nowait()


@pytest.mark.parametrize("value", ["3", None, True, [1]], ids=repr)
def test_what_is_no_number_is_refused(shop: ManagerFixture, value: Any) -> None:
    shop.manager.register("bad", lambda: current_job().progress(value), retry=Retry(max_attempts=1))
    shop.manager.start()
    job = shop.manager.submit("bad")
    shop.clock.settle()
    assert "TypeError: done must be a number" in (shop.manager.get(job).error or "")


@pytest.mark.parametrize("value", [float("nan"), float("inf")], ids=repr)
def test_what_no_store_can_keep_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="total must be a finite number"):
        JobContext(make_lease()).progress(1, value)


def test_outside_of_a_worker_progress_is_ignored() -> None:
    JobContext(make_lease()).progress(1, 2, "and nothing happens")
