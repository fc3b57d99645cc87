"""What figures depend on: the machine, its load, its system, and the versions of what is measured."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

MOUNTS = Path("/proc/self/mountinfo")


def machine() -> dict[str, Any]:
    """Describe this machine."""
    return {
        "cpus": cpus(),
        "load": load(),
        "system": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "mainspring": version("mainspring"),
    }


def cpus() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def load() -> float | None:
    """Return how many processes wanted a processor in the last minute, on average."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def file_system(folder: Path, mounts: Path = MOUNTS) -> str | None:
    """Return the kind of the file system that a folder is on, where the system tells it."""
    if not mounts.exists():
        return None
    found: dict[Path, str] = {}
    for line in mounts.read_text().splitlines():
        mount, _, kind = line.partition(" - ")  # man 5 proc
        found[Path(mount.split()[4].encode().decode("unicode_escape"))] = kind.split()[0]
    here = folder.resolve()
    return next((found[parent] for parent in (here, *here.parents) if parent in found), None)
