"""Awaiting threads from a coroutine, and running coroutines from threads."""

import asyncio
import hashlib

from mainspring import ThreadPool


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def greet(name: str) -> str:
    await asyncio.sleep(0)
    return f"hello {name}"


async def main() -> None:
    with ThreadPool(2) as pool:
        print("from a thread:   ", (await pool.run(digest, b"mainspring"))[:16])

        loop = pool.asyncio(name="loop")  # an event loop on a thread of its own
        print("from another loop:", await loop.run(greet, "coroutine"))


asyncio.run(main())

with ThreadPool(2) as pool:
    print("without any await:", pool.asyncio().submit(greet, "thread").result())
