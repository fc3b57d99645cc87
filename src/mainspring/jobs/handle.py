"""What a submit returns: a hold on one job."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Generic, Protocol, TypeVar

from mainspring.clock import Duration
from mainspring.errors import JobFailed
from mainspring.jobs.explaining import Explanation
from mainspring.jobs.handlers import Handler
from mainspring.jobs.info import JobInfo, decode_any
from mainspring.jobs.limit_book import LimitBook
from mainspring.jobs.manager import JobManager
from mainspring.jobs.status import JobStatus

R = TypeVar("R")


class ManagerSource(Protocol):
    """Where the manager of an application comes from; opened with its first use."""

    @property
    def limits(self) -> LimitBook:
        """The limits that are declared."""

    @property
    def is_open(self) -> bool:
        """Whether the manager of this process is open."""

    def manager(self) -> JobManager:
        """Return the manager of this process."""


async def open_manager(source: ManagerSource) -> JobManager:
    """Return the manager of this process. A store is opened in a thread: files and servers may take their time."""
    return source.manager() if source.is_open else await asyncio.to_thread(source.manager)


class JobHandle(Generic[R]):
    """A job that was submitted. Dropping it does nothing to the job."""

    __slots__ = ("_handler", "_source", "id")

    def __init__(self, job_id: str, handler: Handler | None, source: ManagerSource) -> None:
        self.id = job_id
        self._handler = handler
        self._source = source

    def info(self) -> JobInfo:
        """Return everything that is known about the job."""
        return self._source.manager().get(self.id)

    def status(self) -> JobStatus:
        """Return its state."""
        return self._source.manager().record(self.id).status

    def wait(self, timeout: Duration | None = None) -> JobStatus:
        """Wait until it has ended and return its state; `TimeoutError` if that takes too long."""
        return self._source.manager().wait(self.id, timeout)

    def result(self, timeout: Duration | None = None) -> R:
        """Wait, and return what the handler returned; `JobFailed` if it ended without a result."""
        manager = self._source.manager()
        status = manager.wait(self.id, timeout)
        record = manager.record(self.id)
        if status is not JobStatus.COMPLETED:
            reason = (record.error or "no reason is recorded").partition("\n")[0]
            raise JobFailed(job_id=self.id, status=str(status), reason=reason)
        if record.result is None:
            return None  # type: ignore[return-value]
        if self._handler is None:
            return decode_any(record.result, record.codec)  # type: ignore[no-any-return]
        return self._handler.decode_result(record.result, record.codec)  # type: ignore[no-any-return]

    def reschedule(self, *, delay: Duration | None = None, at: datetime | None = None) -> bool:
        """Give it another due time: True if it had not started."""
        return self._source.manager().reschedule(self.id, delay=delay, at=at)

    def explain(self) -> Explanation:
        """Say why it is where it is."""
        return self._source.manager().explain(self.id)

    def cancel(self, *, timeout: Duration | None = None) -> bool:
        """Call it off: True means that it never runs, False that it runs or has ended.

        It waits until the store has committed that. `TimeoutError` after `timeout`: the request stays queued, and
        may still take effect: `status()` shows whether it has.
        """
        return self._source.manager().cancel(self.id, timeout=timeout)

    async def cancel_async(self) -> bool:
        """Do as `cancel` does without blocking the event loop."""
        return await (await open_manager(self._source)).cancel_async(self.id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobHandle) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"<JobHandle {self.id}>"
