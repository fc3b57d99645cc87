"""Whether a process is there, and still the same one: numbers of processes are used again."""

from __future__ import annotations

import os
from pathlib import Path

GONE = "ZX"  # states of a process that has ended, but nobody has asked how


def start_of(pid: int) -> str | None:
    """Return when a process was started, as the kernel counts; "" if there is none, None if nobody can know."""
    if not Path("/proc/self/stat").exists():
        return None if _exists(pid) else ""
    try:
        # The name of the program is in parentheses, and may have some of its own.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in GONE else fields[19]


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
