"""Moving from SQLite to NATS: everything that is not over arrives as it was, and goes on there."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread

import pytest
from msgspec.structs import replace

from mainspring import CatchUp, Mainspring, current_job
from mainspring.engines.nats.workers import WorkerRegistry
from mainspring.engines.sqlite import SqliteEngine
from mainspring.errors import EngineUnavailable, LimitExceeded, StoreMoved
from mainspring.jobs.commands import PutSchedule
from mainspring.jobs.records import ConflictKind, NewJob, UniqueKey, WorkerInfo
from mainspring.migration import MigrationUndo, Migrator, plan_migration
from mainspring.testing.conformance.bench import Bench
from tests.nats.migration_stores import ALIVE, Target, fill, move, opened_export, records_of, source_bench
from tests.nats.servers import MakeServers, Servers
from tests.support import PATIENCE

pytestmark = pytest.mark.long

FAR = 4_000_000_000_000_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


@pytest.fixture
def target(nats_server: Servers, nats_prefix: str, tmp_path: Path) -> Target:
    return Target(nats_server.url, nats_prefix, tmp_path)


def submit(path: Path, *ids: str, **options: object) -> None:
    with source_bench(path) as bench:
        bench.submit(*ids, **options)


# -- what arrives


def test_everything_that_is_not_over_arrives_as_it_was(path: Path, target: Target) -> None:
    contents = fill(path)
    assert len(contents.jobs) == 23
    move(path, target)
    with target.opened() as engine:
        contents.assert_are_in(engine)
        assert engine.redactions() == {"ping": ("card", "pin")}


def test_what_arrives_goes_on_where_it_stood(path: Path, target: Target) -> None:
    fill(path)
    move(path, target)
    with target.bench() as bench:
        conflicts = bench.engine.submit([bench.job("another", unique=UniqueKey("the key", ALIVE))])
        assert [(conflict.existing_id, conflict.kind) for conflict in conflicts if conflict] == [
            ("unique", ConflictKind.UNIQUE)
        ]
        _assert_sequence_goes_on_behind_its_retry(bench)
        _assert_limits_hold(bench)
        worker = bench.enroll()
        started = {lease.id for lease in bench.take_when_there(worker, 2)}
        assert started == {"due", "of hourly"}  # and nothing of the queue that is paused
        rescued = bench.record("left by the dead")
        assert (rescued.crashes, rescued.history[-1].cause) == (1, "crash")


def _assert_sequence_goes_on_behind_its_retry(bench: Bench) -> None:
    worker = bench.enroll("line")
    ran = []
    for _ in range(3):
        (lease,) = bench.take_when_there(worker, 1, "line")
        bench.complete(worker, lease)
        ran.append(lease.id)
    assert ran == ["first of line", "second of line", "third of line"]


def _assert_limits_hold(bench: Bench) -> None:
    worker = bench.enroll("tenant", "rated")
    leases = bench.sorted_when_there(worker, 2, "tenant", "rated")
    assert [lease.id for lease in leases] == ["rated 2", "tenant 1"]  # one at once; the third of an hour
    bench.complete(worker, *leases)
    assert bench.ids_when_there(worker, 1, "tenant", "rated") == ["tenant 2"]
    assert bench.situation("rated 3").full_bucket == "rate\x1f"


def test_many_jobs_arrive_in_their_order(path: Path, target: Target) -> None:
    ids = [f"job {number}" for number in range(2_500)]
    submit(path, *ids, after=99_999)
    move(path, target)
    with target.opened() as engine:
        assert list(records_of(engine, ids)) == ids


def test_new_jobs_of_a_sequence_come_behind_those_that_moved(path: Path, target: Target) -> None:
    submit(path, "moved", sequence="line", after=600)
    move(path, target)
    with target.bench() as bench:
        bench.submit("new", sequence="line")
        worker = bench.enroll()
        for job_id in ("moved", "new"):
            (lease,) = bench.take_when_there(worker, 1)
            assert lease.id == job_id
            bench.complete(worker, lease)


# -- who may use which store when


def test_a_live_worker_on_the_source_is_in_the_way(path: Path, target: Target) -> None:
    engine = SqliteEngine(path)
    engine.open(lambda: None)
    worker = engine.enroll(WorkerInfo("host:42", 42, ("ping",)))
    with opened_export(path) as source:
        assert plan_migration(source).workers == ("host:42",)
    with pytest.raises(EngineUnavailable, match=r"it has live workers: host:42; stop them"):
        move(path, target)
    engine.leave(worker)
    engine.close()
    move(path, target)


def test_a_live_worker_on_the_target_is_in_the_way(path: Path, target: Target) -> None:
    submit(path, "job")
    with target.bench() as bench:
        worker = bench.enroll()
        with pytest.raises(
            EngineUnavailable, match=r"the target has live workers \(tester\), which .*; stop them"
        ):
            move(path, target)
        submit(path, "the source is as it was")
        bench.engine.leave(worker)
        assert bench.eventually(lambda: not bench.engine.components.checkpoints.find_workers())  # type: ignore[attr-defined]
    move(path, target)


def test_workers_on_the_target_wait_until_all_is_there(path: Path, target: Target) -> None:
    submit(path, "job")
    with opened_export(path) as source, target.opened() as engine, target.bench() as bench:
        migrator = Migrator(source, engine, target.url)
        migrator.begin()
        with pytest.raises(EngineUnavailable, match="jobs are being moved here from SQLite file"):
            bench.enroll()
        assert list(migrator.copying()) == [1]
        with pytest.raises(EngineUnavailable, match="no worker may start before that ends"):
            bench.enroll()
        assert list(migrator.verifying()) == [1]
        migrator.finish()
        (lease,) = bench.take_when_there(bench.enroll(), 1)
        assert lease.id == "job"


def test_a_worker_that_starts_again_and_again_does_not_stop_a_migration(
    path: Path, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(path, "job")
    registered: list[WorkerInfo] = []
    with opened_export(path) as source, target.opened() as engine, target.bench() as bench:
        migrator = Migrator(source, engine, target.url)
        migrator.begin()
        monkeypatch.setattr(WorkerRegistry, "enroll", lambda _registry, info: registered.append(info))
        with pytest.raises(EngineUnavailable, match="no worker may start before that ends"):
            bench.enroll()
    assert registered == []  # otherwise the migration might find the worker, and give up


def test_a_process_that_has_the_source_open_is_told_where_the_jobs_are(path: Path, target: Target) -> None:
    with source_bench(path) as bench:
        bench.submit("before")
        move(path, target)
        for act in (
            lambda: bench.submit("after"),
            bench.find_ids,
            bench.enroll,
            lambda: bench.cancel("before"),
        ):
            with pytest.raises(StoreMoved, match="were moved to nats://") as raised:
                act()
            assert raised.value.target == target.url
    with pytest.raises(StoreMoved, match=r"use that URL from now on; .*--undo"):
        SqliteEngine(path).open(lambda: None)


def test_a_submit_at_the_moment_of_the_mark_is_moved_or_refused(path: Path, target: Target) -> None:
    submit(path, "first", after=99_999)
    stored: list[str] = []
    errors: list[Exception] = []
    is_under_way = Event()

    def go_on_submitting() -> None:
        engine = SqliteEngine(path, durability="normal")
        engine.open(lambda: None)
        try:
            while True:
                job_id = f"job {len(stored)}"
                engine.submit([NewJob(job_id, "ping", "default", 1, FAR, b"{}", "json")])
                stored.append(job_id)
                if len(stored) == 100:
                    is_under_way.set()
        except Exception as error:
            errors.append(error)
        finally:
            is_under_way.set()
            engine.close()

    thread = Thread(target=go_on_submitting)
    thread.start()
    assert is_under_way.wait(PATIENCE)
    move(path, target)
    thread.join(PATIENCE)
    assert [type(error) for error in errors] == [StoreMoved]
    with target.opened() as engine:
        assert records_of(engine, [*stored, f"job {len(stored)}"]).keys() == set(stored)


# -- what is in the way


def test_an_id_that_is_taken_is_told_and_not_overwritten(path: Path, target: Target) -> None:
    submit(path, "mine", "taken", after=99_999)
    with target.bench() as bench:
        bench.submit("taken", payload=b'{"of": "another"}', after=99_999)
    with opened_export(path) as source, target.opened() as engine:
        migrator = Migrator(source, engine, target.url)
        migrator.begin()
        for _ in (*migrator.copying(), *migrator.verifying()):
            pass
        assert [(deviation.what, deviation.name) for deviation in migrator.deviations] == [("job", "taken")]
        assert "not overwritten" in migrator.deviations[0].problem
        assert records_of(engine, ["taken"])["taken"].payload == b'{"of": "another"}'
        with pytest.raises(StoreMoved, match="are being moved to"):
            submit(path, "another")


def test_a_job_that_is_changed_meanwhile_is_told(path: Path, target: Target) -> None:
    submit(path, "job", after=99_999)
    with opened_export(path) as source, target.opened() as engine, target.bench() as bench:
        migrator = Migrator(source, engine, target.url)
        migrator.begin()
        assert list(migrator.copying()) == [1]
        bench.cancel("job")
        assert list(migrator.verifying()) == [1]
        assert [deviation.problem for deviation in migrator.deviations] == ["was changed there meanwhile"]


def test_a_job_that_no_message_can_carry_is_refused_before_anything_is_begun(path: Path, target: Target) -> None:
    submit(path, "large", payload=b'"' + b"x" * 1_100_000 + b'"')
    with pytest.raises(LimitExceeded, match="job large, in bytes"):
        move(path, target)
    submit(path, "the source is as it was")


def test_a_move_goes_on_only_to_where_it_began(
    path: Path, target: Target, nats_server: Servers, nats_prefix: str, tmp_path: Path
) -> None:
    submit(path, "job")
    with opened_export(path) as source, target.opened() as engine:
        Migrator(source, engine, target.url).begin()
    other = Target(nats_server.url, f"{nats_prefix}-other", tmp_path)
    with pytest.raises(EngineUnavailable, match="has no record"):
        move(path, other)
    move(path, target)


def test_a_server_without_room_says_so_and_the_move_goes_on_when_there_is_some(
    path: Path, make_nats_server: MakeServers, tmp_path: Path
) -> None:
    submit(path, *(f"job {number}" for number in range(2_000)), payload=b'"' + b"x" * 2_000 + b'"', after=99_999)
    jetstream = {"store_dir": str(tmp_path / "jetstream")}
    full = make_nats_server(settings={"jetstream": jetstream | {"max_file_store": 2_000_000}})
    with pytest.raises(EngineUnavailable, match="insufficient resources; give JetStream more storage"):
        move(path, Target(full.url, "shop", tmp_path, timeout=3))  # the first batch may get no answer for 2 s
    full.stop()
    larger = make_nats_server(settings={"jetstream": jetstream})
    target = Target(larger.url, "shop", tmp_path)
    move(path, target)
    with target.opened() as engine:
        assert len(records_of(engine, [f"job {number}" for number in range(2_000)])) == 2_000


# -- a move that was given up without asking the target


@pytest.fixture
def given_up(path: Path, target: Target) -> list[str]:
    """A file that is used again, while some of its jobs are on the target."""
    ids = ["one", "two"]
    submit(path, *ids, after=99_999)
    with opened_export(path) as source, target.opened() as engine:
        migrator = Migrator(source, engine, target.url)
        migrator.begin()
        assert list(migrator.copying()) == [2]
        source.unmark()
    return ids


def test_what_is_left_of_a_move_that_was_given_up_is_taken_away(
    path: Path, target: Target, given_up: list[str]
) -> None:
    with source_bench(path) as bench:
        bench.cancel("one")
    with opened_export(path) as source, target.opened() as engine:
        assert sum(MigrationUndo(source, engine, target.url).run()) == 2
        assert records_of(engine, given_up) == {}
        with pytest.raises(EngineUnavailable, match="nothing to undo"):
            list(MigrationUndo(source, engine, target.url).run())
    with target.bench() as bench:
        bench.enroll()


def test_a_new_move_takes_away_what_one_that_was_given_up_has_left(
    path: Path, target: Target, given_up: list[str]
) -> None:
    with source_bench(path) as bench:
        bench.cancel("one")  # as if it had run: no worker may run it there
        bench.submit("three", after=99_999)
    move(path, target)
    with target.opened() as engine:
        assert list(records_of(engine, [*given_up, "three"])) == ["two", "three"]
    with target.bench() as bench:
        bench.enroll()


# -- schedules


def test_a_schedule_that_was_only_declared_there_goes_on_at_its_old_place(path: Path, target: Target) -> None:
    contents = fill(path)
    with target.bench() as bench:
        for record in contents.schedules.values():
            declared = replace(record, last_due=None, next_due=bench.now + 99_000_000, is_paused=False)
            assert bench.arrange(PutSchedule(declared, None))
    move(path, target)
    with target.opened() as engine:
        contents.assert_are_in(engine)


def test_a_schedule_that_has_fired_there_is_told_and_not_overwritten(path: Path, target: Target) -> None:
    contents = fill(path)
    record = contents.schedules["hourly report"]
    with target.bench() as bench:
        assert bench.arrange(PutSchedule(record, None))
    with opened_export(path) as source, target.opened() as engine:
        migrator = Migrator(source, engine, target.url)
        migrator.begin()
        for _ in (*migrator.copying(), *migrator.verifying()):
            pass
        assert [(deviation.what, deviation.name) for deviation in migrator.deviations] == [
            ("schedule", "hourly report")
        ]


def ticking(url: str, dues: list[datetime], enough: Event) -> Mainspring:
    """An application with a schedule that makes up for everything it misses."""
    app = Mainspring(url, grace=10)

    @app.every(timedelta(seconds=0.5), misfire=CatchUp(1_000), overlap="allow")
    def tick() -> None:
        dues.append(current_job().due)
        if len(dues) >= 4:
            enough.set()

    return app


def test_every_occurrence_of_a_schedule_happens_once_here_or_there(path: Path, target: Target) -> None:
    dues: list[datetime] = []
    for url in (f"sqlite:///{path}", target.url):
        so_far, enough = len(dues), Event()
        here: list[datetime] = []
        with ticking(url, here, enough) as app, app.running():
            assert enough.wait(PATIENCE)
        dues += here
        assert len(dues) >= so_far + 4
        if so_far == 0:
            move(path, target)
    dues.sort()
    assert {later - earlier for earlier, later in pairwise(dues)} == {timedelta(seconds=0.5)}
