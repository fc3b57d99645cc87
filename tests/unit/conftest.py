"""Fixtures of all unit tests of applications: a store of each kind, and an application on it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring import Mainspring


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Each kind of store, empty."""
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'jobs.db'}"


@pytest.fixture
def app(url: str) -> Iterator[Mainspring]:
    """An application without a worker, on real time."""
    with Mainspring(url, durability="normal", grace=0) as application:
        yield application
