"""A bare loop of nats-py: what a job with a state costs when there is nothing around it.

A job is a message in a work queue and a record under a subject of its own. The loop fetches messages, writes each
record twice, on condition that no other process has (running, then done), and acknowledges. As a program it works.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import nats
from nats.errors import TimeoutError as NothingThere
from nats.js import JetStreamContext
from nats.js.api import Header, RetentionPolicy, StreamConfig

from benchmarks.jobs.systems.system import STORE_VARIABLE
from benchmarks.nats.systems.asynchronous import AsyncSystem
from benchmarks.nats.workload import work

BATCH = 500
MESSAGES, RECORDS, WORKERS = "bench_messages", "bench_records", "bench_workers"


class Bare(AsyncSystem):
    key = "bare"
    name = "bare loop of fetch, two compare-and-set and ack"
    setting = "nats-py"

    def application(self, store: Path) -> Any:
        raise NotImplementedError("its worker is this module")

    async def connect(self, url: str) -> None:
        self._client = await nats.connect(url)
        self._stream = self._client.jetstream()
        queue = StreamConfig(name=MESSAGES, subjects=[MESSAGES], retention=RetentionPolicy.WORK_QUEUE)
        await self._stream.add_stream(queue)
        await self._stream.add_stream(name=RECORDS, subjects=[f"{RECORDS}.>"], max_msgs_per_subject=1)

    async def send(self, value: int) -> None:
        made = await write(self._stream, value, "pending", 0)
        await self._stream.publish(MESSAGES, json.dumps({"value": value, "revision": made}).encode())

    async def disconnect(self) -> None:
        await self._client.close()

    def worker_command(self) -> list[str]:
        return [sys.executable, "-m", "benchmarks.nats.systems.bare"]


async def write(stream: JetStreamContext, value: int, status: str, revision: int) -> int:
    """Write the record of a job if it is still that of a revision, and return the new one."""
    record = json.dumps({"value": value, "status": status}).encode()
    condition = {Header.EXPECTED_LAST_SUBJECT_SEQUENCE.value: str(revision)}
    return (await stream.publish(f"{RECORDS}.{value}", record, headers=condition)).seq


async def serve(url: str) -> None:
    """Work until this process is killed."""
    client = await nats.connect(url)
    stream = client.jetstream()
    subscription = await stream.pull_subscribe(MESSAGES, durable=WORKERS)
    while True:
        try:
            messages = await subscription.fetch(BATCH, timeout=1)
        except NothingThere:
            continue
        jobs = [json.loads(message.data) for message in messages]
        values = [int(job["value"]) for job in jobs]
        running = await asyncio.gather(
            *[write(stream, job["value"], "running", int(job["revision"])) for job in jobs]
        )
        for value in values:
            work(value)
        await asyncio.gather(
            *[write(stream, value, "done", revision) for value, revision in zip(values, running, strict=True)]
        )
        for message in messages:
            await message.ack()


if __name__ == "__main__":
    asyncio.run(serve(Path(os.environ[STORE_VARIABLE]).read_text()))
