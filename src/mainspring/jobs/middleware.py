"""Middleware: what an application does around every submit and around every attempt.

    class Tracing(Middleware):
        @contextmanager
        def submitting(self, submit):
            submit.headers["traceparent"] = current_traceparent()
            yield

        @contextmanager
        def attempting(self, job):
            with tracer.start_span(job.type, job.headers.get("traceparent")):
                yield

Those added first are the outermost. What a block raises ends the submit, or fails the attempt, as if the handler
had raised it. An error that a block swallows is none: the job has completed, without a result.

A call of a batch handler is one block: it gets the first of its jobs, and `current_batch()` has all of them. The
block around a handler in a process of its own is in the worker, and sees what the handler raises as `RemoteError`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
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

from mainspring.jobs.context import JobContext
from mainspring.runners.checks import require_instance


@dataclass(slots=True)
class Submit:
    """A submit that is about to happen."""

    type: str
    queue: str
    count: int
    """How many jobs."""
    headers: dict[str, str]
    """What is carried along with them: add to it."""


class Middleware:
    """Derive from this and override what is needed. Each method returns a context manager."""

    def submitting(self, submit: Submit) -> AbstractContextManager[object]:
        """Be around a submit, in the submitter; the jobs are stored when the block has ended without an error."""
        return nullcontext()

    def attempting(self, job: JobContext) -> AbstractContextManager[object]:
        """Be around an attempt, in the thread that runs it, or beside the process; once around a batch."""
        return nullcontext()

    @asynccontextmanager
    async def attempting_async(self, job: JobContext) -> AsyncIterator[object]:
        """Be around an attempt of a coroutine; by default what `attempting` does."""
        with self.attempting(job):
            yield None


class Middlewares:
    """The middleware of an application, in order."""

    def __init__(self) -> None:
        self._all: tuple[Middleware, ...] = ()
        self.is_empty = True
        """Whether none was added as yet."""

    def add(self, middleware: Middleware) -> None:
        """Add one, inside of those before it."""
        require_instance(middleware, Middleware, "middleware", "class Tracing(Middleware)")
        self._all = (*self._all, middleware)
        self.is_empty = False

    def around_submit(
        self, handler: str, queue: str, count: int, headers: dict[str, str]
    ) -> AbstractContextManager[object]:
        """Be around a submit, which is described only if somebody wants to know."""
        return _NOTHING if self.is_empty else self.submitting(Submit(handler, queue, count, headers))

    def submitting(self, submit: Submit) -> AbstractContextManager[object]:
        """Be around a submit."""
        return self._stack_submit(submit) if self._all else _NOTHING

    def attempting(self, job: JobContext) -> AbstractContextManager[object]:
        """Be around an attempt."""
        return self._stack_attempt(job) if self._all else _NOTHING

    def attempting_async(self, job: JobContext) -> AbstractAsyncContextManager[object]:
        """Be around an attempt of a coroutine."""
        return self._stack_async(job) if self._all else _NOTHING

    @contextmanager
    def _stack_submit(self, submit: Submit) -> Iterator[None]:
        with ExitStack() as stack:
            for middleware in self._all:
                stack.enter_context(middleware.submitting(submit))
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


_NOTHING = nullcontext()
