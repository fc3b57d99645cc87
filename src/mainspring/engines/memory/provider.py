"""Registers `memory://`: jobs in the memory of this process."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from mainspring.engines.registry import EngineConfig, EngineProvider, unknown_store
from mainspring.errors import EngineUnavailable

if TYPE_CHECKING:
    from mainspring.jobs.engine import Engine

URL = "memory://"


class MemoryProvider(EngineProvider):
    """Jobs in the memory of this process: they end with it."""

    examples = f"{URL!r}"
    doctor = "mainspring.doctor.any_store:examine_memory"
    bench = "mainspring.bench.places:InMemory"

    def make_engine(self, config: EngineConfig) -> Engine:
        from mainspring.engines.memory.engine import MemoryEngine  # noqa: PLC0415 - see import_engine
        from mainspring.jobs.processes import is_child  # noqa: PLC0415 - not needed to look at a URL

        if is_child():
            raise EngineUnavailable(
                engine="memory of another process",
                reason="a handler with execution='process' cannot reach it",
                remedy="use a sqlite:/// store, or submit from a handler that runs in a thread",
            )
        return MemoryEngine(clock=config.clock)

    def import_engine(self) -> None:
        import_module("mainspring.engines.memory.engine")

    def check_url(self, url: str) -> None:
        if url != URL:
            raise unknown_store(url)

    def require_shared(self, url: str) -> None:
        raise EngineUnavailable(
            engine="memory of this command",
            reason="memory:// begins empty with each process and ends with it",
            remedy="use a sqlite:/// or nats:// store, which processes share",
        )
