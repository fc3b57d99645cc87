"""The pace of periodic work: once a second in an idle process, and a small share of the work of a busy one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.jobs.pace import BASE_SHARE, BUSY_SHARE, SPARE_SHARE, Pace

MS = 1_000_000
SECOND = 1_000 * MS
STEP = 250 * MS


class SimulatedProcess:
    """A process whose clocks the test advances."""

    def __init__(self) -> None:
        self.now = 0
        self.used = 0

    def monotonic_ns(self) -> int:
        return self.now

    def processor_ns(self) -> int:
        return self.used

    def work(self, elapsed: int, used: int) -> None:
        self.now += elapsed
        self.used += used


class PacedWork:
    """Work of a given cost that runs in a simulated process whenever its pace allows it."""

    def __init__(self, cost: int | Callable[[int], int], *, availability: float = 1.0) -> None:
        self.process = SimulatedProcess()
        self.pace = Pace(share=0.02, clock=self.process, process_ns=self.process.processor_ns)
        self.runs: list[int] = []
        self.spent = self.others = 0
        self._cost = cost
        self._availability = availability
        self._last = 0

    def let(self, seconds: int, load: float) -> None:
        """Let the other work of the process use a part of a core for some seconds."""
        for _ in range(seconds * SECOND // STEP):
            self.process.work(STEP, round(STEP * load))
            self.others += round(STEP * load)
            cost = self._cost if isinstance(self._cost, int) else self._cost(self.others - self._last)
            if self.pace.is_due(cost):
                self._last = self.others
                self.process.work(cost, cost)
                self.spent += cost
                self.runs.append(self.process.now)
                self.pace.end(cost, self._availability)


def paced(process: SimulatedProcess, *, cost: int = 50 * MS) -> Pace:
    """Return the pace of work that has just run in a process, with a processor of its own."""
    pace = Pace(share=0.02, clock=process, process_ns=process.processor_ns)
    pace.end(cost)
    return pace


@pytest.mark.parametrize("load", [0.0, 0.05, 0.2])
def test_work_runs_once_a_second_in_a_process_that_has_time_left(load: float) -> None:
    work = PacedWork(30 * MS)
    work.let(60, load)
    gaps = [later - earlier - 30 * MS for earlier, later in zip(work.runs, work.runs[1:], strict=False)]
    assert set(gaps) == {SECOND}


def test_work_never_runs_more_often_than_its_interval_however_cheap_it_is() -> None:
    work = PacedWork(0)
    work.let(60, 1.0)
    assert len(work.runs) == 60


@pytest.mark.parametrize("cost", [1, 30, 200, 5_000])
@pytest.mark.parametrize("load", [0.3, 1.0, 1.7])
def test_work_uses_at_most_its_share_of_a_busy_process(cost: int, load: float) -> None:
    work = PacedWork(cost * MS)
    work.let(2_000, load)
    assert work.runs, "it is delayed, not stopped"
    assert work.spent <= 0.02 * work.others + BASE_SHARE * work.process.now


def test_work_that_grows_with_the_other_work_keeps_within_its_share() -> None:
    work = PacedWork(lambda others: others // 3)  # such as a projection that applies each job
    work.let(2_000, 1.0)
    assert work.spent <= 0.02 * work.others + BASE_SHARE * work.process.now
    before = len(work.runs)
    work.let(2, 0.0)
    assert len(work.runs) > before, "it runs as soon as the process is idle, whatever it costs then"


def test_work_goes_on_once_a_second_when_the_process_is_idle_again() -> None:
    work = PacedWork(50 * MS)
    work.let(100, 1.0)
    before = len(work.runs)
    assert before <= 41
    work.let(100, 0.0)
    assert len(work.runs) - before >= 90


def test_a_process_that_gets_little_of_a_processor_is_busy_although_it_uses_little() -> None:
    starved, idle = PacedWork(30 * MS, availability=0.2), PacedWork(30 * MS, availability=1.0)
    for work in (starved, idle):
        work.let(100, 0.15)
    assert len(idle.runs) >= 95
    # that it is starved shows after the first run
    assert starved.spent - 30 * MS <= 0.02 * starved.others + BASE_SHARE * starved.process.now
    assert len(starved.runs) >= 10, "it is delayed by seconds only"


def test_an_idle_process_on_a_busy_machine_still_runs_its_work() -> None:
    work = PacedWork(20 * MS, availability=0.2)
    work.let(100, 0.0)
    assert len(work.runs) >= 95


@pytest.mark.parametrize(("used", "is_busy"), [(BUSY_SHARE * SECOND - 1, False), (BUSY_SHARE * SECOND, True)])
def test_a_process_is_busy_from_a_quarter_of_a_processor_on(used: float, *, is_busy: bool) -> None:
    process = SimulatedProcess()
    pace = paced(process)
    process.work(SECOND, int(used))
    assert pace.is_due() is not is_busy


def test_the_load_is_measured_over_a_whole_interval() -> None:
    process = SimulatedProcess()
    pace = paced(process)
    process.work(SECOND // 2, 0)
    assert not pace.is_due()
    process.work(SECOND // 2, SECOND // 5)  # 40 % of this half, but 20 % of the interval
    assert pace.is_due()


@pytest.mark.parametrize(("load", "allowed"), [(0, SPARE_SHARE), (1, 0.02 + BASE_SHARE)])
def test_work_that_costs_exactly_its_share_is_due(load: int, allowed: float) -> None:
    for beyond in (0, 1):
        process = SimulatedProcess()
        pace = paced(process, cost=round(allowed * SECOND) + beyond)
        process.work(SECOND, load * SECOND)
        assert pace.is_due() is (beyond == 0)


def test_work_without_an_interval_and_without_a_known_cost_is_due_at_once() -> None:
    process = SimulatedProcess()
    assert Pace(share=0.02, interval=0, clock=process, process_ns=process.processor_ns).is_due()


@given(st.lists(st.tuples(st.integers(1, 5), st.floats(0, 1), st.integers(0, 300)), min_size=1, max_size=30))
def test_whatever_the_load_is_the_cost_is_bounded(phases: list[tuple[int, float, int]]) -> None:
    cost = 0
    work = PacedWork(lambda _: cost)
    for seconds, load, milliseconds in phases:
        cost = milliseconds * MS
        work.let(seconds, load)
    allowed = max(0.02, SPARE_SHARE) * work.process.now
    assert work.spent - 300 * MS <= allowed
