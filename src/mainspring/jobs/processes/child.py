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
from collections.abc import Awaitable
from contextlib import suppress
from inspect import iscoroutinefunction
from multiprocessing.connection import Connection
from threading import Lock, Thread
from typing import Any

from mainspring.jobs import context
from mainspring.jobs.arguments import plain_function
from mainspring.jobs.batching import results_of
from mainspring.jobs.context import JobContext
from mainspring.jobs.handlers import Handler
from mainspring.jobs.instants import to_microseconds
from mainspring.jobs.processes.finding import find
from mainspring.jobs.processes.locating import Memory, is_child
from mainspring.jobs.processes.messages import (
    Answer,
    AnswerKind,
    FromChild,
    Note,
    Ready,
    Reply,
    Request,
    Started,
    Stop,
    decode_request,
    decode_stop,
    encode,
    full_name,
)
from mainspring.jobs.records import Lease
from mainspring.jobs.retry import Cancel, RetryLater, Snooze
from mainspring.jobs.serializers import SERIALIZERS
from mainspring.jobs.working.describing import UnstorableResult, describe, describe_fault, encode_result, storable

ORPHANED = 75  # EX_TEMPFAIL: somebody else will run it

_SERIALIZERS = {name: make() for name, make in SERIALIZERS.items()}
_is_serving = False


def require_main_guard() -> None:
    """Refuse to start workers while a child of one imports the script that started it."""
    if is_child() and not _is_serving:
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


def _leave() -> None:
    """End at once, with what a handler has started: the job will run again elsewhere."""
    if hasattr(os, "killpg") and os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(ORPHANED)


class Child:
    """Answers requests, one at a time."""

    def __init__(self, work: Connection, control: Connection) -> None:
        self._work = work
        self._control = control
        self._handlers: dict[tuple[str, str, str], Handler] = {}
        self._memory = Memory()
        self._sending = Lock()  # guards writing to _work and, with _lock, who may speak
        self._lock = Lock()  # guards what follows
        self._number = 0
        self._jobs: tuple[JobContext, ...] = ()
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
                self._stop(decode_stop(self._control.recv_bytes()))
        except (EOFError, OSError):
            _leave()

    def _stop(self, stop: Stop) -> None:
        with self._lock:
            if stop.number == self._number:  # else it came too late
                for job in self._jobs:
                    if stop.is_shutdown:
                        job.announce_shutdown()
                    else:
                        job.request_stop()

    # -- requests

    def _answer(self, request: Request) -> Reply:
        with self._lock:
            self._number += 1
            self._jobs = tuple(self._context(place, lease) for place, lease in enumerate(request.leases))
        answers = self._run(request, self._jobs)
        with self._sending, self._lock:
            self._jobs = ()
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # a handler may have closed or replaced it
                stream.flush()
        return Reply(answers, self._memory.resident())

    def _context(self, place: int, lease: Lease) -> JobContext:
        number = self._number

        def report(done: float, total: float | None, note: str | None) -> None:
            with self._sending:
                if self._jobs and self._number == number:  # a thread that was left behind speaks for nobody
                    self._work.send_bytes(encode(Note(done, total, note, place)))

        return JobContext(lease, report)

    def _run(self, request: Request, jobs: tuple[JobContext, ...]) -> list[Answer]:
        try:
            handler = self._find(request)
            if request.is_batch:
                return self._run_batch(request, handler, jobs)
            (lease,), (job,) = request.leases, jobs
            positional, named = handler.arguments.decode(lease.payload, lease.codec)
            self._send(Started())
            return [_complete(request, lease, _call(handler, job, positional, named))]
        except BaseException as error:  # SystemExit in a handler ends the attempt, not this process
            return [_explain(error)] * len(request.leases)

    def _run_batch(self, request: Request, handler: Handler, jobs: tuple[JobContext, ...]) -> list[Answer]:
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
            answers |= self._call_batch(request, handler, jobs, items)
        return [answers[place] for place in range(len(jobs))]

    def _call_batch(
        self, request: Request, handler: Handler, jobs: tuple[JobContext, ...], items: dict[int, Any]
    ) -> dict[int, Answer]:
        called = tuple(jobs[place] for place in items)
        try:
            returned = _call(handler, called, (list(items.values()),), {})
            results = results_of(handler.name, returned, len(items))
        except BaseException as error:  # it is charged to those that were called
            return dict.fromkeys(items, _explain(error))
        return {
            place: _explain(value)
            if isinstance(value, BaseException)
            else _complete(request, request.leases[place], value)
            for place, value in zip(items, results, strict=True)
        }

    def _find(self, request: Request) -> Handler:
        key = (request.handler, request.module, request.qualname)
        if key not in self._handlers:
            self._handlers[key] = find(request)
        return self._handlers[key]


def _call(
    handler: Handler, current: JobContext | tuple[JobContext, ...], positional: Any, named: dict[str, Any]
) -> Any:
    entered = context.enter(current)
    try:
        returned = handler.function(*positional, **named)
        if not iscoroutinefunction(plain_function(handler.function)):
            return returned
        value, error = asyncio.run(_settle(returned))
        if error is not None:
            raise error
        return value
    finally:
        context.leave(entered)


async def _settle(coroutine: Awaitable[Any]) -> tuple[Any, BaseException | None]:
    """Return what it returns or raises: an error that left the loop by itself would show the loop's frames."""
    try:
        return await coroutine, None
    except BaseException as error:
        return None, error


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
