"""The receiver of the benchmarks of callbacks, in a process of its own: `python -m benchmarks.http.receiver`.

It listens on several ports, which are different hosts for a sender, and prints them. `/quick` answers at once,
`/gather` when `TOGETHER` requests are in flight, `/slow` never, and `/most` says how many were in flight at most.
"""

import asyncio

from aiohttp import web

PORTS = 12
TOGETHER = 1_000


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


async def main() -> None:
    server = web.Server(Receiver().serve, access_log=None, handler_cancellation=True)
    runner = web.ServerRunner(server)
    await runner.setup()
    for _ in range(PORTS):
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=2_048).start()
    print(*(address[1] for address in runner.addresses), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
