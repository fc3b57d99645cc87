"""A TCP proxy that tests can cut: between a client and a server, on a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from threading import Thread
from typing import Any, TypeVar

from mainspring.cli.nats_process import HOST, HeldPorts
from tests.support import PATIENCE

T = TypeVar("T")

CHUNK = 65_536
TURNS_OF_AN_ACCEPT = 5  # of the loop, from a connection that was taken to the coroutine that serves it


class _Way:
    """What travels in one direction of one connection; it waits while that direction is frozen."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        is_open: asyncio.Event,
        lag: Callable[[], float],
        count: Callable[[int], None] = lambda size: None,
    ) -> None:
        self._reader = reader
        self.writer = writer
        self._is_open = is_open
        self._lag = lag
        self._count = count

    async def carry(self) -> None:
        with suppress(OSError):
            while data := await self._reader.read(CHUNK):
                self._count(len(data))
                await self._is_open.wait()
                await asyncio.sleep(self._lag())
                self.writer.write(data)
                await self.writer.drain()
        self.writer.close()


class Proxy:
    """Listens on a port of its own and passes everything on to `target_port`, unless it is told otherwise.

    `cut()` is a network that says so: connections break, new ones are refused. `freeze()` is one that does not:
    connections stay, new ones are taken, and nothing arrives, in both directions or in one. What was frozen
    arrives after `heal()`, or is lost with a `cut()` or `drop()`. `lag_to_server` and `lag_to_client` are the
    seconds that everything takes longer in these directions.
    """

    def __init__(self, target_port: int, *, scheme: str = "nats") -> None:
        self._target_port = target_port
        self._scheme = scheme
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._server: asyncio.Server | None = None
        self._to_server = asyncio.Event()
        self._to_client = asyncio.Event()
        self._ways: set[_Way] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._held = HeldPorts()  # while it is cut, too
        self.port = self._held.choose()
        self.accepted = 0  # connections so far
        self.lag_to_server = self.lag_to_client = 0.0
        self._bytes_to_freeze: int | None = None
        self._thread.start()
        self._to_server.set()
        self._to_client.set()
        try:
            self._do(self._listen)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """Where clients connect, instead of to the server."""
        return f"{self._scheme}://{HOST}:{self.port}"

    def cut(self) -> None:
        """Break all connections, and refuse new ones until `heal()`."""
        self._do(self._cut)

    def drop(self) -> None:
        """Break all connections; new ones are taken."""
        self._do(self._drop)

    def freeze(self, *, to_server: bool = True, to_client: bool = True) -> None:
        """Hold back what travels in these directions, without a word, until `heal()`."""

        async def freeze() -> None:
            if to_server:
                self._to_server.clear()
            if to_client:
                self._to_client.clear()

        self._do(freeze)

    def freeze_after(self, size: int) -> None:
        """Freeze both directions once clients have sent `size` more bytes."""
        self._bytes_to_freeze = size

    @property
    def is_frozen(self) -> bool:
        """Whether nothing reaches the server."""
        return not self._to_server.is_set()

    def _count_sent(self, size: int) -> None:
        if self._bytes_to_freeze is not None:
            self._bytes_to_freeze -= size
            if self._bytes_to_freeze <= 0:
                self._bytes_to_freeze = None
                self._to_server.clear()
                self._to_client.clear()

    def heal(self) -> None:
        """Take connections again, on the same port, and let everything through."""
        self._do(self._heal)

    def close(self) -> None:
        """End everything."""
        if self._loop.is_closed():
            return
        self._do(self._cut)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()
        self._held.release()

    def _do(self, action: Callable[[], Coroutine[Any, Any, T]]) -> T:
        future: Future[T] = asyncio.run_coroutine_threadsafe(action(), self._loop)
        return future.result(PATIENCE)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, HOST, self.port)

    async def _heal(self) -> None:
        self._to_server.set()
        self._to_client.set()
        if self._server is None:
            await self._listen()

    async def _cut(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            # asyncio loses the socket of a connection that it has taken, but not set up, when its server closes.
            # So first no new connection is taken, then those on their way arrive, and `_accept` closes them.
            for listener in server.sockets:
                self._loop.remove_reader(listener.fileno())
            for _ in range(TURNS_OF_AN_ACCEPT):
                await asyncio.sleep(0)
            server.close()
        await self._drop()

    async def _drop(self) -> None:
        for way in list(self._ways):
            way.writer.transport.abort()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        ways: list[_Way] = []
        try:
            if self._server is None:
                return  # it was on its way when the network was cut
            server_reader, server_writer = await asyncio.open_connection(HOST, self._target_port)
            ways.append(_Way(reader, server_writer, self._to_server, lambda: self.lag_to_server, self._count_sent))
            ways.append(_Way(server_reader, writer, self._to_client, lambda: self.lag_to_client))
            self._ways.update(ways)
            await asyncio.gather(*(way.carry() for way in ways))
        except (OSError, asyncio.CancelledError):
            pass  # no server, or cut: either way the client sees its connection break
        finally:
            writer.transport.abort()
            self._ways.difference_update(ways)
            self._tasks.discard(task)
