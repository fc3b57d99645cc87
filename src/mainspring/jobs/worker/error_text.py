"""Texts of exceptions, in a form that every engine can store.

The first line describes the exception. Then follow its traceback without the frames of Mainspring, its notes, the
exceptions of an exception group, and the exceptions that caused it: by `raise … from …`, or because it was raised
while another exception was handled. Lists of jobs and dead letters show the first line only.
"""

from __future__ import annotations

import asyncio
import os
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

from mainspring.jobs.retry import RetryLater

MAX_ERROR_LENGTH = 8_000
MAX_EXCEPTIONS = 20  # how many exceptions one text describes
_CUT = "\n… (cut)"
_OWN_FRAMES = tuple(f"{Path(__file__).parents[2] / name}{os.sep}" for name in ("jobs", "callbacks"))


def describe_briefly(error: BaseException) -> str:
    """Describe an exception by its class and its message: in one line, unless the message has several."""
    name = type(error).__name__
    if isinstance(error, asyncio.CancelledError):
        return name
    try:
        text = str(error)
    except Exception:  # the methods of this exception fail, but the job must be settled
        text = "(its message cannot be read)"
    return to_storable_text(f"{name}: {text}" if text else name)


def describe_error(error: BaseException, mask: Callable[[str], str] | None = None) -> str:
    """Describe an exception with its traceback, its notes and its causes, in at most `MAX_ERROR_LENGTH`
    characters.

    `mask` masks redacted values. `mask` gets the whole text, because a cut could leave a part of a value.
    `Retry.Later` is described in one line.
    """
    if isinstance(error, RetryLater):
        text = describe_briefly(error)
        return text if mask is None else mask(text)
    text = to_storable_text("\n".join(_lines_of(error, set())).rstrip())
    if mask is not None:
        text = mask(text)
    return text if len(text) <= MAX_ERROR_LENGTH else text[: MAX_ERROR_LENGTH - len(_CUT)] + _CUT


def _lines_of(error: BaseException, seen: set[int]) -> Iterator[str]:
    """Yield the lines for an exception, for the members of an exception group, and for causes, except those in
    `seen`.
    """
    seen.add(id(error))
    yield describe_briefly(error)
    where = "".join(traceback.format_tb(_without_own_frames(error.__traceback__)))
    if where:
        yield where.rstrip("\n")
    for note in getattr(error, "__notes__", ()):
        yield f"  note: {note}"
    if isinstance(error, BaseExceptionGroup):
        for number, each in enumerate(error.exceptions, 1):
            yield from _section(f"exception {number} of {len(error.exceptions)}", each, seen)
    cause, context = error.__cause__, error.__context__
    if cause is not None:
        yield from _section("caused by", cause, seen)
    elif context is not None and not error.__suppress_context__:
        yield from _section("raised while this was handled", context, seen)


def _section(title: str, error: BaseException, seen: set[int]) -> Iterator[str]:
    if id(error) in seen or len(seen) >= MAX_EXCEPTIONS:  # an exception can be its own cause
        return
    first, *others = _lines_of(error, seen)
    yield f"{title}: {first}"
    yield from others


def _without_own_frames(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OWN_FRAMES):
        trace = trace.tb_next
    return trace


def describe_fault(error: BaseException, another: BaseException) -> str:
    """Describe an exception `error` whose own description raises the exception `another`, by both class names."""
    return to_storable_text(f"{type(error).__name__}, which cannot be described ({type(another).__name__})")


def to_storable_text(text: str) -> str:
    """Return a text with the characters that UTF-8 cannot encode, such as lone surrogates, as escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
