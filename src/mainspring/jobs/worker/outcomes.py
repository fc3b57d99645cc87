"""Makes the outcome of a job from the handler's return value or exception, or from its child process's answer.

A handler that returns completes its job, and the follow-up job is made. A handler that raises is retried or given
up, as its retry policy says. Errors and results are encoded so that every engine can store them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from mainspring.jobs.arguments import Arguments
from mainspring.jobs.engine import MAX_CRASHES
from mainspring.jobs.handlers import Handler, HandlerRegistry
from mainspring.jobs.job_policies import PREDECESSOR, inheritable, retry_of
from mainspring.jobs.limits import bucket_of
from mainspring.jobs.masking import TextMask
from mainspring.jobs.processes.messages import AnswerKind, ChildAnswer, full_name
from mainspring.jobs.records import COMPLETED, Cause, FollowUp, Lease, NewJob, Outcome, OutcomeKind
from mainspring.jobs.redaction import mask_of_payloads
from mainspring.jobs.retry import Cancel, RetryLater, Snooze
from mainspring.jobs.serializers import JsonSerializer, Serializer, Serializers, keeps_raw
from mainspring.jobs.timestamps import LAST_INSTANT, to_microseconds
from mainspring.jobs.worker.error_text import describe_briefly, describe_error, describe_fault, to_storable_text
from mainspring.jobs.worker.lease_table import LeasedJob


class RemoteError(Exception):
    """An exception of a handler in a child process, or of one with `redact=`, as the middleware sees it.

    It has the text of the exception, with redacted values masked, and no traceback, whose frames have the values.
    """

    def __init__(self, answer: ChildAnswer) -> None:
        self.answer = answer
        super().__init__(answer.error or "")


class ProcessCrashed(Exception):
    """Raised if the child process of a handler died, and neither its worker nor SIGTERM ended it."""


class ProcessKilled(Exception):
    """Raised if the worker killed the child process of a handler: at a timeout, a stop request or a shutdown."""


class ProcessInterrupted(Exception):
    """Raised if SIGTERM ended the child process of a handler, as when a service manager stops a whole worker."""


class UnfitArguments(Exception):
    """Raised if the stored arguments of a job do not match its handler's signature; the handler is not called.

    A retry would not help. The job becomes a dead letter, whose arguments an operator can edit.
    """


_WITHOUT_VALUES = (RemoteError, ProcessCrashed, ProcessKilled, ProcessInterrupted)
"""The exceptions that the worker itself makes: their texts have no values of redacted parameters."""


class OutcomeFactory:
    """Makes the outcomes of jobs: from results, exceptions and answers of child processes."""

    def __init__(
        self,
        serializer: Serializer,
        now: Callable[[], int],
        follow_ups: FollowUpFactory,
        *,
        latest: Callable[[], int],
        max_result: int,
        draw: Callable[[], float] | None = None,
    ) -> None:
        """Delays begin at `latest`. `draw` returns the numbers behind the jitter of retries; None: random ones."""
        self._serializers = Serializers(serializer)
        self._now = now
        self._latest = latest
        self._follow_ups = follow_ups
        self._max_result = max_result
        self._draw = draw or random.random

    def for_result(self, job: LeasedJob, value: Any) -> Outcome:
        """Return the outcome of a job whose handler returned `value`: COMPLETED, with the follow-up job if any.

        The outcome is FAILED if the value is needed, and cannot be encoded or is too large.
        """
        handler = job.handler
        if (value is None or not handler.options.keep_result) and job.lease.follow_up is None:
            warning = handler.result.none_warning if value is None else None
            return Outcome(job.lease, COMPLETED, error=warning)
        try:
            result, warning = self._encode(job, value)
        except UnstorableResult as refusal:
            error = masked(job, str(refusal))
            return Outcome(job.lease, OutcomeKind.FAILED, error=error, cause=Cause.FAILURE)
        return self._complete_with(job, result, None if warning is None else masked(job, warning))

    def _encode(self, job: LeasedJob, value: Any) -> tuple[bytes | None, str | None]:
        """Return the encoded result of a handler, None if it is None or not needed; and a warning or None.

        The warning says that the result does not match the return annotation, or changes in the store. Raises
        `UnstorableResult` if the result cannot be encoded or is too large.
        """
        if value is None:
            return None, job.handler.result.none_warning
        if not needs_result(job):
            return None, None
        serializer = self._serializers.get(job.lease.codec)
        return encode_result(value, serializer, handler=job.handler, limit=self._max_result)

    def _complete_with(self, job: LeasedJob, result: bytes | None, warning: str | None) -> Outcome:
        lease, handler = job.lease, job.handler
        outcome = Outcome(lease, OutcomeKind.COMPLETED, error=warning)
        if result is not None and handler.options.keep_result:
            outcome.result = result
            if handler.keep_result is not None:
                outcome.keep_result_until = self._after(handler.keep_result)
        if lease.follow_up is not None:
            serializer = self._serializers.get(lease.codec)
            passed = bytes(serializer.encode(None)) if result is None else result
            outcome.follow_up = self._follow_ups.make(lease, lease.follow_up, passed, self._serializers)
        return outcome

    def for_answer(self, job: LeasedJob, answer: ChildAnswer) -> Outcome:
        """Return the outcome of a job, from the answer of its child process or from that of `answer_for_error`."""
        lease = job.lease
        error = masked(job, answer.error or "")
        match answer.kind:
            case AnswerKind.COMPLETED:
                return self._complete_with(job, answer.result, error or None)
            case AnswerKind.NOT_RETRYABLE:
                return Outcome(lease, OutcomeKind.FAILED, error=error, cause=Cause.FAILURE)
            case AnswerKind.SNOOZED:
                return self._snooze(job, answer.delay)
            case AnswerKind.CANCELED:
                return Outcome(lease, OutcomeKind.CANCELED, error=error)
            case AnswerKind.RETRY_LATER | AnswerKind.FAILED:
                is_later = answer.kind is AnswerKind.RETRY_LATER
                if is_later and lease.at_most_once:
                    return self._refuse_to_run_again(job, "Retry.Later")
                is_final = self._gives_up(job, answer.is_one_of)
                return self._fail(job, error, is_final=is_final, delay=answer.delay if is_later else None)

    def for_error(self, job: LeasedJob, error: BaseException) -> Outcome:
        """Return the outcome of a job whose attempt ended with an exception. This method raises none itself.

        The handler or a middleware raised the exception, or it says that the child process died or that the
        arguments do not match the signature. `job.error` keeps the exception for the log, unless it is a
        `RemoteError` or the handler has redacted parameters.
        """
        if job.handler.redacted and not isinstance(error, _WITHOUT_VALUES):
            error = RemoteError(answer_for_error(error, mask_of((job,))))
        if not isinstance(error, RemoteError):  # that has no traceback of its own
            job.error = error
        try:
            return self._for_known_error(job, error)
        # describing the exception raises another one: the job must be settled all the same
        except Exception as another:
            reason = describe_fault(error, another)
            return Outcome(job.lease, OutcomeKind.FAILED, error=reason, cause=Cause.FAILURE)

    def _for_known_error(self, job: LeasedJob, error: BaseException) -> Outcome:
        lease = job.lease
        if isinstance(error, Snooze):
            return self._snooze(job, to_microseconds(error.delay, "delay"))
        if isinstance(error, RetryLater) and lease.at_most_once:
            return self._refuse_to_run_again(job, "Retry.Later")
        if isinstance(error, Cancel):
            return Outcome(lease, OutcomeKind.CANCELED, error=to_storable_text(str(error.reason)))
        if isinstance(error, RemoteError):
            return self.for_answer(job, error.answer)
        if isinstance(error, ProcessInterrupted):
            return for_interruption(job)
        if isinstance(error, ProcessCrashed):
            return self._crash(job, str(error))
        if isinstance(error, ProcessKilled):
            return self._fail(job, str(error), is_final=False, delay=None)
        if isinstance(error, UnfitArguments):
            return Outcome(lease, OutcomeKind.FAILED, error=str(error), cause=Cause.FAILURE)
        is_final = self._gives_up(job, lambda classes: isinstance(error, classes))
        delay = to_microseconds(error.delay, "delay") if isinstance(error, RetryLater) else None
        return self._fail(
            job, describe_error(error), is_final=is_final, delay=delay, brief=describe_briefly(error)
        )

    def _gives_up(self, job: LeasedJob, is_one_of: Callable[[tuple[type[BaseException], ...]], bool]) -> bool:
        retry = retry_of(job.lease.headers, job.handler.options.retry)
        return retry.gives_up(is_one_of, has_timed_out=job.timed_out_after is not None)

    def _fail(
        self, job: LeasedJob, error: str, *, is_final: bool, delay: int | None, brief: str | None = None
    ) -> Outcome:
        """Return the outcome of a failed attempt: a retry after `delay`, or after the delay of the retry policy if
        None.

        The job ends as CANCELED if it was asked to stop, and as a dead letter if `is_final` or if no attempt is
        left.
        """
        lease = job.lease
        limit = job.timed_out_after
        if job.is_asked_to_stop or (job.context.cancelled and limit is None):
            reason = brief or error.partition("\n")[0]
            return Outcome(lease, OutcomeKind.CANCELED, error=f"stopped on request ({reason})")
        cause = Cause.FAILURE
        if limit is not None:
            cause = Cause.TIMEOUT
            error = f"timeout after {limit / 1_000_000:g} s: {error}"
        retry = retry_of(lease.headers, job.handler.options.retry)
        wait = retry.delay_after(lease.failures + lease.timeouts + 1, self._draw)
        if wait is None or is_final:
            return Outcome(lease, OutcomeKind.FAILED, error=error, cause=cause)
        due = self._after(wait if delay is None else delay)
        return Outcome(lease, OutcomeKind.RETRY, due=due, error=error, cause=cause)

    def _snooze(self, job: LeasedJob, delay: int) -> Outcome:
        if job.lease.at_most_once:
            return self._refuse_to_run_again(job, "Snooze")
        return Outcome(job.lease, OutcomeKind.SNOOZED, due=self._after(delay))

    def _refuse_to_run_again(self, job: LeasedJob, raised: str) -> Outcome:
        """Return the FAILED outcome of a job that runs at most once, and whose handler raised `Snooze` or
        `Retry.Later`.
        """
        error = (
            f"at most once: {job.handler.name} raised {raised}, and may not start again; submit another job "
            "instead, or leave at_most_once out"
        )
        return Outcome(job.lease, OutcomeKind.FAILED, error=error, cause=Cause.FAILURE)

    def _crash(self, job: LeasedJob, how: str) -> Outcome:
        """Return the outcome of a job whose child process died: a retry at once, or after `MAX_CRASHES` a dead
        letter.

        A job that runs at most once is a dead letter the first time.
        """
        if job.lease.at_most_once:
            return Outcome(job.lease, OutcomeKind.FAILED, error=f"at most once: {how}", cause=Cause.CRASH)
        crashes = job.lease.crashes + 1
        if crashes < MAX_CRASHES:
            return Outcome(job.lease, OutcomeKind.RETRY, due=self._now(), error=how, cause=Cause.CRASH)
        error = f"quarantined: its process or its worker died in {crashes} attempts ({how})"
        return Outcome(job.lease, OutcomeKind.FAILED, error=error, cause=Cause.CRASH)

    def _after(self, delay: int) -> int:
        return min(LAST_INSTANT, self._latest() + delay if delay else self._now())


def for_interruption(job: LeasedJob) -> Outcome:
    """Return the outcome of a job whose attempt a shutdown or the loss of its program has interrupted.

    The outcome is INTERRUPTED: the job runs again, or the engine cancels it if it was asked to stop. A job that
    runs at most once ends instead: as CANCELED if it was asked to stop, else as a dead letter.
    """
    lease = job.lease
    if not lease.at_most_once:
        return Outcome(lease, OutcomeKind.INTERRUPTED)
    if job.is_asked_to_stop:
        return Outcome(lease, OutcomeKind.CANCELED, error="stopped on request (interrupted by a shutdown)")
    error = "at most once: a shutdown interrupted it after it had started"
    return Outcome(lease, OutcomeKind.FAILED, error=error, cause=Cause.DEPLOY)


def needs_result(job: LeasedJob) -> bool:
    """Return whether the result of a job is stored, or passed to a follow-up job."""
    follow_up = job.lease.follow_up
    return bool(job.handler.options.keep_result) or (follow_up is not None and follow_up.argument is not None)


# -- exceptions without their objects


def answer_for_error(error: BaseException, mask: Callable[[str], str] | None = None) -> ChildAnswer:
    """Return the answer of a child process whose handler raised an exception.

    A worker also calls this in its own process for a handler with `redact=`. It passes on the answer instead of
    the exception object, which could hold redacted values. `mask` masks redacted values in texts.
    """
    shown = mask or str
    try:
        if isinstance(error, Snooze):
            return ChildAnswer(AnswerKind.SNOOZED, delay=to_microseconds(error.delay, "delay"))
        if isinstance(error, Cancel):
            return ChildAnswer(AnswerKind.CANCELED, error=shown(to_storable_text(str(error.reason))))
        if isinstance(error, UnfitArguments):
            return ChildAnswer(AnswerKind.NOT_RETRYABLE, error=shown(str(error)))
        class_names = tuple(full_name(kind) for kind in type(error).__mro__)
        text = describe_error(error, mask)
        if isinstance(error, RetryLater):
            delay = to_microseconds(error.delay, "delay")
            return ChildAnswer(AnswerKind.RETRY_LATER, error=text, delay=delay, class_names=class_names)
        return ChildAnswer(AnswerKind.FAILED, error=text, class_names=class_names)
    except Exception as another:  # describing the exception raises another one, but the job must be settled
        return ChildAnswer(AnswerKind.NOT_RETRYABLE, error=shown(describe_fault(error, another)))


def mask_of(jobs: Sequence[LeasedJob]) -> TextMask:
    """Return the mask that hides the redacted values of these jobs of one handler call in texts."""
    handler = jobs[0].handler
    return mask_of_payloads(
        handler.arguments, handler.redacted, [(job.lease.payload, job.lease.codec) for job in jobs]
    )


def masked(job: LeasedJob, text: str) -> str:
    """Return a text with the values of the job's redacted parameters masked."""
    return mask_of((job,))(text) if text and job.handler.redacted else text


