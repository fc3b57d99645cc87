"""What runs inside of a child process: one request after another, on its main thread.

Requests and answers go through one connection, requests to stop through another, on which a thread waits: its end
of file means that the worker has died, and ends this process even while a handler runs. The end of the first is a
request to leave in order.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from inspect import iscoroutinefunction
from multiprocessing.connection import Connection
from multiprocessing.process import current_process
from threading import Lock, Thread
from typing import Any

from mainspring.jobs import context
from mainspring.jobs.arguments import plain_function
from mainspring.jobs.batching import results_of
from mainspring.jobs.context import JobContext
from mainspring.jobs.engine import Lease
from mainspring.jobs.execution import UnstorableResult, describe, describe_fault, encode_result, storable
from mainspring.jobs.handlers import Handler
from mainspring.jobs.instants import to_microseconds
from mainspring.jobs.processes.finding import find
from mainspring.jobs.processes.memory import Memory
from mainspring.jobs.processes.messages import (
    Answer,
    AnswerKind,
    FromChild,
    Note,
    Ready,
    Reply,
    Request,
    Started,
    decode_request,
    decode_stop,
    encode,
    full_name,
)
from mainspring.jobs.retry import RetryLater
from mainspring.jobs.serializers import SERIALIZERS
from mainspring.jobs.signals import Cancel, Snooze

PROCESS_NAME = "mainspring-process"
ORPHANED = 75  # EX_TEMPFAIL: somebody else will run it

_SERIALIZERS = {name: make() for name, make in SERIALIZERS.items()}
_is_serving = False


def require_main_guard() -> None:
    """Refuse to start workers while a child of one imports the script that started it."""
    if current_process().name == PROCESS_NAME and not _is_serving:
        raise RuntimeError(
            "this script starts a worker while a process of that worker imports it, and would do so without end; "
            "put what starts workers and submits jobs under: if __name__ == '__main__':"
        )


def serve(work: Connection, control: Connection) -> None:
    """Run requests until the worker has no more: the target of a child process."""
    global _is_serving  # noqa: PLW0603 - one process serves once
    _is_serving = True
    _prepare_signals()
    Child(work, control).serve()


def _prepare_signals() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the worker, which decides what becomes of us
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)  # a kill reaches what a handler has started, too
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # the worker held it back until now


class Child:
    """Answers requests, one at a time."""

    def __init__(self, work: Connection, control: Connection) -> None:
        self._work = work
        self._control = control
        self._handlers: dict[tuple[str, str, str], Handler] = {}
        self._memory = Memory()
        self._sending = Lock()  # guards writing to _work and, with it, whether _current still speaks
        self._lock = Lock()  # guards what follows
        self._number = 0
        self._current: JobContext | None = None
        self._cancel: Callable[[], object] | None = None
        if hasattr(os, "register_at_fork"):
            for connection in (work, control):
                os.set_inheritable(connection.fileno(), False)
            os.register_at_fork(after_in_child=self._let_go)

    def serve(self) -> None:
        """Answer until nobody asks."""
        Thread(target=self._watch, name="mainspring-control", daemon=True).start()
        with suppress(EOFError, OSError):
            self._send(Ready())
            while True:
                self._send(self._answer(decode_request(self._work.recv_bytes())))

    def _send(self, message: FromChild) -> None:
        with self._sending:
            self._work.send_bytes(encode(message))

    def _let_go(self) -> None:
        """In a process that a handler has forked: it must not keep the connections of this one open."""
        self._work.close()
        self._control.close()
        self._sending, self._lock = Lock(), Lock()  # their holders are not here

    # -- requests to stop

    def _watch(self) -> None:
        try:
            while True:
                self._stop(decode_stop(self._control.recv_bytes()).number)
        except (EOFError, OSError):
            os._exit(ORPHANED)

    def _stop(self, number: int) -> None:
        with self._lock:
            if number == self._number and self._current is not None:  # else it has just ended
                self._current.request_stop()
                if self._cancel is not None:
                    self._cancel()

    def _begin(self, lease: Lease) -> JobContext:
        job: JobContext = JobContext(lease, report=lambda *note: self._report(job, Note(*note)))
        with self._lock:
            self._number += 1
            self._current = job
        return job

    def _end(self) -> None:
        with self._sending, self._lock:
            self._current = None

    def _report(self, job: JobContext, note: Note) -> None:
        with self._sending:
            if self._current is job:  # a thread that a handler left behind speaks for nobody
                self._work.send_bytes(encode(note))

    # -- requests

    def _answer(self, request: Request) -> Reply:
        entered = context.enter(self._begin(request.leases[0]))
        try:
            answers = self._run(request)
        finally:
            context.leave(entered)
            self._end()
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # a handler may have closed or replaced it
                stream.flush()
        return Reply(answers, self._memory.resident())

    def _run(self, request: Request) -> list[Answer]:
        try:
            handler = self._find(request)
            if request.is_batch:
                return self._run_batch(request, handler)
            (lease,) = request.leases
            positional, named = handler.arguments.decode(lease.payload, lease.codec)
            self._send(Started())
            return [_complete(request, lease, self._call(handler, positional, named))]
        except BaseException as error:  # SystemExit in a handler ends the attempt, not this process
            return [_explain(error)] * len(request.leases)

    def _run_batch(self, request: Request, handler: Handler) -> list[Answer]:
        answers: dict[int, Answer] = {}
        items: dict[int, Any] = {}
        for place, lease in enumerate(request.leases):
            try:
                positional, named = handler.arguments.decode(lease.payload, lease.codec)
                (items[place],) = (*positional, *named.values())
            except Exception as error:  # it is charged to this job alone
                answers[place] = _explain(error)
        if items:
            self._send(Started())
            returned = self._call(handler, (list(items.values()),), {})
            for place, value in zip(items, results_of(handler.name, returned, len(items)), strict=True):
                answers[place] = (
                    _explain(value)
                    if isinstance(value, BaseException)
                    else _complete(request, request.leases[place], value)
                )
        return [answers[place] for place in range(len(request.leases))]

    def _find(self, request: Request) -> Handler:
        key = (request.handler, request.module, request.qualname)
        if key not in self._handlers:
            self._handlers[key] = find(request)
        return self._handlers[key]

    def _call(self, handler: Handler, positional: Any, named: dict[str, Any]) -> Any:
        if not iscoroutinefunction(plain_function(handler.function)):
            return handler.function(*positional, **named)
        value, error = asyncio.run(self._await(handler, positional, named))
        if error is not None:
            raise error
        return value

    async def _await(
        self, handler: Handler, positional: Any, named: dict[str, Any]
    ) -> tuple[Any, BaseException | None]:
        """Return what it returns or raises: an error that left the loop by itself would show the loop's frames."""
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        with self._lock:
            self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)
            if self._current is not None and self._current.cancelled:  # it came before there was a task
                task.cancel()
        try:
            return await handler.function(*positional, **named), None
        except BaseException as error:  # a cancelled attempt is an answer, too
            return None, error
        finally:
            with self._lock:
                self._cancel = None


