"""An engine in a package of its own: SQLite files under another scheme, `toy:///path`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from mainspring import Mainspring
from mainspring.bench.stores import BenchStore
from mainspring.engines.registry import EngineConfig, EngineProvider
from mainspring.engines.sqlite import SqliteEngine
from mainspring.jobs.engine import Engine

SCHEME = "toy:///"


class ToyEngine(SqliteEngine):
    """A SQLite engine under another name."""

    @property
    def description(self) -> str:
        return f"toy {self.path}"


class ToyPlace:
    """Where `mainspring bench` makes stores of this engine."""

    folder = None

    def __init__(self, like: Mainspring) -> None:
        self._like = like

    def describe(self, app: Mainspring) -> dict[str, str]:
        return {"engine": "toy 1.0"}

    @contextmanager
    def store(self) -> Iterator[BenchStore]:
        with TemporaryDirectory() as folder, Mainspring(f"{SCHEME}{folder}/jobs.toy") as app:
            yield BenchStore(app)


class ToyProvider(EngineProvider):
    """What Mainspring asks of this package."""

    examples = "'toy:///orders.toy'"
    bench = "toy_engine:ToyPlace"

    def make_engine(self, config: EngineConfig) -> Engine:
        return ToyEngine(Path(config.url.removeprefix(SCHEME)), clock=config.clock, durability=config.durability)
