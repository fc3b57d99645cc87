"""The store of a NATS server of version 0.1: opened by this code, every job in it ends as it should."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring import NatsSettings
from tests.nats.servers import MakeServers, Servers
from tests.old_stores.contents import (
    AFTERWARDS,
    AT_REST,
    check_afterwards,
    check_as_made,
    check_calls,
    check_from_outside,
    check_history,
    operate,
    submit_again,
    unpack_store,
    wait_for,
)
from tests.old_stores.shop import Shop

PREFIX = "old"
NODE = "mainspring"


@pytest.fixture
def server(make_nats_server: MakeServers, tmp_path: Path) -> Servers:
    """A server that continues with the files of the old one."""
    unpack_store("jetstream", tmp_path / "store" / NODE)
    server = make_nats_server(store=tmp_path / "store")
    assert [node.name for node in server.nodes] == [NODE]
    return server


@pytest.fixture
def shop(server: Servers, tmp_path: Path) -> Iterator[Shop]:
    settings = NatsSettings(prefix=PREFIX, projection=str(tmp_path / "projection.db"))
    shop = Shop(server.url, nats=settings)
    with shop.app:
        yield shop


def test_all_is_there_that_was_stored(shop: Shop) -> None:
    check_as_made(shop.app)


def test_each_job_ends_as_expected(shop: Shop, tmp_path: Path) -> None:
    with shop.app.running():
        wait_for(AT_REST, shop.app)
        check_calls(shop)
        check_history(shop.app)
        submit_again(shop)
        operate(shop)
        wait_for(AFTERWARDS, shop.app)
        check_afterwards(shop)
        check_from_outside(f"{shop.app.url}?prefix={PREFIX}", AFTERWARDS, tmp_path)
