"""Errors in every call of the engine, on a server: a call fails before it, or the server's reply to it is lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event
from typing import Any

from mainspring import Mainspring
from mainspring.clock import SystemClock
from mainspring.engines.nats.engine import NatsEngine
from mainspring.engines.nats.write_batch import Write
from tests.nats.chaos_workers import projection_in
from tests.nats.servers import Servers
from tests.stress.injected_errors import AFTER, BEFORE, LEAVE, READS, WRITES, Fault, Figures, run_with_errors
from tests.support import eventually

REQUIRED = tuple(verb for verb in (*WRITES, *READS) if verb not in ("renew", "record_activity"))
"""All calls but those that a worker makes only a few times a minute."""
FAULTS = [
    *(Fault(verb, BEFORE, error) for verb in (*WRITES, *READS, LEAVE) for error in ("unavailable", "unexpected")),
    *(Fault(verb, AFTER, "lost reply") for verb in WRITES),
]


class LostReplies:
    """Loses the reply to the next change: the server has stored it, and the client learns of no reply."""

    def __init__(self, engine: NatsEngine) -> None:
        self._is_next_lost = Event()
        jetstream = engine.components.jetstream
        self._commit, self._store_each = jetstream._commit, jetstream.store_each
        vars(jetstream).update(_commit=self._commit_and_lose, store_each=self._store_each_and_lose)

    async def _commit_and_lose(self, writes: Sequence[Write]) -> int | None:
        first = await self._commit(writes)
        return None if self._is_lost() else first

    def _store_each_and_lose(self, writes: Sequence[Write]) -> list[int | None]:
        revisions = self._store_each(writes)
        return [None] * len(writes) if writes and self._is_lost() else revisions

    def _is_lost(self) -> bool:
        is_lost = self._is_next_lost.is_set()
        self._is_next_lost.clear()
        return is_lost

    def fail_after(self, call: Callable[[], Any], fault: Fault) -> Any:
        """Make a call of the engine, and lose the first reply; if it changes nothing, raise the error."""
        self._is_next_lost.set()
        result = call()
        if self._is_lost():
            raise fault.exception()
        return result


def run_on_nats(servers: Servers, prefix: str, folder: Path, *, seed: int) -> Figures:
    """Run the scenario on a server; return the figures."""
    app = Mainspring(f"{servers.url}?prefix={prefix}&{projection_in(folder)}", threads=4)
    clock = SystemClock()
    engine = app.make_engine(clock)
    assert isinstance(engine, NatsEngine)
    return run_with_errors(
        app,
        engine,
        clock,
        eventually,
        LostReplies(engine).fail_after,
        faults=FAULTS,
        required=REQUIRED,
        seed=seed,
        may_store_refused=True,
    )
