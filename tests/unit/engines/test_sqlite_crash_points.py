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
from tests.unit.engines.crash_points import (
    CrashExperiment,
    CrashExperiments,
    OpenedStore,
    Operation,
    PreparedStore,
    complete_all_jobs,
    integrity,
    snapshot,
)

pytestmark = pytest.mark.stress  # every step of every operation: many small databases


class AllStates(PreparedStore):
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


def running(store: OpenedStore, kind: OutcomeKind) -> Lease:
    return store.leases[f"running {kind.value}"]


def submit(store: OpenedStore) -> Any:
    bench = store.bench
    jobs = [bench.job("new"), bench.job("due"), bench.job("other", type="other", queue="other"), bench.job("new")]
    return store.engine.submit(jobs)


def take(store: OpenedStore) -> Any:
    return store.bench.look(store.worker)


def start(store: OpenedStore) -> Any:
    return store.engine.start(store.worker, [store.leases["held"]])


def settle(kind: OutcomeKind) -> Callable[[OpenedStore], Any]:
    def settle_one(store: OpenedStore) -> Any:
        cause = Cause.FAILURE if kind in (OutcomeKind.RETRY, OutcomeKind.FAILED) else None
        due = store.bench.now + seconds(30) if kind in (OutcomeKind.RETRY, OutcomeKind.SNOOZED) else None
        outcome = Outcome(running(store, kind), kind, due, b"1", "it broke", cause)
        return store.engine.settle(store.worker, [outcome])

    return settle_one


def settle_all(store: OpenedStore) -> Any:
    stale = Outcome(
        store.leases["held"], OutcomeKind.COMPLETED
    )  # held, not started: refused among those that are accepted
    return store.engine.settle(
        store.worker, [stale, *(Outcome(running(store, kind), kind) for kind in OutcomeKind)]
    )


def everything_in_one_unit(store: OpenedStore) -> Any:
    with store.engine.unit(durable=True):
        return submit(store), change(CancelJob("later"))(store), settle_all(store), start(store), take(store)


def change(*commands: Any) -> Callable[[OpenedStore], Any]:
    return lambda store: store.engine.change(commands)


OPERATIONS: dict[str, Callable[[OpenedStore], Any]] = {
    "submit": submit,
    "cancel a pending job": change(CancelJob("due")),
    "cancel a held job": change(CancelJob("held")),
    "cancel a running job": change(CancelJob("running completed")),
    "reopen": change(Reopen("letter", 0)),
    "replay": change(Replay("letter", "copy", 0, b"[2]", "json")),
    "edit": change(Edit("letter", b"[2]", "json")),
    "delete": change(Delete("done")),
    "many commands": change(CancelJob("due"), Replay("letter", "copy", 0), CancelJob("copy"), Delete("done")),
    "enroll": lambda store: store.engine.enroll(WorkerInfo("another", 2, ("ping",))),
    "renew": lambda store: store.engine.renew(store.worker),
    "leave": lambda store: store.engine.leave(store.worker),
    "take": take,
    "start": start,
    **{f"settle as {kind.value}": settle(kind) for kind in OutcomeKind},
    "settle all": settle_all,
    "sweep": lambda store: store.engine.sweep(store.worker),
    "everything in one unit": everything_in_one_unit,
}
each_operation = pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> PreparedStore:
    return AllStates(tmp_path_factory.mktemp("prepared") / "jobs.db")


@pytest.fixture(scope="module")
def experiments(prepared: PreparedStore, tmp_path_factory: pytest.TempPathFactory) -> CrashExperiments:
    return CrashExperiments(prepared, lambda: tmp_path_factory.mktemp("experiment"))


@pytest.fixture
def experiment(experiments: CrashExperiments, operation: Operation) -> CrashExperiment:
    return experiments.of(operation)


@each_operation
def test_a_crash_leaves_all_of_an_operation_or_nothing(experiment: CrashExperiment) -> None:
    def look(store: OpenedStore, is_committed: bool) -> None:  # noqa: FBT001 - an answer, not an option
        assert snapshot(store.bench) == (experiment.after if is_committed else experiment.before)
        assert integrity(experiment.killed_path) == "ok"

    experiment.kill_at_each_step(look)


@each_operation
def test_after_a_crash_no_job_is_lost_and_none_completes_twice(experiment: CrashExperiment) -> None:
    def recover(store: OpenedStore, is_committed: bool) -> None:  # noqa: FBT001
        records = snapshot(store.bench)
        alive = {record.id for record in records if record.status not in FINAL}
        to_stop = {record.id for record in records if record.stop_requested}
        completed = complete_all_jobs(store.bench)
        assert Counter(completed) == Counter(alive - to_stop - {"other"})  # no worker has a handler for that one
        counts = store.engine.counts()
        assert (counts[JobStatus.RUNNING], counts[JobStatus.PENDING]) == (0, int("other" in alive))
        assert_nothing_stale_is_heard(store.bench, store)

    experiment.kill_at_each_step(recover)


def assert_nothing_stale_is_heard(bench: Bench, store: OpenedStore) -> None:
    """Whatever the dead worker has still to say."""
    before = snapshot(bench)
    leases = list(store.leases.values())
    for kind in OutcomeKind:
        outcomes = [Outcome(lease, kind, 0, b"stale", "stale", Cause.FAILURE) for lease in leases]
        assert bench.engine.settle(store.worker, outcomes) == [False] * len(leases)
    assert bench.engine.start(store.worker, leases) == [False] * len(leases)
    assert not bench.engine.renew(store.worker)
    assert snapshot(bench) == before


@each_operation
def test_an_operation_can_be_repeated_after_a_crash(
    experiment: CrashExperiment, operation: Callable[[OpenedStore], Any]
) -> None:
    def repeat(store: OpenedStore, is_committed: bool) -> None:  # noqa: FBT001
        operation(store)
        if not is_committed:  # else a repetition is another operation, which only has to be possible
            assert snapshot(store.bench) == experiment.after

    experiment.kill_at_each_step(repeat)


@each_operation
def test_an_engine_that_was_interrupted_goes_on(
    experiment: CrashExperiment, operation: Callable[[OpenedStore], Any]
) -> None:
    def go_on(store: OpenedStore, is_committed: bool) -> None:  # noqa: FBT001
        assert snapshot(store.bench) == (experiment.after if is_committed else experiment.before)
        within(lambda: operation(store))
        if not is_committed:
            assert snapshot(store.bench) == experiment.after

    experiment.crash_at_each_step(go_on)
