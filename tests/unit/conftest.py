"""Fixtures of all unit tests of applications: a store of each kind, and an application on it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring import Mainspring
from tests.blank_stores import make_blank_store


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Each kind of store, empty."""
    return "memory://" if request.param == "memory" else f"sqlite:///{make_blank_store(tmp_path / 'jobs.db')}"


@pytest.fixture
def app(url: str) -> Iterator[Mainspring]:
    """An application without a worker, on real time."""
    with Mainspring(url, durability="normal", grace=0) as application:
        yield application


LONG = frozenset(
    f"test_{name}.py"
    for name in (
        "assertions",
        "at_most_once",
        "batches",
        "callbacks",
        "crashes",
        "cron_properties",
        "expiry",
        "explanation",
        "follow_ups",
        "event_stream",
        "process_execution",
        "inline",
        "limits",
        "middleware",
        "processes",
        "progress",
        "pruning",
        "queues",
        "recurring_jobs",
        "limit_changes",
        "schedules_on_engines",
        "sequences",
        "sqlite_lines",
        "testing_document",
        "timeouts",
        "unique_jobs",
    )
)
"""Modules that run whole applications or child processes: they take longer than the rest together."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what `make unit` leaves out."""
    for item in items:
        if item.path.name in LONG:
            item.add_marker("long")