# -- the follow-up job


def _anything(**arguments: Any) -> None: ...


_UNKNOWN = Arguments("a handler that is not known here", _anything, JsonSerializer())


class FollowUpFactory:
    """Makes the follow-up job, which the engine stores in the transaction that completes the job before it."""

    def __init__(
        self,
        registry: HandlerRegistry,
        new_id: Callable[[], str],
        now: Callable[[], int],
        latest: Callable[[], int],
    ) -> None:
        self._registry = registry
        self._new_id = new_id
        self._now = now
        self._latest = latest

    def make(self, lease: Lease, plan: FollowUp, result: bytes, serializers: Serializers) -> NewJob:
        """Make the job that follows `lease` by its `plan`: with the encoded result and the bound arguments.

        The new job inherits the headers of `lease` that are not reserved, and has the id of `lease` in a header.
        """
        due = min(LAST_INSTANT, self._latest() + plan.delay if plan.delay else self._now())
        serializer = serializers.get(lease.codec)
        arguments = _bound_arguments(plan, serializer, serializers)
        if plan.argument is not None:
            kept = msgspec.Raw(result) if keeps_raw(serializer) else serializer.decoder(Any).decode(result)
            arguments[plan.argument] = kept
        job = NewJob(
            self._new_id(),
            plan.type,
            plan.queue,
            plan.priority,
            due,
            bytes(serializer.encode(arguments)),
            lease.codec,
            sequence=plan.sequence,
            steps_aside=plan.steps_aside,
            limits=self._buckets(plan, result, serializer, serializers),
            expires=None if plan.expires is None else min(LAST_INSTANT, due + plan.expires),
            headers={**inheritable(lease.headers), PREDECESSOR: lease.id},
            follow_up=plan.follow_up,
        )
        return self._registry.with_search_keys(job)

    def _buckets(
        self, plan: FollowUp, result: bytes, serializer: Serializer, serializers: Serializers
    ) -> tuple[str, ...]:
        if not any(names for _, names in plan.limits):
            return tuple(bucket_of(family) for family, _ in plan.limits)
        given: dict[str, Any] = {} if plan.bound is None else _decode_bound(plan, plan.bound, Any, serializers)
        if plan.argument is not None:
            given[plan.argument] = serializer.decoder(Any).decode(result)
        known = self._registry.get(plan.type).arguments if plan.type in self._registry else _UNKNOWN
        return tuple(
            bucket_of(family, known.limit_key(given, names) if names else "") for family, names in plan.limits
        )


