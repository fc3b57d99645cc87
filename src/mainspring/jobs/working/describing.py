"""What a handler returned, as bytes, and what it raised, in words: in forms that every store takes."""

from __future__ import annotations

import asyncio
import os
import traceback
from pathlib import Path
from typing import Any

from mainspring.jobs.retry import RetryLater
from mainspring.jobs.serializers import JsonSerializer, Serializer

MAX_ERROR_LENGTH = 8_000
_OWN_FRAMES = str(Path(__file__).parents[1]) + os.sep


class UnstorableResult(Exception):
    """A handler has run, but nobody can keep what it returned: running it again would not help."""


def encode_result(value: Any, serializer: Serializer, *, handler: str, limit: int) -> bytes:
    """Encode what a handler returned; `UnstorableResult` says why it cannot be kept."""
    try:
        result = bytes(serializer.encode(value))
        if serializer.name == JsonSerializer.name:
            result.decode()  # raw JSON of a handler may be anything
    except Exception as error:  # whatever the encoder says
        raise _unstorable(handler, str(error)) from error
    if len(result) > limit:
        raise _unstorable(handler, f"it measures {len(result):,} bytes, and the limit is {limit:,}")
    return result


def _unstorable(handler: str, problem: str) -> UnstorableResult:
    return UnstorableResult(
        storable(
            f"{handler} has run, but its result cannot be stored: {problem}; return plain data, or "
            "register it with keep_result=False"
        )
    )


def line(error: BaseException) -> str:
    """Say in one line what was raised."""
    name = type(error).__name__
    if isinstance(error, asyncio.CancelledError):
        return name
    try:
        text = str(error)
    except Exception:  # its own fault: even then the job must be settled
        text = "(its message cannot be read)"
    return storable(f"{name}: {text}" if text else name)


def describe(error: BaseException) -> str:
    """Say in the first line what happened, and below where: frames of Mainspring itself are left out."""
    if isinstance(error, RetryLater):
        return line(error)
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OWN_FRAMES):
        trace = trace.tb_next
    where = "".join(traceback.format_tb(trace))
    return storable(f"{line(error)}\n{where}".rstrip()[:MAX_ERROR_LENGTH])


def describe_fault(error: BaseException, another: BaseException) -> str:
    """Say that describing `error` ended in `another`."""
    return storable(f"{type(error).__name__}, which cannot be described ({type(another).__name__})")


def storable(text: str) -> str:
    """Replace what is no valid text, so that every store takes it."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