def _complete(request: Request, lease: Lease, value: Any) -> Answer:
    if value is None or not request.keep_result:
        return Answer(AnswerKind.COMPLETED)
    try:
        serializer = _SERIALIZERS[lease.codec]
        result = encode_result(value, serializer, handler=request.handler, limit=request.max_result)
    except UnstorableResult as refusal:
        return Answer(AnswerKind.HOPELESS, error=str(refusal))
    return Answer(AnswerKind.COMPLETED, result=result)


def _explain(error: BaseException) -> Answer:
    try:
        if isinstance(error, Snooze):
            return Answer(AnswerKind.SNOOZED, delay=to_microseconds(error.delay, "delay"))
        if isinstance(error, Cancel):
            return Answer(AnswerKind.CANCELED, error=storable(str(error.reason)))
        lineage = tuple(full_name(kind) for kind in type(error).__mro__)
        if isinstance(error, RetryLater):
            delay = to_microseconds(error.delay, "delay")
            return Answer(AnswerKind.RETRY_LATER, error=describe(error), delay=delay, lineage=lineage)
        return Answer(AnswerKind.FAILED, error=describe(error), lineage=lineage)
    except Exception as another:  # an exception with faults of its own: the job must be settled all the same
        return Answer(AnswerKind.HOPELESS, error=describe_fault(error, another))
