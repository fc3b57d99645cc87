"""The execution layer: calls a handler and says how the attempt ended.

Nothing a handler does escapes: whatever it raises or returns becomes an outcome, with the cause that it is
charged to.
"""

from __future__ import annotations

import asyncio
import os
import random
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mainspring.jobs import context
from mainspring.jobs.active import ActiveJob
from mainspring.jobs.engine import Cause, Outcome, OutcomeKind
from mainspring.jobs.instants import LAST_INSTANT, to_microseconds
from mainspring.jobs.retry import RetryLater
from mainspring.jobs.serializers import SERIALIZERS, JsonSerializer, Serializer
from mainspring.jobs.signals import Cancel, Snooze

MAX_ERROR_LENGTH = 8_000
_OWN_FRAMES = str(Path(__file__).parent) + os.sep


class Execution:
    """Turns active jobs into outcomes."""

    def __init__(self, serializer: Serializer, now: Callable[[], int], *, max_result: int) -> None:
        self._serializers: dict[str, Serializer] = {name: make() for name, make in SERIALIZERS.items()}
        self._serializers[serializer.name] = serializer
        self._now = now
        self._max_result = max_result
        self._chance = random.Random()

    def run(self, job: ActiveJob) -> Outcome:
        """Call a plain function, here and now."""
        entered = context.enter(job.context)
        try:
            positional, named = job.handler.arguments.decode(job.lease.payload, job.lease.codec)
            return self._complete(job, job.handler.function(*positional, **named))
        except BaseException as error:  # SystemExit in a handler ends the attempt, not the worker
            return self._explain(job, error)
        finally:
            context.leave(entered)

    async def run_async(self, job: ActiveJob) -> Outcome:
        """Await a coroutine function."""
        entered = context.enter(job.context)
        try:
            positional, named = job.handler.arguments.decode(job.lease.payload, job.lease.codec)
            return self._complete(job, await job.handler.function(*positional, **named))
        except BaseException as error:  # a cancelled attempt is an outcome, too
            return self._explain(job, error)
        finally:
            context.leave(entered)

    def _complete(self, job: ActiveJob, value: Any) -> Outcome:
        if value is None or not job.handler.options.keep_result:
            return Outcome(job.lease, OutcomeKind.COMPLETED)
        serializer = self._serializers[job.lease.codec]
        try:
            result = encode_result(value, serializer, handler=job.handler.name, limit=self._max_result)
        except UnstorableResult as refusal:
            return Outcome(job.lease, OutcomeKind.FAILED, error=str(refusal), cause=Cause.FAILURE)
        return Outcome(job.lease, OutcomeKind.COMPLETED, result=result)

    def _explain(self, job: ActiveJob, error: BaseException) -> Outcome:
        try:
            return self._conclude(job, error)
        except Exception as another:  # an exception with faults of its own: the job must be settled all the same
            reason = describe_fault(error, another)
            return Outcome(job.lease, OutcomeKind.FAILED, error=reason, cause=Cause.FAILURE)

    def _conclude(self, job: ActiveJob, error: BaseException) -> Outcome:
        lease = job.lease
        if isinstance(error, Snooze):
            return Outcome(lease, OutcomeKind.SNOOZED, due=self._after(to_microseconds(error.delay, "delay")))
        if isinstance(error, Cancel):
            return Outcome(lease, OutcomeKind.CANCELED, error=storable(str(error.reason)))
        if job.context.cancelled and not job.has_timed_out:
            return Outcome(lease, OutcomeKind.CANCELED, error=f"stopped on request ({line(error)})")
        return self._retry_or_give_up(job, error)

    def _retry_or_give_up(self, job: ActiveJob, error: BaseException) -> Outcome:
        lease, policy = job.lease, job.handler.options.retry
        cause = Cause.TIMEOUT if job.has_timed_out else Cause.FAILURE
        description = describe(error)
        if job.has_timed_out:
            description = f"timeout after {(job.handler.timeout or 0) / 1_000_000:g} s: {description}"
        delay = policy.delay_after(lease.failures + lease.timeouts + 1, self._chance)
        if delay is None or isinstance(error, policy.give_up_on):
            return Outcome(lease, OutcomeKind.FAILED, error=description, cause=cause)
        if isinstance(error, RetryLater):
            delay = to_microseconds(error.delay, "delay")
        return Outcome(lease, OutcomeKind.RETRY, due=self._after(delay), error=description, cause=cause)

    def _after(self, delay: int) -> int:
        return min(LAST_INSTANT, self._now() + delay)


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
