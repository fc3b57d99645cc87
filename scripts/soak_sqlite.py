"""The long runs on SQLite files on a disk that fails: the scenarios of tests/stress, with hundreds of seeds."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import reduce
from operator import add
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.processes.sandbox import Sandbox
from tests.stress.scenario_disk import DiskErrors, PowerLoss, fail_disk, lose_power

POWER_SEEDS = 60
ERROR_SEEDS = 1_000


def soak_sqlite_power(site: Sandbox, seed: int) -> str:
    """Open 12,000 images of disks that lost their power."""
    losses = [
        lose_power(folder, seed=seed + number, operations=60, images=200)
        for number, folder in _folders(site, POWER_SEEDS)
    ]
    return str(reduce(add, losses, PowerLoss(0, 0, 0)))


def soak_sqlite_errors(site: Sandbox, seed: int) -> str:
    """Let disks fail with EIO and ENOSPC in 1,000 runs of 80 operations."""
    logging.getLogger("mainspring").setLevel(logging.CRITICAL)  # the errors of the disk are intended
    found = [
        fail_disk(folder, seed=seed + number, operations=80) for number, folder in _folders(site, ERROR_SEEDS)
    ]
    return str(reduce(add, found, DiskErrors(0, 0, 0)))


def _folders(site: Sandbox, count: int) -> Iterator[tuple[int, Path]]:
    for number in range(count):
        with TemporaryDirectory(dir=site.folder) as name:
            yield number, Path(name)


SCENARIOS = (soak_sqlite_power, soak_sqlite_errors)
