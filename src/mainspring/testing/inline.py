"""Inline mode for tests: when a submit returns, its job and all jobs that result from it have run.

Use it to test code that submits, together with its jobs: the test neither waits nor moves a clock, whatever the
delays. A worker runs the handlers as always, in the order of their due times. The clock moves as far as these jobs
need it. Schedules do not fire.

Invariants
- A submit inside of a handler only stores its job. The outer submit, which runs that handler, also runs this job.
- One submitter runs jobs at a time; others wait for it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from tempfile import TemporaryDirectory
from threading import Lock

from mainspring.app import Mainspring, Runtime
from mainspring.errors import JobFailed
from mainspring.jobs.context import JobContext, current_batch, runs_job
from mainspring.jobs.engine import Engine
from mainspring.jobs.manager import JobManager
from mainspring.jobs.middleware import AttemptEnd, Middlewares, Submit
from mainspring.jobs.retry import Cancel, Snooze
from mainspring.jobs.status import JobStatus
from mainspring.jobs.worker.outcomes import RemoteError
from mainspring.runners.validation import require_positive
from mainspring.testing.clock_stepper import MAX_STEPS, ClockStepper
from mainspring.testing.manual_clock import ManualClock
from mainspring.testing.submit_watcher import SubmitWatcher, watch_submits
from mainspring.testing.time_travel import TimeTravel, in_place, make_clock, make_engine

PARENTS_PER_STEP = 3
"""How many jobs may submit jobs at one instant, for each allowed step of the clock."""


@contextmanager
def inline(app: Mainspring, *, raises: bool = False, steps: int = MAX_STEPS) -> Iterator[TimeTravel]:
    """Make each submit of `app` return only after its job, and all jobs that result from it, have run.

    With `raises=True`, the submit of a job that has failed raises the exception of its first attempt, or
    `JobFailed` if no attempt has raised one here, for example in a child process. A job that succeeds in a retry
    has not failed. If the jobs do not end within this number of `steps` of the clock, the submit raises a
    `RuntimeError` that names them.
    """
    require_positive(steps, "steps", "steps of the clock")
    clock, failures = make_clock(), _FailureRecorder(app.middlewares)
    with TemporaryDirectory(prefix="mainspring-") as folder:
        runtime = _make_runtime(app, make_engine(app, clock, folder), clock, failures)
        with in_place(app, runtime):
            _InlineRunner(runtime.manager, clock, failures, steps=steps, raises=raises)
            yield TimeTravel(runtime.manager, clock)


def _make_runtime(app: Mainspring, engine: Engine, clock: ManualClock, failures: _FailureRecorder) -> Runtime:
    """Create a runtime that records the errors of attempts. The application keeps its own middleware."""
    own, app.middlewares = app.middlewares, failures
    try:
        return Runtime(app, engine, clock, virtual_time=True)
    finally:
        app.middlewares = own


class _InlineRunner(SubmitWatcher):
    """Runs all jobs after each submit to their end. With `raises`, the submit then raises the error of its job."""

    def __init__(
        self, manager: JobManager, clock: ManualClock, failures: _FailureRecorder, *, steps: int, raises: bool
    ) -> None:
        self._manager = manager
        self._stepper = ClockStepper(manager, clock, max_steps=steps)
        self._recorder = failures
        self._steps = steps
        self._raises = raises
        self._lock = Lock()  # held by the submitter that runs jobs
        self._instant = 0
        self._parents: set[str] = set()  # the ids of the jobs that have submitted jobs at this instant
        self._endless: str | None = None
        manager.submission.after_submit = self._run_all
        watch_submits(manager.submission, self)

    def before(self, handler: str) -> None:
        """Raise `RuntimeError` if too many jobs submit jobs at the same instant of the manual clock.

        Jobs that submit jobs without a delay forever would never let the clock move.
        """
        if not runs_job():
            return
        instant = self._manager.engine.now()
        if instant != self._instant:
            self._instant, self._parents = instant, set()
        self._parents.update(job.id for job in current_batch())
        if len(self._parents) > PARENTS_PER_STEP * self._steps:
            self._endless = handler
            raise RuntimeError(self._describe_endless(handler))

    def _run_all(self) -> None:
        if runs_job():  # a handler submits: the outer submit runs the new job, too
            return
        with self._lock:
            self._endless = None
            self._stepper.run_all(lambda: self._endless is not None)
            if self._endless is not None:
                raise RuntimeError(self._describe_endless(self._endless))

    def _describe_endless(self, handler: str) -> str:
        return (
            f"more than {PARENTS_PER_STEP * self._steps:,} jobs have submitted jobs at one instant, the last one "
            f"for {handler}; if they end at some time, pass a larger steps=; if they never end, give them a delay "
            "and use time_travel(), which moves the clock only as far as the test says"
        )

    def after(self, ids: list[str]) -> None:
        """With `raises`, raise the error of the first of these jobs that has failed. In a handler, do nothing."""
        if self._raises and not runs_job():
            self._raise_first(ids)

    def _raise_first(self, ids: list[str]) -> None:
        for job_id in ids:
            record = self._manager.record(job_id)
            if record.status is not JobStatus.FAILED:
                continue
            error = self._recorder.failures.get(job_id)
            if error is not None:
                raise error
            raise JobFailed(job_id=job_id, status=record.status, reason=(record.error or "").partition("\n")[0])


class _FailureRecorder(Middlewares):
    """Wraps the middleware of an application and records the first exception of every job.

    `Snooze`, `Cancel` and `RemoteError` (of child processes, and of handlers with `redact=`) are not recorded.
    """

    def __init__(self, inner: Middlewares) -> None:
        super().__init__()
        self.is_empty = False
        self._inner = inner
        self.failures: dict[str, BaseException] = {}

    def submitting(self, submit: Submit) -> AbstractContextManager[object]:
        """Return the context manager of the application's own middleware for a call of `submit`."""
        return self._inner.submitting(submit)

    def scheduling(self, submit: Submit) -> AbstractContextManager[object]:
        """Return the context manager of the application's own middleware for the submit of a schedule's jobs."""
        return self._inner.scheduling(submit)

    def attempted(self, ends: Sequence[AttemptEnd]) -> None:
        """Tell the application's own middleware how an attempt ended."""
        self._inner.attempted(ends)

    def passed_to_child(self, job: JobContext) -> dict[str, str]:
        """Return the texts that the application's own middleware passes to a child process."""
        return self._inner.passed_to_child(job)

    @contextmanager
    def attempting(self, job: JobContext) -> Iterator[None]:
        """Record the exception of a job's attempt, if it is the first, around the application's own middleware."""
        with self._recorded(), self._inner.attempting(job):
            yield

    @asynccontextmanager
    async def attempting_async(self, job: JobContext) -> AsyncIterator[None]:
        """Record the exception of a coroutine's attempt, if it is the first, around the application's own
        middleware.
        """
        with self._recorded():
            async with self._inner.attempting_async(job):
                yield

    @contextmanager
    def _recorded(self) -> Iterator[None]:
        try:
            yield
        except (Snooze, Cancel, RemoteError):  # the attempt did not fail, or the exception object is not available
            raise
        except BaseException as error:
            for job in current_batch():
                self.failures.setdefault(job.id, error)
            raise
