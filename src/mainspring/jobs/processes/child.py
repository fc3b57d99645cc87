"""The code inside of a child process: runs one request after another on the main thread.

The connection `work` carries requests and replies. If it ends, the process exits after its current request. The
connection `control` carries `StopMessage` messages, and a thread waits for them. If it ends, the worker has died,
and the process exits even while a handler runs. The child finds a handler by its module and its qualified name.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from importlib import import_module
from inspect import iscoroutinefunction, unwrap
from multiprocessing.connection import Connection
from threading import Lock, Thread
from typing import Any

from mainspring.errors import InvalidArguments
from mainspring.jobs import context
from mainspring.jobs.arguments import plain_function, split_batch_results
from mainspring.jobs.context import JobContext
from mainspring.jobs.handler_options import HandlerOptions
from mainspring.jobs.handlers import Handler
from mainspring.jobs.job_function import JobFunction
from mainspring.jobs.masking import TextMask
from mainspring.jobs.processes.application import ChildSetup, adopt, import_application, worker_middlewares
from mainspring.jobs.processes.child_logs import LogForwarder
from mainspring.jobs.processes.handler_location import MAIN, REMEDY, ProcessMemory
from mainspring.jobs.processes.import_guard import import_guard
from mainspring.jobs.processes.messages import (
    AnswerKind,
    CallRequest,
    ChildAnswer,
    ChildReady,
    ChildReply,
    FromChild,
    HandlerStarted,
    ProgressNote,
    StopMessage,
    decode_request,
    decode_setup,
    decode_stop,
    encode,
)
from mainspring.jobs.records import Lease
from mainspring.jobs.redaction import mask_of_payloads
from mainspring.jobs.serializers import JsonSerializer
from mainspring.jobs.worker.error_text import describe_briefly
from mainspring.jobs.worker.outcomes import UnfitArguments, UnstorableResult, answer_for_error, encode_result

ORPHANED = 75  # EX_TEMPFAIL, because another worker will rescue the job


def serve(work: Connection, control: Connection, setup: bytes) -> None:
    """Run requests until the worker closes the connection `work`. This is the main function of a child process.

    If `control` ends, the process exits at once, because the worker has died.
    """
    import_guard.script_imported()
    _prepare_signals()
    Child(work, control, decode_setup(setup)).serve()


def _prepare_signals() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the worker, which ends its children itself
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)  # so that a kill also reaches the processes that a handler has started
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # the worker blocked it until now


def _exit_now() -> None:
    """Kill this process, and the processes that its handler has started, because the worker has died.

    Another worker will rescue the job.
    """
    if hasattr(os, "killpg") and os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(ORPHANED)


class Child:
    """The main object of a child process: runs the worker's requests, one at a time."""

    def __init__(self, work: Connection, control: Connection, setup: ChildSetup) -> None:
        self._work = work
        self._control = control
        self._setup = setup
        self._has_application = False
        self._handlers: dict[tuple[str, str, str], Handler] = {}
        self._memory = ProcessMemory()
        self._sending = Lock()  # guards writes to _work and, with _lock, the jobs that may report
        self._lock = Lock()  # guards the following attributes
        self._number = 0
        self._jobs: tuple[JobContext, ...] = ()
        self._forwarder = LogForwarder(self._write, self._sending)
        if hasattr(os, "register_at_fork"):
            for connection in (work, control):
                os.set_inheritable(connection.fileno(), False)
            os.register_at_fork(after_in_child=self._close_connections)

    def serve(self) -> None:
        """Run requests and send the replies, until the worker closes the connection."""
        Thread(target=self._watch, name="mainspring-control", daemon=True).start()
        adopt(self._setup)
        self._forwarder.install(self._setup.log_level)
        with suppress(EOFError, OSError):
            self._send(ChildReady())
            while True:
                self._send(self._answer(decode_request(self._work.recv_bytes())))

    def _send(self, message: FromChild) -> None:
        with self._sending:
            self._write(message)
        self._forwarder.flush_notes()

    def _write(self, message: FromChild) -> None:
        self._work.send_bytes(encode(message))

    def _close_connections(self) -> None:
        """Close the connections, and stop forwarding logs, in a process that a handler has forked."""
        self._work.close()
        self._control.close()
        self._sending, self._lock = Lock(), Lock()  # the threads that hold the old ones are not here
        self._forwarder.remove()

    # -- requests to stop

    def _watch(self) -> None:
        try:
            while True:
                self._stop(decode_stop(self._control.recv_bytes()))
        except (EOFError, OSError):
            _exit_now()

    def _stop(self, stop: StopMessage) -> None:
        with self._lock:
            if stop.number == self._number:  # otherwise the message came too late
                for job in self._jobs:
                    if stop.is_shutdown:
                        job.announce_shutdown()
                    else:
                        job.request_stop()

    # -- requests

    def _answer(self, request: CallRequest) -> ChildReply:
        with self._lock:
            self._number += 1
            self._jobs = tuple(self._context(place, lease) for place, lease in enumerate(request.leases))
        answers = self._run(request, self._jobs)
        with self._sending, self._lock:
            self._jobs = ()
        self._forwarder.flush_notes()
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # a handler may have closed or replaced stdout and stderr
                stream.flush()
        return ChildReply(answers, self._memory.resident())

    def _context(self, place: int, lease: Lease) -> JobContext:
        number = self._number

        def report(done: float, total: float | None, note: str | None) -> None:
            with self._sending:
                if self._jobs and self._number == number:  # otherwise a thread has outlived its attempt
                    self._write(ProgressNote(done, total, note, place))
            self._forwarder.flush_notes()

        return JobContext(lease, report)

    def _run(self, request: CallRequest, jobs: tuple[JobContext, ...]) -> list[ChildAnswer]:
        handler: Handler | None = None
        try:
            handler = self._find(request)
            if request.is_batch:
                return self._run_batch(request, handler, jobs)
            (lease,), (job,) = request.leases, jobs
            positional, named = _decode(handler, lease)
            self._send(HandlerStarted())
            return [_answer_for_result(request, handler, lease, _call(request, handler, job, positional, named))]
        except BaseException as error:  # SystemExit in a handler ends the attempt, not this process
            return [answer_for_error(error, _mask_of(request, handler))] * len(request.leases)

    def _run_batch(
        self, request: CallRequest, handler: Handler, jobs: tuple[JobContext, ...]
    ) -> list[ChildAnswer]:
        answers: dict[int, ChildAnswer] = {}
        items: dict[int, Any] = {}
        for place, lease in enumerate(request.leases):
            try:
                positional, named = _decode(handler, lease)
                (items[place],) = (*positional, *named.values())
            except Exception as error:  # it fails only this job
                answers[place] = answer_for_error(error, _mask_of(request, handler))
        if items:
            self._send(HandlerStarted())
            answers |= self._call_batch(request, handler, jobs, items)
        return [answers[place] for place in range(len(jobs))]

    def _call_batch(
        self, request: CallRequest, handler: Handler, jobs: tuple[JobContext, ...], items: dict[int, Any]
    ) -> dict[int, ChildAnswer]:
        called = tuple(jobs[place] for place in items)
        try:
            returned = _call(request, handler, called, (list(items.values()),), {})
            results = split_batch_results(handler.name, returned, len(items))
        except BaseException as error:  # it fails all jobs of the call
            return dict.fromkeys(items, answer_for_error(error, _mask_of(request, handler)))
        return {
            place: answer_for_error(value, _mask_of(request, handler))
            if isinstance(value, BaseException)
            else _answer_for_result(request, handler, request.leases[place], value)
            for place, value in zip(items, results, strict=True)
        }

    def _find(self, request: CallRequest) -> Handler:
        key = (request.handler, request.module, request.qualname)
        if key not in self._handlers:
            with import_guard.importing():
                self._import_application(request)
                self._handlers[key] = find_handler(request)
            self._forwarder.install(self._setup.log_level)  # modules that were imported may have set up logging
        return self._handlers[key]

    def _import_application(self, request: CallRequest) -> None:
        if self._has_application:
            return
        try:
            import_application()
        except Exception as error:
            raise HandlerNotFound(
                f"the child process for handler {request.handler!r} cannot import {self._setup.module!r}, the "
                f"module of the application: {type(error).__name__}: {error}; make it importable in child "
                "processes, too"
            ) from error
        self._has_application = True


