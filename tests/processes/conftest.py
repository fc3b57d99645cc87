"""Fixture: a folder for processes that use one store."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.sandbox import Sandbox


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    with Sandbox(tmp_path) as sandbox:
        yield sandbox
