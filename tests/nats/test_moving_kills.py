"""A move that dies at any step goes on, and every job is there once: the same when it is taken back."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from threading import Lock
from typing import Any

import pytest

from mainspring import JobStatus, Mainspring
from mainspring.engines.nats.engine import NatsEngine
from mainspring.engines.nats.write_batch import WriteBatch
from mainspring.engines.sqlite.export import SqliteExport
from mainspring.jobs.records import Query
from mainspring.migration import MigrationUndo, Migrator, migrator
from tests.nats.migration_stores import Contents, Target, carry_out, fill, move, opened_export, records_of
from tests.nats.servers import MakeServers, Servers
from tests.support import PATIENCE, amount

pytestmark = pytest.mark.long

STRIDE = amount(3, thorough=1)  # of the steps at which a move dies, every so many
KILLS = amount(4, thorough=8)
FAR_JOBS = 12_000
DUE_JOBS = amount(300, thorough=600)
SEQUENCES = 20


class Died(BaseException):
    """What `kill -9` is to a process: nothing is done any more."""


class DeathAtStep:
    """Lets a move die at one of its steps: before or after a statement on the file, or a change of the target."""

    def __init__(self, fatal: int | None = None) -> None:
        self._fatal = fatal
        self.steps = 0

    def step(self, *_what: str) -> None:
        self.steps += 1
        if self.steps == self._fatal:
            raise Died

    @contextmanager
    def stores(self, path: Path, target: Target) -> Iterator[tuple[SqliteExport, NatsEngine]]:
        """Open both stores, so that they die at the step."""
        source = SqliteExport(path, probe=self.step)
        with target.opened() as engine:
            jetstream = engine.components.jetstream
            commit = jetstream.commit

            def fatal_commit(batch: WriteBatch) -> int | None:
                self.step()
                answer = commit(batch)
                self.step()
                return answer

            vars(jetstream)["commit"] = fatal_commit
            try:
                source.open()
                yield source, engine
            finally:
                source.close()


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few jobs be many batches."""
    monkeypatch.setattr(migrator, "PAGE", 8)


@pytest.fixture
def make_target(nats_server: Servers, nats_prefix: str, tmp_path: Path) -> Callable[[int], Target]:
    return lambda number: Target(nats_server.url, f"{nats_prefix}-{number}", tmp_path)


def dies(act: Callable[[], object]) -> bool:
    try:
        act()
    except Died:
        return True
    return False


def first_fatal_step() -> int:
    """Return where the steps begin, at random: several runs let a move die at each of them."""
    return random.randrange(STRIDE) + 1 - STRIDE


def copy_of(path: Path) -> Path:
    copy = path.with_name("copy.db")
    for old in path.parent.glob("copy.db*"):
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    shutil.copy(path, copy)
    return copy


