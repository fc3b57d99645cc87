"""Handlers in processes of their own: a timeout or a request to stop kills them, and a crash is theirs alone.

The processes come with the first job. A thread waits beside each that works: threads of a pool of this module, so
that those for plain handlers are not used up.
"""

from __future__ import annotations

from collections.abc import Mapping
from threading import Semaphore
from typing import Any

from mainspring.clock import Clock
from mainspring.jobs.processes.child_process import ChildDied, Running
from mainspring.jobs.processes.messages import Answer, Note, Request
from mainspring.jobs.processes.pool import ProcessPool
from mainspring.jobs.working.active import ActiveJob
from mainspring.jobs.working.attempts import Attempts, Call
from mainspring.jobs.working.execution import Execution
from mainspring.jobs.working.on_threads import BatchQueues
from mainspring.jobs.working.outcomes import Crashed, Interrupted, Killed, needs_result
from mainspring.runners.func_queue import FuncQueue
from mainspring.runners.thread_pool import ThreadPool


class InProcesses:
    """Runs handlers in processes, so many at once."""

    def __init__(
        self,
        size: int,
        execution: Execution,
        attempts: Attempts,
        clock: Clock,
        options: Mapping[str, Any],
    ) -> None:
        self._execution = execution
        self._attempts = attempts
        self._pool = ProcessPool(size, **options)
        self._threads = ThreadPool(size, name="mainspring-processes", clock=clock)
        self._room = Semaphore(size)  # a middleware that waits lets another thread stand in for its own
        self._ready: FuncQueue[ActiveJob] = FuncQueue(self._run, self._threads, concurrency=size)
        self._batches = BatchQueues(self._threads, self._run_call)
        self.perform = self._ready.dispatch_all
        self.perform_batch = self._batches.dispatch

    def _run(self, job: ActiveJob) -> None:
        if job.claim_start():
            self._run_call(Call((job,)))

    def _run_call(self, call: Call) -> None:
        attempt = _Attempt(call, self._attempts)
        request = _request(call, self._execution.max_result)
        outcomes = self._execution.run_beside(call.jobs, lambda: self._ask(attempt, request))
        self._attempts.end_call(call, outcomes, attempt.began)

    def _ask(self, attempt: _Attempt, request: Request) -> list[Answer]:
        with self._room:
            return attempt.run(self._pool, request)

    def close(self) -> None:
        """Kill what still runs, and let the rest end."""
        self._pool.close(0)
        self._threads.shutdown(timeout=0)


class _Attempt:
    """A request to a process, and what can be done about it."""

    def __init__(self, call: Call, attempts: Attempts) -> None:
        self._call = call
        self._attempts = attempts
        self.began: int | None = None

    def run(self, pool: ProcessPool, request: Request) -> list[Answer]:
        """Wait for the answers."""
        try:
            return pool.run(request, on_start=self._begin, on_note=self._note).answers
        except ChildDied as death:
            if death.was_asked_to_end:
                raise Interrupted(str(death)) from None
            if death.was_killed:
                raise Killed(str(death)) from None
            raise Crashed(str(death)) from None

    def _begin(self, hold: Running) -> None:
        call = self._call
        call.announce, call.warn, call.kill = hold.announce_shutdown, hold.stop, hold.kill
        self.began = self._attempts.begin_call(call)
        if call.jobs[0].context.stopping:  # the worker's end was faster than the start of a process,
            hold.announce_shutdown()
        if call.is_unwanted:  # or the request to stop
            hold.kill()

    def _note(self, note: Note) -> None:
        self._call.jobs[note.place].context.progress(note.done, note.total, note.note)


def _request(call: Call, max_result: int) -> Request:
    handler = call.jobs[0].handler
    return Request.of(
        handler,
        [job.lease for job in call.jobs],
        max_result=max_result,
        keep_result=any(needs_result(job) for job in call.jobs),
        is_batch=handler.options.batch is not None,
    )
