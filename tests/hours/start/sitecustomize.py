"""Shifts the wall clock of `SystemClock` in every process that a test starts.

Python imports a module of this name at the start of an interpreter, and `tests.hours.plugin` puts this folder on
PYTHONPATH, so a child process reads the same hour as its test. This module imports nothing of the package: it
patches the clock when the package imports it.
"""

import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_loader
from types import ModuleType

CLOCK = "mainspring.clock"
OFFSET_FILE = "TEST_HOUR_OFFSET_FILE"
"""The environment variable with the path of a file that has the shift in seconds.

Tests of the command line remove variables that begin with MAINSPRING_.
"""


class ShiftingLoader(Loader):
    """Loads the clock as usual, then shifts it."""

    def __init__(self, usual: Loader) -> None:
        self._usual = usual

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._usual.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._usual.exec_module(module)
        shift(module)


class ClockFinder(MetaPathFinder):
    """Finds the clock where it is, and gives it the loader above."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != CLOCK:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        return spec_from_loader(fullname, ShiftingLoader(spec.loader), origin=spec.origin)


def shift(clock: ModuleType) -> None:
    """Add the shift of the file to every reading of the wall clock."""
    from datetime import timedelta  # noqa: PLC0415 - tests look at what a start loads

    with open(os.environ[OFFSET_FILE]) as file:  # noqa: PTH123 - likewise
        offset = timedelta(seconds=float(file.read()))
    read, read_microseconds = clock.SystemClock.now, clock.SystemClock.microseconds
    clock.SystemClock.now = lambda self: read(self) + offset
    clock.SystemClock.microseconds = lambda self: read_microseconds(self) + offset // timedelta(microseconds=1)


if OFFSET_FILE in os.environ:
    sys.meta_path.insert(0, ClockFinder())
