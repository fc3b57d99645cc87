"""Signs of life on the disk: a small file for each worker, written anew about once a second, gone at a clean end.

A file says which process it is about, and when that was started: so a process that was killed, and another one
that got its number, are told apart. Times in it are those of the monotonic clock, which all processes since the
last boot share: it does not matter if somebody sets the clock on the wall.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from itertools import count
from pathlib import Path

import msgspec

from mainspring.foreground.health_folder import opened
from mainspring.foreground.processes import start_of
from mainspring.vital_signs import Health

SUFFIX = ".worker.json"
MOST_BYTES = 65_536
_numbers = count(1)  # of the workers of this process


class Identity(msgspec.Struct, frozen=True):
    """Which worker it is."""

    pid: int
    start: str | None
    """When its process was started, as the kernel counts; None where that cannot be known."""
    number: int
    engine: str
    store: str
    since: datetime

    @classmethod
    def of_this_process(cls, engine: str, store: str, since: datetime) -> Identity:
        """Name a worker of this process."""
        pid = os.getpid()
        return cls(pid, start_of(pid), next(_numbers), engine, store, since)


class Sign(msgspec.Struct, frozen=True):
    """What a file says."""

    worker: Identity
    health: Health

    @property
    def is_gone(self) -> bool:
        """Whether its process has ended without taking the file along."""
        return start_of(self.worker.pid) != self.worker.start


_decode = msgspec.json.Decoder(Sign).decode


class HealthFile:
    """The file of one worker."""

    def __init__(self, folder: Path, identity: Identity) -> None:
        self.folder = folder
        self.identity = identity
        self._name = f"{identity.pid}-{identity.number}{SUFFIX}"

    def write(self, health: Health) -> None:
        """Replace what the file says, as one."""
        data = msgspec.json.encode(Sign(self.identity, health))
        draft = f".{self._name}.new"
        with opened(self.folder, makes=True) as folder:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
            descriptor = os.open(draft, flags, 0o600, dir_fd=folder)
            try:
                os.write(descriptor, data)
            finally:
                os.close(descriptor)
            os.replace(draft, self._name, src_dir_fd=folder, dst_dir_fd=folder)

    def remove(self) -> None:
        """Take it away."""
        with suppress(OSError), opened(self.folder) as folder:
            os.unlink(self._name, dir_fd=folder)


def read_signs(folder: Path) -> list[Sign]:
    """Return what all workers say; nothing if there is no folder."""
    try:
        with opened(folder) as descriptor:
            return [sign for _, sign in _read_all(descriptor)]
    except FileNotFoundError:
        return []


def remove_gone(folder: Path) -> None:
    """Take away what workers that were killed have left: a new one is here in their stead."""
    with suppress(FileNotFoundError), opened(folder) as descriptor:
        for name, sign in _read_all(descriptor):
            if sign.is_gone:
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=descriptor)


def _read_all(folder: int) -> Iterator[tuple[str, Sign]]:
    for name in sorted(os.listdir(folder)):
        if name.endswith(SUFFIX) and not name.startswith("."):
            with suppress(OSError, msgspec.MsgspecError):  # it went meanwhile, or is none of ours
                yield name, _read(name, folder)


def _read(name: str, folder: int) -> Sign:
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    try:
        return _decode(os.read(descriptor, MOST_BYTES))
    finally:
        os.close(descriptor)
