"""Fixture: an engine on a SQLite file of its own, and on the manual clock."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring.testing import ManualClock
from mainspring.testing.conformance.bench import Bench
from tests.blank_stores import make_blank_store
from tests.unit.engines.crash_points import opened


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def bench(path: Path, clock: ManualClock) -> Iterator[Bench]:
    with opened(make_blank_store(path), clock) as bench:
        yield bench
