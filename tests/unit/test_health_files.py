"""The signs of life of workers on the disk, and what systemd hears."""

import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import Any

import msgspec
import pytest

from mainspring.cli.healthcheck import problem_of
from mainspring.foreground.health_files import (
    FolderUnsafe,
    HealthFile,
    HealthRecord,
    WorkerIdentity,
    choose_folder,
    process_start,
    read_health_files,
    remove_stale_files,
)
from mainspring.foreground.health_publisher import HealthPublisher, SystemdNotifier
from mainspring.foreground.health_rules import HealthLevel
from mainspring.worker_health import WorkerHealth, WorkerState
from tests.support import PATIENCE

WELL = WorkerHealth(WorkerState.READY, 1, 1, None, None, 3)
STARTING = msgspec.structs.replace(WELL, state=WorkerState.STARTING)
STOPPING = msgspec.structs.replace(WELL, state=WorkerState.STOPPING)
SECONDS = 1_000_000_000


def identity(*, pid: int | None = None, number: int = 1) -> WorkerIdentity:
    number_of_process = pid or os.getpid()
    start = process_start(number_of_process)
    return WorkerIdentity(
        number_of_process, start, number, "memory", "memory://", datetime(2027, 1, 1, tzinfo=UTC)
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return choose_folder(str(tmp_path), {})


def test_what_is_written_is_read(folder: Path) -> None:
    files = [HealthFile(folder, identity(number=number)) for number in (1, 2)]
    for file in files:
        file.write(STARTING)
        file.write(WELL)
    assert read_health_files(folder) == [HealthRecord(file.identity, WELL) for file in files]
    assert not any(record.is_stale for record in read_health_files(folder))
    files[0].remove()
    assert [record.worker.number for record in read_health_files(folder)] == [2]
    assert folder.stat().st_mode & 0o777 == 0o700


def test_no_folder_is_no_worker(folder: Path) -> None:
    assert read_health_files(folder) == []
    remove_stale_files(folder)


def test_a_process_that_was_killed_is_told_from_one_with_its_number(folder: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    file = HealthFile(folder, identity(pid=process.pid))
    file.write(WELL)
    assert [record.is_stale for record in read_health_files(folder)] == [False]
    recycled = msgspec.structs.replace(file.identity, start="1")
    assert HealthRecord(recycled, WELL).is_stale
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is not reaped yet
    assert [record.is_stale for record in read_health_files(folder)] == [True]
    process.communicate()
    assert [record.is_stale for record in read_health_files(folder)] == [True]
    HealthFile(folder, identity()).write(WELL)
    remove_stale_files(folder)
    assert [record.worker.pid for record in read_health_files(folder)] == [os.getpid()]


def test_what_others_have_planted_is_not_followed(folder: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(0o700)
    folder.symlink_to(elsewhere)
    with pytest.raises(OSError, match="mainspring-"):
        HealthFile(folder, identity()).write(WELL)
    folder.unlink()
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(FolderUnsafe, match="is open to other users"):
        HealthFile(folder, identity()).write(WELL)
    with pytest.raises(FolderUnsafe, match="is open to other users"):
        read_health_files(folder)
    assert list(elsewhere.iterdir()) == []


def test_a_folder_of_another_user_is_not_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    HealthFile(folder, identity()).write(WELL)
    ours = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: ours + 1)
    with pytest.raises(FolderUnsafe, match=f"belongs to user {ours}"):
        read_health_files(folder)


def test_what_is_no_sign_is_left_out(folder: Path) -> None:
    HealthFile(folder, identity()).write(WELL)
    (folder / "1-1.worker.json").write_text("{half")
    (folder / "2-1.worker.json").symlink_to("/etc/passwd")
    os.mkfifo(folder / "3-1.worker.json")
    (folder / "notes.txt").write_text("mine")
    assert [record.worker.pid for record in read_health_files(folder)] == [os.getpid()]


def test_the_folder_is_the_given_one_or_that_of_the_environment() -> None:
    name = f"mainspring-{os.getuid()}"
    assert choose_folder("/given", {"MAINSPRING_HEALTH_DIR": "/env"}) == Path("/given") / name
    assert choose_folder(None, {"MAINSPRING_HEALTH_DIR": "/env", "XDG_RUNTIME_DIR": "/run"}) == Path("/env") / name
    assert choose_folder(None, {"XDG_RUNTIME_DIR": "/run/user/7"}) == Path("/run/user/7") / name
    assert choose_folder(None, {}).name == name


# -- publishing


def test_a_publisher_writes_what_it_is_told_and_takes_it_along(folder: Path) -> None:
    written = Event()

    class Noted(HealthFile):
        def write(self, health: WorkerHealth) -> None:
            super().write(health)
            written.set()

    with HealthPublisher(Noted(folder, identity()), SystemdNotifier(None)) as publisher:
        publisher.publish(WELL)
        assert written.wait(PATIENCE)
        assert [record.health for record in read_health_files(folder)] == [WELL]
    assert read_health_files(folder) == []


def test_a_folder_that_cannot_be_used_is_told_once_and_stops_no_worker(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder.write_text("a file")
    with HealthPublisher(HealthFile(folder, identity()), SystemdNotifier(None)) as publisher:
        publisher.publish(WELL)
    with HealthPublisher(HealthFile(folder, identity()), SystemdNotifier(None)) as publisher:
        publisher.publish(WELL)
        publisher.publish(STOPPING)
    assert caplog.text.count("`mainspring healthcheck` may not find this worker") == 2  # once for each
    assert "MAINSPRING_HEALTH_DIR" in caplog.text


# -- systemd


@dataclass
class Listener:
    """A socket as systemd has it."""

    address: str

    def __enter__(self) -> "Listener":
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(PATIENCE)
        self._socket.bind(self.address.replace("@", "\0", 1) if self.address.startswith("@") else self.address)
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def hear(self) -> list[str]:
        return self._socket.recv(4096).decode().splitlines()


@pytest.mark.parametrize("is_abstract", [False, True], ids=["a path", "abstract"])
def test_systemd_hears_of_ready_watchdog_and_stopping(tmp_path: Path, is_abstract: bool) -> None:  # noqa: FBT001
    address = f"@mainspring-test-{os.getpid()}" if is_abstract else str(tmp_path / "notify")
    environment = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}
    with Listener(address) as listener:
        systemd = SystemdNotifier.of(environment)
        stalled = msgspec.structs.replace(WELL, stall="no worker has claimed any")
        for health in (STARTING, WELL, WELL, stalled, STOPPING):
            systemd.notify(health)
        assert listener.hear() == ["WATCHDOG=1", "STATUS=starting"]
        assert listener.hear() == ["READY=1", "WATCHDOG=1", "STATUS=ready"]
        assert listener.hear() == ["WATCHDOG=1"]
        assert listener.hear() == ["WATCHDOG=1", "STATUS=ready, but no worker has claimed any"]
        assert listener.hear() == ["STOPPING=1", "WATCHDOG=1", "STATUS=stopping"]


def test_the_file_is_there_when_systemd_hears_of_it(folder: Path) -> None:
    seen: list[list[HealthRecord]] = []
    told = Event()

    class Reading(SystemdNotifier):
        def notify(self, health: WorkerHealth) -> None:
            seen.append(read_health_files(folder))
            told.set()

    file = HealthFile(folder, identity())
    with HealthPublisher(file, Reading(None, has_watchdog=False)) as publisher:
        publisher.publish(WELL)
        assert told.wait(PATIENCE)
    assert seen[0] == [HealthRecord(file.identity, WELL)]


def test_a_watchdog_for_another_process_is_not_ours(tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    with Listener(address) as listener:
        SystemdNotifier.of({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}).notify(WELL)
        assert listener.hear() == ["READY=1", "STATUS=ready"]


def test_a_socket_without_a_listener_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    systemd = SystemdNotifier(str(tmp_path / "gone"), has_watchdog=True)
    systemd.notify(WELL)
    systemd.notify(WELL)
    assert caplog.text.count("systemd cannot be notified at NOTIFY_SOCKET") == 1


# -- what a probe makes of it


@pytest.mark.parametrize(
    ("changes", "worst"),
    [
        ({}, None),
        ({"stall": "no worker has claimed any"}, HealthLevel.HEALTHY),
        ({"trouble": "the disk is full"}, HealthLevel.READY),
        ({"answered_ns": 80 * SECONDS}, HealthLevel.READY),
        ({"answered_ns": None}, HealthLevel.READY),
        ({"state": WorkerState.STARTING}, HealthLevel.READY),
        ({"state": WorkerState.STOPPING}, HealthLevel.READY),
        ({"turned_ns": 84 * SECONDS}, HealthLevel.LIVE),
        ({"turned_ns": 101 * SECONDS}, HealthLevel.LIVE),
    ],
    ids=["well", "stall", "trouble", "silence", "no answer", "starting", "stopping", "hangs", "before the boot"],
)
def test_a_worker_is_as_well_as_its_worst_sign(changes: dict[str, Any], worst: HealthLevel | None) -> None:
    fresh = {"turned_ns": 99 * SECONDS, "answered_ns": 99 * SECONDS}
    record = HealthRecord(identity(), msgspec.structs.replace(WELL, **fresh | changes))
    problems = {wanted: problem_of(record, wanted, 100 * SECONDS, 15 * SECONDS) for wanted in HealthLevel}
    expected = {wanted for wanted in HealthLevel if worst is not None and wanted >= worst}
    assert {wanted for wanted, problem in problems.items() if problem is not None} == expected


def test_a_store_that_never_answered_is_not_said_to_be_silent_since_the_boot() -> None:
    record = HealthRecord(identity(), msgspec.structs.replace(WELL, turned_ns=1, answered_ns=None))
    assert "has had no answer from its store yet" in (problem_of(record, HealthLevel.READY, 2, 15) or "")


def test_a_worker_that_is_gone_is_not_even_live() -> None:
    gone = msgspec.structs.replace(identity(), start="1")
    assert "was killed" in (problem_of(HealthRecord(gone, WELL), HealthLevel.LIVE, 1, 1) or "")
