"""Waits for jobs to end. It polls the store, and reads it at once if this process announces the end of a job.

A caller waits on its thread or in a coroutine. `_Polls` decides for both when to read the store again and when to
give up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Condition

from mainspring.clock import NANOSECONDS, Clock
from mainspring.jobs.off_loop import OffLoop
from mainspring.jobs.status import FINAL, JobStatus
from mainspring.runners.runner import TaskRunner
from mainspring.runners.worker import blocking_for

FIRST_POLL_NS = 5_000_000  # the first pause between two polls of the store
LONGEST_PAUSE_NS = NANOSECONDS // 2  # the pause between polls grows up to this


class JobWaiter:
    """Lets threads and coroutines wait until a job has ended, or until a condition holds."""

    def __init__(self, clock: Clock, *, virtual_time: bool, layers: tuple[TaskRunner, ...] = ()) -> None:
        self._clock = clock
        self._virtual_time = virtual_time
        self._layers = layers  # runners that must keep working while a thread waits
        self._changed = Condition()  # guards everything below
        self._waiting: dict[str, int] = {}  # the number of waiting callers for each job
        self._announced: dict[str, int] = {}  # how often each job was announced
        self._listeners: dict[str, list[Callable[[], None]]] = {}  # called when a job is announced

    def announce(self, ids: list[str]) -> None:
        """Wake up the callers in this process that wait for these jobs, so that they read the status again."""
        if self._waiting:
            with self._changed:
                for job_id in ids:
                    if job_id in self._waiting:
                        self._announced[job_id] += 1
                self._changed.notify_all()
                listeners = [call for job_id in ids for call in self._listeners.get(job_id, ())]
            for call in listeners:
                call()

    def wait(
        self, job_id: str, read_status: Callable[[], tuple[JobStatus, int]], deadline: int | None
    ) -> JobStatus:
        """Wait until a job has ended, and return its final status. Raises `TimeoutError` at the deadline.

        `read_status` returns the status of the job and, if it is PENDING, the nanoseconds until it is due; until
        then, the pauses between two reads are longer. With a manual clock, which stands still meanwhile, raises
        `TimeoutError` after the first read if the job has not ended.
        """
        polls = self._polls(deadline)
        with blocking_for(*self._layers), self._registered(job_id):
            while True:
                seen = self._announced[job_id]
                status, remaining = read_status()
                if status in FINAL:
                    return status
                until = polls.next(_still(job_id, status), _hint(status), remaining)
                self._wait_for_announcement(job_id, seen, until)

    async def wait_async(
        self,
        job_id: str,
        read_status: Callable[[], tuple[JobStatus, int]],
        deadline: int | None,
        off_loop: OffLoop,
    ) -> JobStatus:
        """Wait as `wait` does, in a coroutine: only the reads occupy a thread."""
        import asyncio  # noqa: PLC0415 - slow to import; the caller's event loop has imported it

        polls = self._polls(deadline)
        loop, announced = asyncio.get_running_loop(), asyncio.Event()

        def announce() -> None:
            with suppress(RuntimeError):  # the loop was closed
                loop.call_soon_threadsafe(announced.set)

        with self._registered(job_id), self._listening(job_id, announce):
            while True:
                announced.clear()
                status, remaining = await off_loop.read(read_status)
                if status in FINAL:
                    return status
                until = polls.next(_still(job_id, status), _hint(status), remaining)
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._seconds_until(until)):
                        await announced.wait()

    def wait_until(self, is_so: Callable[[], bool], deadline: int | None, problem: str) -> None:
        """Call `is_so`, with growing pauses, until it returns True.

        Raises `TimeoutError` with the text `problem` at the deadline; with a manual clock, after the first call.
        """
        polls = self._polls(deadline)
        while not is_so():
            until = polls.next(problem, " in time")
            with blocking_for(*self._layers), self._changed:
                self._clock.wait(self._changed, until)

    async def wait_until_async(
        self, is_so: Callable[[], bool], deadline: int | None, problem: str, off_loop: OffLoop
    ) -> None:
        """Wait as `wait_until` does, in a coroutine: only the calls of `is_so` occupy a thread."""
        import asyncio  # noqa: PLC0415 - slow to import; the caller's event loop has imported it

        polls = self._polls(deadline)
        while not await off_loop.read(is_so):  # noqa: ASYNC110 - the store announces nothing
            await asyncio.sleep(self._seconds_until(polls.next(problem, " in time")))

    def _polls(self, deadline: int | None) -> _Polls:
        return _Polls(self._clock, deadline, virtual_time=self._virtual_time)

    def _seconds_until(self, until: int) -> float:
        return (until - self._clock.monotonic_ns()) / NANOSECONDS

    def _wait_for_announcement(self, job_id: str, seen: int, until: int) -> None:
        with self._changed:
            while self._announced[job_id] == seen:
                if not self._clock.wait(self._changed, until):
                    return

    @contextmanager
    def _registered(self, job_id: str) -> Iterator[None]:
        with self._changed:
            self._waiting[job_id] = self._waiting.get(job_id, 0) + 1
            self._announced.setdefault(job_id, 0)
        try:
            yield
        finally:
            with self._changed:
                self._waiting[job_id] -= 1
                if not self._waiting[job_id]:
                    del self._waiting[job_id], self._announced[job_id]

    @contextmanager
    def _listening(self, job_id: str, call: Callable[[], None]) -> Iterator[None]:
        with self._changed:
            self._listeners.setdefault(job_id, []).append(call)
        try:
            yield
        finally:
            with self._changed:
                self._listeners[job_id].remove(call)
                if not self._listeners[job_id]:
                    del self._listeners[job_id]


class _Polls:
    """Decides when a waiting caller reads the store again. The pauses grow."""

    def __init__(self, clock: Clock, deadline: int | None, *, virtual_time: bool) -> None:
        self._clock = clock
        self._deadline = deadline
        self._virtual_time = virtual_time
        self._pause = FIRST_POLL_NS

    def next(self, problem: str, hint: str, remaining: int = 0) -> int:
        """Return the monotonic time at which to read again, in nanoseconds.

        Raises `TimeoutError` with the texts `problem` and `hint` if the deadline has passed, and always on a
        manual clock, which stands still meanwhile. `remaining` is the number of nanoseconds until the job is due:
        until then, pauses are as long as possible.
        """
        now = self._clock.monotonic_ns()
        if self._deadline is not None and now >= self._deadline:
            raise TimeoutError(f"{problem}{hint}")
        if self._virtual_time:
            raise TimeoutError(f"{problem}, and the manual clock stands still; call fast_forward()")
        until = now + max(self._pause, min(remaining, LONGEST_PAUSE_NS))
        self._pause = min(LONGEST_PAUSE_NS, self._pause * 2)
        return until if self._deadline is None else min(until, self._deadline)


def _still(job_id: str, status: JobStatus) -> str:
    return f"job {job_id!r} is still {status}"


def _hint(status: JobStatus) -> str:
    is_pending = status is JobStatus.PENDING
    return "; is there a worker? Use app.running(), app.run() or `mainspring run`" if is_pending else ""