@pytest.mark.usefixtures("small_pages")
def test_a_move_that_dies_at_any_step_goes_on(tmp_path: Path, make_target: Callable[[int], Target]) -> None:
    original = tmp_path / "shop.db"
    contents = fill(original)
    fatal = first_fatal_step()
    has_died = True
    while has_died:
        fatal += STRIDE
        path, target, death = copy_of(original), make_target(fatal), DeathAtStep(fatal)
        with death.stores(path, target) as (source, engine):
            has_died = dies(lambda: carry_out(Migrator(source, engine, target.url)))  # noqa: B023 - called at once
        move(path, target)
        with target.opened() as engine:
            contents.assert_are_in(engine)
            assert len(engine.components.jetstream.scan(f"{engine.components.names.jobs}>")) == len(contents.jobs)
        with opened_export(path) as source:
            state = source.move()
            assert state is not None
            assert state.finished is not None
    assert fatal > 40


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("is_complete", [True, False])
def test_taking_back_that_dies_at_any_step_goes_on(
    tmp_path: Path,
    make_target: Callable[[int], Target],
    is_complete: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    original = tmp_path / "shop.db"
    contents = fill(original)
    fatal = first_fatal_step()
    has_died = True
    while has_died:
        fatal += STRIDE
        path, target, death = copy_of(original), make_target(fatal), DeathAtStep(fatal)
        with opened_export(path) as source, target.opened() as engine:
            begun = Migrator(source, engine, target.url)
            if is_complete:
                carry_out(begun)
            else:
                begun.begin()
                copying = begun.copying()
                next(copying)
        with death.stores(path, target) as (source, engine):
            has_died = dies(lambda: list(MigrationUndo(source, engine, target.url).run()))  # noqa: B023
        with opened_export(path) as source, target.opened() as engine:
            if source.move() is not None:
                list(MigrationUndo(source, engine, target.url).run())
            assert records_of(engine, list(contents.jobs)) == {}
            assert engine.schedules() == []
        again = Contents(path)
        assert (again.jobs, again.schedules, again.done) == (contents.jobs, contents.schedules, contents.done)
        with target.bench() as bench:
            bench.enroll()  # workers may begin
    assert fatal > 10


# -- answers that are lost


@contextmanager
def losing_answers(target: Target, is_lost: Callable[[NatsEngine, WriteBatch], bool]) -> Iterator[NatsEngine]:
    """Open a target that does not always reply whether a change was stored."""
    with target.opened() as engine:
        jetstream = engine.components.jetstream
        commit = jetstream.commit

        def commit_and_lose(batch: WriteBatch) -> int | None:
            answer = commit(batch)
            return None if batch.writes and is_lost(engine, batch) else answer

        vars(jetstream)["commit"] = commit_and_lose
        yield engine


@pytest.mark.usefixtures("small_pages")
def test_a_move_that_loses_every_second_answer_arrives(
    tmp_path: Path, make_target: Callable[[int], Target]
) -> None:
    path, target = tmp_path / "shop.db", make_target(0)
    contents = fill(path)
    turns = cycle((True, False))
    with opened_export(path) as source, losing_answers(target, lambda *_: next(turns)) as engine:
        carry_out(Migrator(source, engine, target.url))
    with target.opened() as engine:
        contents.assert_are_in(engine)


def test_a_job_that_is_run_and_forgotten_before_its_arrival_is_known_does_not_come_again(
    tmp_path: Path, make_target: Callable[[int], Target]
) -> None:
    path, target = tmp_path / "shop.db", make_target(0)
    contents = fill(path)
    arrived: list[str] = []

    def forget_jobs(engine: NatsEngine, batch: WriteBatch) -> bool:
        names = engine.components.names
        arrived.extend(write.subject for write in batch.writes if write.subject.startswith(names.jobs))
        engine.components.jetstream.api(f"STREAM.PURGE.{names.stream}", {"filter": f"{names.jobs}>"})
        return bool(arrived)

    with opened_export(path) as source, losing_answers(target, forget_jobs) as engine:
        move = Migrator(source, engine, target.url)
        move.begin()
        for _ in move.copying():
            assert len(arrived) == len(contents.jobs)
            break  # what follows would not hear any answer either
        assert records_of(engine, list(contents.jobs)) == {}


# -- the program itself


def fill_file(url: str) -> None:
    with Mainspring(url, durability="normal") as app:

        @app.job(name="shop.later")
        def later(n: int) -> None: ...

        @app.job(name="shop.now")
        def now(sequence: int, n: int) -> None: ...

        later.after(99_999).submit_many([(n,) for n in range(FAR_JOBS)])
        for n in range(DUE_JOBS):
            now.options(sequence=f"sequence {n % SEQUENCES}").submit(n % SEQUENCES, n)


def run_program(url: str, goal: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "mainspring", "migrate", url, goal]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def kill_after(process: subprocess.Popen[bytes], seconds: float) -> None:
    try:
        process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()


def test_the_program_is_killed_again_and_again_and_every_job_runs_once(
    tmp_path: Path, make_target: Callable[[int], Target], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path, target = tmp_path / "shop.db", make_target(0)
    url = f"sqlite:///{path}"
    fill_file(url)
    contents = Contents(path)
    chance = random.Random(20_261_116)
    for _ in range(KILLS):
        kill_after(run_program(url, target.url), chance.uniform(0.4, 1.6))
    last = run_program(url, target.url)
    output, errors = last.communicate(timeout=PATIENCE)
    assert (last.returncode, errors) == (0, b"")
    assert b"moved" in output
    with target.opened() as engine:
        contents.assert_are_in(engine)
    _assert_all_run_once(target)


def _assert_all_run_once(target: Target) -> None:
    ran: list[tuple[int, int]] = []
    lock = Lock()
    with Mainspring(target.url) as app:

        @app.job(name="shop.now")
        def now(sequence: int, n: int) -> None:
            with lock:
                ran.append((sequence, n))

        with app.running():
            last: Any = app.manager()
            last.wait_until(lambda: len(ran) >= DUE_JOBS, PATIENCE, "not all jobs have run")
        page = app.manager().engine.find(Query(status=JobStatus.COMPLETED, limit=2 * DUE_JOBS))
    assert sorted(ran, key=lambda run: run[1]) == [(n % SEQUENCES, n) for n in range(DUE_JOBS)]
    assert len(page.records) == DUE_JOBS
    for sequence in range(SEQUENCES):
        in_order = [n for of, n in ran if of == sequence]
        assert in_order == sorted(in_order)


# -- servers


@pytest.mark.usefixtures("small_pages")
def test_a_move_to_a_cluster_goes_on_when_the_leader_is_killed(
    tmp_path: Path, make_nats_cluster: MakeServers
) -> None:
    servers = make_nats_cluster()
    path, target = tmp_path / "shop.db", Target(servers.url, "shop", tmp_path, replicas=3)
    contents = fill(path)
    with opened_export(path) as source, target.opened() as engine:
        move_on = Migrator(source, engine, target.url)
        move_on.begin()
        for number, _ in enumerate(move_on.copying()):
            if number == 0:
                servers.kill(servers.leader_of("shop"))
        for _ in move_on.verifying():
            pass
        assert move_on.deviations == []
        move_on.finish()
        contents.assert_are_in(engine)
