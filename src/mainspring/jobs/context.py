"""The context of running jobs, for handlers: `current_job()`, or `current_batch()` in a batch handler."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from math import isfinite
from types import MappingProxyType
from typing import Any

from mainspring.jobs.job_policies import inheritable
from mainspring.jobs.records import Lease
from mainspring.jobs.timestamps import to_datetime
from mainspring.jobs.trace_fields import current_span_fields, trace_fields
from mainspring.plurals import format_count

_current: ContextVar[JobContext | tuple[JobContext, ...] | None] = ContextVar(
    "mainspring_current_job", default=None
)

logger = logging.getLogger("mainspring.job")


class JobContext:
    """The context of the running job, which `mainspring.current_job()` returns to a handler.

    `progress` calls `report` with done, total and the note (a text). If `report` is None, progress is dropped.
    """

    # `_log_fields` is only set if a middleware adds fields, so that a context without them costs nothing more.
    __slots__ = ("_is_shutdown", "_lease", "_log_fields", "_report", "_stop")

    def __init__(self, lease: Lease, report: Callable[..., object] | None = None) -> None:
        self._lease = lease
        self._report = report
        self._stop = False
        self._is_shutdown = False

    @property
    def id(self) -> str:
        """The id of the job. It is the same in every attempt, so it can be used as an idempotency key."""
        return self._lease.id

    @property
    def type(self) -> str:
        """The job type: the name of the handler."""
        return self._lease.type

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1: earlier failures, timeouts and crashes, plus one."""
        return self._lease.failures + self._lease.timeouts + self._lease.crashes + 1

    @property
    def due(self) -> datetime:
        """The instant at which the job was due, as an aware datetime."""
        return to_datetime(self._lease.due)

    @property
    def queue(self) -> str:
        """The queue of the job."""
        return self._lease.queue

    @property
    def fencing_token(self) -> int:
        """A number that grows with every claim of the job, so that a later attempt has a larger one.

        Let your own store refuse a write whose token is smaller than the largest one it has seen.
        """
        return self._lease.token

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers that were stored with the job; jobs that the handler submits inherit them.

        Those of Mainspring itself, such as the signature, are left out.
        """
        return MappingProxyType(inheritable(self._lease.headers))

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """Report progress: `progress(3, 10, "of the pages")`. Calls are cheap: at most two a second are stored.

        Values of redacted parameters are masked in the text, the third argument. Raises `TypeError` or
        `ValueError` if `done` or `total` is not a finite number.
        """
        _require_number(done, "done")
        if total is not None:
            _require_number(total, "total")
        self._tell(done, total, None if note is None else str(note))

    def _tell(self, done: float, total: float | None, note: str | None) -> None:
        report = self._report
        if report is not None:
            report(done, total, note)

    @property
    def cancelled(self) -> bool:
        """Whether the handler should end. Handlers should check it in long loops.

        It is set when a cancel is requested, when a timeout passes, and when a shutdown interrupts the job.
        """
        return self._stop

    @property
    def stopping(self) -> bool:
        """Whether the worker shuts down, so that the handler should soon finish.

        A job that has not ended after the grace period is interrupted and runs again, unless it runs at most
        once. A handler that checks `stopping` can save its progress and raise `Snooze(0)`. `cancelled` is not set
        during the grace period, because no cancel of this job was requested.
        """
        return self._is_shutdown

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that adds the id of the job and the number of the attempt to each message."""
        return _JobLog(logger, self.log_fields)

    @property
    def log_fields(self) -> dict[str, Any]:
        """The fields that identify the job in log records: id, attempt, type and queue, and its trace if any.

        They include the fields of `add_log_fields`.
        """
        lease = self._lease
        named = {"job": lease.id, "attempt": self.attempt, "handler": lease.type, "type": lease.type}
        added: dict[str, Any] = getattr(self, "_log_fields", {})
        return {**named, "queue": lease.queue, **trace_fields(lease.headers), **added}

    def add_log_fields(self, **fields: Any) -> None:
        """Add fields to the log records about this attempt, of the handler and of the worker.

        The JSON log shows `trace_id` and `span_id` of them.
        """
        self._log_fields = {**getattr(self, "_log_fields", {}), **fields}

    def request_stop(self) -> None:
        """Set `cancelled`, which tells the handler to end."""
        self._stop = True

    def announce_shutdown(self) -> None:
        """Set `stopping`, which tells the handler that its worker shuts down."""
        self._is_shutdown = True

    def drop_progress(self) -> None:
        """Drop progress reports from now on, because the attempt is over.

        Threads of the handler may still send some.
        """
        self._report = None


def _require_number(value: object, name: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not isfinite(value):
        raise ValueError(f"{name} must be a finite number, got {value!r}")


class _JobLog(logging.LoggerAdapter[logging.Logger]):
    def process(self, msg: Any, kwargs: Any) -> tuple[Any, Any]:
        extra: Any = self.extra
        kwargs["extra"] = extra | current_span_fields() | (kwargs.get("extra") or {})
        return f"[{extra['job']} #{extra['attempt']}] {msg}", kwargs


def runs_job() -> bool:
    """Return whether the calling code runs inside of a handler that a worker has called."""
    return _current.get() is not None


def runs_batch() -> bool:
    """Return whether the calling code runs inside of a batch handler."""
    return isinstance(_current.get(), tuple)


def fields_of_running_jobs() -> dict[str, Any]:
    """Return the log fields of the job, or the batch of jobs, whose handler calls this; empty outside of
    handlers.
    """
    running = _current.get()
    if running is None:
        return {}
    return fields_of_jobs(running if isinstance(running, tuple) else (running,)) | current_span_fields()


def fields_of_jobs(jobs: Sequence[JobContext]) -> dict[str, Any]:
    """Return the log fields of one job; of several jobs, their ids and the fields whose values all share."""
    first, *others = (job.log_fields for job in jobs)
    if not others:
        return first
    shared: dict[str, Any] = {
        name: first[name]
        for name in ("handler", "type", "queue", "trace_id", "span_id")
        if name in first and all(other.get(name) == first[name] for other in others)
    }
    return {"jobs": [job.id for job in jobs], **shared}


def current_headers() -> Mapping[str, str]:
    """Return the headers of the running job, or those that all jobs of a batch share; empty outside of
    handlers.
    """
    running = _current.get()
    if running is None:
        return {}
    if not isinstance(running, tuple):
        return running.headers
    first, *others = running
    return {
        name: value
        for name, value in first.headers.items()
        if all(other.headers.get(name) == value for other in others)
    }


def current_job() -> JobContext:
    """Return the running job. Raises `RuntimeError` outside of a handler, and inside of a batch handler."""
    running = _current.get()
    if running is None:
        raise RuntimeError("no job runs here; call current_job() inside of a handler, while a worker runs it")
    if isinstance(running, tuple):
        raise RuntimeError(
            f"a batch handler runs here for {format_count(len(running), 'job')}, so there is no single current "
            "job; call current_batch(), which returns the jobs in the order of the handler's list"
        )
    return running


def current_batch() -> tuple[JobContext, ...]:
    """Return the running jobs, in the order of a batch handler's list. Raises `RuntimeError` outside of a handler.

    In a handler for single jobs, the tuple has one element.
    """
    running = _current.get()
    if running is None:
        raise RuntimeError("no jobs run here; call current_batch() inside of a handler, while a worker runs it")
    return running if isinstance(running, tuple) else (running,)


enter = _current.set
leave = _current.reset
