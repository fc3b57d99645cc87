"""The long runs on SQLite files on a disk that fails: the scenarios of tests/stress, with hundreds of seeds."""

from __future__ import annotations

import logging
from functools import reduce
from operator import add
from pathlib import Path

from tests.processes.sandbox import Sandbox
from tests.stress.scenario_disk import DiskErrors, PowerLoss, fail_disk, lose_power

POWER_SEEDS = 60
ERROR_SEEDS = 1_000


def soak_sqlite_power(site: Sandbox, seed: int) -> str:
    """Open 12,000 images of disks that lost their power."""
    losses = [
        lose_power(_folder(site, number), seed=seed + number, operations=60, images=200)
        for number in range(POWER_SEEDS)
    ]
    return str(reduce(add, losses, PowerLoss(0, 0, 0)))


def soak_sqlite_errors(site: Sandbox, seed: int) -> str:
    """Let disks fail with EIO and ENOSPC in 1,000 runs of 80 operations."""
    logging.getLogger("mainspring").setLevel(logging.CRITICAL)  # the errors of the disk are intended
    found = [fail_disk(_folder(site, number), seed=seed + number, operations=80) for number in range(ERROR_SEEDS)]
    return str(reduce(add, found, DiskErrors(0, 0, 0)))


def _folder(site: Sandbox, number: int) -> Path:
    folder = site.folder / f"run {number}"
    folder.mkdir()
    return folder


SCENARIOS = (soak_sqlite_power, soak_sqlite_errors)
