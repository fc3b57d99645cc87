"""Checks of where a SQLite store is."""

import os
import subprocess
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest

from mainspring.doctor import sqlite_location as place
from mainspring.doctor.findings import Severity
from mainspring.doctor.sqlite_checks import check_file
from mainspring.doctor.sqlite_location import check_file_system, type_of
from mainspring.engines.sqlite import read_only
from mainspring.testing import ManualClock
from tests.unit.doctor.finding_assertions import assert_finding, is_all_ok

MOUNTS = r"""
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 27 0:27 / /srv/a\040share rw,relatime shared:2 master:1 - nfs4 nas:/jobs rw,vers=4.2
31 27 0:28 / /tmp rw - tmpfs tmpfs rw
32 31 254:1 / /tmp rw - xfs /dev/vdb rw
33 27 0:29 / /home rw - fuse.sshfs me@host rw
34 27 0:30 / /var/lib/docker rw - overlay overlay rw
35 27 0:31 / /mnt/odd rw - fuse.unionfs odd rw
"""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A file that could be a store."""
    path = tmp_path / "shop.db"
    path.write_bytes(b"x" * 1_000)
    path.chmod(0o644)
    return path


def test_a_path_is_on_the_deepest_mount_and_on_the_last_of_those() -> None:
    kinds = {path: type_of(Path(path), MOUNTS) for path in ("/srv", "/srv/a share/jobs", "/tmp/x", "/home/me")}
    assert kinds == {"/srv": "ext4", "/srv/a share/jobs": "nfs4", "/tmp/x": "xfs", "/home/me": "fuse.sshfs"}
    assert type_of(Path("/srv"), "") is None


@pytest.mark.parametrize(
    ("folder", "severity", "word"),
    [
        ("/srv/a share", Severity.ERROR, "nfs4"),
        ("/home/me", Severity.ERROR, "fuse.sshfs"),
        ("/var/lib/docker/x", Severity.WARNING, "a layer of a container"),
        ("/mnt/odd", Severity.WARNING, "fuse.unionfs"),
    ],
)
def test_file_systems_on_which_a_store_does_not_live_well(folder: str, severity: Severity, word: str) -> None:
    assert_finding(check_file_system(Path(folder), MOUNTS), severity, word)


def test_a_local_file_system_is_in_order_and_an_unknown_one_is_said_to_be() -> None:
    assert is_all_ok(check_file_system(Path("/srv"), MOUNTS))
    assert_finding(check_file_system(Path("/srv"), None), Severity.INFO, "it is unknown which file system")


def test_there_may_be_no_file(store: Path) -> None:
    assert is_all_ok(check_file(store))
    assert_finding(check_file(store.with_name("other.db")), Severity.ERROR, "there is no file", "other.db")
    assert_finding(check_file(store.parent), Severity.ERROR, "is a folder")
    assert_finding(check_file(store.parent / "nowhere" / "shop.db"), Severity.ERROR, "there is no folder")


def test_a_store_belongs_to_one_user(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_all_ok(place.check_permissions(store))
    log = store.with_name("shop.db-wal")
    log.touch()
    os.chown(log, os.geteuid() + 1, -1) if os.geteuid() == 0 else _own_by_others(monkeypatch, log)
    assert_finding(place.check_permissions(store), Severity.WARNING, "shop.db-wal", "another owner")


def _own_by_others(monkeypatch: pytest.MonkeyPatch, stranger: Path) -> None:
    owners_of_existing = place._owners_of_existing
    monkeypatch.setattr(
        place,
        "_owners_of_existing",
        lambda paths: {p: uid + (p == stranger) for p, uid in owners_of_existing(paths).items()},
    )


def test_files_of_workers_have_owners_too(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = store.with_name("shop.db-workers")
    folder.mkdir()
    (folder / "7.lock").touch()
    assert is_all_ok(place.check_permissions(store))
    _own_by_others(monkeypatch, folder / "7.lock")
    assert_finding(place.check_permissions(store), Severity.WARNING, "7.lock")


def test_a_user_that_may_not_write_is_told_where(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "may_write", lambda path: path != store)
    assert_finding(place.check_permissions(store), Severity.ERROR, "may not write to", str(store))


def test_advice_to_root_is_no_change_of_the_owner(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "may_write", lambda path: path != store)
    monkeypatch.setattr(read_only, "may_write", lambda path: path != store)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    finding = assert_finding(place.check_permissions(store), Severity.ERROR, "user root may not write to")
    assert finding.remedy == f"Remove the attribute that protects it: chattr -i {store}"
    found = os.statvfs(store)
    monkeypatch.setattr(os, "statvfs", lambda _path: SimpleNamespace(f_flag=found.f_flag | os.ST_RDONLY))
    finding = assert_finding(place.check_permissions(store), Severity.ERROR)
    assert finding.remedy.startswith("The file system is read-only; mount it for writing: mount -o remount,rw /")


def test_a_user_who_may_write_is_not_advised_to_get_write_access(store: Path) -> None:
    assert read_only.write_remedy(store).startswith("check the limit of open files (ulimit -n)")
    assert read_only.write_remedy(store.with_name("new.db")).startswith("check the limit of open files")


@pytest.mark.parametrize("name", ["shop.db", "."])
def test_a_file_that_all_users_may_write_is_reported(store: Path, name: str) -> None:
    target = store.parent / name
    target.chmod(target.stat().st_mode | 0o002)
    finding = assert_finding(place.check_permissions(store), Severity.WARNING, "all users of this machine")
    assert f"chmod o-w {target}" in finding.remedy
    if target.is_dir():
        target.chmod(0o1777)  # as /tmp: what others own is safe
        assert is_all_ok(place.check_permissions(store))


def test_files_that_all_users_may_read_are_reported() -> None:
    with TemporaryDirectory() as name:
        store = Path(name) / "shop.db"
        for path in (store, store.with_name("shop.db-wal")):
            path.touch()
            path.chmod(0o644)
        store.parent.chmod(0o711)
        finding = assert_finding(
            place.check_permissions(store), Severity.WARNING, "all users", "may read", "shop.db-wal"
        )
        store.parent.chmod(0o700)  # no other user reaches the files
        assert is_all_ok(place.check_permissions(store))
        store.parent.chmod(0o755)
        subprocess.run(finding.remedy, shell=True, check=True)
        assert is_all_ok(place.check_permissions(store))


def test_the_advice_can_be_pasted_for_any_path(tmp_path: Path) -> None:
    store = tmp_path / "my shop" / "jobs (old).db"
    store.parent.mkdir(mode=0o755)
    store.touch()
    store.chmod(0o666)
    finding = assert_finding(place.check_permissions(store), Severity.WARNING, "all users of this machine")
    subprocess.run(finding.remedy, shell=True, check=True)
    assert is_all_ok(place.check_permissions(store))


def test_room_runs_out(store: Path) -> None:
    assert_finding(place.check_disk(store, 10 << 20, None), Severity.ERROR, "nearly full", "10 MiB")
    assert_finding(place.check_disk(store, 10 << 30, 5), Severity.ERROR, "5 more files")
    assert_finding(place.check_disk(store, 300 << 20, None), Severity.WARNING, "only 300 MiB")
    assert is_all_ok(place.check_disk(store, 10 << 30, 1_000_000))
    assert is_all_ok(place.check_disk(store.with_name("other.db"), 10 << 30, None))
    assert is_all_ok(place.check_disk(store, *place.room_at(store.parent)))


def test_a_store_that_is_larger_than_the_room_that_is_left_cannot_be_backed_up(store: Path) -> None:
    with store.open("r+b") as file:
        file.truncate(2 << 30)
    assert_finding(place.check_disk(store, 1 << 30, None), Severity.WARNING, "only 1 GiB", "2 GiB")


def test_syncing_is_measured_in_a_file_that_goes_again(store: Path) -> None:
    clock = ManualClock()
    durations = [0.004, 0.001, 0.002] * 10
    sizes: list[int] = []

    def sync(file: int) -> None:
        sizes.append(os.fstat(file).st_size)
        clock.jump(durations.pop())

    before = sorted(store.parent.iterdir())
    assert place.measure_sync(store.parent, clock, sync) == pytest.approx(0.002)
    assert all(smaller < larger for smaller, larger in pairwise(sizes))
    assert sorted(store.parent.iterdir()) == before


def test_a_slow_disk_is_not_measured_for_long(store: Path) -> None:
    clock = ManualClock()
    assert place.measure_sync(store.parent, clock, lambda _file: clock.jump(0.3)) == pytest.approx(0.3)
    assert clock.monotonic_ns() < 1_000_000_000 + ManualClock().monotonic_ns()


def test_a_disk_that_confirms_at_once_confirms_nothing() -> None:
    assert_finding(place.check_sync(3e-6, "full"), Severity.WARNING, "3 µs")
    assert_finding(place.check_sync(0.08, None), Severity.WARNING, "80 ms")
    assert is_all_ok(place.check_sync(0.08, "normal"))
    assert is_all_ok(place.check_sync(0.002, "full"))


def test_what_a_commit_is_worth_is_said() -> None:
    assert is_all_ok(place.check_durability("full"))
    assert_finding(place.check_durability("normal"), Severity.INFO, "'normal'")
