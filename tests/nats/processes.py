"""Several processes with the same jobs on one server, as far as engines can tell: a bench for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from threading import Barrier
from typing import Any, TypeAlias

from mainspring import NatsSettings
from mainspring.engines.nats.engine import NatsEngine
from mainspring.engines.sqlite import SqliteProjection
from mainspring.testing import ManualClock
from mainspring.testing.conformance.bench import Bench
from tests.nats.servers import Servers
from tests.support import PATIENCE

MakeBench: TypeAlias = Callable[[], Bench]
"""Each bench is used by one thread at a time."""


@contextmanager
def benches(server: Servers, prefix: str, directory: Path) -> Iterator[MakeBench]:
    """Lend benches whose engines are closed in the end."""
    files = (directory / f"projection-{number}.db" for number in count())
    with ExitStack() as stack:

        def make() -> Bench:
            engine = NatsEngine(
                server.url,
                settings=NatsSettings(prefix=prefix),
                make_projection=lambda _: SqliteProjection(next(files)),
            )
            bench = Bench(engine, ManualClock())
            stack.callback(engine.close)
            return bench

        yield make


def at_once(*acts: Callable[[], Any]) -> list[Any]:
    """Do things in as many threads, which begin at the same moment; return what they returned."""
    barrier = Barrier(len(acts))

    def act(number: int) -> Any:
        barrier.wait(PATIENCE)
        return acts[number]()

    with ThreadPoolExecutor(len(acts)) as pool:
        return list(pool.map(act, range(len(acts))))
