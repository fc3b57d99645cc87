"""A crash before and after every step on the store, in every operation: nothing lost, nothing done twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from mainspring.jobs.commands import CancelJob, Delete, Edit, Reopen, Replay
from mainspring.jobs.records import Cause, Lease, Outcome, OutcomeKind, WorkerInfo
from mainspring.jobs.status import FINAL, JobStatus
from mainspring.testing.conformance.bench import Bench, seconds
from tests.support import within
from tests.unit.engines.crashes import (
    Laboratories,
    Laboratory,
    Operation,
    Scene,
    World,
    integrity,
    run_everything,
    snapshot,
)

pytestmark = pytest.mark.stress  # every step of every operation: many small databases


class AllStates(Scene):
    """A job in every state: one worker is at work, others have died."""

    def prepare(self, bench: Bench) -> None:
        bench.bury("letter")
        worker, lease = bench.begin("done")
        assert bench.settle(worker, lease, OutcomeKind.COMPLETED)
        bench.begin("orphan")
        bench.begin("held by the dead", after=0.5)
        bench.pass_time(46)
        self.worker = bench.enroll()
        bench.submit(*(f"running {kind.value}" for kind in OutcomeKind))
        self.take(bench)
        bench.submit("held", after=0.5)
        self.take(bench)
        bench.submit("due")
        bench.submit("soon", after=0.6)
        bench.submit("later", after=3600)


def running(world: World, kind: OutcomeKind) -> Lease:
    return world.leases[f"running {kind.value}"]


def submit(world: World) -> Any:
    bench = world.bench
    jobs = [bench.job("new"), bench.job("due"), bench.job("other", type="other", queue="other"), bench.job("new")]
    return world.engine.submit(jobs)


def take(world: World) -> Any:
    return world.bench.look(world.worker)


def start(world: World) -> Any:
    return world.engine.start(world.worker, [world.leases["held"]])


def settle(kind: OutcomeKind) -> Callable[[World], Any]:
    def settle_one(world: World) -> Any:
        cause = Cause.FAILURE if kind in (OutcomeKind.RETRY, OutcomeKind.FAILED) else None
        due = world.bench.now + seconds(30) if kind in (OutcomeKind.RETRY, OutcomeKind.SNOOZED) else None
        outcome = Outcome(running(world, kind), kind, due, b"1", "it broke", cause)
        return world.engine.settle(world.worker, [outcome])

    return settle_one


def settle_all(world: World) -> Any:
    stale = Outcome(
        world.leases["held"], OutcomeKind.COMPLETED
    )  # held, not started: refused among those that are accepted
    return world.engine.settle(
        world.worker, [stale, *(Outcome(running(world, kind), kind) for kind in OutcomeKind)]
    )


def everything_in_one_unit(world: World) -> Any:
    with world.engine.unit(durable=True):
        return submit(world), change(CancelJob("later"))(world), settle_all(world), start(world), take(world)


def change(*commands: Any) -> Callable[[World], Any]:
    return lambda world: world.engine.change(commands)


OPERATIONS: dict[str, Callable[[World], Any]] = {
    "submit": submit,
    "cancel a pending job": change(CancelJob("due")),
    "cancel a held job": change(CancelJob("held")),
    "cancel a running job": change(CancelJob("running completed")),
    "reopen": change(Reopen("letter", 0)),
    "replay": change(Replay("letter", "copy", 0, b"[2]", "json")),
    "edit": change(Edit("letter", b"[2]", "json")),
    "delete": change(Delete("done")),
    "many commands": change(CancelJob("due"), Replay("letter", "copy", 0), CancelJob("copy"), Delete("done")),
    "enroll": lambda world: world.engine.enroll(WorkerInfo("another", 2, ("ping",))),
    "renew": lambda world: world.engine.renew(world.worker),
    "leave": lambda world: world.engine.leave(world.worker),
    "take": take,
    "start": start,
    **{f"settle as {kind.value}": settle(kind) for kind in OutcomeKind},
    "settle all": settle_all,
    "sweep": lambda world: world.engine.sweep(world.worker),
    "everything in one unit": everything_in_one_unit,
}
each_operation = pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return AllStates(tmp_path_factory.mktemp("scene") / "jobs.db")


@pytest.fixture(scope="module")
def laboratories(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> Laboratories:
    return Laboratories(scene, lambda: tmp_path_factory.mktemp("laboratory"))


@pytest.fixture
def laboratory(laboratories: Laboratories, operation: Operation) -> Laboratory:
    return laboratories.of(operation)


@each_operation
def test_a_crash_leaves_all_of_an_operation_or_nothing(laboratory: Laboratory) -> None:
    def look(world: World, is_committed: bool) -> None:  # noqa: FBT001 - an answer, not an option
        assert snapshot(world.bench) == (laboratory.after if is_committed else laboratory.before)
        assert integrity(laboratory.path_of_remains) == "ok"

    laboratory.kill_everywhere(look)


@each_operation
def test_after_a_crash_no_job_is_lost_and_none_completes_twice(laboratory: Laboratory) -> None:
    def recover(world: World, is_committed: bool) -> None:  # noqa: FBT001
        records = snapshot(world.bench)
        alive = {record.id for record in records if record.status not in FINAL}
        to_stop = {record.id for record in records if record.stop_requested}
        completed = run_everything(world.bench)
        assert Counter(completed) == Counter(alive - to_stop - {"other"})  # no worker has a handler for that one
        counts = world.engine.counts()
        assert (counts[JobStatus.RUNNING], counts[JobStatus.PENDING]) == (0, int("other" in alive))
        assert_nothing_stale_is_heard(world.bench, world)

    laboratory.kill_everywhere(recover)


def assert_nothing_stale_is_heard(bench: Bench, world: World) -> None:
    """Whatever the dead worker has still to say."""
    before = snapshot(bench)
    leases = list(world.leases.values())
    for kind in OutcomeKind:
        outcomes = [Outcome(lease, kind, 0, b"stale", "stale", Cause.FAILURE) for lease in leases]
        assert bench.engine.settle(world.worker, outcomes) == [False] * len(leases)
    assert bench.engine.start(world.worker, leases) == [False] * len(leases)
    assert not bench.engine.renew(world.worker)
    assert snapshot(bench) == before


@each_operation
def test_an_operation_can_be_repeated_after_a_crash(
    laboratory: Laboratory, operation: Callable[[World], Any]
) -> None:
    def repeat(world: World, is_committed: bool) -> None:  # noqa: FBT001
        operation(world)
        if not is_committed:  # else a repetition is another operation, which only has to be possible
            assert snapshot(world.bench) == laboratory.after

    laboratory.kill_everywhere(repeat)


@each_operation
def test_an_engine_that_was_interrupted_goes_on(laboratory: Laboratory, operation: Callable[[World], Any]) -> None:
    def go_on(world: World, is_committed: bool) -> None:  # noqa: FBT001
        assert snapshot(world.bench) == (laboratory.after if is_committed else laboratory.before)
        within(lambda: operation(world))
        if not is_committed:
            assert snapshot(world.bench) == laboratory.after

    laboratory.interrupt_everywhere(go_on)
