"""A crash at every step of whatever touches sequences, limits, unique keys, schedules and events.

After each of them the file has all of an operation or nothing, its lines are in order, and everything still runs.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mainspring.jobs.commands import (
    CancelJob,
    ChangeLimits,
    DropLimit,
    PauseQueue,
    PauseSchedule,
    PutLimit,
    RemoveSchedule,
    Reopen,
    Replay,
    Reschedule,
)
from mainspring.jobs.engine import Retention
from mainspring.jobs.limits import bucket_of
from mainspring.jobs.policies import ALIVE
from mainspring.jobs.records import Cause, NewJob, Outcome, OutcomeKind, Progress, ProgressReport, UniqueKey
from mainspring.jobs.recurrence.schedule_records import Overlap
from mainspring.jobs.status import FINAL, JobStatus
from mainspring.testing.conformance.bench import Bench, seconds
from mainspring.testing.conformance.schedule_driver import ScheduleDriver
from tests.support import amount
from tests.unit.engines.crash_points import (
    CrashExperiment,
    CrashExperiments,
    OpenedStore,
    Operation,
    PreparedStore,
    integrity,
    opened,
    snapshot,
)
from tests.unit.engines.store_invariants import check_invariants, connected, dump

pytestmark = pytest.mark.stress  # every step of every operation: many small databases

ALL, RATE = bucket_of("all"), bucket_of("rate")
DEAD = "of a dead worker"


def one(key: str) -> tuple[str, ...]:
    return (bucket_of("one", key),)


def unique(key: str, *, replaces: bool = False) -> UniqueKey:
    return UniqueKey(key, (JobStatus.PENDING,) if replaces else ALIVE, None, replaces)


class Lines(PreparedStore):
    """Jobs that run, that wait for others, and that wait for limits; a process follows the events."""

    def prepare(self, bench: Bench) -> None:
        timetable = ScheduleDriver(bench)
        bench.limit("all", 3)
        bench.limit("one", 1)
        bench.limit("rate", 1, per=10)
        bench.bury("letter", sequence="s", limits=one("a"), unique=unique("letter"))
        worker, lease = bench.begin("ended")
        assert bench.settle(worker, lease, OutcomeKind.COMPLETED, result=b"1", keep_result_until=bench.now)
        bench.begin(DEAD, sequence="dead", limits=(*one("dead"), ALL))
        bench.submit("after the dead", sequence="dead")
        bench.submit("dead too", limits=one("dead"))
        bench.pass_time(46)
        self.worker = bench.enroll()
        bench.submit("s1", "s2", "s3", sequence="s")
        bench.submit("a1", "a2", "a3", limits=one("a"))
        bench.submit("b1", "b2", limits=(*one("b"), ALL))
        bench.submit("c1", limits=(*one("c"), ALL))
        bench.submit("c2", limits=(*one("c"), ALL), sequence="s")
        bench.submit("r1", "r2", "r3", limits=(RATE,))
        bench.submit("leads", "reports")
        self.take(bench)
        self.take(bench)  # finds out which limits are full
        bench.submit("retried", "after the retried", sequence="held place")
        self.take(bench)
        outcome = Outcome(
            self.leases.pop("retried"), OutcomeKind.RETRY, bench.now + seconds(60), cause=Cause.FAILURE
        )
        assert bench.engine.settle(self.worker, [outcome]) == [True]
        bench.submit("unique", after=60, unique=unique("key"))
        bench.submit("expires", after=1, expires=5, sequence="held place", limits=one("a"))
        bench.submit("paused", queue="paused", limits=one("a"))
        bench.pause("paused")
        assert timetable.put("skips", after=0, overlap=Overlap.SKIP)
        assert timetable.put("replaces", after=0, overlap=Overlap.REPLACE)
        bench.engine.fire([timetable.firing("skips"), timetable.firing("replaces")])
        bench.submit("due")
        bench.engine.listen(bench.now + seconds(3_600))


# -- operations


def submit(store: OpenedStore) -> Any:
    job = store.bench.job
    return store.engine.submit(
        [
            job("s4", sequence="s"),
            job("t1", sequence="t"),
            job("a4", limits=one("a")),
            job("d1", limits=(*one("d"), ALL), sequence="t"),
            job("r4", limits=(RATE,), unique=unique("new")),
            job("r5", unique=unique("new")),
            job("not stored", unique=unique("key")),
            job("replacement", payload=b"[2]", unique=unique("key", replaces=True)),
            job("due"),
        ]
    )


def settle(*job_ids: str, kind: OutcomeKind = OutcomeKind.COMPLETED, due: float | None = None) -> Operation:
    def execute(store: OpenedStore) -> Any:
        at = None if due is None else store.bench.now + seconds(due)
        cause = Cause.FAILURE if kind in (OutcomeKind.RETRY, OutcomeKind.FAILED) else None
        outcomes = [Outcome(store.leases[job_id], kind, at, cause=cause) for job_id in job_ids]
        return store.engine.settle(store.worker, outcomes)

    return execute


def settle_with_follow_up(store: OpenedStore) -> Any:
    next_job = store.bench.job("next", sequence="s", limits=one("a"))
    outcome = Outcome(store.leases["leads"], OutcomeKind.COMPLETED, result=b"1", follow_up=next_job)
    return store.engine.settle(store.worker, [outcome])


def report(store: OpenedStore) -> Any:
    progress = Progress(1, 2, "half", store.bench.now)
    return store.engine.report(store.worker, [ProgressReport(store.leases["reports"], progress)])


def take_after(duration: float) -> Operation:
    def take(store: OpenedStore) -> Any:
        store.bench.pass_time(duration)
        return store.bench.look(store.worker)

    return take


def change(*commands: Any) -> Operation:
    return lambda store: store.engine.change(commands)


def arrange(*arrangements: Any) -> Operation:
    return lambda store: store.engine.arrange(arrangements)


def fire(*names: str, count: int = 1) -> Operation:
    def execute(store: OpenedStore) -> Any:
        timetable = ScheduleDriver(store.bench)
        firings = []
        for name in names:
            due = timetable.stored(name).next_due or 0
            jobs: tuple[NewJob, ...] = tuple(timetable.job(name, due + number) for number in range(count))
            firings.append(timetable.firing(name, jobs=jobs, records=(timetable.occurrence(due),)))
        return store.engine.fire(firings)

    return execute


def prune(store: OpenedStore) -> Any:
    return store.engine.prune(Retention(0, 0, 0, 1))


def forget_results(store: OpenedStore) -> Any:
    return store.engine.prune(Retention(None, None, None, None))


def put_schedule(store: OpenedStore) -> Any:
    return ScheduleDriver(store.bench).put("skips", expected=1, after=5)


def everything_in_one_unit(store: OpenedStore) -> Any:
    with store.engine.unit(durable=True):
        answers = [settle("s1", "a1")(store), submit(store), settle_with_follow_up(store)]
        answers += [change(CancelJob("s2"), Reschedule("a2", 0))(store), fire("skips", "replaces")(store)]
        return [
            *answers,
            arrange(PutLimit("one", 2, None), PauseQueue("paused", False))(store),
            take_after(0)(store),
        ]


OPERATIONS: dict[str, Operation] = {
    "submit": submit,
    "take": take_after(0),
    "take when a token is there": take_after(10),
    "take when a job has expired": take_after(6),
    "settle the head of a sequence": settle("s1"),
    "settle a holder of limits": settle("b1"),
    "settle with a follow-up": settle_with_follow_up,
    **{
        f"settle as {kind.value}": settle("s1", "a1", "b1", kind=kind, due=30)
        for kind in OutcomeKind
        if kind is not OutcomeKind.COMPLETED
    },
    "report": report,
    "sweep": lambda store: store.engine.sweep(store.worker),
    "cancel heads": change(CancelJob("s2"), CancelJob("a2"), CancelJob("retried"), CancelJob("b2")),
    "reschedule": change(Reschedule("s2", 2**50), Reschedule("a2", 2**50), Reschedule("retried", 2**50)),
    "regroup": change(ChangeLimits("a2", one("b")), ChangeLimits("due", one("new")), ChangeLimits("r2", ())),
    "reopen": change(Reopen("letter", 0)),
    "replay": change(Replay("letter", "copy", 0)),
    "raise limits": arrange(PutLimit("one", 2, None), PutLimit("all", 9, None), PutLimit("rate", 9, seconds(1))),
    "lower a limit": arrange(PutLimit("all", 1, None)),
    "drop limits": arrange(DropLimit("one"), DropLimit("rate")),
    "pause a queue": arrange(PauseQueue("default", is_paused=True)),
    "resume a queue": arrange(PauseQueue("paused", is_paused=False)),
    "fire": fire("skips", "replaces"),
    "fire many": fire("skips", "replaces", count=3),
    "put a schedule": put_schedule,
    "pause a schedule": arrange(PauseSchedule("skips", is_paused=True, next_due=None)),
    "remove a schedule": arrange(RemoveSchedule("skips")),
    "prune": prune,
    "forget results": forget_results,
    "everything in one unit": everything_in_one_unit,
}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> PreparedStore:
    return Lines(tmp_path_factory.mktemp("lines") / "jobs.db")


@pytest.fixture(scope="module")
def experiments(prepared: PreparedStore, tmp_path_factory: pytest.TempPathFactory) -> CrashExperiments:
    return CrashExperiments(prepared, lambda: tmp_path_factory.mktemp("experiment"), look=dump)


@pytest.fixture
def experiment(experiments: CrashExperiments, operation: Operation) -> CrashExperiment:
    return experiments.of(operation)


def finish(bench: Bench) -> Counter[str]:
    """Let a new worker rescue and complete everything there is; return how often each job was completed."""
    worker = bench.enroll()
    completed: Counter[str] = Counter()
    bench.resume()
    bench.resume("paused")
    for _ in range(12):
        bench.pass_time(10)
        assert bench.engine.renew(worker)
        bench.engine.sweep(worker)
        while leases := bench.take(worker, ahead=0):
            bench.complete(worker, *leases)
            completed.update(lease.id for lease in leases)
    bench.engine.leave(worker)
    return completed


each_operation = pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)


@each_operation
def test_a_crash_leaves_all_or_nothing_and_every_line_in_order(experiment: CrashExperiment) -> None:
    assert experiment.before != experiment.after

    def look(_: OpenedStore, is_committed: bool) -> None:  # noqa: FBT001 - an answer, not an option
        path = experiment.killed_path  # opened already, as by the next process
        assert dump(path) == (experiment.after if is_committed else experiment.before)
        assert integrity(path) == "ok"
        check_invariants(path)

    experiment.kill_at_each_step(look)


@each_operation
def test_an_engine_that_was_interrupted_leaves_all_or_nothing(experiment: CrashExperiment) -> None:
    def look(store: OpenedStore, is_committed: bool) -> None:  # noqa: FBT001
        assert experiment.look(store.bench) == (experiment.after if is_committed else experiment.before)
        check_invariants(experiment.path)

    experiment.crash_at_each_step(look, begin=amount(-2, thorough=0))


@each_operation
def test_after_an_operation_everything_that_waits_runs_to_its_end_once(
    prepared: PreparedStore, tmp_path: Path, operation: Operation
) -> None:
    path = tmp_path / "jobs.db"
    with opened(path, prepared.copy_to(path)) as bench:
        operation(OpenedStore(prepared, bench))
        records = snapshot(bench)
        far = {record.id for record in records if record.due > bench.now + seconds(100)}
        alive = {record.id for record in records if record.status not in FINAL and not record.stop_requested} - far
        completed = finish(bench)
        records = snapshot(bench)
        expired = {record.id for record in records if (record.error or "").startswith("expired")}
        assert completed == Counter(alive - expired)
        assert {record.id for record in records if record.status not in FINAL} == far - expired
    check_invariants(path)


DAMAGES = {
    "two heads of a sequence": "UPDATE jobs SET wait = 0 WHERE id = 's2'",
    "a sequence without a head": "UPDATE jobs SET wait = 1 WHERE id = 'retried'",
    "the wrong head of a sequence": "UPDATE jobs SET turn = -1 WHERE id = 'after the retried'",
    "a head of a group that is parked": "UPDATE jobs SET wait = 0 WHERE id = 'a2'",
    "a group without a head": "DELETE FROM parked WHERE bucket LIKE 'one%a'",
    "a job that counts twice": "UPDATE occupied SET running = 2 WHERE bucket LIKE 'one%a'",
    "a job that does not count": "DELETE FROM occupied WHERE bucket LIKE 'one%a'",
    "a group that is parked for ever": "UPDATE limits SET most = 9",
    "a job that waits behind nobody": "UPDATE jobs SET wait = 2 WHERE id = 'due'",
    "a job that is ready before it is due": "UPDATE jobs SET ready = 0 WHERE id = 'due'",
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_the_check_of_lines_sees(prepared: PreparedStore, tmp_path: Path, damage: str) -> None:
    path = tmp_path / "jobs.db"
    prepared.copy_to(path)
    check_invariants(path)
    with connected(path) as connection:
        connection.execute(damage)
        assert connection.changes() > 0
    with pytest.raises(AssertionError):
        check_invariants(path)
