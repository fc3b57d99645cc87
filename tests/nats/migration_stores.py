"""The stores of migration tests: a SQLite file with a job of every kind, and a prefix on a NATS server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from mainspring import NatsSettings
from mainspring.clock import SystemClock
from mainspring.engines.nats.engine import NatsEngine
from mainspring.engines.sqlite import SqliteEngine, SqliteProjection
from mainspring.engines.sqlite.export import SqliteExport
from mainspring.jobs.commands import PauseSchedule, PutRedaction, PutSchedule, Replay
from mainspring.jobs.limits import bucket_of
from mainspring.jobs.records import Cause, FollowUp, JobRecord, OutcomeKind, Query, UniqueKey
from mainspring.jobs.recurrence.schedule_records import Firing, Occurrence, OccurrenceKind, Overlap, ScheduleRecord
from mainspring.jobs.status import JobStatus
from mainspring.migration import Migrator
from mainspring.testing import ManualClock
from mainspring.testing.conformance.bench import TYPE, Bench, seconds

AGE = 600.0  # seconds between the beginning of the file and now
ALIVE = (JobStatus.PENDING, JobStatus.RUNNING)
PER_TENANT = (bucket_of("at once", "tenant a"),)
RATED = (bucket_of("rate"),)


class Target:
    """A prefix on a server, as the target of a migration or as the store of a worker."""

    def __init__(self, url: str, prefix: str, folder: Path, **settings: Any) -> None:
        self._settings = NatsSettings(prefix=prefix, **({"timeout": 30} | settings))
        self.url = f"{url}?prefix={prefix}"
        self._server = url
        self._folder = folder

    def make(self) -> NatsEngine:
        return NatsEngine(
            self._server,
            settings=self._settings,
            make_projection=lambda name: SqliteProjection(self._folder / name),
        )

    @contextmanager
    def opened(self) -> Iterator[NatsEngine]:
        engine = self.make()
        engine.open(lambda: None)
        try:
            yield engine
        finally:
            engine.close()

    @contextmanager
    def bench(self) -> Iterator[Bench]:
        engine = self.make()
        try:
            yield Bench(engine, ManualClock())
        finally:
            engine.close()


@contextmanager
def opened_export(path: Path) -> Iterator[SqliteExport]:
    source = SqliteExport(path)
    source.open()
    try:
        yield source
    finally:
        source.close()


def carry_out(migrator: Migrator) -> None:
    """Run or resume a migration to its end; assert that no job differs."""
    migrator.begin()
    if not migrator.is_complete:
        for _ in (*migrator.copying(), *migrator.verifying()):
            pass
        assert migrator.deviations == []
    migrator.finish()


def move(path: Path, target: Target) -> None:
    """Move all of a file."""
    with opened_export(path) as source, target.opened() as engine:
        carry_out(Migrator(source, engine, target.url))


@contextmanager
def source_bench(path: Path) -> Iterator[Bench]:
    """Open a file whose clock began some minutes ago; its workers do not leave in order."""
    clock = ManualClock(SystemClock().now() - timedelta(seconds=AGE))
    bench = Bench(SqliteEngine(path, clock=clock, durability="normal"), clock)
    try:
        yield bench
    finally:
        bench.engine.close()


def records_of(engine: NatsEngine | SqliteEngine, ids: Sequence[str]) -> dict[str, JobRecord]:
    """Read jobs by their ids."""
    return {record.id: record for record in engine.find(Query(ids=tuple(ids))).records}


class Contents:
    """The contents of a file before its migration, as the SQLite engine reads them."""

    def __init__(self, path: Path) -> None:
        engine = SqliteEngine(path)
        engine.open(lambda: None)
        try:
            everything = engine.find(Query(limit=1_000_000)).records
            self.jobs = {record.id: record for record in everything if record.status not in DONE}
            self.done = [record.id for record in everything if record.status in DONE]
            self.schedules = {record.name: record for record in engine.schedules()}
            self.left_out = {name: engine.occurrences(name, 100) for name in self.schedules}
            self.paused = engine.paused_queues()
            self.limits = engine.limits()
            self.redactions = engine.redactions()
        finally:
            engine.close()

    def assert_are_in(self, engine: NatsEngine) -> None:
        """Compare field by field."""
        there = records_of(engine, list(self.jobs))
        assert there.keys() == self.jobs.keys()
        assert [there[name] for name in there] == [self.jobs[name] for name in there]
        assert list(there) == list(self.jobs)  # in the order of submission
        assert records_of(engine, self.done) == {}
        schedules = {record.name: replace(record, revision=0) for record in engine.schedules()}
        assert schedules == {name: replace(record, revision=0) for name, record in self.schedules.items()}
        assert {name: engine.occurrences(name, 100) for name in schedules} == self.left_out
        assert engine.paused_queues() == self.paused
        assert engine.redactions() == self.redactions
        assert sorted(engine.limits(), key=lambda limit: limit.family) == sorted(
            self.limits, key=lambda limit: limit.family
        )


DONE = (JobStatus.COMPLETED, JobStatus.CANCELED)


def fill(path: Path) -> Contents:
    """Make a file with a job of every kind."""
    with source_bench(path) as bench:
        _arrange(bench)
        _make_attempts(bench)
        _make_schedules(bench)
        bench.clock.jump(AGE - 1)
        _make_waiting(bench)
        _leave_to_dead(bench)
    with opened_export(path) as source:  # rescues the jobs of dead workers, as the next sweep would
        source.begin("nobody", "nowhere")
        source.unmark()
    return Contents(path)


def _arrange(bench: Bench) -> None:
    bench.limit("at once", 1)
    bench.limit("rate", 3, per=3_600)
    bench.pause("resting")


def _make_attempts(bench: Bench) -> None:
    """Make jobs with earlier attempts."""
    bench.submit("completed")
    worker = bench.enroll()
    bench.complete(worker, *bench.take(worker))
    bench.submit("called off", after=9)
    bench.cancel("called off")
    for job_id in ("letter", "replayed letter", "letter with a key"):
        policies = {"unique": UniqueKey(job_id, ALIVE)} if "key" in job_id else {}
        bench.submit(job_id, **policies)
        (lease,) = bench.take(worker)
        assert bench.settle(
            worker, lease, OutcomeKind.FAILED, error="it broke", cause=Cause.FAILURE, began=bench.now
        )
    assert bench.change(Replay("replayed letter", "replay", bench.now + seconds(9_999))).is_done
    bench.submit("failed once", payload=b'{"n": 1}', headers={"trace": "abc"})
    (lease,) = bench.take(worker)
    later = bench.now + seconds(99_999)
    bench.report(worker, lease, 0.5)
    assert bench.settle(worker, lease, OutcomeKind.RETRY, due=later, error="not yet", cause=Cause.FAILURE)
    for job_id in ("first of line", "second of line", "third of line"):
        bench.submit(job_id, sequence="line", type="line")
    retried = bench.enroll("line")
    (lease,) = bench.take(retried, "line")
    assert bench.settle(retried, lease, OutcomeKind.RETRY, due=bench.now + seconds(AGE + 2), cause=Cause.TIMEOUT)
    for number in range(2):  # of three in an hour
        bench.submit(f"rated {number}", limits=RATED, type="rated")
        runner = bench.enroll("rated")
        bench.complete(runner, *bench.take(runner, "rated"))


def _make_schedules(bench: Bench) -> None:
    now = bench.now
    hourly = ScheduleRecord(
        name="hourly report",
        type=TYPE,
        queue="reports",
        priority=2,
        payload=b'{"of": "day"}',
        codec="json",
        rule='{"kind":"every","interval":3600000000}',
        misfire="once",
        catch_up=0,
        overlap=Overlap.SKIP,
        jitter=5,
        start=now,
        end=None,
        expires=seconds(60),
        limits=(),
        next_due=now + seconds(10),
    )
    assert bench.arrange(PutRedaction("ping", ("pin", "card")))
    assert bench.arrange(PutSchedule(hourly, None))
    assert bench.arrange(PutSchedule(replace(hourly, name="resting", overlap=Overlap.ALLOW), None))
    assert bench.arrange(PauseSchedule("resting", is_paused=True, next_due=None))
    job = bench.job("of hourly", after=10, queue="reports", schedule="hourly report", occurrence=now + seconds(10))
    left_out = Occurrence(now, now, 1, OccurrenceKind.SKIPPED, "too late", now)
    fired = bench.engine.fire(
        [
            Firing(
                schedule="hourly report",
                revision=1,
                expected=now + seconds(10),
                next_due=now + seconds(99_999),
                last_due=now + seconds(10),
                jobs=(job,),
                overlap=Overlap.SKIP,
                records=(left_out,),
            )
        ]
    )
    assert [answer.is_done for answer in fired] == [True]


def _make_waiting(bench: Bench) -> None:
    """Make waiting jobs, with every policy."""
    bench.submit("due")
    bench.submit("due later", after=99_999, priority=2, queue="other")
    bench.submit("strange id: a.b > * ü", payload=b"\x82\xa1a\x01\xa1b\x02", codec="msgpack", after=99_999)
    bench.submit("unique", unique=UniqueKey("the key", ALIVE), after=99_999)
    bench.submit("expiring", expires=99_999, after=99)
    bench.submit("with follow-up", follow_up=FollowUp(TYPE, "after", 1, argument="n", delay=5), after=99_999)
    bench.submit("stepping aside", sequence="aside", steps_aside=True, after=99_999)
    bench.submit("resting", queue="resting")
    bench.submit("tenant 1", "tenant 2", limits=PER_TENANT, type="tenant")
    bench.submit("rated 2", "rated 3", limits=RATED, type="rated")


def _leave_to_dead(bench: Bench) -> None:
    bench.submit("left by the dead", type="crashing")
    worker = bench.enroll("crashing")
    assert len(bench.take(worker, "crashing")) == 1
    bench.submit("held by the dead", after=1, type="holding")
    holder = bench.enroll("holding")
    assert len(bench.take(holder, "holding")) == 1
