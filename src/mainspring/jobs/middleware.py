"""Middleware: code of the application that runs around every submit and every attempt.

    class Tracing(Middleware):
        @contextmanager
        def submitting(self, submit):
            submit.headers["traceparent"] = current_traceparent()
            yield

        @contextmanager
        def attempting(self, job):
            with tracer.start_span(job.type, job.headers.get("traceparent")):
                yield

Middleware that was added first is the outermost. An exception of a middleware reaches the caller of the submit,
or fails the attempt as if the handler had raised it. If a middleware suppresses an exception of the handler, the
job completes without a result. Exceptions of `attempted` and `scheduling` are only logged.

A call of a batch handler is wrapped once: the middleware gets the first of its jobs, and `current_batch()` returns
all of them. For a handler in a child process, `attempting` runs in the worker, and sees an exception of the
handler as `RemoteError`; `attempting_in_child` runs in the child process. An exception of a handler with
`redact=` is a `RemoteError`, too, whose text has no redacted values.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from dataclasses import dataclass
from datetime import datetime

from mainspring.jobs.context import JobContext
from mainspring.jobs.records import AttemptOutcome
from mainspring.jobs.retry import Suspend
from mainspring.jobs.status import JobStatus
from mainspring.runners.validation import require_instance

logger = logging.getLogger("mainspring.worker")


@dataclass(slots=True)
class Submit:
    """A submit whose jobs are about to be stored, as middleware sees it."""

    type: str
    queue: str
    count: int
    """The number of jobs in this submit."""
    headers: dict[str, str]
    """The headers that all jobs of this submit get. A middleware may add some."""
    is_bulk: bool = False
    """Whether it is a bulk submit, such as one of `submit_many`."""
    schedule: str | None = None
    """The name of the schedule that submits the jobs; None if the application submits them."""
    ids: Sequence[str] = ()
    """The ids of the stored jobs; empty until they are stored.

    For a unique job that existed already, it is the id of the existing job.
    """


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """How an attempt of one job ended, as middleware learns it before the outcome is stored."""

    job: JobContext
    outcome: AttemptOutcome
    status: JobStatus
    """The status that the job gets: `PENDING` if it will run again."""
    error: BaseException | None = None
    """The exception that failed the attempt; None if the attempt did not fail.

    It is a `RemoteError` if the handler ran in a child process, or has `redact=`.
    """
    error_type: str | None = None
    """The name of the exception's class, such as `ConnectionError`; None if the attempt did not fail."""
    error_text: str | None = None
    """The error as it is stored: a description in the first line, a traceback below. None without a failure."""
    due: datetime | None = None
    """The instant at which the job is due again, after a retry or a snooze; else None."""
    follow_up_headers: dict[str, str] | None = None
    """The headers of the follow-up job, which a middleware may change; None if there is no follow-up job."""


class Middleware:
    """The base class of middleware. Override the methods that you need."""

    def submitting(self, submit: Submit) -> AbstractContextManager[object]:
        """Wrap a submit, on the thread that makes it. The jobs are stored inside of the `with` block.

        So an exception before the `yield` of the context manager prevents the submit, and one after it does not.
        `submit_many_async` submits on a thread of Mainspring, every other submit on the thread of the caller.
        """
        return nullcontext()

    def scheduling(self, submit: Submit) -> AbstractContextManager[object]:
        """Wrap the submit of a schedule's jobs, on a thread of the worker.

        For `trigger`, and for a `put` that changes a schedule with due occurrences, it is the thread of the call.
        All workers try to submit the jobs of each occurrence, and the store accepts those of the first worker. In
        the other workers, `submit.ids` stays empty; so it does if the store makes no job, because an earlier one
        has not ended.
        """
        return nullcontext()

    def attempting(self, job: JobContext) -> AbstractContextManager[object]:
        """Wrap an attempt, on the thread that runs the handler or waits for its process.

        A call of a batch handler is wrapped once, with the first of its jobs.
        """
        return nullcontext()

    @asynccontextmanager
    async def attempting_async(self, job: JobContext) -> AsyncIterator[object]:
        """Wrap an attempt of a coroutine handler; by default with `attempting`."""
        with self.attempting(job):
            yield None

    def attempted(self, ends: Sequence[AttemptEnd]) -> None:
        """Receive how an attempt ended, after `attempting`, on the same thread, before the outcome is stored.

        There is one end, or one for each job of a batch. The outcome cannot be changed, but the headers of
        follow-up jobs can.
        """

    def calling_child(self, job: JobContext, passed: dict[str, str]) -> None:
        """Put texts into `passed` for `attempting_in_child`, before the handler is called in a child process.

        This method is called in the worker, inside of `attempting`.
        """

    def attempting_in_child(self, job: JobContext, passed: Mapping[str, str]) -> AbstractContextManager[object]:
        """Wrap the call of a handler in a child process. `passed` has the texts of `calling_child`.

        The child has imported the application, so it has the middleware that this import adds.
        """
        return nullcontext()


