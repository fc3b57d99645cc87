"""Coroutine functions on an event loop. A timeout or a request to stop reaches them as a cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any

from mainspring.jobs.records import Outcome
from mainspring.jobs.working.active import ActiveJob
from mainspring.jobs.working.attempts import Attempts, Call, calls_of
from mainspring.jobs.working.execution import Execution
from mainspring.runners.asyncio_runner import AsyncioRunner


class OnLoop:
    """Runs handlers on an event loop, so many at once."""

    def __init__(self, loop: AsyncioRunner, size: int, execution: Execution, attempts: Attempts) -> None:
        self._loop = loop
        self._execution = execution
        self._attempts = attempts
        # what follows belongs to the loop
        self._room = asyncio.Semaphore(size)
        self._gathered: dict[str, list[ActiveJob]] = {}  # for batch handlers with a call under way, by name

    def perform(self, jobs: list[ActiveJob]) -> None:
        """Run jobs as soon as there is room."""
        for job in jobs:
            self._loop.post(self._run, job)

    def perform_batch(self, jobs: list[ActiveJob]) -> None:
        """Run jobs of one batch handler as soon as there is room and no other call of it runs."""
        self._loop.post(self._gather, jobs)

    async def _run(self, job: ActiveJob) -> None:
        async with self._room:
            if job.claim_start():
                await self._call(Call((job,)), self._run_one(job))

    async def _run_one(self, job: ActiveJob) -> list[Outcome]:
        return [await self._execution.run_async(job)]

    async def _gather(self, jobs: list[ActiveJob]) -> None:
        name = jobs[0].handler.name
        if name in self._gathered:
            self._gathered[name] += jobs
            return
        self._gathered[name] = list(jobs)
        while self._gathered[name]:
            async with self._room:
                waiting, self._gathered[name] = self._gathered[name], []
                for call in calls_of(waiting):
                    await self._call(call, self._execution.run_batch_async(call.jobs))
        del self._gathered[name]

    async def _call(self, call: Call, work: Coroutine[Any, Any, list[Outcome]]) -> None:
        coroutine = asyncio.ensure_future(work)
        call.kill = partial(asyncio.get_running_loop().call_soon_threadsafe, coroutine.cancel)
        began = self._attempts.begin_call(call)
        if call.is_unwanted:  # the request came while it waited for its place
            coroutine.cancel()
        try:
            outcomes = await coroutine
        except asyncio.CancelledError as error:
            if not coroutine.cancelled():
                raise
            outcomes = [
                self._execution.explain(job, error) for job in call.jobs
            ]  # cancelled before its first step
        self._attempts.end_call(call, outcomes, began)

    def close(self) -> None:
        """End the event loop; what still runs there is left behind."""
        self._loop.shutdown(timeout=0)
