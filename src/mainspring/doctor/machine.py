"""The machine, whatever the store: Python, open files, and a clock that goes on evenly."""

from __future__ import annotations

import ctypes
import sys
import sysconfig
from types import ModuleType

from mainspring.clock import NANOSECONDS, Clock
from mainspring.doctor.findings import Finding, info, ok, warning
from mainspring.doctor.words import in_seconds

resource: ModuleType | None
try:
    import resource
except ImportError:  # Windows has no such limit
    resource = None

FEW_FILES = 256
STEP = 0.25
"""Seconds. A clock that is corrected gently, by half a millisecond in each, does not get that far meanwhile."""
UNSYNCHRONISED = 5  # TIME_ERROR
SIZE_OF_TIMEX = 512  # larger than the structure is anywhere


def check_python() -> Finding:
    """Say which Python this is."""
    version = sys.version.partition(" ")[0]
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        return ok(f"Python {version}")
    has_lock = getattr(sys, "_is_gil_enabled", lambda: True)()
    return info(
        f"Python {version} is a free-threaded build, and its lock is {'on' if has_lock else 'off'}",
        "Mainspring runs there; an extension module that is not made for it turns the lock on for everybody.",
    )


def files_allowed() -> int | None:
    """Return how many files this process may have open; None where that cannot be asked."""
    if resource is None:
        return None
    limit: int = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def check_open_files(limit: int | None) -> Finding:
    """Judge how many files a process may have open."""
    if limit is None:
        return ok("any number of files may be open at once")
    if limit < FEW_FILES:
        return warning(
            f"only {limit} files may be open at once in a process",
            "A worker needs some for its store, its wake-ups and its child processes, and your handlers for "
            "theirs.",
            f"Raise it to 1024 or more: ulimit -n 1024, or LimitNOFILE=1024 for systemd (here it is {limit}).",
        )
    return ok(f"{limit:,} files may be open at once")


def clock_state() -> int | None:
    """Ask the kernel for the state of its clock; None where it does not tell."""
    try:
        adjtimex = ctypes.CDLL(None).adjtimex
    except (OSError, AttributeError, TypeError):
        return None
    state = int(adjtimex(ctypes.create_string_buffer(SIZE_OF_TIMEX)))  # all zero: only a question
    return None if state < 0 else state


def check_synchronised(state: int | None) -> Finding:
    """Judge whether somebody keeps the clock right."""
    if state is None:
        return info("whether the clock is synchronised cannot be seen here", remedy="Ask the host: timedatectl")
    if state == UNSYNCHRONISED:
        return info(
            "the kernel does not know whether the clock is right: nobody has told it so",
            "A clock that nobody corrects drifts by seconds a day, and schedules fire by it. Virtual machines "
            "that are kept right from outside say the same.",
            "Look at timedatectl; run chrony or systemd-timesyncd, here or on the host.",
        )
    return ok("the clock is synchronised")


class ClockWatch:
    """Compares how the wall clock and the monotonic clock go on, from its making to the check."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._first = self._read()

    def check(self) -> Finding:
        """Judge whether the wall clock was set meanwhile."""
        wall, monotonic = (now - before for now, before in zip(self._read(), self._first, strict=True))
        step = wall - monotonic
        if abs(step) < STEP:
            return ok(f"the clock went on evenly for {in_seconds(monotonic)}")
        return warning(
            f"the clock was set {'forward' if step > 0 else 'back'} by {in_seconds(abs(step))} while we looked",
            "A clock that is set in steps makes schedules late or early, and jobs due at other times than they "
            "say.",
            "Let chrony or systemd-timesyncd correct it gently; look for two programs that both set it.",
        )

    def _read(self) -> tuple[float, float]:
        return self._clock.now().timestamp(), self._clock.monotonic_ns() / NANOSECONDS