class Middlewares:
    """The middleware of an application, in the order in which it was added."""

    def __init__(self) -> None:
        self._all: tuple[Middleware, ...] = ()
        self.is_empty = True
        """Whether no middleware was added yet."""

    def add(self, middleware: Middleware) -> None:
        """Add a middleware. It runs inside of those that were added before."""
        require_instance(middleware, Middleware, "middleware", "class Tracing(Middleware)")
        self._all = (*self._all, middleware)
        self.is_empty = False

    def submitting(self, submit: Submit) -> AbstractContextManager[object]:
        """Wrap a submit in all middleware of the application."""
        return self._stack_submit(submit) if self._all else _NOTHING

    def scheduling(self, submit: Submit) -> AbstractContextManager[object]:
        """Wrap the submit of a schedule's jobs in all middleware of the application.

        Exceptions of a middleware are only logged: the jobs are submitted all the same.
        """
        return self._stack_schedule(submit) if self._all else _NOTHING

    def attempting(self, job: JobContext) -> AbstractContextManager[object]:
        """Wrap an attempt in all middleware of the application."""
        return self._stack_attempt(job) if self._all else _NOTHING

    def attempting_async(self, job: JobContext) -> AbstractAsyncContextManager[object]:
        """Wrap an attempt of a coroutine handler in all middleware of the application."""
        return self._stack_async(job) if self._all else _NOTHING

    def attempted(self, ends: Sequence[AttemptEnd]) -> None:
        """Tell all middleware how an attempt ended, the innermost first. Their exceptions are only logged."""
        for middleware in reversed(self._all):
            try:
                middleware.attempted(ends)
            except (Exception, Suspend):
                logger.exception(
                    "middleware %r failed in attempted(); the outcome of the attempt is not affected",
                    middleware,
                    extra=ends[0].job.log_fields,
                )

    def passed_to_child(self, job: JobContext) -> dict[str, str]:
        """Return the texts that all middleware pass to the child process of a handler: see
        `Middleware.calling_child`.
        """
        passed: dict[str, str] = {}
        for middleware in self._all:
            middleware.calling_child(job, passed)
        return passed

    def attempting_in_child(self, job: JobContext, passed: Mapping[str, str]) -> AbstractContextManager[object]:
        """Wrap the call of a handler in a child process in all middleware of the application."""
        return self._stack_in_child(job, passed) if self._all else _NOTHING

    @contextmanager
    def _stack_submit(self, submit: Submit) -> Iterator[None]:
        with ExitStack() as stack:
            for middleware in self._all:
                stack.enter_context(middleware.submitting(submit))
            yield

    @contextmanager
    def _stack_schedule(self, submit: Submit) -> Iterator[None]:
        with ExitStack() as stack:
            for middleware in self._all:
                stack.enter_context(_logged(middleware, submit))
            yield

    @contextmanager
    def _stack_attempt(self, job: JobContext) -> Iterator[None]:
        with ExitStack() as stack:
            for middleware in self._all:
                stack.enter_context(middleware.attempting(job))
            yield

    @asynccontextmanager
    async def _stack_async(self, job: JobContext) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for middleware in self._all:
                await stack.enter_async_context(middleware.attempting_async(job))
            yield

    @contextmanager
    def _stack_in_child(self, job: JobContext, passed: Mapping[str, str]) -> Iterator[None]:
        with ExitStack() as stack:
            for middleware in self._all:
                stack.enter_context(middleware.attempting_in_child(job, passed))
            yield


@contextmanager
def _logged(middleware: Middleware, submit: Submit) -> Iterator[None]:
    """Enter `scheduling` of a middleware, and log its exceptions, so that the schedule is fired in any case."""
    stack = ExitStack()
    with _failures_logged(middleware, submit):
        stack.enter_context(middleware.scheduling(submit))
    failure: BaseException | None = None
    try:
        yield
    except BaseException as error:
        failure = error
        raise
    finally:
        with _failures_logged(middleware, submit, besides=failure):
            stack.__exit__(type(failure) if failure else None, failure, None)


@contextmanager
def _failures_logged(
    middleware: Middleware, submit: Submit, *, besides: BaseException | None = None
) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if error is not besides:
            logger.exception(
                "middleware %r failed in scheduling() for schedule %r, which is fired all the same",
                middleware,
                submit.schedule,
            )


_NOTHING = nullcontext()
