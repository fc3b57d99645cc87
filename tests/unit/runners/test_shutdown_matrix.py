"""Every behaviour of a task, in every state, on every kind of runner, ended in every way, with time and without.

The occupying tasks are SKIP, so they are waited for; in "behind" the occupying task is CONTINUE, so it is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from mainspring import (
    ShutdownBehavior,
    ShutdownReport,
    TaskFailure,
    TaskRunner,
    TaskTraits,
    ThreadPool,
    blocking,
)
from tests.pools import MakePool
from tests.support import PATIENCE, Background, Gate, WatchedClock

pytestmark = pytest.mark.long

BLOCK, SKIP, CONTINUE = ShutdownBehavior.BLOCK, ShutdownBehavior.SKIP, ShutdownBehavior.CONTINUE
WORKERS = 2
PLACES = {"sequenced": 1, "single_thread": 1, "parallel": 2, "asyncio": 1, "pool": WORKERS}
STATES = ("queued", "running", "blocked", "delayed", "due", "behind")

each_kind = pytest.mark.parametrize("kind", PLACES)
each_state = pytest.mark.parametrize("state", STATES)
each_behavior = pytest.mark.parametrize("behavior", list(ShutdownBehavior), ids=lambda behavior: behavior.name)


class Interruption(Exception):
    """What leaves the `with` block."""


@dataclass
class Scene:
    """A pool with one task in a given state, and what stands in its way."""

    pool: ThreadPool
    runner: TaskRunner
    gate: Gate
    occupants: int
    state: str
    behavior: ShutdownBehavior
    runs: list[str] = field(default_factory=list)


@pytest.fixture
def scene(make_pool: MakePool, clock: WatchedClock, kind: str, state: str, behavior: ShutdownBehavior) -> Scene:
    pool = make_pool(WORKERS, name="main")
    runner = runner_of(pool, kind)
    return set_up(Scene(pool, runner, Gate(), 0, state, behavior), clock, PLACES[kind])


def runner_of(pool: ThreadPool, kind: str) -> TaskRunner:
    runners: dict[str, Callable[[], TaskRunner]] = {
        "sequenced": pool.sequenced,
        "single_thread": pool.single_thread,
        "parallel": lambda: pool.parallel(2),
        "asyncio": pool.asyncio,
        "pool": lambda: pool,
    }
    return runners[kind]()


def set_up(scene: Scene, clock: WatchedClock, places: int) -> Scene:
    runner, gate, state = scene.runner, scene.gate, scene.state
    traits = TaskTraits(shutdown=scene.behavior)

    def occupy(behavior: ShutdownBehavior) -> None:
        scene.occupants = places
        for _ in range(places):
            runner.post(gate, traits=TaskTraits(shutdown=behavior))
            gate.wait_until_entered()

    def work() -> None:
        scene.runs.append("work")

    def wait_and_work() -> None:
        gate()
        work()

    def wait_blocked_and_work() -> None:
        with blocking():
            gate()
        work()

    if state == "queued":
        occupy(SKIP)
        runner.post(work, traits=traits)
    elif state == "behind":
        occupy(CONTINUE)
        runner.post(work, traits=traits)
    elif state == "delayed":
        runner.post(work, traits=traits, delay=1000)
    elif state == "due":
        occupy(SKIP)
        runner.post(work, traits=traits, delay=1)
        clock.jump(1)
    else:
        runner.post(wait_and_work if state == "running" else wait_blocked_and_work, traits=traits)
        gate.wait_until_entered()
    return scene


def expected_without_limit(scene: Scene) -> ShutdownReport:
    occupants, state, behavior = scene.occupants, scene.state, scene.behavior
    if state == "delayed":
        return ShutdownReport(ran=0, skipped=1, abandoned=0)
    if state in ("running", "blocked"):
        waited = behavior is not CONTINUE
        return ShutdownReport(ran=int(waited), skipped=0, abandoned=int(not waited))
    if behavior is BLOCK:
        return ShutdownReport(ran=occupants + 1, skipped=0, abandoned=0)
    if state == "behind":
        return ShutdownReport(ran=0, skipped=1, abandoned=occupants)
    return ShutdownReport(ran=occupants, skipped=1, abandoned=0)


def expected_when_time_runs_out(scene: Scene) -> ShutdownReport:
    occupants, state, behavior = scene.occupants, scene.state, scene.behavior
    if state == "delayed":
        return ShutdownReport(ran=0, skipped=1, abandoned=0)
    if state in ("running", "blocked"):
        return ShutdownReport(ran=0, skipped=0, abandoned=1)
    if behavior is BLOCK:
        return ShutdownReport(ran=0, skipped=0, abandoned=occupants + 1)
    return ShutdownReport(ran=0, skipped=1, abandoned=occupants)


def leave_by_exception(pool: ThreadPool) -> ShutdownReport:
    with pytest.raises(Interruption), pool:
        raise Interruption
    return pool.shutdown()


def leave(pool: ThreadPool) -> None:
    with pool:
        pass


@each_kind
@each_state
@each_behavior
@pytest.mark.parametrize("how", ["pool.shutdown", "runner.shutdown", "exception"])
def test_without_a_limit_every_task_is_accounted_for(
    scene: Scene, clock: WatchedClock, failures: list[TaskFailure], how: str
) -> None:
    ends: dict[str, Callable[[], ShutdownReport]] = {
        "pool.shutdown": scene.pool.shutdown,
        "runner.shutdown": scene.runner.shutdown,
        "exception": lambda: leave_by_exception(scene.pool),
    }
    ending = Background(ends[how], clock)
    expected = expected_without_limit(scene)
    if expected.abandoned:  # the shutdown does not wait for the gate
        report = ending.result(PATIENCE)
        scene.gate.open()
    else:
        clock.wait_until_asleep(ending)
        scene.gate.open()
        report = ending.result(PATIENCE)
    if scene.state == "behind" and scene.behavior is BLOCK and scene.occupants > 1:
        # It starts when one of the occupants has ended; no task waits for the other.
        assert report.skipped == 0
        assert report.ran + report.abandoned == expected.ran
    else:
        assert report == expected
    if expected.ran == scene.occupants + 1:
        assert scene.runs == ["work"]
    elif expected.skipped:
        assert scene.runs == []
    assert failures == []


@each_kind
@each_state
@each_behavior
@pytest.mark.parametrize("how", ["pool.shutdown", "runner.shutdown"])
def test_when_time_runs_out_every_task_is_accounted_for(
    scene: Scene, clock: WatchedClock, failures: list[TaskFailure], how: str
) -> None:
    closed = scene.pool if how == "pool.shutdown" else scene.runner
    ending = Background(lambda: closed.shutdown(timeout=5), clock)
    clock.wait_until_asleep(ending)
    clock.jump(5)
    report = ending.result(PATIENCE)
    scene.gate.open()
    assert report == expected_when_time_runs_out(scene)
    if scene.state in ("queued", "delayed", "due", "behind"):
        assert scene.runs == []
    assert failures == []


@each_kind
@each_state
@each_behavior
def test_leaving_normally_runs_everything_that_is_due(
    scene: Scene, clock: WatchedClock, failures: list[TaskFailure], state: str, behavior: ShutdownBehavior
) -> None:
    ending = Background(lambda: leave(scene.pool), clock)
    clock.wait_until_asleep(ending)
    scene.gate.open()
    ending.result(PATIENCE)
    now = scene.pool.statistics()
    assert (now.queued, now.active, now.delayed) == (0, 0, 0)
    if state == "delayed":
        assert scene.runs == []
        assert (now.completed, now.skipped) == (0, 1)
    else:
        assert scene.runs == ["work"]
        assert (now.completed, now.skipped) == (scene.occupants + 1, 0)
    assert failures == []


@each_kind
@pytest.mark.parametrize("state", ["queued", "due"])
@pytest.mark.parametrize("behavior", [BLOCK, SKIP], ids=["BLOCK", "SKIP"])
def test_a_pool_that_cannot_grow_ends_as_well(
    make_pool: MakePool, clock: WatchedClock, kind: str, state: str, behavior: ShutdownBehavior
) -> None:
    pool = make_pool(1, max_workers=1)
    runner = runner_of(pool, kind)
    scene = set_up(Scene(pool, runner, Gate(), 0, state, behavior), clock, 1)
    ending = Background(pool.shutdown, clock)
    clock.wait_until_asleep(ending)
    scene.gate.open()
    assert ending.result(PATIENCE) == expected_without_limit(scene)


@pytest.mark.parametrize("timeout", [None, 5])
def test_a_block_task_that_is_due_is_not_lost_while_the_timer_is_busy(
    make_pool: MakePool, clock: WatchedClock, timeout: float | None
) -> None:
    runs: list[str] = []
    pool = make_pool(1)
    with busy_timer(pool, clock):
        pool.post(runs.append, "must run", delay=1, traits=TaskTraits(shutdown=BLOCK))
        pool.post(runs.append, "may be dropped", delay=1)
        clock.jump(1)
        assert pool.shutdown(timeout) == ShutdownReport(ran=1, skipped=1, abandoned=0)
    assert runs == ["must run"]


def test_leaving_normally_runs_what_is_due_while_the_timer_is_busy(
    make_pool: MakePool, clock: WatchedClock
) -> None:
    runs: list[str] = []
    pool = make_pool(1)
    with busy_timer(pool, clock):
        pool.post(runs.append, "must run", delay=1, traits=TaskTraits(shutdown=BLOCK))
        pool.post(runs.append, "due", delay=1)
        pool.post(runs.append, "not due", delay=2)
        clock.jump(1)
        Background(lambda: leave(pool)).result(PATIENCE)
    assert sorted(runs) == ["due", "must run"]


@contextmanager
def busy_timer(pool: ThreadPool, clock: WatchedClock) -> Iterator[None]:
    """Keep the thread of the timer busy, as an observer can that takes long."""
    gate = Gate()
    pool.services.delays.call_after(1, gate)
    clock.jump(1e-9)
    gate.wait_until_entered()
    try:
        yield
    finally:
        gate.open()
