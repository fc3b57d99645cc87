"""Inline mode: every job has run when its submit returns, whatever its delay, and all that follows from it.

For tests of code that submits: no waiting, no clock to move. Handlers run on a worker as always, in the order of
their due times; the clock moves as far as these jobs need it, and schedules stand still.

Invariants
- A submit inside of a handler only stores: the submit that runs this handler goes on until nothing waits.
- One submitter runs jobs at a time; others wait for their turn.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from tempfile import TemporaryDirectory
from threading import Lock

from mainspring.app import Mainspring, Runtime
from mainspring.errors import JobFailed
from mainspring.jobs.context import JobContext, current_batch, runs_job
from mainspring.jobs.engine import Engine
from mainspring.jobs.manager import JobManager
from mainspring.jobs.middleware import Middlewares, Submit
from mainspring.jobs.retry import Cancel, Snooze
from mainspring.jobs.status import JobStatus
from mainspring.jobs.working.outcomes import RemoteError
from mainspring.runners.checks import require_positive
from mainspring.testing.manual_clock import ManualClock
from mainspring.testing.stepping import MOST_STEPS, Stepping
from mainspring.testing.submits import SubmitWatcher, watch_submits
from mainspring.testing.time_travel import TimeTravel, in_place, make_clock, make_engine

PARENTS_PER_STEP = 3
"""How many jobs, for each step of the clock that is allowed, may submit jobs without a step of the clock."""


@contextmanager
def inline(app: Mainspring, *, raises: bool = False, steps: int = MOST_STEPS) -> Iterator[TimeTravel]:
    """Let each submit of `app` return only after its job, and all jobs that follow from it, have run.

    With `raises=True` a submit raises what its job has failed with, in its first attempt; a job that a retry has
    helped has not failed. `RuntimeError` names the jobs that do not come to an end within so many `steps`.
    """
    require_positive(steps, "steps", "steps of the clock")
    clock, witness = make_clock(), _Witness(app.middlewares)
    with TemporaryDirectory(prefix="mainspring-") as folder:
        runtime = _witnessed(app, make_engine(app, clock, folder), clock, witness)
        with in_place(app, runtime):
            _Conductor(runtime.manager, clock, witness, steps=steps, raises=raises)
            yield TimeTravel(runtime.manager, clock)


def _witnessed(app: Mainspring, engine: Engine, clock: ManualClock, witness: _Witness) -> Runtime:
    """Make a runtime whose attempts have a witness; the application keeps its own middleware."""
    own, app.middlewares = app.middlewares, witness
    try:
        return Runtime(app, engine, clock, virtual_time=True)
    finally:
        app.middlewares = own


class _Conductor(SubmitWatcher):
    """Runs jobs whenever some have been submitted, and tells their submitters how it went."""

    def __init__(
        self, manager: JobManager, clock: ManualClock, witness: _Witness, *, steps: int, raises: bool
    ) -> None:
        self._manager = manager
        self._stepping = Stepping(manager, clock, most_steps=steps)
        self._witness = witness
        self._steps = steps
        self._raises = raises
        self._turn = Lock()  # of the submitter that runs jobs
        self._instant = 0
        self._parents: set[str] = set()  # jobs that have submitted jobs at this instant
        self._endless: str | None = None
        manager.submission.after_submit = self._run_all
        watch_submits(manager.submission, self)

    def before(self, handler: str) -> None:
        """Put an end to jobs that submit jobs at one and the same instant for ever: the clock would never move."""
        if not runs_job():
            return
        instant = self._manager.engine.now()
        if instant != self._instant:
            self._instant, self._parents = instant, set()
        self._parents.update(job.id for job in current_batch())
        if len(self._parents) > PARENTS_PER_STEP * self._steps:
            self._endless = handler
            raise RuntimeError(self._complain(handler))

    def _run_all(self) -> None:
        if runs_job():  # the submit that runs this handler takes care of it
            return
        with self._turn:
            self._endless = None
            self._stepping.run_all(lambda: self._endless is not None)
            if self._endless is not None:
                raise RuntimeError(self._complain(self._endless))

    def _complain(self, handler: str) -> str:
        return (
            f"more than {PARENTS_PER_STEP * self._steps:,} jobs have submitted jobs at one instant, the last one "
            f"for {handler}; if they come to an end, give more steps=; if they never do, let them have a delay, "
            "and use time_travel(), which goes as far as it is told to"
        )

    def after(self, ids: list[str]) -> None:
        """Raise what the first of these jobs that has failed was failed by."""
        if self._raises and not runs_job():
            self._raise_first(ids)

    def _raise_first(self, ids: list[str]) -> None:
        for job_id in ids:
            record = self._manager.record(job_id)
            if record.status is not JobStatus.FAILED:
                continue
            error = self._witness.failures.get(job_id)
            if error is not None:
                raise error
            raise JobFailed(job_id=job_id, status=record.status, reason=(record.error or "").partition("\n")[0])


class _Witness(Middlewares):
    """The middleware of an application, and around it somebody who remembers the first error of every job."""

    def __init__(self, inner: Middlewares) -> None:
        super().__init__()
        self.is_empty = False
        self._inner = inner
        self.failures: dict[str, BaseException] = {}

    def submitting(self, submit: Submit) -> AbstractContextManager[object]:
        """Be around a submit."""
        return self._inner.submitting(submit)

    @contextmanager
    def attempting(self, job: JobContext) -> Iterator[None]:
        """Be around an attempt."""
        with self._seeing(), self._inner.attempting(job):
            yield

    @asynccontextmanager
    async def attempting_async(self, job: JobContext) -> AsyncIterator[None]:
        """Be around an attempt of a coroutine."""
        with self._seeing():
            async with self._inner.attempting_async(job):
                yield

    @contextmanager
    def _seeing(self) -> Iterator[None]:
        try:
            yield
        except (Snooze, Cancel, RemoteError):  # no failures; or one of which only the words are here
            raise
        except BaseException as error:
            for job in current_batch():
                self.failures.setdefault(job.id, error)
            raise
