"""Log records of a child process. The child sends them to its worker, and the worker logs them.

So a worker has one log in one format, and each record names its job, in whichever process the handler runs. In the
child, `LogForwarder` replaces the handlers of the root logger. Handlers of other loggers stay.
"""

from __future__ import annotations

import logging
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import Any

from msgspec import Struct

from mainspring.jobs.context import fields_of_running_jobs
from mainspring.jobs.trace_fields import current_span_fields

FIELDS = ("job", "handler", "type", "queue", "trace_id", "span_id")
"""The names of the text fields of a log record that identify its job and its trace."""


class LogNote(Struct, frozen=True, array_like=True, tag=4):
    """A log record of a child process, as a message to its worker."""

    logger: str
    level: int
    message: str
    created: float
    path: str
    line: int
    function: str | None
    process: int | None
    thread: str | None
    exception: str | None
    """The formatted traceback of the exception and of its causes; None if there is no exception."""
    stack: str | None
    fields: dict[str, Any]
    """The job id, the attempt, the job type, the queue and the trace; in a batch handler, the ids of all jobs."""


class LogForwarder(logging.Handler):
    """A logging handler in a child process: sends the log records of the process to its worker.

    A finalizer or a signal handler may log while its own thread sends a message. So `emit` queues the record, and
    sends the queue only if no thread is sending. A thread that has sent a message calls `flush_notes`.
    """

    def __init__(self, send: Callable[[LogNote], None], sending: Lock) -> None:
        super().__init__()
        self._send = send
        self._sending = sending  # held while a message is written to the connection
        self._notes: deque[LogNote] = deque()

    def install(self, level: int) -> None:
        """Make this object the only handler of the root logger, and lower the level of the root logger to `level`.

        A level that is lower already stays.
        """
        root = logging.getLogger()
        root.handlers[:] = [self]
        if level < root.level or root.level == logging.NOTSET:
            root.setLevel(level)

    def remove(self) -> None:
        """Remove this object from the root logger.

        A process that a handler has forked calls this method, because the connection belongs to its parent.
        """
        logging.getLogger().removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._notes.append(_note_of(record))
        except Exception:  # the message or an argument of the record cannot be formatted
            self.handleError(record)
        self.flush_notes()

    def flush_notes(self) -> None:
        """Send the queued records. Do nothing if a thread is sending: that thread calls this method afterwards."""
        while self._notes and self._sending.acquire(blocking=False):
            try:
                while self._notes:
                    self._send(self._notes.popleft())
            except (OSError, EOFError):  # the worker is gone, and this process ends soon
                self._notes.clear()
            finally:
                self._sending.release()


def _note_of(record: logging.LogRecord) -> LogNote:
    own: dict[str, Any] = {name: str(value) for name in FIELDS if (value := getattr(record, name, None))}
    attempt = getattr(record, "attempt", None)
    if isinstance(attempt, int):
        own["attempt"] = attempt
    return LogNote(
        logger=record.name,
        level=record.levelno,
        message=record.getMessage(),
        created=record.created,
        path=record.pathname,
        line=record.lineno,
        function=record.funcName,
        process=record.process,
        thread=record.threadName,
        exception=_format_exception(record),
        stack=record.stack_info,
        fields=current_span_fields() | fields_of_running_jobs() | own,
    )


def _format_exception(record: logging.LogRecord) -> str | None:
    if record.exc_info and record.exc_info[0] is not None:
        with suppress(Exception):  # if the exception cannot be formatted, the record is sent without it
            return "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")
    return record.exc_text


def log_in_worker(note: LogNote) -> None:
    """Log a record of a child process with the same logger in this process, if its level is enabled."""
    logger = logging.getLogger(note.logger)
    if not logger.isEnabledFor(note.level):
        return
    record = logger.makeRecord(
        note.logger, note.level, note.path, note.line, note.message, (), None, note.function, note.fields
    )
    record.created = note.created
    record.msecs = (note.created % 1) * 1000
    record.process, record.processName, record.threadName = note.process, "mainspring-process", note.thread
    record.exc_text = note.exception
    record.stack_info = note.stack
    logger.handle(record)
