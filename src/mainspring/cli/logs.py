"""Formats the log of a worker: lines for people, or one JSON object per line for log collectors.

In JSON format, all messages of the program are such lines, including the banner, warnings of Python and uncaught
errors. Each line that any logger writes while a job runs names the job, and so does each line of the worker about
a job. A line names its trace if a span is current, or if the headers of the job name one.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from datetime import UTC, datetime
from enum import StrEnum
from types import TracebackType
from typing import Any

import msgspec

from mainspring.cli.output import escape_control
from mainspring.jobs.context import fields_of_running_jobs
from mainspring.jobs.trace_fields import current_span_fields

FIELDS = ("job", "jobs", "attempt", "handler", "type", "queue", "trace_id", "span_id")
OWN_LOGGERS = "mainspring."
COLORS = {"DEBUG": "2", "WARNING": "33", "ERROR": "31", "CRITICAL": "1;31"}


class LogFormat(StrEnum):
    """The format of log lines: text for people, or JSON for log collectors."""

    CONSOLE = "console"
    JSON = "json"


class LogLevel(StrEnum):
    """The lowest level that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def start_logging(chosen: LogFormat, level: LogLevel) -> None:
    """Let all loggers write to stderr in the chosen format, from this level on.

    In JSON format, warnings of Python and uncaught errors become log lines, too.
    """
    handler = logging.StreamHandler()
    handler.addFilter(add_job_fields)
    if chosen is LogFormat.JSON:
        handler.setFormatter(JsonLogFormatter())
        logging.captureWarnings(capture=True)
        sys.excepthook = _log_uncaught
        threading.excepthook = _log_uncaught_in_thread
    else:
        is_colored = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
        handler.setFormatter(ConsoleLogFormatter(is_colored=is_colored))
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)


def add_job_fields(record: logging.LogRecord) -> bool:
    """Add the running job and the trace to a log record, unless the record names them already.

    This function is a filter of `logging` that returns True for every record.
    """
    names_job = hasattr(record, "job") or hasattr(record, "jobs")
    if not names_job:
        vars(record).update(fields_of_running_jobs())
    # A line of the worker may be written on the thread of a caller, whose span has nothing to do with the job.
    if not hasattr(record, "trace_id") and not (names_job and record.name.startswith(OWN_LOGGERS)):
        vars(record).update(current_span_fields())
    return True


class JsonLogFormatter(logging.Formatter):
    """Formats a log record as one JSON object on one line."""

    def format(self, record: logging.LogRecord) -> str:
        own = {name: value for name in FIELDS if (value := getattr(record, name, None)) is not None}
        message = record.getMessage()
        if "attempt" in own:
            # the JSON object has these values as fields
            message = message.removeprefix(f"[{own.get('job')} #{own['attempt']}] ")
        line = _head(record, message) | own | getattr(record, "facts", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        elif record.exc_text:  # of a child process
            line["exception"] = record.exc_text
        if record.stack_info:
            line["stack"] = record.stack_info
        return msgspec.json.encode(line, enc_hook=str).decode()


class ConsoleLogFormatter(logging.Formatter):
    """Formats a log record for people. Control characters are escaped, and only the level may be colored."""

    def __init__(self, *, is_colored: bool) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._is_coloured = is_colored

    def format(self, record: logging.LogRecord) -> str:
        text = escape_control(super().format(record), keep="\n\t")
        job = getattr(record, "job", None)
        if job is not None and job not in record.getMessage():
            attempt = getattr(record, "attempt", None)
            named = f"{record.name}: [{job}{'' if attempt is None else f' #{attempt}'}] "
            text = text.replace(f"{record.name}: ", escape_control(named), 1)
        code = COLORS.get(record.levelname) if self._is_coloured else None
        level = record.levelname
        return text if code is None else text.replace(level, f"\x1b[{code}m{level}\x1b[0m", 1)


def _head(record: logging.LogRecord, message: str) -> dict[str, Any]:
    time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {"time": time, "level": record.levelname.lower(), "logger": record.name, "message": message}


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    logging.getLogger("mainspring.cli").critical("uncaught exception", exc_info=(kind, error, trace))


def _log_uncaught_in_thread(uncaught: threading.ExceptHookArgs) -> None:
    if uncaught.exc_value is not None:
        _log_uncaught(uncaught.exc_type, uncaught.exc_value, uncaught.exc_traceback)
