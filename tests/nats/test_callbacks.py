"""Callbacks of an application on NATS."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from mainspring import Mainspring
from tests.callback_suite import CallbackTests, MakeApp, check_that_workers_share_a_pause
from tests.nats.servers import Servers
from tests.receiver import Receiver


@pytest.fixture
def make_app(nats_server: Servers, nats_prefix: str) -> MakeApp:
    @contextmanager
    def make(**options: Any) -> Iterator[Mainspring]:
        with Mainspring(f"{nats_server.url}?prefix={nats_prefix}", **{"grace": 0, **options}) as app:
            yield app

    return make


class TestCallbacksOnNats(CallbackTests):
    def test_another_worker_knows_of_a_pause(self, make_app: MakeApp, server: Receiver) -> None:
        check_that_workers_share_a_pause(make_app, server)
