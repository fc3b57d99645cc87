"""A system whose client is made of coroutines: they run on a loop that is open as long as the system is."""

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path

from benchmarks.jobs.systems.system import System

SERVED = "benchmarks.nats.served"
WINDOW = 500  # sends that are under way at once


class AsyncSystem(System):
    """Jobs are due at once: none of these is asked for more."""

    def open(self, store: Path) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(self.connect(store.read_text()))

    def submit(self, value: int, due: float | None = None) -> None:
        self.submit_in_turn([value])

    def submit_in_turn(self, values: Sequence[int]) -> None:
        """Send one after another, each when the one before has been accepted."""
        self._loop.run_until_complete(self._in_turn(values))

    def submit_many(self, values: Sequence[int], due: float | None = None) -> None:
        """Send many at once."""
        self._loop.run_until_complete(self._in_windows(values))

    async def _in_turn(self, values: Sequence[int]) -> None:
        for value in values:
            await self.send(value)

    async def _in_windows(self, values: Sequence[int]) -> None:
        for first in range(0, len(values), WINDOW):
            await asyncio.gather(*[self.send(value) for value in values[first : first + WINDOW]])

    def close(self) -> None:
        self._loop.run_until_complete(self.disconnect())
        self._loop.close()

    @abstractmethod
    async def connect(self, url: str) -> None: ...

    @abstractmethod
    async def send(self, value: int) -> None: ...

    @abstractmethod
    async def disconnect(self) -> None: ...
