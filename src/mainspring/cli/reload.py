"""`mainspring run --reload`: restarts the worker when a source file of the application changes.

A thread compares the files of all imported modules, twice a second. After a change the worker stops as it does
after SIGTERM, so running handlers get the grace, and the process replaces itself by a new one with the same
arguments and the same process id. If the application cannot be imported, the process waits for the next change.
"""

from __future__ import annotations

import logging
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import Self

from mainspring.stop_signals import StopSignals

POLL_SECONDS = 0.5
QUIET_SECONDS = 0.2  # files that do not change for this time are complete: an editor may write several times
MAX_FILES = 10_000  # how many files of a folder are watched if the application cannot be imported
RESTARTED = "MAINSPRING_RELOADED"
"""The environment variable that a process sets for the one that replaces it after a reload."""

logger = logging.getLogger("mainspring.worker")

_Signatures = dict[str, tuple[int, int, int] | None]


def imported_files() -> set[str]:
    """Return the source files of all imported modules, without the standard library and installed packages."""
    modules = list(sys.modules.values())  # a copy, because other threads may import modules meanwhile
    files = {file for module in modules if isinstance(file := getattr(module, "__file__", None), str)}
    return {source for file in files if (source := _source_of(file)) is not None}


@cache
def _source_of(file: str) -> str | None:
    """Return the real path of a module's file; None if it is not a source file of the application."""
    source = os.path.realpath(file)
    is_installed = any(source.startswith(os.path.join(folder, "")) for folder in _installed())  # noqa: PTH118
    return None if is_installed or not source.endswith(".py") else source


@cache
def _installed() -> set[str]:
    """Return the folders of the standard library and of installed packages."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return {os.path.realpath(sysconfig.get_path(name)) for name in names}


def files_below(folder: Path) -> set[str]:
    """Return the Python files in a folder and below, without hidden folders and virtual environments.

    Return at most 10,000.
    """
    return {str(path) for path, _ in zip(_walk(folder), range(MAX_FILES), strict=False)}


def _walk(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if _is_searched(Path(parent, name)))
        yield from (Path(parent, name).resolve() for name in files if name.endswith(".py"))


def _is_searched(folder: Path) -> bool:
    is_special = folder.name.startswith(".") or folder.name in ("__pycache__", "node_modules")
    return not is_special and not (folder / "pyvenv.cfg").exists()


class SourceWatcher:
    """A thread that calls `on_change` once, when a watched file has changed, during the `with` block.

    `find_files` returns the files, and is called again for each comparison: files that it returns later are
    watched from then on. With `counts_new`, a new file counts as a change, too.
    """

    def __init__(
        self, find_files: Callable[[], set[str]], on_change: Callable[[], None], *, counts_new: bool = False
    ) -> None:
        self._find_files = find_files
        self._on_change = on_change
        self._counts_new = counts_new
        self._seen = _read(find_files())
        self._is_over = Event()
        self._thread = Thread(target=self._watch, name="mainspring-reload", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._is_over.wait(POLL_SECONDS):
            changed = self._find_change()
            if changed is not None:
                self._wait_until_quiet()
                logger.info("%s has changed: the worker restarts", changed)
                self._on_change()
                return

    def _find_change(self) -> str | None:
        found = _read(self._find_files() | self._seen.keys())
        changed = [
            file
            for file, signature in found.items()
            if (self._seen[file] != signature if file in self._seen else self._counts_new)
        ]
        self._seen = found
        return min(changed, default=None)

    def _wait_until_quiet(self) -> None:
        while not self._is_over.wait(QUIET_SECONDS) and self._find_change() is not None:
            pass


def _read(files: set[str]) -> _Signatures:
    return {file: _signature(file) for file in files}


def _signature(file: str) -> tuple[int, int, int] | None:
    """Return the time, size and inode of a file, which change if it is written; None if there is no such file."""
    try:
        found = os.stat(file)  # noqa: PTH116 - twice a second for each file
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


class Reloader:
    """Waits for a change of a source file, and replaces this process by a new one.

    Create it before the application is imported: it lets Python write no bytecode files.
    """

    def __init__(self) -> None:
        self._folder = Path.cwd()
        self.is_restarted = os.environ.pop(RESTARTED, None) is not None
        """Whether this process replaces an earlier one.

        Then an error at its start is probably caused by an edit.
        """
        # Python compares the time of a source file with its bytecode by the second. A file that is edited twice
        # within a second would not be read again.
        sys.dont_write_bytecode = True
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"

    def wait_for_change(self) -> bool:
        """Wait until a source file changes, and return True; return False if SIGTERM or SIGINT comes first."""
        imported = imported_files()

        def find_files() -> set[str]:
            return imported | files_below(self._folder)  # the module with the error was not imported

        with StopSignals() as signals, SourceWatcher(find_files, signals.interrupt, counts_new=True):
            logger.info(
                "waiting for a change of a source file in %s or below, or of an imported module; then the worker "
                "is started again",
                self._folder,
            )
            return not signals.wait()

    def restart(self) -> None:
        """Replace this process by a new one with the same arguments. This method does not return."""
        sys.stdout.flush()
        sys.stderr.flush()
        os.chdir(self._folder)
        os.environ[RESTARTED] = "1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
