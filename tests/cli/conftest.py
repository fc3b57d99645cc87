"""A shop for each test."""

from pathlib import Path

import pytest

from tests.cli.shop_program import ShopProgram
from tests.nats.servers import nats_prefix, nats_server

__all__ = ["nats_prefix", "nats_server"]


@pytest.fixture
def shop(tmp_path: Path) -> ShopProgram:
    """A module with an application; its store is not made yet."""
    return ShopProgram(tmp_path)
