"""A shop for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.fork_server import ForkServer
from tests.cli.shop_program import ENVIRONMENT, ShopProgram
from tests.nats.servers import nats_prefix, nats_server

__all__ = ["nats_prefix", "nats_server"]


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    """The program, imported once for all tests of this process."""
    server = ForkServer(ENVIRONMENT)
    yield server
    server.close()


@pytest.fixture
def shop(tmp_path: Path, fork_server: ForkServer) -> ShopProgram:
    """A module with an application; its store is not made yet."""
    return ShopProgram(tmp_path, fork_server)
