"""`/metrics`: the metrics of this process, and with `store` those of its store, in the format of Prometheus."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib import import_module
from threading import Lock
from typing import TYPE_CHECKING, Any

from mainspring.errors import MissingExtra

if TYPE_CHECKING:
    from mainspring.app import Mainspring

COLLECTOR = "mainspring.monitoring.prometheus"
"""The module of `PrometheusCollector`. It needs the extra `metrics`, so it is imported at the first scrape."""
IDENTIFY_SECONDS = 0.5
"""How long a scrape waits for the tokens of the store."""
STORE_SECONDS = 2.0
"""How long a scrape waits for the metrics of the store: together less than the 3 s that a page takes at most."""
MAX_FORMATS = 8


class MetricsPage:
    """Makes the page `/metrics` that Prometheus reads.

    - `app`: the application
    - `store`: whether the page has the metrics of the store, too
    """

    def __init__(self, app: Mainspring, *, store: bool) -> None:
        self._app = app
        self._store = store
        self._lock = Lock()  # guards the following attribute, and lets one scrape at a time read the store
        self._registry: Any = None
        self._pages: dict[str, asyncio.Task[tuple[bytes, str]]] = {}  # that are being made, by the header `accept`

    async def make(self, accept: str) -> tuple[bytes, str]:
        """Return what `render` returns, called on a thread that waits for no other call of the application.

        Scrapes that come at the same time get the same page.
        """
        task = self._pages.get(accept)
        if task is None or task.done() or task.get_loop() is not asyncio.get_running_loop():
            if len(self._pages) >= MAX_FORMATS:
                self._pages.clear()
            task = asyncio.get_running_loop().create_task(asyncio.to_thread(self.render, accept))
            self._pages[accept] = task
        return await asyncio.shield(task)

    def render(self, accept: str) -> tuple[bytes, str]:
        """Return the page and its content type, in the format that the header `accept` of a scrape asks for.

        This method may read the store, so call it on a thread without an event loop. Raises `MissingExtra` if the
        packages for metrics are not installed.
        """
        try:
            exposition: Any = import_module("prometheus_client.exposition")
            registry: Any = import_module("prometheus_client.registry")
            collector: Any = import_module(COLLECTOR)
        except ImportError as error:
            raise MissingExtra(feature="/metrics", extra="metrics") from error
        encode: Callable[[Any], bytes]
        encode, content_type = exposition.choose_encoder(accept)
        with self._lock:
            if self._registry is None:
                self._registry = registry.CollectorRegistry(auto_describe=False)
                self._registry.register(
                    collector.PrometheusCollector(self._app, store=self._store, timeout=STORE_SECONDS)
                )
            return encode(self._registry), str(content_type)
