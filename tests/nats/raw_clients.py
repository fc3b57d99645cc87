"""NATS clients without an engine, which repeat requests while a cluster cannot answer.

A cluster that elects a leader answers with an error, or not at all. A request without an answer is lost, so a
longer deadline would not help: it is sent again. So all requests here are idempotent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import nats
import pytest
from nats.aio.client import Client
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeoutError
from nats.js.api import PubAck
from nats.js.client import JetStreamContext
from nats.js.errors import APIError, NoStreamResponseError, ServiceUnavailableError

from tests.support import PATIENCE

T = TypeVar("T")

NOT_YET = (ServiceUnavailableError, NoStreamResponseError, NoRespondersError, NatsTimeoutError)
"""The errors of a cluster that cannot answer yet."""


@asynccontextmanager
async def connected(urls: str | list[str], **options: Any) -> AsyncIterator[Client]:
    """Yield a client that reconnects without limit."""
    client = await nats.connect(urls, reconnect_time_wait=0.05, max_reconnect_attempts=-1, **options)
    try:
        yield client
    finally:
        await client.close()


async def answered(ask: Callable[[], Awaitable[T]]) -> T:
    """Repeat an idempotent request until there is an answer."""
    async with asyncio.timeout(PATIENCE):
        while True:
            with suppress(*NOT_YET):
                return await ask()
            await asyncio.sleep(0)


async def add_stream(client: Client, stream: str, *, replicas: int = 1) -> JetStreamContext:
    """Create a stream, unless it exists, and wait until the node of this client knows it."""
    jetstream = client.jetstream()
    subject = f"{stream}.number"
    await answered(lambda: jetstream.add_stream(name=stream, subjects=[f"{stream}.>"], num_replicas=replicas))

    async def is_known() -> None:
        # The stream refuses the message, which expects another stream: so the stream exists, and stores nothing.
        with pytest.raises(APIError, match="expected stream does not match"):
            await jetstream.publish(subject, headers={"Nats-Expected-Stream": "other"})

    await answered(is_known)
    return jetstream


async def add(client: Client, stream: str, *, replicas: int = 1, count: int = 3) -> None:
    """Create a stream, and store messages in it, each once."""
    jetstream = await add_stream(client, stream, replicas=replicas)
    for number in range(count):
        await answered(partial(_publish, jetstream, f"{stream}.number", str(number)))


async def _publish(jetstream: JetStreamContext, subject: str, text: str) -> PubAck:
    return await jetstream.publish(subject, text.encode(), headers={"Nats-Msg-Id": f"{subject} {text}"})


async def read(client: Client, stream: str, count: int = 3) -> list[bytes]:
    """Return the messages of a stream, as a consumer gets them."""
    jetstream = client.jetstream()
    subscription = await answered(lambda: jetstream.pull_subscribe(f"{stream}.>", stream=stream))
    found: dict[int, bytes] = {}  # by sequence number: an unacknowledged message may be delivered again
    while len(found) < count:  # a new leader may not have all of them yet
        messages = await answered(partial(subscription.fetch, count - len(found)))
        found |= {message.metadata.sequence.stream: message.data for message in messages}
    return [found[number] for number in sorted(found)]
