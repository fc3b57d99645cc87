"""A pytest plugin that lets every test begin at a chosen instant.

pytest -p tests.hours.plugin --hour 2026-03-29T00:59:58Z tests/unit

The plugin shifts `SystemClock.now`, in the process of the tests and in the processes that they start. It does not
touch the monotonic clock. Time moves on from the chosen instant while a test runs; the plugin sets it back before
the next test.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

import pytest

from mainspring.clock import SystemClock
from mainspring.jobs.timestamps import to_instant
from tests.hours.start.sitecustomize import OFFSET_FILE

START = Path(__file__).parent / "start"

HOUR = pytest.StashKey["Hour"]()


def read_real_time() -> datetime:
    """Read the time of the operating system."""
    return datetime.now(UTC)  # noqa: TID251 - the shift is measured from it


class Hour:
    """The shift between the real time and that of the tests."""

    def __init__(self, instant: datetime, file: Path) -> None:
        self._instant = instant
        self._file = file
        self._offset = timedelta()

    def set_back(self) -> None:
        """Let it be the chosen instant now."""
        self._offset = self._instant - read_real_time()
        self._file.write_text(str(self._offset.total_seconds()))

    def now(self) -> datetime:
        """Read the shifted wall clock."""
        return read_real_time() + self._offset


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that chooses the instant."""
    parser.addoption("--hour", type=datetime.fromisoformat, help="let every test begin at this instant (ISO 8601)")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Shift the clock before any module of the tests is imported: some copy the environment then."""
    instant: datetime | None = early_config.known_args_namespace.hour
    if instant is None:
        return
    if instant.tzinfo is None:
        raise pytest.UsageError(f"--hour {instant.isoformat()} has no time zone; add Z for UTC")
    if (
        OFFSET_FILE in os.environ
    ):  # a worker of pytest-xdist, which has a file of its own beside that of its parent
        folder = Path(os.environ[OFFSET_FILE]).parent
    else:
        folder = Path(mkdtemp(prefix="mainspring-hour-"))
        early_config.add_cleanup(lambda: rmtree(folder))
    file = folder / str(os.getpid())
    hour = early_config.stash[HOUR] = Hour(instant, file)
    hour.set_back()
    os.environ[OFFSET_FILE] = str(file)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(START), *filter(None, [os.environ.get("PYTHONPATH")])])
    SystemClock.now = lambda self: hour.now()  # type: ignore[method-assign]
    SystemClock.microseconds = lambda self: to_instant(hour.now(), "now")  # type: ignore[method-assign]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Begin each test, its fixtures included, at the chosen instant."""
    hour = item.config.stash.get(HOUR, None)
    if hour is not None:
        hour.set_back()
    return (yield)
