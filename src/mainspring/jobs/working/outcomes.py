"""How an attempt ended: from what a handler returned or raised, or from what its process answered.

Nothing escapes: whatever it was becomes an outcome, with the cause that it is charged to.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from mainspring.jobs.engine import MAX_CRASHES
from mainspring.jobs.instants import LAST_INSTANT, to_microseconds
from mainspring.jobs.processes.messages import Answer, AnswerKind
from mainspring.jobs.records import Cause, Outcome, OutcomeKind
from mainspring.jobs.retry import Cancel, RetryLater, Snooze
from mainspring.jobs.serializers import SERIALIZERS, Serializer
from mainspring.jobs.working.active import ActiveJob
from mainspring.jobs.working.describing import (
    UnstorableResult,
    describe,
    describe_fault,
    encode_result,
    line,
    storable,
)
from mainspring.jobs.working.follow_ups import FollowUps


class RemoteError(Exception):
    """What a handler raised in its own process, as middleware sees it here."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        super().__init__(answer.error or "")


class Crashed(Exception):
    """The process of a handler died under it, by its own doing."""


class Killed(Exception):
    """The process of a handler was killed by its worker: at its timeout, or because somebody wanted it stopped."""


class Interrupted(Exception):
    """The process of a handler was ended from outside, together with its worker."""


class Outcomes:
    """Says what becomes of active jobs."""

    def __init__(
        self, serializer: Serializer, now: Callable[[], int], follow_ups: FollowUps, *, max_result: int
    ) -> None:
        self._serializers: dict[str, Serializer] = {name: make() for name, make in SERIALIZERS.items()}
        self._serializers[serializer.name] = serializer
        self._now = now
        self._follow_ups = follow_ups
        self._max_result = max_result
        self._chance = random.Random()

    def complete(self, job: ActiveJob, value: Any) -> Outcome:
        """Say how a job ends whose handler has returned."""
        if (value is None or not job.handler.options.keep_result) and job.lease.follow_up is None:
            return Outcome(job.lease, OutcomeKind.COMPLETED)
        try:
            result = self._encode(job, value)
        except UnstorableResult as refusal:
            return Outcome(job.lease, OutcomeKind.FAILED, error=str(refusal), cause=Cause.FAILURE)
        return self._complete_with(job, result)

    def _encode(self, job: ActiveJob, value: Any) -> bytes | None:
        """Encode a result; None if there is none, or nobody wants it."""
        if value is None or not needs_result(job):
            return None
        serializer = self._serializers[job.lease.codec]
        return encode_result(value, serializer, handler=job.handler.name, limit=self._max_result)

    def _complete_with(self, job: ActiveJob, result: bytes | None) -> Outcome:
        lease, handler = job.lease, job.handler
        outcome = Outcome(lease, OutcomeKind.COMPLETED)
        if result is not None and handler.options.keep_result:
            outcome.result = result
            if handler.keep_result is not None:
                outcome.keep_result_until = self._after(handler.keep_result)
        if lease.follow_up is not None:
            serializer = self._serializers[lease.codec]
            passed = bytes(serializer.encode(None)) if result is None else result
            outcome.follow_up = self._follow_ups.make(lease, lease.follow_up, passed, serializer)
        return outcome

    def answer(self, job: ActiveJob, answer: Answer) -> Outcome:
        """Say how a job ends whose process has answered."""
        lease = job.lease
        error = answer.error or ""
        match answer.kind:
            case AnswerKind.COMPLETED:
                return self._complete_with(job, answer.result)
            case AnswerKind.HOPELESS:
                return Outcome(lease, OutcomeKind.FAILED, error=error, cause=Cause.FAILURE)
            case AnswerKind.SNOOZED:
                return Outcome(lease, OutcomeKind.SNOOZED, due=self._after(answer.delay))
            case AnswerKind.CANCELED:
                return Outcome(lease, OutcomeKind.CANCELED, error=error)
            case AnswerKind.RETRY_LATER | AnswerKind.FAILED:
                is_final = answer.is_one_of(job.handler.options.retry.give_up_on)
                delay = answer.delay if answer.kind is AnswerKind.RETRY_LATER else None
                return self._fail(job, error, is_final=is_final, delay=delay)

    def explain(self, job: ActiveJob, error: BaseException) -> Outcome:
        """Say how a job ends whose attempt has ended in an error."""
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
        if isinstance(error, RemoteError):
            return self.answer(job, error.answer)
        if isinstance(error, Interrupted):
            return Outcome(lease, OutcomeKind.INTERRUPTED)
        if isinstance(error, Crashed):
            return self._crash(job, str(error))
        if isinstance(error, Killed):
            return self._fail(job, str(error), is_final=False, delay=None)
        is_final = isinstance(error, job.handler.options.retry.give_up_on)
        delay = to_microseconds(error.delay, "delay") if isinstance(error, RetryLater) else None
        return self._fail(job, describe(error), is_final=is_final, delay=delay, brief=line(error))

    def _fail(
        self, job: ActiveJob, error: str, *, is_final: bool, delay: int | None, brief: str | None = None
    ) -> Outcome:
        """Let a job run again after `delay`, or as its policy says; or give it up."""
        lease = job.lease
        limit = job.timed_out_after
        if job.is_asked_to_stop or (job.context.cancelled and limit is None):
            reason = brief or error.partition("\n")[0]
            return Outcome(lease, OutcomeKind.CANCELED, error=f"stopped on request ({reason})")
        cause = Cause.FAILURE
        if limit is not None:
            cause = Cause.TIMEOUT
            error = f"timeout after {limit / 1_000_000:g} s: {error}"
        wait = job.handler.options.retry.delay_after(lease.failures + lease.timeouts + 1, self._chance)
        if wait is None or is_final:
            return Outcome(lease, OutcomeKind.FAILED, error=error, cause=cause)
        due = self._after(wait if delay is None else delay)
        return Outcome(lease, OutcomeKind.RETRY, due=due, error=error, cause=cause)

    def _crash(self, job: ActiveJob, how: str) -> Outcome:
        """Let a job run again at once whose process died; the third time it is a dead letter."""
        crashes = job.lease.crashes + 1
        if crashes < MAX_CRASHES:
            return Outcome(job.lease, OutcomeKind.RETRY, due=self._now(), error=how, cause=Cause.CRASH)
        error = f"quarantined: {crashes} processes died while they ran it ({how})"
        return Outcome(job.lease, OutcomeKind.FAILED, error=error, cause=Cause.CRASH)

    def _after(self, delay: int) -> int:
        return min(LAST_INSTANT, self._now() + delay)


def needs_result(job: ActiveJob) -> bool:
    """Answer whether somebody wants to have what the handler returns."""
    follow_up = job.lease.follow_up
    return bool(job.handler.options.keep_result) or (follow_up is not None and follow_up.argument is not None)
