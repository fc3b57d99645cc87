"""Who moves a file and who takes the move back, at the same time: one goes on, and no job is in both stores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mainspring.engines.nats.engine import NatsEngine
from mainspring.errors import EngineUnavailable
from mainspring.migration import MigrationUndo, Migrator, migrator
from tests.nats.migration_stores import Contents, Target, move, opened_export, records_of, source_bench
from tests.nats.servers import Servers

pytestmark = pytest.mark.long

IDS = [f"job {number}" for number in range(12)]


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(migrator, "PAGE", 4)
    with source_bench(tmp_path / "shop.db") as bench:
        bench.submit(*IDS)
    return tmp_path / "shop.db"


@pytest.fixture
def target(nats_server: Servers, nats_prefix: str, tmp_path: Path) -> Target:
    return Target(nats_server.url, nats_prefix, tmp_path)


@contextmanager
def both(path: Path, target: Target) -> Iterator[tuple[Migrator, MigrationUndo, NatsEngine]]:
    """Two who have the same file and the same target open."""
    with (
        opened_export(path) as one,
        opened_export(path) as other,
        target.opened() as engine,
        target.opened() as second,
    ):
        yield Migrator(one, engine, target.url), MigrationUndo(other, second, target.url), engine


def assert_is_back(path: Path, engine: NatsEngine) -> None:
    """Fail unless all jobs are in the file and nowhere else."""
    assert records_of(engine, IDS) == {}
    assert list(Contents(path).jobs) == IDS


def test_nothing_is_stored_any_more_while_a_move_is_taken_back(path: Path, target: Target) -> None:
    with both(path, target) as (migrator, undo, engine):
        migrator.begin()
        copying = migrator.copying()
        next(copying)
        steps = undo.run()
        next(steps)  # what is there was looked at,
        next(steps)  # and was taken away
        with pytest.raises(EngineUnavailable, match="stage is now: undoing"):
            next(copying)
        list(steps)
        assert_is_back(path, engine)


def test_a_move_that_is_finished_during_an_undo_is_not_taken_back(path: Path, target: Target) -> None:
    with both(path, target) as (migrator, undo, engine):
        migrator.begin()
        list(migrator.copying())
        steps = undo.run()
        next(steps)
        list(migrator.verifying())
        migrator.finish()
        with target.bench() as bench:
            worker = bench.enroll()
            bench.complete(worker, *bench.take(worker, starts=2))
        with pytest.raises(EngineUnavailable, match="stage is now: complete"):
            list(steps)
        assert len(records_of(engine, IDS)) == len(IDS)
    move(path, target)  # the file still says that its jobs are there


def test_a_move_that_is_being_taken_back_cannot_be_finished(path: Path, target: Target) -> None:
    with both(path, target) as (migrator, undo, engine):
        migrator.begin()
        list(migrator.copying())
        list(migrator.verifying())
        assert migrator.deviations == []
        steps = undo.run()
        for _ in IDS[::4]:
            next(steps)
        next(steps)
        with pytest.raises(EngineUnavailable, match="stage is now: undoing"):
            migrator.finish()
        list(steps)
        assert_is_back(path, engine)


def test_a_move_that_was_given_up_meanwhile_cannot_be_finished(path: Path, target: Target) -> None:
    with both(path, target) as (migrator, _, _engine), opened_export(path) as source:
        migrator.begin()
        list(migrator.copying())
        source.unmark()
        with pytest.raises(EngineUnavailable, match="given up meanwhile"):
            migrator.finish()
    with target.bench() as bench, pytest.raises(EngineUnavailable, match="jobs are being moved here"):
        bench.enroll()