class HandlerNotFound(Exception):
    """Raised in a child process that cannot import the application or the handler, though its worker could."""


def find_handler(request: CallRequest) -> Handler:
    """Import and return the handler of a request, by its module and qualified name.

    The name leads to a `JobFunction` or to a plain function. Raises `HandlerNotFound` if the child cannot import
    the module, or if the module has no such function.
    """
    name, module, qualname = request.handler, request.module, request.qualname
    try:
        found: Any = sys.modules["__main__"] if module in MAIN else import_module(module)
    except ImportError as error:
        raise HandlerNotFound(
            f"the child process for handler {name!r} cannot import its module {module!r}: {error}; make it "
            "importable in child processes, too"
        ) from error
    for part in qualname.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise HandlerNotFound(
            f"in the child process for handler {name!r}, module {module!r} has no function {qualname!r}; {REMEDY}"
        )
    innermost = unwrap(found, stop=lambda one: isinstance(one, JobFunction))
    if isinstance(innermost, JobFunction):
        return innermost._handler
    options = HandlerOptions(batch=len(request.leases) if request.is_batch else None, redact=request.redacted)
    return Handler(name, found, options, JsonSerializer())


def _call(
    request: CallRequest,
    handler: Handler,
    current: JobContext | tuple[JobContext, ...],
    positional: Any,
    named: dict[str, Any],
) -> Any:
    entered = context.enter(current)
    try:
        if request.passed is None:
            return _call_function(handler, positional, named)
        first = current[0] if isinstance(current, tuple) else current
        with worker_middlewares().attempting_in_child(first, request.passed):
            return _call_function(handler, positional, named)
        return None  # the middleware has suppressed an exception
    finally:
        context.leave(entered)


