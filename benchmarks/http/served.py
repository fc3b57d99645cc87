"""The services of the HTTP benchmarks, on the store that the environment names.

python -m benchmarks.http.served

serves a plain Starlette service that submits to Huey, and prints its port. Ours is `mainspring serve` with `app`.
"""

import os
from importlib import import_module  # peers have no types, and `make check` runs without them
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from benchmarks.jobs.systems.ours import Ours
from benchmarks.jobs.systems.system import STORE_VARIABLE
from benchmarks.jobs.workload import work
from mainspring import Mainspring
from mainspring.web.addresses import HttpAddress, open_listener

RARE = "rare"
"""The type of a tenth of the jobs in lists."""


def __getattr__(name: str) -> Any:
    """Make our application when `mainspring serve` asks for it."""
    if name != "app":
        raise AttributeError(name)
    return make_app(Path(os.environ[STORE_VARIABLE]))


def make_app(store: Path) -> Mainspring:
    """Make our application: jobs of the type `work` are in all benchmarks, those of another type only in lists."""
    app = Ours("full").application(store)
    app.job(name=RARE)(work)
    return app


def main() -> None:
    """Serve Huey, with the sockets and the settings of uvicorn that our server has."""
    huey = import_module("huey").SqliteHuey("bench", filename=os.environ[STORE_VARIABLE])
    task = huey.task(name="work")(work)

    async def submit(request: Request) -> Response:
        body = await request.json()
        found = task(body["arguments"]["value"])  # here, because it is slower on a thread
        return JSONResponse({"id": found.id}, status_code=201)

    app = Starlette(routes=[Route("/api/v1/jobs", submit, methods=["POST"])])
    listener = open_listener(HttpAddress("127.0.0.1", 0))
    print(listener.url, flush=True)
    config = uvicorn.Config(
        app, http="h11", ws="none", loop="asyncio", log_config=None, access_log=False, server_header=False
    )
    uvicorn.Server(config).run(sockets=listener.sockets)


if __name__ == "__main__":
    main()
