"""Plain functions on the threads of a runner. Nobody can stop them: they look at `current_job().cancelled`."""

from __future__ import annotations

from collections.abc import Callable

from mainspring.jobs.working.active import ActiveJob
from mainspring.jobs.working.attempts import Attempts, Call, calls_of
from mainspring.jobs.working.execution import Execution
from mainspring.runners.func_queue import FuncQueue
from mainspring.runners.runner import TaskRunner


class BatchQueues:
    """What is ready for batch handlers: a queue for each of them, so that one call of it runs at a time."""

    def __init__(self, runner: TaskRunner, run: Callable[[Call], object]) -> None:
        self._runner = runner
        self._run = run
        self._queues: dict[str, FuncQueue[ActiveJob]] = {}

    def dispatch(self, jobs: list[ActiveJob]) -> None:
        """Add jobs of one handler."""
        name = jobs[0].handler.name
        queue = self._queues.get(name)
        if queue is None:
            queue = FuncQueue(self._run_all, self._runner, batch=True, name=f"mainspring-batches-{name}")
            self._queues[name] = queue
        queue.dispatch_all(jobs)

    def _run_all(self, jobs: list[ActiveJob]) -> None:
        for call in calls_of(jobs):
            self._run(call)


class OnThreads:
    """Runs handlers on a runner, so many at once."""

    def __init__(self, runner: TaskRunner, size: int, execution: Execution, attempts: Attempts) -> None:
        self._execution = execution
        self._attempts = attempts
        self._ready: FuncQueue[ActiveJob] = FuncQueue(self._run, runner, concurrency=size, name="mainspring-ready")
        self._batches = BatchQueues(runner, self._run_batch)
        self.perform = self._ready.dispatch_all
        self.perform_batch = self._batches.dispatch

    def _run(self, job: ActiveJob) -> None:
        if job.claim_start():
            began = self._attempts.begin(job)
            self._attempts.end(job, self._execution.run(job), began)

    def _run_batch(self, call: Call) -> None:
        began = self._attempts.begin_call(call)
        self._attempts.end_call(call, self._execution.run_batch(call.jobs), began)

    def close(self) -> None:
        """Leave behind what still runs: the threads belong to the runner."""
