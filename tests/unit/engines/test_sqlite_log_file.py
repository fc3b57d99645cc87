"""The write-ahead log: it is extended in large steps, and what is stored does not depend on that."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import apsw
import pytest

from mainspring.engines.sqlite import SqliteEngine
from mainspring.engines.sqlite.log_file import SHORT, STEP, LogGrower
from mainspring.testing import ManualClock
from mainspring.testing.conformance.bench import Bench

MANY = 400


def log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def submit(bench: Bench, count: int, first: int = 0) -> set[str]:
    ids = [f"job {number}" for number in range(first, first + count)]
    for job in ids:
        bench.submit(job)
    return set(ids)


def copy_as_a_crash_leaves_it(path: Path, folder: Path) -> Path:
    """Copy the file and its log, without the shared memory: the next process to open it recovers the log."""
    folder.mkdir()
    shutil.copy(path, folder)
    shutil.copy(log_of(path), folder)
    return folder / path.name


def ids_in(path: Path) -> set[str]:
    with closing(apsw.Connection(str(path))) as connection:
        assert connection.pragma("integrity_check") == "ok"
        return {job for (job,) in connection.execute("SELECT id FROM jobs")}


@contextmanager
def opened(path: Path, clock: ManualClock) -> Iterator[Bench]:
    """Open a store that waits for the disk; only its log is extended."""
    bench = Bench(SqliteEngine(path, clock=clock, durability="full"), clock)
    try:
        yield bench
    finally:
        bench.engine.close()


@pytest.fixture
def bench(path: Path, clock: ManualClock) -> Iterator[Bench]:
    with opened(path, clock) as bench:
        yield bench


def test_the_log_of_a_few_jobs_is_not_extended(bench: Bench, path: Path) -> None:
    submit(bench, 1)
    assert log_of(path).stat().st_size < STEP


def test_the_log_is_extended_in_large_steps(bench: Bench, path: Path) -> None:
    sizes = set()
    for number in range(MANY):
        submit(bench, 1, first=number)
        sizes.add(log_of(path).stat().st_size)
    large = sorted(size for size in sizes if size > STEP)
    assert len(large) >= 2, "the jobs do not fill one step"
    assert [after - before for before, after in pairwise(large)] == [STEP] * (len(large) - 1)
    assert len(sizes) - len(large) <= SHORT


def test_a_store_without_fsync_is_not_extended(path: Path, clock: ManualClock) -> None:
    engine = SqliteEngine(path, clock=clock, durability="normal")
    bench = Bench(engine, clock)
    submit(bench, MANY)
    assert engine._database._log_grower is None
    engine.close()


@pytest.mark.parametrize("count", [1, 20, 60, MANY])
def test_a_crash_loses_nothing_of_an_extended_log(bench: Bench, path: Path, tmp_path: Path, count: int) -> None:
    ids = submit(bench, count)
    copy = copy_as_a_crash_leaves_it(path, tmp_path / "copy")
    assert ids_in(copy) == ids


def test_a_log_that_begins_again_at_its_start_loses_nothing(bench: Bench, path: Path, tmp_path: Path) -> None:
    ids = submit(bench, MANY)
    with closing(apsw.Connection(str(path))) as connection:
        assert connection.execute("SELECT count(*) FROM jobs").get == MANY  # this opens the log
        pages, copied = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
        assert pages == copied
    ids |= submit(bench, 1, first=MANY)  # the log begins again
    size = log_of(path).stat().st_size
    ids |= submit(bench, 20, first=MANY + 1)
    assert log_of(path).stat().st_size == size
    copy = copy_as_a_crash_leaves_it(path, tmp_path / "copy")
    assert ids_in(copy) == ids


def test_two_engines_extend_one_log(bench: Bench, path: Path, tmp_path: Path, clock: ManualClock) -> None:
    with opened(path, clock) as other:
        ids: set[str] = set()
        for number in range(0, MANY, 2):
            ids |= submit(bench, 1, first=number) | submit(other, 1, first=number + 1)
        copy = copy_as_a_crash_leaves_it(path, tmp_path / "copy")
    assert ids_in(copy) == ids


def failing(*_: Any) -> int:
    raise OSError(errno.ENOSPC, "no space left on device")


def partial(write: Callable[..., int]) -> Callable[..., int]:
    return lambda descriptor, data, offset: write(descriptor, data[:1_000], offset)


@pytest.mark.parametrize("how", ["fails", "writes a part"])
def test_a_disk_without_room_for_zeros_stores_jobs_as_long_as_it_can(
    bench: Bench, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(os, "pwrite", failing if how == "fails" else partial(os.pwrite))
    ids = submit(bench, MANY)
    copy = copy_as_a_crash_leaves_it(path, tmp_path / "copy")
    assert ids_in(copy) == ids


def test_zeros_are_appended_and_never_overwrite(path: Path) -> None:
    with closing(apsw.Connection(str(path))) as connection:
        connection.pragma("journal_mode", "wal")
        connection.execute("CREATE TABLE t (a)")
        before = log_of(path).read_bytes()
        grower = LogGrower(connection)
        grower.after_write(SHORT)
        assert grower.is_nearly_full
        grower.grow()
        assert log_of(path).read_bytes() == before + bytes(STEP)
        grower.after_write(SHORT)
        assert not grower.is_nearly_full
