"""Checks the machine, independently of the store: Python, open files, the clock and the time zone data."""

from __future__ import annotations

import ctypes
import re
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType

from mainspring.clock import NANOSECONDS, Clock
from mainspring.doctor.findings import Finding, error, in_seconds, info, ok, warning

resource: ModuleType | None
try:
    import resource
except ImportError:  # Windows has no such limit
    resource = None

FEW_FILES = 256
STEP = 0.25
"""The smallest jump of the wall clock that is reported, in seconds.

A gradual correction stays below it during the checks.
"""
UNSYNCHRONISED = 5  # TIME_ERROR
SIZE_OF_TIMEX = 512  # larger than `struct timex` on any platform


def check_python() -> Finding:
    """Report the version of Python, and whether it is a free-threaded build."""
    version = sys.version.partition(" ")[0]
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        return ok(f"Python {version}")
    has_lock = getattr(sys, "_is_gil_enabled", lambda: True)()
    return info(
        f"Python {version} is a free-threaded build, and its global lock is {'on' if has_lock else 'off'}",
        "Mainspring supports such builds; an extension module that does not support them turns the lock on.",
    )


def files_allowed() -> int | None:
    """Return how many files this process may have open; None if there is no limit, or it cannot be read."""
    if resource is None:
        return None
    limit: int = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def check_open_files(limit: int | None) -> Finding:
    """Warn if a process may have fewer than 256 files open; `limit` is None if there is no limit."""
    if limit is None:
        return ok("any number of files may be open at once")
    if limit < FEW_FILES:
        return warning(
            f"only {limit} files may be open at once in a process",
            "A worker needs files for its store, its wake-up pipes and its child processes; handlers need more.",
            f"Raise the limit ({limit}) to 1024 or more: ulimit -n 1024, or LimitNOFILE=1024 for systemd.",
        )
    return ok(f"{limit:,} files may be open at once")


def clock_state() -> int | None:
    """Return the kernel's clock state, as `adjtimex` returns it; None if the system call is missing or fails."""
    try:
        adjtimex = ctypes.CDLL(None).adjtimex
    except (OSError, AttributeError, TypeError):
        return None
    state = int(adjtimex(ctypes.create_string_buffer(SIZE_OF_TIMEX)))  # modes = 0 means that the call only reads
    return None if state < 0 else state


def check_synchronised(state: int | None) -> Finding:
    """Report whether a time service synchronises the clock, by the state that `clock_state` returned."""
    if state is None:
        return info("it is unknown whether the clock is synchronised", remedy="Run on the host: timedatectl")
    if state == UNSYNCHRONISED:
        return info(
            "the kernel does not know whether the clock is right: no time service has set it",
            "A clock that no time service corrects drifts by seconds a day, and schedules fire by it. Virtual "
            "machines whose host sets the clock report the same.",
            "Run timedatectl to see the state; run chrony or systemd-timesyncd, here or on the host.",
        )
    return ok("the clock is synchronised")


class ClockWatch:
    """Compares how far the wall clock and the monotonic clock advance, to find a jump of the wall clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._first = self._read()

    def check(self) -> Finding:
        """Warn if the wall clock has jumped by 0.25 s or more since this object was created."""
        wall, monotonic = (now - before for now, before in zip(self._read(), self._first, strict=True))
        step = wall - monotonic
        if abs(step) < STEP:
            return ok(f"the clock has not jumped during {in_seconds(monotonic)}")
        return warning(
            f"the clock jumped {'forward' if step > 0 else 'back'} by {in_seconds(abs(step))} during the checks",
            "The clock was set, or the machine was suspended. When the clock is set in steps, schedules fire late "
            "or early, and jobs start at other times than their due times.",
            "Let chrony or systemd-timesyncd correct the clock gradually; only one program should set it.",
        )

    def _read(self) -> tuple[float, float]:
        return self._clock.now().timestamp(), self._clock.monotonic_ns() / NANOSECONDS


OLD = timedelta(days=365)
_VERSION = re.compile(r"(\d{4})([a-z]|\.\d+)")


@dataclass(frozen=True, slots=True)
class ZoneData:
    """The source of the time zone data that `zoneinfo` uses, and its version; None if it is unknown."""

    source: str
    version: str | None
    is_package: bool = False


def find_zone_data(folders: Iterable[str]) -> ZoneData | None:
    """Return the time zone data in use: of the first folder that has any, else of `tzdata`, else None."""
    for folder in map(Path, folders):
        if (folder / "UTC").exists() or (folder / "Etc" / "UTC").exists():
            return ZoneData(str(folder), _version_in(folder))
    try:
        return ZoneData("the package tzdata", version("tzdata"), is_package=True)
    except PackageNotFoundError:
        return None


def _version_in(folder: Path) -> str | None:
    for name in ("tzdata.zi", "+VERSION", "version"):
        try:
            with (folder / name).open() as file:
                found = _VERSION.search(file.readline())
        except OSError:
            continue
        if found:
            return found[0]
    return None


def check_time_zones(data: ZoneData | None, now: datetime) -> Finding:
    """Report an error if there is no time zone data, and a warning if it is older than about a year."""
    if data is None:
        return error(
            "there is no time zone data",
            "Schedules with a time zone cannot be computed.",
            "pip install tzdata, or install tzdata with the system's package manager.",
        )
    year = _VERSION.match(data.version or "")
    if data.version is None or year is None:
        return info(
            f"the version of the time zone data in {data.source} is unknown",
            "Governments change their clocks at short notice, and old data makes schedules an hour late or early.",
            "Keep the tzdata package of the system up to date.",
        )
    published = datetime(int(year[1]), 7, 1, tzinfo=UTC)  # only the year is certain
    if now - published < OLD:
        return ok(f"time zone data {data.version}, from {data.source}")
    return warning(
        f"the time zone data in {data.source} is version {data.version}, older than a year",
        "Governments change their clocks at short notice, and old data makes schedules an hour late or early.",
        "pip install --upgrade tzdata"
        if data.is_package
        else "Update this data with the system's package manager; or set PYTHONTZPATH to an empty value, so that "
        "Python uses the package tzdata, which is installed with Mainspring.",
    )
