"""A recording disk, and a failing one, below the SQLite of this process.

Both are VFS of SQLite: they pass every call on to the file system. One records what is written to the files of a
store, in order, and makes from the record what a power failure could leave on the disk. The other one fails calls
according to a plan. The log grower of the engine writes to the log beside SQLite, and is recorded and failed, too.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import pytest

from mainspring.engines.sqlite import log_file

BASE = "unix"
STORE = "shop.db"
"""The name of the store that is recorded."""
SECTOR = 512  # bytes that a disk writes completely or not at all


class Event(NamedTuple):
    """One change of a file: it is written, truncated, deleted, or its changes are on the disk from now on."""

    kind: str
    name: str
    offset: int = 0
    data: bytes = b""


class _Disk(apsw.VFS):
    """A VFS that calls `on_call` before each call of interest, and is the default one during a `with` block."""

    def __init__(self, name: str, on_call: Callable[[Event], None]) -> None:
        self.on_call = on_call
        super().__init__(name, BASE, makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        return _DiskFile(self, Path(path or "").name, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: FBT001, N802
        self.on_call(Event("delete", Path(filename).name))
        super().xDelete(filename, syncdir)


class _DiskFile(apsw.VFSFile):
    def __init__(self, disk: _Disk, name: str, filename: Any, flags: list[int]) -> None:
        self._disk = disk
        self._name = name
        super().__init__(BASE, filename, flags)

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        self._disk.on_call(Event("read", self._name))
        return super().xRead(amount, offset)

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802
        self._disk.on_call(Event("write", self._name, offset, bytes(data)))
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        self._disk.on_call(Event("truncate", self._name, newsize))
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._disk.on_call(Event("sync", self._name))
        super().xSync(flags)


class _SystemCalls:
    """The calls of the operating system that `log_file` makes. The module `os` serves what is not here."""

    def __init__(self, on_call: Callable[[Event], None]) -> None:
        self._on_call = on_call
        self._names: dict[int, str] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: str, flags: int) -> int:
        descriptor = os.open(path, flags)
        self._names[descriptor] = Path(path).name
        return descriptor

    def pwrite(self, descriptor: int, data: bytes, offset: int) -> int:
        self._on_call(Event("write", self._names[descriptor], offset, data))
        return os.pwrite(descriptor, data, offset)

    def fsync(self, descriptor: int) -> None:
        self._on_call(Event("sync", self._names[descriptor]))
        os.fsync(descriptor)


@contextmanager
def watched_disk(on_call: Callable[[Event], None]) -> Iterator[None]:
    """Call `on_call` before each read, write, truncation, deletion and sync of a file during the block."""

    def on_system_call(event: Event) -> None:
        try:
            on_call(event)
        except apsw.FullError as error:
            raise OSError(errno.ENOSPC, "no space left") from error
        except apsw.Error as error:
            raise OSError(errno.EIO, "input/output error") from error

    disk = _Disk(f"watched-{random.getrandbits(64):x}", on_call)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_file, "os", _SystemCalls(on_system_call))
        try:
            yield
        finally:
            disk.unregister()


class Recording:
    """Everything that was written to the files of a folder, in order."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def add(self, event: Event) -> None:
        """Add a change of a file."""
        if event.name.startswith(STORE) and event.kind != "read":  # other files are temporary
            self.events.append(event)

    def cuts(self) -> list[int]:
        """Return after how many events a power failure is of interest: right before and after each sync."""
        syncs = [place for place, event in enumerate(self.events) if event.kind == "sync"]
        return sorted({cut for sync in syncs for cut in (sync, sync + 1)})


class DiskImages:
    """What a power failure after the first `cut` events of a recording may leave on the disk.

    What was synced is there. Of the later changes of each file, the disk may have written any, in any order, and
    only some sectors of a write. A deletion is on the disk after the next sync of the folder: SQLite syncs it with
    the first sync of a new log or journal.
    """

    def __init__(self, recording: Recording, cut: int) -> None:
        self._synced: dict[str, bytearray | None] = {}
        self._pending: dict[str, list[Event]] = {}
        for event in recording.events[:cut]:
            if event.kind == "sync":
                if self._synced.get(event.name) is None and event.name.endswith(("-wal", "-journal")):
                    self._sync_folder()
                for earlier in self._pending.pop(event.name, []):
                    _apply(self._synced, earlier)
            else:
                self._pending.setdefault(event.name, []).append(event)

    def _sync_folder(self) -> None:
        for name, events in self._pending.items():
            deletions = [place for place, event in enumerate(events) if event.kind == "delete"]
            if deletions:
                self._synced[name] = None
                del events[: deletions[-1] + 1]

    def nothing(self) -> dict[str, bytes]:
        """Return the files if nothing was written that was not synced."""
        return _files(self._synced)

    def everything(self) -> dict[str, bytes]:
        """Return the files if everything was written."""
        return self._with(lambda _event: True, None)

    def something(self, chance: random.Random) -> dict[str, bytes]:
        """Return the files if some changes were written, and of some only a part of the sectors."""
        return self._with(lambda _event: chance.random() < 0.5, chance)

    def _with(self, is_written: Callable[[Event], bool], torn: random.Random | None) -> dict[str, bytes]:
        files = {name: None if data is None else bytearray(data) for name, data in self._synced.items()}
        for events in self._pending.values():
            for event in events:
                if not is_written(event):
                    continue
                for part in [event] if torn is None or torn.random() < 0.5 else _tear(event, torn):
                    _apply(files, part)
        return _files(files)


def _tear(event: Event, chance: random.Random) -> list[Event]:
    """Return the sectors of a write that the disk has written before the power failed."""
    if event.kind != "write":
        return [event]
    starts = range(0, len(event.data), SECTOR)
    return [
        Event("write", event.name, event.offset + start, event.data[start : start + SECTOR])
        for start in starts
        if chance.random() < 0.5
    ]


def _apply(files: dict[str, bytearray | None], event: Event) -> None:
    data = files.get(event.name)
    if event.kind == "delete":
        files[event.name] = None
        return
    if data is None:
        data = files[event.name] = bytearray()
    end = event.offset + len(event.data)
    if event.kind == "truncate":
        del data[event.offset :]
    if len(data) < end:
        data.extend(bytes(end - len(data)))
    data[event.offset : end] = event.data


def _files(files: dict[str, bytearray | None]) -> dict[str, bytes]:
    return {name: bytes(data) for name, data in files.items() if data is not None}
