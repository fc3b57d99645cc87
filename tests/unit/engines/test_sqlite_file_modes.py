"""Who may read and write the files of a store."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mainspring.engines.sqlite import SqliteEngine
from mainspring.engines.sqlite.projection import SqliteProjection
from mainspring.jobs.records import WorkerInfo
from mainspring.testing import ManualClock
from mainspring.testing.conformance.bench import Bench

USUAL_UMASK = 0o022
FILES = {"shop.db", "shop.db-wal", "shop.db-shm", "shop.db-turn", "1.lock", "1.wake", "copy.db"}


@pytest.fixture(params=[USUAL_UMASK, 0, 0o077], ids=["umask 022", "umask 0", "umask 077"])
def _umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


@contextmanager
def used_store(folder: Path) -> Iterator[dict[str, int]]:
    """Make a store with a worker and a backup, and yield the modes of all its files and folders."""
    clock = ManualClock()
    bench = Bench(SqliteEngine(folder / "shop.db", clock=clock), clock)
    bench.submit("job")
    bench.engine.enroll(WorkerInfo("host:1", 1, ("ping",), None))
    bench.engine.backup(str(folder / "copy.db"))
    yield {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}
    bench.engine.close()


@pytest.mark.usefixtures("_umask")
def test_new_files_are_for_their_owner_only(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with used_store(tmp_path) as modes:
        assert modes == dict.fromkeys(FILES, 0o600) | {"shop.db-workers": 0o700}


@pytest.mark.usefixtures("_umask")
@pytest.mark.parametrize("mode", [0o2750, 0o770, 0o2770], ids=oct)
def test_new_files_are_also_for_the_group_that_shares_the_folder(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with used_store(tmp_path) as modes:
        folder = modes.pop("shop.db-workers")
        assert modes == dict.fromkeys(FILES, 0o660)
        assert folder & 0o777 == 0o770


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a folder to a group of others")
@pytest.mark.parametrize(("mode", "expected"), [(0o770, 0o600), (0o2770, 0o660)], ids=["new group", "setgid"])
def test_a_group_gets_nothing_of_a_file_that_does_not_belong_to_it(
    tmp_path: Path, mode: int, expected: int
) -> None:
    """Without setgid, new files have the group of the process, which may not be that of the folder."""
    os.chown(tmp_path, -1, 4_711)
    tmp_path.chmod(mode)
    with used_store(tmp_path) as modes:
        assert {modes[name] for name in FILES} == {expected}


@pytest.mark.usefixtures("_umask")
def test_a_file_that_exists_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "shop.db").touch()
    (tmp_path / "shop.db").chmod(0o644)
    with used_store(tmp_path) as modes:
        assert modes["shop.db"] == 0o644
        assert modes["copy.db"] == 0o600


def test_a_projection_is_for_its_owner_only(tmp_path: Path) -> None:
    projection = SqliteProjection(tmp_path / "jobs.projection")
    projection.open("nats://a")
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == dict.fromkeys(
        ("jobs.projection", "jobs.projection-lock"), 0o600
    )
    projection.close()
