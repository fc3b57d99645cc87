"""The job that runs right now, as its handler sees it; or the jobs, inside of a batch handler."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import datetime
from math import isfinite
from types import MappingProxyType
from typing import Any

from mainspring.jobs.instants import to_datetime
from mainspring.jobs.records import Lease

_current: ContextVar[JobContext | tuple[JobContext, ...] | None] = ContextVar(
    "mainspring_current_job", default=None
)

logger = logging.getLogger("mainspring.job")


class JobContext:
    """What a handler can learn about its own job, with `mainspring.current_job()`.

    Progress goes to `report`, as done, total and note; without one it goes nowhere.
    """

    __slots__ = ("_is_shutdown", "_lease", "_report", "_stop")

    def __init__(self, lease: Lease, report: Callable[..., object] | None = None) -> None:
        self._lease = lease
        self._report = report
        self._stop = False
        self._is_shutdown = False

    @property
    def id(self) -> str:
        """The id of the job: the same in every attempt, so a good key for idempotency."""
        return self._lease.id

    @property
    def type(self) -> str:
        """The name of its handler."""
        return self._lease.type

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1; attempts interrupted by a deploy are not counted."""
        return self._lease.failures + self._lease.timeouts + self._lease.crashes + 1

    @property
    def due(self) -> datetime:
        """When it was to start."""
        return to_datetime(self._lease.due)

    @property
    def queue(self) -> str:
        """The queue it came from."""
        return self._lease.queue

    @property
    def fencing_token(self) -> int:
        """Grows with every take-over: let your own store refuse writes with a smaller one than it has seen."""
        return self._lease.token

    @property
    def headers(self) -> Mapping[str, str]:
        """What was carried along from the submit; jobs submitted in here carry it on."""
        return MappingProxyType(self._lease.headers or {})

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """Tell how far it has come: `progress(3, 10, "of the pages")`. Cheap: stored twice a second at most."""
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
        """Whether somebody wants this job stopped, or its timeout has passed: look at it in long loops."""
        return self._stop

    @property
    def stopping(self) -> bool:
        """Whether this worker shuts down: what has not ended when its grace is over is interrupted and runs again.

        A handler that sees it in time can put down how far it has come and raise `Snooze(0)`. Not `cancelled`:
        nobody has asked for an end of this job.
        """
        return self._is_shutdown

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that says which job and which attempt speaks."""
        fields = {"job": self.id, "attempt": self.attempt, "handler": self.type, "queue": self.queue}
        return _JobLog(logger, fields)

    def request_stop(self) -> None:
        """Set `cancelled`."""
        self._stop = True

    def announce_shutdown(self) -> None:
        """Set `stopping`."""
        self._is_shutdown = True

    def fall_silent(self) -> None:
        """Report no more: its attempt is over, and a thread that it has left behind speaks for nobody."""
        self._report = None


def _require_number(value: object, name: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not isfinite(value):
        raise ValueError(f"{name} must be a finite number, got {value!r}")


class _JobLog(logging.LoggerAdapter[logging.Logger]):
    def process(self, msg: Any, kwargs: Any) -> tuple[Any, Any]:
        extra: Any = self.extra
        kwargs["extra"] = extra | (kwargs.get("extra") or {})
        return f"[{extra['job']} #{extra['attempt']}] {msg}", kwargs


def runs_job() -> bool:
    """Answer whether a job runs here."""
    return _current.get() is not None


def current_headers() -> Mapping[str, str]:
    """Return what the job that runs here carries along, or all of a batch do; nothing outside of a handler."""
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
    """Return the job that runs here; `RuntimeError` outside of a handler, and inside of a batch handler."""
    running = _current.get()
    if running is None:
        raise RuntimeError("no job runs here; call current_job() inside of a handler, while a worker runs it")
    if isinstance(running, tuple):
        raise RuntimeError(
            f"{len(running)} jobs run here, in one call of a batch handler, and none of them is the current one; "
            "call current_batch(), which has them in the order of the handler's list"
        )
    return running


def current_batch() -> tuple[JobContext, ...]:
    """Return the jobs that run here, in the order of a batch handler's list; `RuntimeError` outside of a handler.

    In a handler for single jobs it is one.
    """
    running = _current.get()
    if running is None:
        raise RuntimeError("no jobs run here; call current_batch() inside of a handler, while a worker runs it")
    return running if isinstance(running, tuple) else (running,)


enter = _current.set
leave = _current.reset
