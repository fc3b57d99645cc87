"""The stall detector of a worker: it logs an error when jobs could start and no worker takes them, only then."""

import logging
from collections.abc import Iterator
from threading import Condition, Event

import pytest
from msgspec.structs import replace

from mainspring import JobStatus
from mainspring.jobs.backlog import MAX_COUNTED, WaitingJobs
from mainspring.jobs.timestamps import MICROSECONDS
from mainspring.jobs.worker.maintenance import StallDetector
from mainspring.jobs.worker.slots import ExecutionKind, LongestJob, Occupancy
from mainspring.testing import ManualClock
from mainspring.worker_health import WorkerHealth
from tests.support import PATIENCE
from tests.unit.jobs.manager_fixture import ManagerFixture, running_manager

SECONDS = 1_000_000_000
FULL = Occupancy(ExecutionKind.THREADS, 8, 8, LongestJob(90.0, "job-1", "slow"))


class Observation:
    """A watchdog that is shown what waits, once a second."""

    def __init__(self, *, after: float = 60, kinds: dict[str, ExecutionKind] | None = None) -> None:
        self.clock = ManualClock()
        self.kinds = kinds or {}
        self.detector = StallDetector(
            self.clock,
            after_ns=round(after * SECONDS),
            kind_of=lambda waiting: (
                None if waiting.type == "unknown" else self.kinds.get(waiting.type, ExecutionKind.THREADS)
            ),
            occupancy=lambda _type: FULL,
            now=lambda: 100_000_000,
        )

    def _kind_of(self, waiting: WaitingJobs) -> ExecutionKind | None:
        return None if waiting.type == "unknown" else self.kinds.get(waiting.type, ExecutionKind.THREADS)

    def watch(self, seconds: int, *waiting: WaitingJobs) -> str | None:
        for _ in range(seconds):
            self.clock.advance(1)
            self.detector.observe(waiting)
        return self.detector.stall


def jobs(mark: str = "a", *, type: str = "ping", queue: str = "default", rank: int | None = None) -> WaitingJobs:
    return WaitingJobs(type, queue, mark, 3, "order-42", 25_000_000, rank)


def test_it_logs_an_error_when_no_worker_takes_anything_for_too_long(caplog: pytest.LogCaptureFixture) -> None:
    observation = Observation()
    assert observation.watch(60, jobs()) is None
    assert caplog.messages == []
    assert observation.watch(1, jobs()) == (
        "no worker has claimed any of these for 60 s: 3 due jobs of ping in queue default (the oldest, order-42, "
        "for 75 s). 8 of 8 slots (threads) of this worker are occupied, the longest by job job-1 (slow) for "
        "90 s; give handlers a timeout=, this worker more slots, or start more workers"
    )
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert caplog.messages == [observation.detector.stall]


def test_it_logs_again_at_growing_intervals(caplog: pytest.LogCaptureFixture) -> None:
    observation = Observation(after=10)
    told = []
    for second in range(1, 101):
        observation.watch(1, jobs())
        told += [second] * len(caplog.messages)
        caplog.clear()
    assert told == [11, 21, 41, 81]


def test_a_backlog_that_is_worked_off_is_no_stall() -> None:
    observation = Observation()
    assert [observation.watch(50, jobs(mark)) for mark in "abcdef"] == [None] * 6


def test_while_the_engine_does_not_answer_it_is_unknown_whether_they_still_wait() -> None:
    observation = Observation()
    for second in range(200):
        observation.watch(1, replace(jobs(), age=second * MICROSECONDS))
    assert observation.detector.stall is None
    assert observation.watch(1, jobs()) is not None


def test_what_stands_in_line_behind_others_waits_for_its_turn() -> None:
    observation = Observation()
    behind = jobs(type="behind", rank=20)
    assert [observation.watch(50, jobs(mark, rank=10), behind) for mark in "abcdef"] == [None] * 6
    assert observation.watch(50, behind) is None  # those before it were worked off: its turn is now
    assert observation.watch(15, behind) is not None


def test_jobs_that_stand_before_those_that_are_taken_were_overlooked() -> None:
    observation = Observation()
    before = jobs(type="before", queue="other", rank=10)
    for mark in "abcdef":
        observation.watch(11, before, jobs(mark, rank=20))
    assert "jobs of before in queue other" in (observation.detector.stall or "")


