"""Stores the reports of handlers: their begin, their progress and their outcomes.

Invariants
- The first progress report of a job is stored at once. After that the latest is stored, at most every half second.
- One progress report of a job is in flight at a time, so reports are stored in order.
- The last progress report of a job is stored before its outcome.
- An outcome is kept until the engine has answered whether the lease was still valid, for as long as the worker
  lives. If the engine is unavailable, the writer tries again every second. If the engine raises another error, the
  writer stores each outcome alone, and tries again after 1 s, 2 s, 4 s, at last every 60 s. It logs this once a
  minute, and `trouble` describes it. If the file of the store was replaced, the outcome is dropped.
- Only an outcome that the engine can never store, because it is too large or cannot be encoded (`UNSTORABLE`), is
  replaced, once, by the failure of its job.
- An outcome is stored under the number under which its job was leased, also if the worker has a new one by then.
- The begin of a handler is reported only while the engine writes events, and before the handler's progress.

Executors call this on their own threads. Outcomes that are reported while a transaction is under way are stored
together in the next one.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from threading import Lock
from typing import TypeAlias

from msgspec import EncodeError

from mainspring.clock import NANOSECONDS
from mainspring.errors import EngineUnavailable, LimitExceeded, RefusedByStore, StoreReplaced
from mainspring.jobs.context import JobContext
from mainspring.jobs.io_layer import MAX_BYTES, REPORT, SETTLE, CallbackReply, DeferredOperation, Operation
from mainspring.jobs.layers import Layers
from mainspring.jobs.records import COMPLETED, FAILED, Cause, Lease, Outcome, OutcomeKind, Progress, ProgressReport
from mainspring.jobs.worker.attempt_log import (
    log_dead_letter,
    log_end,
    log_failure,
    log_refusal,
    log_result_warning,
    log_retry,
)
from mainspring.jobs.worker.failure_log import FailureLog
from mainspring.jobs.worker.lease_table import LeasedJob
from mainspring.plurals import format_count
from mainspring.runners.idle_condition import IdleCondition
from mainspring.timing.timer import Timer
from mainspring.timing.wheel import TimerEntry

INTERVAL_NS = 500_000_000  # nanoseconds between two progress reports of one job
RETRY_NS = NANOSECONDS  # nanoseconds until the writer tries again to store an outcome
MAX_RETRY_NS = 60 * NANOSECONDS  # the same for an outcome that the engine has refused several times
UNSTORABLE = (LimitExceeded, UnicodeEncodeError, OverflowError, EncodeError)
"""The errors by which an engine says that an outcome is too large or cannot be encoded. `RefusedByStore` also says
so if its `is_too_large` is set."""

Key: TypeAlias = tuple[Hashable, int]

logger = logging.getLogger("mainspring.worker")


class _JobProgress:
    """The latest progress report of one job that is not stored yet, and when it may be stored.

    The lock of the `ProgressWriter` guards it.
    """

    __slots__ = ("is_due", "is_in_flight", "key", "latest", "then", "timer_entry")

    def __init__(self, key: Key, first: ProgressReport) -> None:
        self.key = key
        self.latest: ProgressReport | None = first
        self.is_due = True  # the interval since the last report has passed
        self.is_in_flight = False
        self.timer_entry: TimerEntry | None = None
        self.then: Callable[[], None] | None = None  # called after the last report is stored


class ProgressWriter:
    """Stores the progress of the jobs of one worker, and that their handlers begin. Any thread may call it."""

    def __init__(self, layers: Layers, timer: Timer, idle: IdleCondition, worker: Callable[[], int]) -> None:
        self._engine = layers.engine
        self._io = layers.io
        self._clock = layers.clock
        self._timer = timer
        self._idle = idle  # notified when the engine has answered
        self._worker = worker
        self._lock = Lock()  # guards the following attributes
        self._jobs: dict[Key, _JobProgress] = {}
        self._in_flight = 0
        self._begun: deque[LeasedJob] = deque()  # jobs whose begin is not reported yet; not guarded
        self._is_begin_queued = False  # an operation that reports them is queued; not guarded
        self._is_closed = False
        self.sent = 0
        """A counter that grows whenever reports are sent to the engine, so that a reader can detect activity."""

    def report(self, lease: Lease, done: float, total: float | None, note: str | None) -> None:
        """Let the io layer store the progress of a job, now or after the interval between two reports.

        A report that waits for the interval is replaced by a later one. If the store fails, the report is lost.
        """
        latest = ProgressReport(lease, Progress(done, total, note, self._engine.now()))
        key = (lease.ref, lease.token)
        with self._lock:
            progress = self._jobs.get(key)
            if progress is None:
                progress = self._jobs[key] = _JobProgress(key, latest)
            else:
                progress.latest = latest
        self._send(progress)

    def begin(self, job: LeasedJob) -> None:
        """Report that the handler of a job begins, if a client follows events.

        Jobs that begin while a transaction is under way are reported together in the next one.
        """
        if self._engine.is_followed:
            # The order of steps is as in `OutcomeWriter._store`: no job is left without a queued operation.
            self._begun.append(job)
            if not self._is_begin_queued:
                self._is_begin_queued = True
                with self._lock:
                    self._in_flight += 1
                    self.sent += 1
                reply: CallbackReply[list[bool]] = CallbackReply(
                    lambda _: self._answer_one(), lambda _: self._answer_one()
                )
                worker = self._worker()
                self._io.dispatch(
                    DeferredOperation(REPORT, self._collect_begun, reply, worker=worker, durable=False)
                )

    def _collect_begun(self) -> list[ProgressReport]:
        """Take the jobs whose begin is not reported yet; return reports for those whose handlers still run.

        For a handler that has ended meanwhile, its outcome makes the engine write both events.
        """
        self._is_begin_queued = False
        reports = []
        while self._begun:
            job = self._begun.popleft()
            if job.is_running:
                reports.append(ProgressReport(job.lease, None))
        return reports

    def finish(self, lease: Lease, then: Callable[[], None]) -> None:
        """Call `then` when the engine has answered the last progress report of a job; at once if none is left.

        If that report cannot be stored, `then` is called all the same.
        """
        with self._lock:
            progress = self._jobs.get((lease.ref, lease.token))
            if progress is not None:
                progress.then = then
        if progress is None:
            then()
        else:
            self._send(progress)

    @property
    def is_quiet(self) -> bool:
        """Whether no progress report of any job is left to store, and no interval between two reports is
        running.
        """
        return not self._jobs

    @property
    def is_busy(self) -> bool:
        """Whether the engine has not answered all reports that were sent to it."""
        return self._in_flight > 0

    def close(self) -> None:
        """Set no timers for later reports any more, because the timer is about to be closed."""
        with self._lock:
            self._is_closed = True

    def _send(self, progress: _JobProgress) -> None:
        with self._lock:
            report = self._next_report(progress)
            is_over = report is None and self._forget(progress)
        if report is not None:
            reply: CallbackReply[list[bool]] = CallbackReply(
                lambda _answers: self._answered(progress), lambda _error: self._answered(progress)
            )
            self._io.dispatch(Operation(REPORT, [report], reply, worker=self._worker(), durable=False))
        elif is_over and progress.then is not None:
            progress.then()

    def _next_report(self, progress: _JobProgress) -> ProgressReport | None:
        """Take the progress report of a job that is to be stored now, and start the interval until the next one.

        Return None if there is no report, if one is in flight, or if the interval has not passed. The last report
        of a job that has ended does not wait for the interval. The caller holds the lock.
        """
        report = progress.latest
        if report is None or progress.is_in_flight or not (progress.is_due or progress.then is not None):
            return None
        progress.latest = None
        progress.is_in_flight, progress.is_due = True, False
        self._in_flight += 1
        self.sent += 1
        if progress.then is None and not self._is_closed:
            due = self._clock.monotonic_ns() + INTERVAL_NS
            progress.timer_entry = self._timer.call_at(due, lambda: self._interval_passed(progress))
        return report

    def _forget(self, progress: _JobProgress) -> bool:
        """Forget the progress of a job if no report is left, and its interval has passed or the job has ended.

        Return whether it was forgotten now. The caller holds the lock.
        """
        if progress.is_in_flight or progress.latest is not None:
            return False
        if not (progress.is_due or progress.then is not None) or self._jobs.get(progress.key) is not progress:
            return False
        del self._jobs[progress.key]
        if progress.timer_entry is not None:
            self._timer.cancel(progress.timer_entry)
        return True

    def _interval_passed(self, progress: _JobProgress) -> None:
        with self._lock:
            progress.is_due = True
        self._send(progress)

    def _answered(self, progress: _JobProgress) -> None:
        with self._lock:
            progress.is_in_flight = False
        self._send(progress)
        self._answer_one()  # last, so that a thread that waits for idleness sees the effects of the answer

    def _answer_one(self) -> None:
        with self._lock:
            self._in_flight -= 1
        self._idle.announce()


class _OutcomeQueue:
    """The outcomes to store of jobs that were leased under one number of the worker."""

    __slots__ = ("is_queued", "outcomes")

    def __init__(self) -> None:
        self.outcomes: deque[Outcome] = deque()
        self.is_queued = False


class _Unstored:
    """An outcome that the engine could not store, or has refused. Only the control layer uses it."""

    __slots__ = ("is_replaced", "outcome", "refusals", "retry", "worker")

    def __init__(self, worker: int, outcome: Outcome) -> None:
        self.worker = worker
        self.outcome = outcome
        self.refusals = 0  # how often the engine has refused it when it was stored alone
        self.is_replaced = False  # the outcome says that the original one could not be stored
        self.retry: TimerEntry | None = None  # the timer of the next try of a refused outcome


class OutcomeWriter:
    """Stores the outcomes of jobs, and tells the control layer which outcomes the engine accepted."""

    def __init__(
        self,
        layers: Layers,
        timer: Timer,
        idle: IdleCondition,
        *,
        progress: ProgressWriter,
        on_settled: Callable[[list[tuple[Outcome, bool]]], None],
    ) -> None:
        self._engine = layers.engine
        self._io = layers.io
        self._control = layers.control
        self._clock = layers.clock
        self._timer = timer
        self._idle = idle  # notified when the engine has answered with an error
        self._progress = progress
        self._on_settled = on_settled
        self._queues: dict[int, _OutcomeQueue] = {}  # by number of the worker; there is nearly always only one
        self._in_flight: set[int] = set()  # batches of outcomes that the engine has not answered
        self._warned: set[str] = set()  # job types with a logged warning about a result
        self.stored = 0
        """A counter that grows whenever outcomes are added, so that a reader can detect activity."""
        self._unstored: dict[Key, _Unstored] = {}  # only the control layer uses it
        self._is_hasty = False  # a shutdown has begun: refused outcomes are tried again every second
        self._error: Exception | None = None  # the last error of storing outcomes
        self._failures = FailureLog()
        self.gives_up = False
        """Whether to drop outcomes that cannot be stored now. Other workers then rescue the jobs."""

    def end(self, jobs: Sequence[LeasedJob], outcomes: Sequence[Outcome]) -> None:
        """Store the outcomes of handlers that have ended. A job whose end a shutdown has claimed is left out.

        Any thread may call it.
        """
        if len(jobs) == 1 and self._progress.is_quiet:  # nearly always
            if jobs[0].claim_end():
                jobs[0].context.drop_progress()
                self._log_end(jobs[0], outcomes[0])
                self._store(jobs[0].worker, [outcomes[0]])
        else:
            self.settle([end for end in zip(jobs, outcomes, strict=True) if end[0].claim_end()])

    def settle(self, ends: Sequence[tuple[LeasedJob, Outcome]]) -> None:
        """Store outcomes of jobs whose ends are already claimed.

        Each outcome is stored after the last progress report of its job.
        """
        for job, outcome in ends:
            job.context.drop_progress()
            self._log_end(job, outcome)
        if not self._progress.is_quiet:
            for job, outcome in ends:
                self._progress.finish(job.lease, partial(self._store, job.worker, [outcome]))
            return
        for worker in {job.worker for job, _ in ends}:
            self._store(worker, [outcome for job, outcome in ends if job.worker == worker])

    def hasten(self) -> None:
        """Try to store refused outcomes now, and every second from now on, because the worker shuts down.

        Only the control layer calls it.
        """
        self._is_hasty = True
        for unstored in self._unstored.values():
            if unstored.retry is not None:
                self._timer.cancel(unstored.retry)
                self._retry(unstored)  # the call that the timer may have posted already then does nothing

    def close(self) -> None:
        """Drop outcomes from now on if they cannot be stored, because the timer for retries is about to be
        closed.
        """
        self.gives_up = True

    @property
    def is_busy(self) -> bool:
        """Whether outcomes are queued for the engine, or the engine has not answered some.

        Outcomes that wait for a progress report, or until the writer tries again, do not count.
        """
        return bool(self._in_flight) or any(queue.outcomes or queue.is_queued for queue in self._queues.values())

    @property
    def trouble(self) -> str | None:
        """A description of the outcomes that cannot be stored at the moment; None if there are none."""
        if not self._unstored:
            return None
        return f"{format_count(len(self._unstored), 'outcome')} cannot be stored: {self._error}"

    def _log_end(self, job: LeasedJob, outcome: Outcome) -> None:
        error, job.error = job.error, None  # the exception keeps the frames of the handler alive
        if outcome.kind is COMPLETED:
            if outcome.error is not None:
                log_result_warning(job.context, outcome, level=self._warning_level(outcome.lease.type))
                return
        elif outcome.kind is FAILED:
            log_failure(job.context, outcome, error)
            return
        elif outcome.kind is OutcomeKind.RETRY:
            log_retry(job.context, outcome, self._engine.now(), error)
            return
        if logger.isEnabledFor(logging.DEBUG):
            log_end(job.context, outcome, job.to_engine_time(self._clock.monotonic_ns()))

    def _warning_level(self, type_: str) -> int:
        """Return the log level of a warning about a result: WARNING for the first of each job type, then DEBUG."""
        if type_ in self._warned:
            return logging.DEBUG
        self._warned.add(type_)
        return logging.WARNING

    def _store(self, worker: int, outcomes: list[Outcome]) -> None:
        # This thread adds outcomes before it reads the flag, and `_collect` clears the flag before it takes
        # outcomes. So no outcome is left in the deque without a queued operation.
        queue = self._queues.get(worker) or self._queues.setdefault(worker, _OutcomeQueue())
        queue.outcomes.extend(outcomes)
        self.stored += 1
        if not queue.is_queued:
            queue.is_queued = True
            batch: list[Outcome] = []
            reply: CallbackReply[list[bool]] = CallbackReply(
                lambda answers: self._control.post(self._answered, batch, answers),
                lambda error: self._control.post(self._failed, worker, batch, error),
            )
            self._io.dispatch(
                DeferredOperation(SETTLE, lambda: self._collect(worker, queue, batch), reply, worker=worker)
            )

    def _collect(self, worker: int, queue: _OutcomeQueue, batch: list[Outcome]) -> list[Outcome]:
        self._in_flight.add(id(batch))
        queue.is_queued = False
        size = 0
        while queue.outcomes and size < MAX_BYTES:
            outcome = queue.outcomes.popleft()
            size += len(outcome.result or b"")
            batch.append(outcome)
        if queue.outcomes:
            self._store(worker, [])
        return batch

    def _answered(self, outcomes: list[Outcome], answers: list[bool]) -> None:
        self._in_flight.discard(id(outcomes))
        if self._unstored:
            for outcome in outcomes:
                self._unstored.pop(_key_of(outcome), None)
            if not self._unstored:
                self._failures.succeeded()
        settled = list(zip(outcomes, answers, strict=True))
        for outcome, is_accepted in settled:
            if not is_accepted:
                log_refusal(outcome)
            elif outcome.kind is FAILED:
                log_dead_letter(outcome)
        self._on_settled(settled)

    def _failed(self, worker: int, outcomes: list[Outcome], error: Exception) -> None:
        self._in_flight.discard(id(outcomes))
        self._idle.announce()
        if isinstance(error, StoreReplaced):
            self._drop(outcomes, error)
        elif isinstance(error, EngineUnavailable):
            self._keep_all(worker, outcomes, error)
        elif len(outcomes) > 1:
            for outcome in outcomes:  # one of them may cause the error, so each is stored alone
                self._store_alone(worker, outcome)
        else:
            self._refused(worker, outcomes[0], error)

    def _drop(self, outcomes: list[Outcome], error: StoreReplaced) -> None:
        """End the leases of jobs whose outcomes can never be stored, so that a shutdown does not wait for them."""
        for outcome in outcomes:
            self._unstored.pop(_key_of(outcome), None)
        what = format_count(len(outcomes), "outcome")
        logger.error("the worker could not store %s, and will not try again: %s", what, error)
        self._on_settled([(outcome, False) for outcome in outcomes])

    def _keep_all(self, worker: int, outcomes: list[Outcome], error: EngineUnavailable) -> None:
        """Try again in a second to store outcomes together, because the engine is unavailable."""
        if self.gives_up:
            _log_dropped(outcomes, error)
            return
        for outcome in outcomes:
            self._unstored.setdefault(_key_of(outcome), _Unstored(worker, outcome))
        self._log_trouble(error, "every second")
        self._timer.call_at(
            self._clock.monotonic_ns() + RETRY_NS, lambda: self._control.post(self._store, worker, outcomes)
        )

    def _refused(self, worker: int, outcome: Outcome, error: Exception) -> None:
        """Handle an error of an engine that works and was given one outcome: replace the outcome if it can never
        be stored, else keep it and try again later.
        """
        key = _key_of(outcome)
        unstored = self._unstored.get(key) or self._unstored.setdefault(key, _Unstored(worker, outcome))
        if _is_unstorable(error) and not unstored.is_replaced:
            unstored.is_replaced = True
            unstored.outcome = _replacement(outcome, error)
            self._error = error
            logger.error(
                "the store refused the outcome of job %s, so that it becomes a dead letter: %s",
                outcome.lease.id,
                error,
                extra=JobContext(outcome.lease).log_fields,
            )
            self._store_alone(worker, unstored.outcome)
        elif self.gives_up:
            _log_dropped([outcome], error)
        else:
            self._log_trouble(error, "at least every minute")
            delay = RETRY_NS if self._is_hasty else min(RETRY_NS << unstored.refusals, MAX_RETRY_NS)
            unstored.refusals = min(unstored.refusals + 1, 10)
            unstored.retry = self._timer.call_at(
                self._clock.monotonic_ns() + delay, lambda: self._control.post(self._retry, unstored)
            )

    def _retry(self, unstored: _Unstored) -> None:
        """Store an outcome alone that the engine has refused, so that it cannot make the engine refuse others."""
        if unstored.retry is not None:
            unstored.retry = None
            self._store_alone(unstored.worker, unstored.outcome)

    def _log_trouble(self, error: Exception, again: str) -> None:
        self._error = error
        seconds = self._failures.failed(self._clock.monotonic_ns())
        if seconds is None:
            return
        what = format_count(len(self._unstored), "outcome")
        if seconds:
            logger.error(
                "the worker could not store %s for %.0f s and tries again %s: %s", what, seconds, again, error
            )
        else:
            logger.error("the worker could not store %s and tries again in a second: %s", what, error)

    def _store_alone(self, worker: int, outcome: Outcome) -> None:
        batch = [outcome]
        self._in_flight.add(id(batch))
        reply: CallbackReply[list[bool]] = CallbackReply(
            lambda answers: self._control.post(self._answered, batch, answers),
            lambda error: self._control.post(self._failed, worker, batch, error),
        )
        self._io.dispatch(Operation(SETTLE, batch, reply, worker=worker))


def _key_of(outcome: Outcome) -> Key:
    return outcome.lease.ref, outcome.lease.token


def _is_unstorable(error: Exception) -> bool:
    return isinstance(error, UNSTORABLE) or (isinstance(error, RefusedByStore) and error.is_too_large)


def _replacement(outcome: Outcome, error: Exception) -> Outcome:
    """Return the outcome of a job whose own outcome can never be stored: it has failed."""
    reason = f"its outcome could not be stored: {type(error).__name__}"
    return Outcome(outcome.lease, FAILED, error=reason, cause=Cause.FAILURE)


def _log_dropped(outcomes: Sequence[Outcome], error: Exception) -> None:
    logger.error(
        "the worker shuts down and could not store %s; other workers will rescue the jobs: %s",
        format_count(len(outcomes), "outcome"),
        error,
    )
