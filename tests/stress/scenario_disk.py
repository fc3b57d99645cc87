"""A disk that loses its power, and one that fails: what was confirmed is there, and the store goes on."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from math import inf
from pathlib import Path

import apsw

from mainspring.errors import EngineUnavailable
from tests.stress.disk_recorder import STORE, DiskImages, Event, Recording, watched_disk
from tests.stress.disk_shop import DiskShop, statuses_in, work_off


@dataclass(frozen=True)
class PowerLoss:
    """What a run has found."""

    events: int
    images: int
    confirmed: int

    def __str__(self) -> str:
        return (
            f"{self.images:,} images of {self.events:,} writes and syncs, "
            f"{self.confirmed:,} confirmed changes, none lost"
        )

    def __add__(self, other: PowerLoss) -> PowerLoss:
        return PowerLoss(self.events + other.events, self.images + other.images, self.confirmed + other.confirmed)


def lose_power(folder: Path, *, seed: int, operations: int, images: int) -> PowerLoss:
    """Record what a user of a store writes to the disk. Then open up to `images` of the images that a power
    failure before or after any sync could have left, and require all that was confirmed before.
    """
    recording = Recording()
    live = folder / "live"
    live.mkdir()
    shop = DiskShop(live, seed, lambda: len(recording.events))
    with watched_disk(recording.add):
        shop.run(operations)
        shop.close()
    assert shop.errors == []
    chance = random.Random(seed)
    kinds = cycle(["nothing", "everything", "something", "something"])
    places = [(cut, kind) for cut in recording.cuts() for kind, _ in zip(kinds, range(4), strict=False)]
    chosen = sorted(chance.sample(places, min(images, len(places))))
    for number, (cut, kind) in enumerate(chosen):
        disk = DiskImages(recording, cut)
        files = disk.something(chance) if kind == "something" else getattr(disk, kind)()
        image = folder / f"image {number}"
        image.mkdir()
        for name, data in files.items():
            (image / name).write_bytes(data)
        try:
            shop.ledger.check(statuses_in(image / STORE), cut)
            work_off(image / STORE)
        except BaseException as error:
            error.add_note(
                f"seed {seed}, after {cut} of {len(recording.events)} events, {kind} of the rest, in {image}"
            )
            raise
        shutil.rmtree(image)
    return PowerLoss(len(recording.events), len(chosen), shop.ledger.confirmed)


@dataclass(frozen=True)
class DiskErrors:
    """What a run has found."""

    injected: int
    reported: int
    confirmed: int

    def __str__(self) -> str:
        return (
            f"{self.injected:,} injected errors, {self.reported:,} reported to callers, "
            f"{self.confirmed:,} confirmed changes, none lost"
        )

    def __add__(self, other: DiskErrors) -> DiskErrors:
        return DiskErrors(
            self.injected + other.injected, self.reported + other.reported, self.confirmed + other.confirmed
        )


class FailingDisk:
    """Fails some calls in a row, then works for a while, and so on, as the seed decides."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._left = 0  # calls until the disk fails, or works again
        self._is_failing = True
        self._is_full = False
        self.is_broken = False
        """Whether the disk fails at times."""
        self.injected = 0

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Work during the block. SQLite ignores errors while it closes a file, and those of Python it cannot."""
        before, self.is_broken = self.is_broken, False
        yield
        self.is_broken = before

    def __call__(self, event: Event) -> None:
        if not self.is_broken:
            return
        if self._left == 0:
            self._is_failing = not self._is_failing
            self._is_full = self._chance.random() < 0.5
            self._left = self._chance.randint(1, 6 if self._is_failing else 60)
        self._left -= 1
        if not self._is_failing or (self._is_full and event.kind != "write"):
            return
        self.injected += 1
        if self._is_full:
            raise apsw.FullError("no space left on the device")
        raise apsw.IOError(f"input/output error at a {event.kind}")


def fail_disk(folder: Path, *, seed: int, operations: int) -> DiskErrors:
    """Let the disk of a user of a store fail at times, with EIO and ENOSPC.

    Require that all errors are those of an unavailable store, that the store works again when the disk does, and
    that all confirmed changes are there.
    """
    disk = FailingDisk(seed)
    shop = DiskShop(folder, seed, lambda: 0, disk.pause)
    try:
        with watched_disk(disk):
            shop.run(3)
            assert shop.errors == []
            disk.is_broken = True
            shop.run(operations)
            disk.is_broken = False
            assert [error for error in shop.errors if not isinstance(error, EngineUnavailable)] == []
            reported = len(shop.errors)
            shop.run(20)
            assert shop.errors[reported:] == []
            shop.close()
        shop.ledger.check(statuses_in(folder / STORE), inf)
        work_off(folder / STORE)
    except BaseException as error:
        error.add_note(f"seed {seed}, after {disk.injected} injected errors, in {folder}")
        raise
    return DiskErrors(disk.injected, reported, shop.ledger.confirmed)
