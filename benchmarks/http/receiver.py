"""The receiver of the benchmarks of callbacks, in a process of its own: `python -m benchmarks.http.receiver`.

It listens on several ports, which are different hosts for a sender, and prints them. `/quick` answers at once,
`/gather` when `TOGETHER` requests are in flight, `/slow` never, and `/most` says how many were in flight at most.
The last `STORMS` ports send answers without end, of one kind of `ENDLESS` each.
"""

import asyncio
from contextlib import suppress
from functools import partial

from aiohttp import web

PORTS = 12
TOGETHER = 1_000
STORMS = 20
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
ENDLESS = {
    "informational answers": (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n" * 2_000),
    "headers": (b"HTTP/1.1 200 OK\r\n", b"a: b\r\n" * 10_000),
    "extensions of a chunk": (CHUNKED + b"5;", b"a=b;" * 15_000),
    "chunks of one byte": (CHUNKED, b"1\r\nx\r\n" * 10_000),
}
"""What a storm sends first, and then again and again."""


class Receiver:
    def __init__(self) -> None:
        self.in_flight = 0
        self.most = 0
        self.together = asyncio.Event()
        self.never = asyncio.Event()

    async def serve(self, request: web.BaseRequest) -> web.Response:
        if request.path == "/most":
            return web.json_response(self.most)
        await request.read()
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        try:
            if request.path == "/gather":
                if self.in_flight >= TOGETHER:
                    self.together.set()
                await self.together.wait()
            elif request.path == "/slow":
                await self.never.wait()
        finally:
            self.in_flight -= 1
        return web.Response(status=204)


async def storm(start: bytes, part: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError, asyncio.IncompleteReadError):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(start)
        while True:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)
    writer.close()


async def main() -> None:
    server = web.Server(Receiver().serve, access_log=None, handler_cancellation=True)
    runner = web.ServerRunner(server)
    await runner.setup()
    for _ in range(PORTS):
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=2_048).start()
    kinds = list(ENDLESS.values())
    storms = [
        await asyncio.start_server(partial(storm, *kinds[number % len(kinds)]), "127.0.0.1", 0)
        for number in range(STORMS)
    ]
    ports = [address[1] for address in runner.addresses] + [each.sockets[0].getsockname()[1] for each in storms]
    print(*ports, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
