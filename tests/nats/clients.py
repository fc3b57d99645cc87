"""Clients of real servers, without an engine: they ask again while a cluster cannot answer.

A cluster that elects a leader answers with an error, or not at all. A request that it did not answer is lost, so a
longer deadline would not help: it is made again. What is asked here may be asked twice.
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
"""What a client is told by a cluster that cannot answer yet."""


@asynccontextmanager
async def connected(urls: str | list[str], **options: Any) -> AsyncIterator[Client]:
    """A client that tries for as long as it takes to come back."""
    client = await nats.connect(urls, reconnect_time_wait=0.05, max_reconnect_attempts=-1, **options)
    try:
        yield client
    finally:
        await client.close()


async def answered(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask until there is an answer: what is asked must do no harm if it is asked twice."""
    async with asyncio.timeout(PATIENCE):
        while True:
            with suppress(*NOT_YET):
                return await ask()
            await asyncio.sleep(0)


async def add_stream(client: Client, stream: str, *, replicas: int = 1) -> JetStreamContext:
    """Make a stream, and wait until the node of this client knows it; it may be there already."""
    jetstream = client.jetstream()
    subject = f"{stream}.number"
    await answered(lambda: jetstream.add_stream(name=stream, subjects=[f"{stream}.>"], num_replicas=replicas))

    async def is_known() -> None:
        # Refused by the stream, as it expects another one: so it is there, and nothing is stored.
        with pytest.raises(APIError, match="expected stream does not match"):
            await jetstream.publish(subject, headers={"Nats-Expected-Stream": "other"})

    await answered(is_known)
    return jetstream


async def add(client: Client, stream: str, *, replicas: int = 1, count: int = 3) -> None:
    """Make a stream, and store messages in it, each once."""
    jetstream = await add_stream(client, stream, replicas=replicas)
    for number in range(count):
        await answered(partial(_publish, jetstream, f"{stream}.number", str(number)))


async def _publish(jetstream: JetStreamContext, subject: str, text: str) -> PubAck:
    return await jetstream.publish(subject, text.encode(), headers={"Nats-Msg-Id": f"{subject} {text}"})


async def read(client: Client, stream: str, count: int = 3) -> list[bytes]:
    """Read what a stream has, as a consumer does."""
    jetstream = client.jetstream()
    subscription = await answered(lambda: jetstream.pull_subscribe(f"{stream}.>", stream=stream))
    found: dict[int, bytes] = {}  # by their numbers: what is not acknowledged may come again
    while len(found) < count:  # a leader that has just been elected may have some of them only
        messages = await answered(partial(subscription.fetch, count - len(found)))
        found |= {message.metadata.sequence.stream: message.data for message in messages}
    return [found[number] for number in sorted(found)]