def _bound_arguments(plan: FollowUp, serializer: Serializer, serializers: Serializers) -> dict[str, Any]:
    """Return the arguments of a follow-up job that `bind` has fixed, empty if there are none.

    These are still encoded if their encoding is that of the follow-up job and allows it; otherwise decoded.
    """
    if plan.bound is None:
        return {}
    is_kept = plan.codec == serializer.name and keeps_raw(serializer)
    return _decode_bound(plan, plan.bound, msgspec.Raw if is_kept else Any, serializers)


def _decode_bound(plan: FollowUp, bound: bytes, kind: Any, serializers: Serializers) -> dict[str, Any]:
    arguments: dict[str, Any] = serializers.get(plan.codec).decoder(dict[str, kind]).decode(bound)
    return arguments


# -- results and errors in a form that every engine can store


class UnstorableResult(Exception):
    """Raised if the result of a handler cannot be encoded or is too large.

    The handler has run; a retry would not help.
    """


def encode_result(value: Any, serializer: Serializer, *, handler: Handler, limit: int) -> tuple[bytes, str | None]:
    """Encode the result of a handler, and return it with a warning if it does not match the return annotation.

    Raises `UnstorableResult` if it cannot be encoded or is too large.
    """
    try:
        result = bytes(serializer.encode(value))
        if serializer.name == JsonSerializer.name:
            result.decode()  # a handler may return raw JSON that is not valid text
    except Exception as error:  # encoders can raise any exception
        raise _unstorable(handler.name, str(error)) from error
    if len(result) > limit:
        raise _unstorable(handler.name, f"it has {len(result):,} bytes, the limit is {limit:,}")
    warning = handler.result.warning(value, result, serializer)
    return result, None if warning is None else to_storable_text(warning)


def _unstorable(handler: str, problem: str) -> UnstorableResult:
    return UnstorableResult(
        to_storable_text(
            f"{handler} has run, but its result cannot be stored: {problem}; return plain data, or "
            "register it with keep_result=False"
        )
    )
