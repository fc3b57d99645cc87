"""How much memory this process holds: for the decision to replace it by a fresh one."""

from __future__ import annotations

import os
import sys
from pathlib import Path


class Memory:
    """Reads the resident size of this process. Where Linux's file is missing, it is the largest size so far."""

    def __init__(self) -> None:
        statm = Path("/proc/self/statm")
        self._file = os.open(statm, os.O_RDONLY) if statm.exists() else None
        self._page = os.sysconf("SC_PAGE_SIZE") if self._file is not None else 0

    def resident(self) -> int:
        """Return the size in bytes; 0 where nobody can tell."""
        if self._file is not None:
            return int(os.pread(self._file, 128, 0).split()[1]) * self._page
        try:
            import resource  # noqa: PLC0415 - not on every system
        except ImportError:
            return 0
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
