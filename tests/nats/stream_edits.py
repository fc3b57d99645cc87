"""Changes the settings of a stream, as an operator would."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import nats

from tests.nats.servers import Servers


def edit_stream(servers: Servers, name: str, **changes: Any) -> None:
    """Replace these settings of a stream."""

    async def change() -> None:
        client = await nats.connect(servers.urls)
        try:
            stream = client.jetstream()
            info = await stream.stream_info(name)
            await client.request(
                f"$JS.API.STREAM.UPDATE.{name}", json.dumps(info.config.as_dict() | changes).encode()
            )
        finally:
            await client.close()

    asyncio.run(change())