def test_slots_of_another_kind_do_not_help() -> None:
    observation = Observation(kinds={"encode": ExecutionKind.PROCESSES})
    for mark in "abcdefg":
        observation.watch(10, jobs(type="encode", rank=20), jobs(mark, rank=10))
    assert "jobs of encode" in (observation.detector.stall or "")


def test_work_for_others_is_theirs() -> None:
    assert Observation().watch(600, jobs(type="unknown")) is None


def test_nothing_that_waits_is_no_stall() -> None:
    assert Observation().watch(600) is None


def test_it_tells_when_a_stall_is_over(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    observation = Observation(after=10)
    observation.watch(11, jobs())
    assert observation.watch(1, jobs("b")) is None
    assert caplog.messages[1:] == ["the stall of jobs of ping is over"]
    observation.watch(9, jobs("b"))
    assert len(caplog.messages) == 2
    observation.watch(1, jobs("b"))
    assert len(caplog.messages) == 3


def test_another_handler_that_stalls_is_told_at_once(caplog: pytest.LogCaptureFixture) -> None:
    observation = Observation(after=10)
    observation.watch(5, jobs())
    observation.watch(6, jobs(), jobs(type="late"))
    observation.watch(5, jobs(), jobs(type="late"))
    assert len(caplog.messages) == 2
    assert "jobs of late" in caplog.messages[1]


def test_time_in_which_it_did_not_look_is_not_counted() -> None:
    observation = Observation()
    observation.watch(10, jobs())
    observation.clock.advance(3_600)  # the process was stopped
    assert observation.watch(40, jobs()) is None
    assert observation.watch(15, jobs()) is not None


def test_zero_turns_it_off() -> None:
    assert Observation(after=0).watch(600, jobs()) is None


def test_many_are_told_as_many_or_more() -> None:
    observation = Observation(after=1)
    many = WaitingJobs("ping", "default", "a", MAX_COUNTED)
    assert f"{MAX_COUNTED} or more due jobs of ping in queue default. 8" in (observation.watch(3, many) or "")


def test_a_slot_that_is_free_lets_it_suspect_the_worker() -> None:
    occupancy = Occupancy(ExecutionKind.LOOP, 3, 100)
    assert str(occupancy) == "3 of 100 slots (loop) of this worker are occupied"
    assert (
        occupancy.remedy
        == "the log of the worker may say why; if not, restart the worker, and if that helps, please report it"
    )


# -- in a worker


class Turns:
    """The health reports of a worker, in order."""

    def __init__(self, shop: ManagerFixture) -> None:
        self._shop = shop
        self._clock = shop.clock
        self._changed = Condition()
        self.all: list[WorkerHealth] = []
        shop.manager.on_turn = self._note

    def _note(self, health: WorkerHealth) -> None:
        with self._changed:
            self.all.append(health)
            self._changed.notify_all()

    @property
    def last(self) -> WorkerHealth:
        return self.all[-1]

    def jump(self, *, until_stall: bool) -> float:
        """Let seconds pass with busy handlers until the detector reports or falls silent; return how many."""
        for second in range(1, 600):
            self._clock.jump(1)
            with self._changed:
                assert self._changed.wait_for(lambda: self.last.turned_ns == self._clock.monotonic_ns(), PATIENCE)
                if (self.last.stall is not None) is until_stall:
                    return second
            # A repetition whose next run is not set yet would leave out the next second.
            self._shop.wait_until_maintained()
        raise AssertionError(f"nothing has changed: {self.last}")


@pytest.fixture
def shop(clock: ManualClock) -> Iterator[ManagerFixture]:
    with running_manager(clock, has_maintenance=True, threads=1) as shop:
        yield shop


def test_a_worker_whose_slots_are_all_occupied_says_so_and_recovers(shop: ManagerFixture) -> None:
    turns = Turns(shop)
    begun, over = Event(), Event()

    def hang() -> None:
        begun.set()
        assert over.wait(PATIENCE)

    shop.manager.register("hang", hang)
    shop.manager.register("ping", lambda: None)
    shop.manager.start()
    hanging = shop.manager.submit("hang")
    assert begun.wait(PATIENCE)
    waits = shop.manager.submit("ping")
    assert turns.jump(until_stall=True) >= 60
    stall = turns.last.stall or ""
    assert f"1 due job of ping in queue default (the oldest, {waits}, for " in stall
    assert f"1 of 1 slots (threads) of this worker are occupied, the longest by job {hanging} (hang)" in stall
    over.set()
    shop.clock.advance(2)
    assert shop.manager.get(waits).status is JobStatus.COMPLETED
    assert turns.jump(until_stall=False) == 1


def test_a_batch_handler_is_occupied_by_its_one_call(clock: ManualClock) -> None:
    begun, over = Event(), Event()

    def gather(numbers: list[int]) -> None:
        begun.set()
        assert over.wait(PATIENCE)

    with running_manager(clock, has_maintenance=True, threads=4) as shop:
        turns = Turns(shop)
        shop.manager.register("gather", gather, batch=10)
        shop.manager.start()
        shop.manager.submit("gather", (1,))
        assert begun.wait(PATIENCE)
        shop.manager.submit("gather", (2,))
        turns.jump(until_stall=True)
        over.set()
        assert "a call of this batch handler runs here already, the longest by job" in (turns.last.stall or "")


def test_turns_tell_the_state_and_whether_the_store_answers(shop: ManagerFixture) -> None:
    turns = Turns(shop)
    shop.manager.register("ping", lambda: None)
    shop.manager.start()
    shop.clock.advance(3)
    assert [turn.state for turn in turns.all[:2]] == ["starting", "ready"]
    assert turns.last.trouble is None
    assert (turns.last.answered_ns or 0) >= shop.clock.monotonic_ns() - 1_000_000_000
    shop.engine.fail("sweep", 1_000)
    shop.clock.advance(5)
    assert turns.last.trouble is not None
    assert "sweep fails" in turns.last.trouble
    assert turns.last.turned_ns == shop.clock.monotonic_ns()
    shop.manager.shutdown(0)
    assert turns.last.state == "stopping"
    count = len(turns.all)
    shop.clock.advance(5)
    assert len(turns.all) == count


def test_a_worker_that_can_take_nothing_is_in_trouble_though_the_store_answers(shop: ManagerFixture) -> None:
    turns = Turns(shop)
    shop.manager.register("ping", lambda: None)
    shop.manager.start()
    shop.clock.advance(2)
    shop.engine.fail("take", 5)
    shop.manager.submit("ping")
    shop.clock.advance(3)
    assert "take fails" in (turns.last.trouble or "")
    shop.clock.advance(5)
    assert turns.last.trouble is None


def test_outcomes_that_cannot_be_stored_are_trouble_until_they_are_stored(
    shop: ManagerFixture, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    turns = Turns(shop)
    shop.manager.register("ping", lambda: None)
    shop.manager.start()
    shop.engine.fail("settle", times=4)
    job = shop.manager.submit("ping")
    shop.clock.advance(3)  # the store answers each sweep meanwhile
    assert turns.last.trouble == "1 outcome cannot be stored: test: settle fails; try again"
    assert caplog.messages[0].startswith(
        "the worker could not store 1 outcome and tries again in a second: test: settle"
    )
    shop.clock.advance(4)
    assert turns.last.trouble is None
    assert shop.manager.get(job).status is JobStatus.COMPLETED
    (told,) = [text for text in caplog.messages if "works again" in text]
    assert told in (
        "the store works again, after 3 s of errors",
        "the store works again, after 4 s of errors",
    )


def test_an_outage_is_logged_at_its_beginning_once_a_minute_and_at_its_end(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with running_manager(clock, has_maintenance=True, threads=4) as shop:
        shop.manager.register("ping", lambda: None)
        shop.manager.start()
        shop.engine.fail("settle", times=10_000)
        shop.manager.submit("ping")
        shop.clock.advance(50)
        first = "the worker could not store 1 outcome and tries again in a second: test: settle fails; try again"
        assert outages(caplog) == [first]
        for _ in range(2):
            shop.manager.submit("ping")
            shop.clock.advance(60)
        assert [line.partition(" s and tries again every second: ")[0] for line in outages(caplog)[1:]] == [
            "the worker could not store 2 outcomes for 60",
            "the worker could not store 3 outcomes for 120",
        ]
        assert not any("works again" in text for text in caplog.messages)
        shop.engine.fail("settle", times=0)
        shop.clock.advance(3)
        assert len([text for text in caplog.messages if "the store works again, after 17" in text]) == 1
        shop.engine.fail("settle", times=1)
        shop.manager.submit("ping")
        shop.clock.advance(2)
        assert outages(caplog)[3:] == [first]  # another outage is logged at once


def outages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for text in caplog.messages if "could not store" in text]
