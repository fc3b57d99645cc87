"""Job handles: a submit returns one. Callers use it to wait for the job, get its result, or cancel it."""

from __future__ import annotations

from collections.abc import Generator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from mainspring.clock import Duration
from mainspring.errors import JobFailed
from mainspring.jobs.handlers import Handler
from mainspring.jobs.info import JobInfo
from mainspring.jobs.limit_registry import LimitRegistry
from mainspring.jobs.manager import JobManager
from mainspring.jobs.off_loop import OffLoop, async_twin
from mainspring.jobs.status import JobStatus

if TYPE_CHECKING:
    from mainspring.jobs.explanation import Explanation

R = TypeVar("R")


class ManagerProvider(Protocol):
    """Provides the job manager of an application. Opens it on first use."""

    @property
    def limits(self) -> LimitRegistry:
        """The limits that the application declares."""

    @property
    def is_open(self) -> bool:
        """Whether the manager of this process is open."""

    @property
    def off_loop(self) -> OffLoop:
        """The threads on which asynchronous calls wait for the store."""

    def manager(self) -> JobManager:
        """Return the manager of this process; open it if necessary."""


async def open_manager(source: ManagerProvider) -> JobManager:
    """Return the manager of this process. If the store is not open, a thread opens it, as that may take long."""
    return source.manager() if source.is_open else await source.off_loop.read(source.manager)


class JobHandle(Generic[R]):
    """A submitted job. Dropping the handle does not affect the job.

    Methods raise `JobNotFound` if the job is not stored any more.

    In a coroutine, `await handle` waits until the job has ended and returns its result, as `result_async` does.
    """

    __slots__ = ("_handler", "_source", "id")

    def __init__(self, job_id: str, handler: Handler | None, source: ManagerProvider) -> None:
        self.id = job_id
        self._handler = handler
        self._source = source

    @property
    def _off_loop(self) -> OffLoop:
        return self._source.off_loop

    def info(self) -> JobInfo:
        """Return a snapshot of the job, with all stored data. Raises `JobNotFound` if the job was deleted."""
        return self._source.manager().get(self.id)

    info_async = async_twin(info)

    def status(self) -> JobStatus:
        """Return the status of the job. Raises `JobNotFound` if the job was deleted."""
        return self._source.manager().record(self.id).status

    status_async = async_twin(status)

    def wait(self, timeout: Duration | None = None) -> JobStatus:
        """Wait until the job has ended, and return its status. Raises `TimeoutError` after `timeout`."""
        return self._source.manager().wait(self.id, timeout)

    async def wait_async(self, timeout: Duration | None = None) -> JobStatus:
        """Wait until the job has ended as `wait` does, without blocking the event loop."""
        return await (await open_manager(self._source)).wait_async(self.id, timeout)

    def result(self, timeout: Duration | None = None) -> R:
        """Wait until the job has ended, and return the result of its handler.

        Raises `JobFailed` if the job failed or was canceled, and `TimeoutError` after `timeout`. The result is
        None if the store has none, for example because `keep_result` does not keep it.
        """
        return self._read_result(self.wait(timeout))

    async def result_async(self, timeout: Duration | None = None) -> R:
        """Wait for the result as `result` does, without blocking the event loop."""
        return await self._off_loop.read(self._read_result, await self.wait_async(timeout))

    def __await__(self) -> Generator[Any, None, R]:
        return self.result_async().__await__()

    def _read_result(self, status: JobStatus) -> R:
        """Return the result of a job that has ended; raise `JobFailed` unless its status is COMPLETED."""
        if status is not JobStatus.COMPLETED:
            reason = self._source.manager().error_of(self.id) or "no reason is recorded"
            raise JobFailed(job_id=self.id, status=str(status), reason=reason.partition("\n")[0])
        record = self._source.manager().record(self.id)
        if record.result is None:
            return None  # type: ignore[return-value]
        if self._handler is None:
            serializers = self._source.manager().serializers
            return serializers.get(record.codec).decoder(Any).decode(record.result)  # type: ignore[no-any-return]
        return self._handler.result.decode(record.result, record.codec)  # type: ignore[no-any-return]

    def reschedule(self, *, delay: Duration | None = None, at: datetime | None = None) -> bool:
        """Change the due time of the job if it is PENDING. Return False if it is RUNNING or has ended."""
        return self._source.manager().reschedule(self.id, delay=delay, at=at)

    async def reschedule_async(self, *, delay: Duration | None = None, at: datetime | None = None) -> bool:
        """Change the due time of the job as `reschedule` does, without blocking the event loop."""
        return await (await open_manager(self._source)).reschedule_async(self.id, delay=delay, at=at)

    def explain(self) -> Explanation:
        """Explain the status of the job, for example why it has not started."""
        return self._source.manager().explain(self.id)

    explain_async = async_twin(explain)

    def cancel(self, *, timeout: Duration | None = None) -> bool:
        """Cancel the job. Return True if it will not run any more, and False if it is running or has ended.

        A running job is asked to stop: see `current_job().cancelled`. The call returns when the store has
        committed the cancel. After `timeout` it raises `TimeoutError`; the request stays queued and may still take
        effect, which `status()` shows.
        """
        return self._source.manager().cancel(self.id, timeout=timeout)

    async def cancel_async(self, *, timeout: Duration | None = None) -> bool:
        """Cancel the job as `cancel` does, without blocking the event loop."""
        return await (await open_manager(self._source)).cancel_async(self.id, timeout=timeout)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobHandle) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"<JobHandle {self.id}>"
