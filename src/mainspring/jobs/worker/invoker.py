"""Calls a handler with the middleware around it, and returns the outcome of the attempt.

Every return value and every exception of a handler becomes an outcome. A call for a batch is one attempt of each
of its jobs: the middleware runs once around the call, and an exception fails each job. After the call, the
middleware learns the outcomes.

An exception of a handler with `redact=` becomes a `RemoteError` before the middleware sees it: the frames of its
traceback have the arguments as local variables, and its texts may have them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from mainspring.errors import InvalidArguments
from mainspring.jobs import context
from mainspring.jobs.arguments import split_batch_results
from mainspring.jobs.context import JobContext
from mainspring.jobs.handlers import HandlerRegistry
from mainspring.jobs.ids import JobIds
from mainspring.jobs.middleware import Middlewares
from mainspring.jobs.processes.messages import AnswerKind, ChildAnswer
from mainspring.jobs.records import Outcome
from mainspring.jobs.serializers import Serializer
from mainspring.jobs.worker.attempt_ends import announce_ends
from mainspring.jobs.worker.error_text import describe_briefly
from mainspring.jobs.worker.lease_table import LeasedJob
from mainspring.jobs.worker.outcomes import (
    FollowUpFactory,
    OutcomeFactory,
    RemoteError,
    UnfitArguments,
    answer_for_error,
    mask_of,
)

Ask: TypeAlias = Callable[[dict[str, str] | None], list[ChildAnswer]]


class HandlerInvoker:
    """Calls handlers with the middleware around them, and returns the outcome of each job."""

    def __init__(
        self,
        serializer: Serializer,
        now: Callable[[], int],
        *,
        max_result: int,
        latest: Callable[[], int] | None = None,
        draw: Callable[[], float] | None = None,
        new_id: Callable[[], str] | None = None,
        registry: HandlerRegistry | None = None,
        middlewares: Middlewares | None = None,
    ) -> None:
        """Delays of retries and follow-up jobs begin at `latest`, or at `now` without it."""
        ids = JobIds()
        latest = latest or now
        make_id = new_id or (lambda: ids.make(now())[0])
        follow_ups = FollowUpFactory(registry or HandlerRegistry(), make_id, now, latest)
        self._outcomes = OutcomeFactory(
            serializer, now, follow_ups, latest=latest, max_result=max_result, draw=draw
        )
        self._middlewares = middlewares or Middlewares()
        self.max_result = max_result
        self._complete = self._outcomes.for_result
        self.outcome_for_error = self._outcomes.for_error

    # -- one job

    def invoke(self, job: LeasedJob) -> Outcome:
        """Call the handler of a job, a plain function, and return the outcome. This method raises no exception."""
        entered = context.enter(job.context)
        answers: tuple[ChildAnswer, ...] = ()
        try:
            try:
                call = _call_redacted if job.handler.redacted else _call
                if self._middlewares.is_empty:
                    return self._complete(job, call(job))
                value = None
                with self._middlewares.attempting(job.context):
                    value = call(job)
                outcome = self._complete(job, value)
            except BaseException as error:  # SystemExit in a handler ends the attempt, not the worker
                outcome = self.outcome_for_error(job, error)
                answers = _answers_of(error)
            self._announce((job,), (outcome,), answers)
            return outcome
        finally:
            context.leave(entered)

    async def invoke_async(self, job: LeasedJob) -> Outcome:
        """Await the handler of a job, a coroutine function, and return the outcome.

        This method raises no exception.
        """
        entered = context.enter(job.context)
        answers: tuple[ChildAnswer, ...] = ()
        try:
            try:
                value = None
                async with self._middlewares.attempting_async(job.context):
                    value = await (_await_redacted(job) if job.handler.redacted else _call(job))
                outcome = self._complete(job, value)
            except BaseException as error:  # a canceled attempt has an outcome, too
                outcome = self.outcome_for_error(job, error)
                answers = _answers_of(error)
            self._announce((job,), (outcome,), answers)
            return outcome
        finally:
            context.leave(entered)

    def _announce(
        self, jobs: Sequence[LeasedJob], outcomes: Sequence[Outcome], answers: Sequence[ChildAnswer] = ()
    ) -> None:
        if not self._middlewares.is_empty:
            announce_ends(self._middlewares, jobs, outcomes, answers)

    # -- a batch

    def invoke_batch(self, jobs: Sequence[LeasedJob]) -> list[Outcome]:
        """Call a plain batch handler once for all of these jobs, and return an outcome for each."""
        batch = _Batch(jobs, self._outcomes)
        if not batch.items:
            return batch.outcomes()
        entered = context.enter(batch.contexts)
        try:
            try:
                value = None
                with self._middlewares.attempting(batch.contexts[0]):
                    value = batch.call()
                batch.complete(value)
            except BaseException as error:
                batch.fail(error)
            if not self._middlewares.is_empty:
                self._announce(*batch.ends())
        finally:
            context.leave(entered)
        return batch.outcomes()

    async def invoke_batch_async(self, jobs: Sequence[LeasedJob]) -> list[Outcome]:
        """Await a coroutine batch handler once for all of these jobs, and return an outcome for each."""
        batch = _Batch(jobs, self._outcomes)
        if not batch.items:
            return batch.outcomes()
        entered = context.enter(batch.contexts)
        try:
            try:
                value = None
                async with self._middlewares.attempting_async(batch.contexts[0]):
                    value = await batch.call_async()
                batch.complete(value)
            except BaseException as error:
                batch.fail(error)
            if not self._middlewares.is_empty:
                self._announce(*batch.ends())
        finally:
            context.leave(entered)
        return batch.outcomes()

    # -- in another process

    def invoke_remote(self, jobs: Sequence[LeasedJob], ask: Ask) -> list[Outcome]:
        """Run the middleware in this process and the handler in a child process; return the outcomes.

        `ask` sends the jobs to the child process and returns its answers. The argument of `ask` is a dict of texts
        that the middleware passes to the child process, or None without middleware. If the handler of a single job
        fails, `RemoteError` is raised inside of the middleware's `attempting`. Failures in a batch raise nothing
        there: the middleware learns of them when its method `attempted` is called.
        """
        contexts = tuple(job.context for job in jobs)
        is_batch = jobs[0].handler.options.batch is not None
        entered = context.enter(contexts if is_batch else contexts[0])
        given: list[ChildAnswer] = []
        try:
            try:
                answers = [ChildAnswer(AnswerKind.COMPLETED)] * len(jobs)
                with self._middlewares.attempting(contexts[0]):
                    given = ask(self._passed_to_child(contexts[0]))
                    if not is_batch and given[0].kind in (AnswerKind.FAILED, AnswerKind.RETRY_LATER):
                        raise RemoteError(given[0])
                    answers = given
                outcomes = [self._outcomes.for_answer(job, one) for job, one in zip(jobs, answers, strict=True)]
            except BaseException as error:
                given = given if isinstance(error, RemoteError) else []
                outcomes = [self._outcomes.for_error(job, error) for job in jobs]
            self._announce(jobs, outcomes, given)
            return outcomes
        finally:
            context.leave(entered)

    def _passed_to_child(self, job: JobContext) -> dict[str, str] | None:
        return None if self._middlewares.is_empty else self._middlewares.passed_to_child(job)


def _call(job: LeasedJob) -> Any:
    positional, named = _decode(job)
    return job.handler.function(*positional, **named)


def _call_redacted(job: LeasedJob) -> Any:
    """Call a handler with `redact=`; raise its exception as a `RemoteError`, with redacted values masked.

    The `RemoteError` is raised after the `except` block, so that it has no context.
    """
    try:
        return _call(job)
    except BaseException as error:
        answer = answer_for_error(error, mask_of((job,)))
    raise RemoteError(answer)


async def _await_redacted(job: LeasedJob) -> Any:
    """Await an async handler with the option `redact=`; raise its exception as a masked `RemoteError`.

    A `RemoteError` has only the text of the exception, here with redacted values masked.
    """
    try:
        return await _call(job)
    except BaseException as error:
        answer = answer_for_error(error, mask_of((job,)))
    raise RemoteError(answer)


def _answers_of(error: BaseException) -> tuple[ChildAnswer, ...]:
    return (error.answer,) if isinstance(error, RemoteError) else ()


def _decode(job: LeasedJob) -> tuple[Sequence[Any], dict[str, Any]]:
    try:
        return job.handler.arguments.decode(job.lease.payload, job.lease.codec)
    except InvalidArguments as error:
        raise UnfitArguments(describe_briefly(error)) from error


class _Batch:
    """The jobs of one call of a batch handler, and their outcomes.

    A job whose arguments cannot be decoded fails before the call and takes no part in it.
    """

    def __init__(self, jobs: Sequence[LeasedJob], outcomes: OutcomeFactory) -> None:
        self._jobs = jobs
        self._outcomes = outcomes
        self._ended: dict[LeasedJob, Outcome] = {}
        self._called: list[LeasedJob] = []
        self._answers: dict[LeasedJob, ChildAnswer] = {}  # of a handler with `redact=`, for attempts that failed
        self.items: list[Any] = []
        for job in jobs:
            try:
                positional, named = _decode(job)
                (item,) = (*positional, *named.values())
            except Exception as error:  # it fails only this job
                self._ended[job] = outcomes.for_error(job, error)
            else:
                self._called.append(job)
                self.items.append(item)
        self.contexts = tuple(job.context for job in self._called)
        self._handler = jobs[0].handler

    def call(self) -> Any:
        """Call the handler with the list of items.

        For a handler with `redact=`, exceptions become `RemoteError`s.
        """
        if not self._handler.redacted:
            return self._handler.function(self.items)
        try:
            return self._handler.function(self.items)
        except BaseException as error:
            remote = self._to_remote(error)
        raise remote

    async def call_async(self) -> Any:
        """Await the handler with the list of items.

        For a handler with `redact=`, exceptions become `RemoteError`s.
        """
        if not self._handler.redacted:
            return await self._handler.function(self.items)
        try:
            return await self._handler.function(self.items)
        except BaseException as error:
            remote = self._to_remote(error)
        raise remote

    def _to_remote(self, error: BaseException) -> BaseException:
        """Return the exception as a `RemoteError` with the redacted values of all jobs masked, if the handler
        redacts any.
        """
        if not self._handler.redacted or isinstance(error, RemoteError):
            return error
        return RemoteError(answer_for_error(error, mask_of(self._called)))

    def complete(self, returned: Any) -> None:
        """Give each job the outcome for its part of the handler's return value: a result, or an exception."""
        for job, value in zip(self._called, self._results(returned), strict=True):
            if isinstance(value, BaseException):
                self._fail(job, self._to_remote(value))
            else:
                self._ended[job] = self._outcomes.for_result(job, value)

    def _results(self, returned: Any) -> list[Any]:
        return split_batch_results(self._jobs[0].handler.name, returned, len(self._called))

    def fail(self, error: BaseException) -> None:
        """Give each job that has no outcome yet the outcome for this error, such as a retry."""
        remote = self._to_remote(error)
        for job in self._called:
            if job not in self._ended:
                self._fail(job, remote)

    def _fail(self, job: LeasedJob, error: BaseException) -> None:
        self._ended[job] = self._outcomes.for_error(job, error)
        if isinstance(error, RemoteError):
            self._answers[job] = error.answer

    def ends(self) -> tuple[list[LeasedJob], list[Outcome], list[ChildAnswer]]:
        """Return the jobs that the handler was called for, their outcomes, and their answers if it has `redact=`.

        There are no answers if no job failed with a `RemoteError`.
        """
        completed = ChildAnswer(AnswerKind.COMPLETED)
        answers = [self._answers.get(job, completed) for job in self._called] if self._answers else []
        return self._called, [self._ended[job] for job in self._called], answers

    def outcomes(self) -> list[Outcome]:
        """Return the outcome of each job of the batch, in order."""
        return [self._ended[job] for job in self._jobs]
