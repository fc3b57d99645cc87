"""A place for processes that work on one file of jobs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.harness import Site


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.close()
