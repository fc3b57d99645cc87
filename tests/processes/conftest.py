"""A place for processes that work on one file of jobs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.harness import Site


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path) as site:
        yield site
