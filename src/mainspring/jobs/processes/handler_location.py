"""Locates handlers by module and qualified name for child processes, and reads the memory use of a process.

A handler that a child process could not import is refused when it is registered, not when its first job runs. The
pool replaces a child process that uses too much memory.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from inspect import isclass, ismodule, isroutine
from pathlib import Path
from typing import Any

PROCESS_NAME = "mainspring-process"
MAIN = ("__main__", "__mp_main__")
"""The module name of a script, in its own process and in a spawned one."""
REMEDY = "define it with def at the top level of a module that can be imported"


def is_child() -> bool:
    """Return whether this process is a child that a worker has started to run handlers."""
    multiprocessing = sys.modules.get("multiprocessing")  # slow to import; a spawned process has imported it
    return multiprocessing is not None and multiprocessing.current_process().name == PROCESS_NAME


def locate(function: Callable[..., Any]) -> tuple[str, str]:
    """Return the module and the qualified name of a function; raise `TypeError` if a child could not import it."""
    if isinstance(function, partial) or not (isroutine(function) or isclass(function)):
        raise _refusal(function, f"it is a {type(function).__name__}, not a function")
    owner = getattr(function, "__self__", None)
    if owner is not None and not (isclass(owner) or ismodule(owner)):
        raise _refusal(function, "it is a method of an object, which stays in this process")
    module, qualname = function.__module__, function.__qualname__
    if "<lambda>" in qualname:
        raise _refusal(function, "it is a lambda and has no name")
    if "<locals>" in qualname:
        raise _refusal(function, "it is defined inside of another function")
    if module == "__main__":  # a child imports the script as __mp_main__; the worker has checked this already
        problem = _problem_of_main()
        if problem is not None:
            raise _refusal(function, problem)
    return "__main__" if module in MAIN else module, qualname


def _problem_of_main() -> str | None:
    """Return why a child process could not import the functions of `__main__`; None if it could."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        is_program = spec.name.rpartition(".")[2] == "__main__"
        return f"{spec.name} runs as a program and is not imported again" if is_program else None
    file = getattr(main, "__file__", None)
    if file is None or not Path(file).is_file():
        return "it was typed into an interactive session, or came from standard input or -c"
    return None


def _refusal(function: Callable[..., Any], problem: str) -> TypeError:
    return TypeError(f"execution='process' cannot run {function!r} in another process: {problem}; {REMEDY}")


class ProcessMemory:
    """Reads the resident memory of this process; on systems without /proc, the largest amount so far."""

    def __init__(self) -> None:
        statm = Path("/proc/self/statm")
        self._file = os.open(statm, os.O_RDONLY) if statm.exists() else None
        self._page = os.sysconf("SC_PAGE_SIZE") if self._file is not None else 0

    def resident(self) -> int:
        """Return the resident memory in bytes; 0 if the system does not report it."""
        if self._file is not None:
            return int(os.pread(self._file, 128, 0).split()[1]) * self._page
        try:
            import resource  # noqa: PLC0415 - not on every system
        except ImportError:
            return 0
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
