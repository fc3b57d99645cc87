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
job completes without a result.

A call of a batch handler is wrapped once: the middleware gets the first of its jobs, and `current_batch()` returns
all of them. For a handler in a child process, the middleware runs in the worker, and sees an exception of the
handler as `RemoteError`.
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
from mainspring.runners.validation import require_instance


@dataclass(slots=True)
class Submit:
    """A submit whose jobs are about to be stored."""

    type: str
    queue: str
    count: int
    """The number of jobs in this submit."""
    headers: dict[str, str]
    """The headers that all jobs of this submit get. A middleware may add some."""


class Middleware:
    """The base class of middleware. Override the methods that you need; each returns a context manager."""

    def submitting(self, submit: Submit) -> AbstractContextManager[object]:
        """Wrap a submit, on the thread that makes it. The jobs are stored inside of the `with` block.

        So an exception before the `yield` of the context manager prevents the submit, and one after it does not.
        `submit_many_async` submits on a thread of Mainspring, every other submit on the thread of the caller.
        """
        return nullcontext()

    def attempting(self, job: JobContext) -> AbstractContextManager[object]:
        """Wrap an attempt, on the thread that runs the handler or waits for its process.

        A batch is wrapped once.
        """
        return nullcontext()

    @asynccontextmanager
    async def attempting_async(self, job: JobContext) -> AsyncIterator[object]:
        """Wrap an attempt of a coroutine handler; by default with `attempting`."""
        with self.attempting(job):
            yield None


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

    def attempting(self, job: JobContext) -> AbstractContextManager[object]:
        """Wrap an attempt in all middleware of the application."""
        return self._stack_attempt(job) if self._all else _NOTHING

    def attempting_async(self, job: JobContext) -> AbstractAsyncContextManager[object]:
        """Wrap an attempt of a coroutine handler in all middleware of the application."""
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