def _call_function(handler: Handler, positional: Any, named: dict[str, Any]) -> Any:
    returned = handler.function(*positional, **named)
    if not iscoroutinefunction(plain_function(handler.function)):
        return returned
    value, error = asyncio.run(_capture(returned))
    if error is not None:
        raise error
    return value


def _decode(handler: Handler, lease: Lease) -> tuple[Sequence[Any], dict[str, Any]]:
    try:
        return handler.arguments.decode(lease.payload, lease.codec)
    except InvalidArguments as error:
        raise UnfitArguments(describe_briefly(error)) from error


def _mask_of(request: CallRequest, handler: Handler | None) -> TextMask | None:
    """Return the mask that hides the redacted arguments of all jobs of the request; None if none are redacted."""
    if handler is None or not request.redacted:
        return None
    payloads = [(lease.payload, lease.codec) for lease in request.leases]
    return mask_of_payloads(handler.arguments, request.redacted, payloads)


async def _capture(coroutine: Awaitable[Any]) -> tuple[Any, BaseException | None]:
    """Await a coroutine; return its result and None, or None and its exception.

    The exception is not raised, because its traceback would then show the frames of the event loop.
    """
    try:
        return await coroutine, None
    except BaseException as error:
        return None, error


def _answer_for_result(request: CallRequest, handler: Handler, lease: Lease, value: Any) -> ChildAnswer:
    if value is None:
        return ChildAnswer(AnswerKind.COMPLETED, error=handler.result.none_warning)
    if not request.keep_result:
        return ChildAnswer(AnswerKind.COMPLETED)
    try:
        serializer = handler.arguments.serializers.get(lease.codec)
        result, warning = encode_result(value, serializer, handler=handler, limit=request.max_result)
    except UnstorableResult as refusal:
        return ChildAnswer(AnswerKind.NOT_RETRYABLE, error=str(refusal))
    return ChildAnswer(AnswerKind.COMPLETED, result=result, error=warning)
