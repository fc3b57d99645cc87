"""The io layer: commits all queued operations in one transaction, so that all callers share one fsync.

A caller that finds the queue empty and the engine free makes its call on its own thread: see `engine_turn.py`.

Operations of the same kind become one call of the engine. If the transaction fails, the io layer commits each
operation alone, so that no caller gets an error that the operation of another caller has caused. If the engine is
unavailable, all operations fail. If the engine cannot commit several calls in one transaction, each call is
committed by itself; the engine checks the arguments of the call before it stores anything. If one of these calls
finds after a while that the engine is unavailable, the operations that were queued before this call fail, too:
otherwise each would wait as long, and the last one for the sum.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from threading import TIMEOUT_MAX, Lock
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

from mainspring.clock import NANOSECONDS, SystemClock
from mainspring.errors import EngineUnavailable, RunnerClosed
from mainspring.jobs.activity import ActivityRecorder, CountCall
from mainspring.jobs.audit_drafts import AuditDraft
from mainspring.jobs.commands import Arrangement, Changed, Command
from mainspring.jobs.engine import Capability, Engine
from mainspring.jobs.engine_turn import EngineTurn, MustQueue, OffCallers
from mainspring.jobs.processes.import_guard import import_guard
from mainspring.jobs.records import Conflict, Lease, NewJob, Outcome, ProgressReport
from mainspring.jobs.recurrence.schedule_records import Fired, Firing
from mainspring.jobs.request_records import NewRequest, RequestEnd, RequestRecord
from mainspring.runners.func_queue import FuncQueue
from mainspring.runners.runner import TaskRunner
from mainspring.runners.worker import blocking_for, current_worker

if TYPE_CHECKING:
    import asyncio

    from mainspring.jobs.activity_writer import ActivityWriter

T = TypeVar("T")
Item = TypeVar("Item")
Result = TypeVar("Result")
Value_contra = TypeVar("Value_contra", contravariant=True)

MAX_ITEMS = 5_000  # items in one transaction; a limit, so that no caller waits long for a bulk operation
MAX_BYTES = 16_777_216
NOT_QUEUED = 1 << 62
WAITED_NS = NANOSECONDS
"""A call that fails after so long has waited for the engine in vain; one that is refused at once has not."""
CHANGES = "submits jobs or changes the store"

_monotonic_ns = SystemClock.monotonic_ns  # real time, because a commit takes real time in tests, too


class BatchCall(Generic[Item, Result]):
    """A kind of engine call that takes a batch and returns a result for each item.

    Within a transaction, calls with a lower number `place` are made first. Calls that add or free jobs come before
    calls that claim. `count` counts what a committed call did, for the activity of this process. `run_audited`
    makes the same call with the draft of an audit entry; calls that operators make have it.
    """

    __slots__ = ("count", "place", "run", "run_audited")

    def __init__(
        self,
        place: int,
        run: Callable[[Engine, int, Sequence[Item]], list[Result]],
        count: CountCall | None = None,
        *,
        run_audited: Callable[[Engine, Sequence[Item], AuditDraft], list[Result]] | None = None,
    ) -> None:
        self.place = place
        self.run = run
        self.count = count
        self.run_audited = run_audited

    def with_draft(self, draft: AuditDraft) -> BatchCall[Item, Result]:
        """Return a call that also stores the audit entries that `draft` describes.

        The returned call must not be merged with other calls.
        """
        run = self.run_audited
        assert run is not None, "no operator makes this call"
        return BatchCall(self.place, lambda engine, _, items: run(engine, items, draft), self.count)


SUBMIT: BatchCall[NewJob, Conflict | None] = BatchCall(
    0, lambda engine, _, jobs: engine.submit(jobs), ActivityRecorder.count_submits
)
ARRANGE: BatchCall[Arrangement, bool] = BatchCall(
    1,
    lambda engine, _, changes: engine.arrange(changes),
    run_audited=lambda engine, changes, draft: engine.arrange(changes, audit=draft),
)
CHANGE: BatchCall[Command, Changed] = BatchCall(
    2,
    lambda engine, _, commands: engine.change(commands),
    run_audited=lambda engine, commands, draft: engine.change(commands, audit=draft),
)
FIRE: BatchCall[Firing, Fired] = BatchCall(
    3,
    lambda engine, _, firings: engine.fire(firings),
    ActivityRecorder.count_firings,
    run_audited=lambda engine, firings, draft: engine.fire(firings, audit=draft),
)
REPORT: BatchCall[ProgressReport, bool] = BatchCall(
    4, lambda engine, worker, reports: engine.report(worker, reports)
)
SETTLE: BatchCall[Outcome, bool] = BatchCall(
    5, lambda engine, worker, outcomes: engine.settle(worker, outcomes), ActivityRecorder.count_outcomes
)
START: BatchCall[Lease, bool] = BatchCall(6, lambda engine, worker, leases: engine.start(worker, leases))
BEGIN_REQUESTS: BatchCall[NewRequest, RequestRecord | None] = BatchCall(
    7, lambda engine, _, requests: engine.begin_requests(requests)
)
END_REQUESTS: BatchCall[RequestEnd, bool] = BatchCall(8, lambda engine, _, ends: engine.end_requests(ends))
OTHER_CALLS = 9  # the place of calls that are not merged; `take` is one of them


class Reply(Protocol[Value_contra]):
    """The receiver of the answer to an operation: the io layer calls `resolve` or `fail` once."""

    def resolve(self, value: Value_contra) -> None:
        """Receive the result of the operation, after its transaction was committed."""

    def fail(self, error: Exception) -> None:
        """Receive the error of the operation."""


class Operation(Generic[Item, Result]):
    """A batch of items for one kind of engine call, with the reply that gets the results."""

    __slots__ = ("call", "durable", "items", "place", "queued", "reply", "size", "worker")

    def __init__(
        self,
        call: BatchCall[Item, Result],
        items: Sequence[Item],
        reply: Reply[list[Result]],
        *,
        worker: int = 0,
        durable: bool = True,
        size: int = 0,
    ) -> None:
        self.call = call
        self.place = call.place
        self.items = items
        self.reply = reply
        self.worker = worker
        self.durable = durable
        self.size = size  # size of the data in the items, in bytes
        self.queued = NOT_QUEUED  # the monotonic time at which it was queued

    def load(self) -> None:
        """Collect the batch right before the transaction begins. Here it does nothing: subclasses override it."""

    @property
    def merge_key(self) -> tuple[int, int]:
        """The position of the call in the transaction, and the worker.

        Operations with equal keys are merged into one call of the engine. Calls are made in the order of the keys.
        """
        return self.place, self.worker


class DeferredOperation(Operation[Item, Result]):
    """An operation whose items the function `collect` returns right before the transaction begins."""

    __slots__ = ("_collect",)

    def __init__(
        self,
        call: BatchCall[Item, Result],
        collect: Callable[[], Sequence[Item]],
        reply: Reply[list[Result]],
        *,
        worker: int,
        durable: bool = True,
    ) -> None:
        super().__init__(call, (), reply, worker=worker, durable=durable)
        self._collect = collect

    def load(self) -> None:
        self.items = self._collect()


class SingleOperation(Generic[Result]):
    """One call of the engine, made by the function `run`, that is not merged with other operations."""

    __slots__ = ("durable", "items", "place", "queued", "reply", "run", "size", "worker")

    def __init__(
        self, run: Callable[[Engine], Result], reply: Reply[Result], *, worker: int = 0, durable: bool = True
    ) -> None:
        self.run = run
        self.place = OTHER_CALLS
        self.items = ()
        self.reply = reply
        self.worker = worker
        self.durable = durable
        self.size = 0
        self.queued = NOT_QUEUED

    def load(self) -> None:
        """Do nothing: a single call has no batch to collect."""

    @property
    def merge_key(self) -> tuple[int, int]:
        """The position of the call in the transaction, and the worker. Calls are made in the order of the keys.

        Single operations are not merged, even if their keys are equal.
        """
        return self.place, self.worker


AnyOperation: TypeAlias = Operation[Any, Any] | SingleOperation[Any]
MadeCall: TypeAlias = tuple[CountCall | None, Sequence[Any], Sequence[Any]]
"""A call of the engine with a batch, as `ActivityWriter.count_transaction` counts it: how, items and results."""


class IoLayer:
    """Makes all writing calls of the engine, in batches on a thread of `runner`, or one on the thread of its
    caller.
    """

    def __init__(self, engine: Engine, runner: TaskRunner, activity: ActivityWriter | None = None) -> None:
        self._engine = engine
        self._runner = runner
        self._activity = activity
        if activity is not None:
            activity.attach(self, runner)
        self._is_atomic = Capability.ATOMIC_UNIT in engine.capabilities
        self._allows_callers = Capability.ANY_THREAD in engine.capabilities
        self._queue: FuncQueue[AnyOperation] = FuncQueue(self._handle, runner, batch=True, name="io")
        self._failure: tuple[int, EngineUnavailable] | None = None
        """The last call, if it has waited in vain: when it began, and its error."""
        self._turn = EngineTurn(runner, is_queue_idle=self._queue.is_idle, description=engine.description)

    def dispatch(self, operation: AnyOperation) -> None:
        """Queue an operation.

        The io thread calls its reply; if the io layer is closed, this call fails the reply.
        """
        import_guard.require_imported(CHANGES)
        operation.queued = _monotonic_ns()
        try:
            self._queue.dispatch(operation)
        except RunnerClosed:
            operation.reply.fail(closed_error(self._engine))
        else:
            # Checked after queueing, because `close` sets the flag first and withdraws queued operations
            # afterwards.
            if self._turn.is_closed:
                self._refuse(self._queue.withdraw_all())

    def close(self, seconds: float) -> None:
        """Refuse every operation from now on, including queued operations that have not begun.

        Wait up to `seconds` for the operations that the engine is carrying out.
        """
        self._turn.close(0)
        self._refuse(self._queue.withdraw_all())
        self._turn.close(seconds)

    def _refuse(self, operations: list[AnyOperation]) -> None:
        for operation in operations:
            operation.reply.fail(closed_error(self._engine))

    def call(
        self,
        call: BatchCall[Item, Result],
        items: Sequence[Item],
        *,
        worker: int = 0,
        size: int = 0,
        seconds: float | None = None,
        audit: AuditDraft | None = None,
    ) -> list[Result]:
        """Carry out a batch, on this thread if the engine is free, else queued, and return its results.

        Raises `TimeoutError` after `seconds` of real time. An operation that timed out stays queued: the engine
        may still carry it out. With `audit`, the transaction also stores audit entries.
        """
        if import_guard.is_importing:
            import_guard.require_imported(CHANGES)
        if audit is not None:
            # A number of its own in place of a worker's keeps the operation from being merged with others.
            audited = call.with_draft(audit)
            answers = self.call(audited, items, worker=audit.number, size=size, seconds=seconds)
            audit.confirm()
            return answers
        if self._allows_callers and seconds is None:  # with a timeout, the call must run on another thread
            began = _monotonic_ns()
            try:
                results = self._turn.call(call.run, self._engine, worker, items)
            except EngineUnavailable as error:
                self._note_failure(began, error)
                raise
            if not isinstance(results, MustQueue):
                if self._activity is not None:
                    self._activity.count_call(call.count, items, results, _monotonic_ns() - began)
                return results
        answer: BlockingReply[list[Result]] = self.make_reply()
        self.dispatch(Operation(call, items, answer, worker=worker, size=size))
        return answer.get(seconds)

    def run(self, call: Callable[[Engine], Result]) -> Result:
        """Queue a single call of the engine and wait for it; return its result or raise its error."""
        answer: BlockingReply[Result] = self.make_reply()
        self.dispatch(SingleOperation(call, answer))
        return answer.get()

    def start_empty_transaction(self) -> Callable[[float], object] | None:
        """Queue an operation that does nothing, so that the transaction stores the counts of activity.

        Return a function that waits for it; None if this thread must not wait, because it is inside a call of the
        engine.
        """
        try:
            answer: BlockingReply[None] = self.make_reply()
        except EngineUnavailable:
            return None
        self.dispatch(SingleOperation(_do_nothing, answer, durable=False))
        return answer.get

    def make_empty_transaction(self) -> None:
        """Make a transaction that stores only counts of activity, on this thread."""
        self._handle([SingleOperation(_do_nothing, BlockingReply(self._runner), durable=False)])

    def off_callers(self, function: Callable[[], object]) -> Callable[[], None]:
        """Return a function that calls `function`, at once or, inside of a caller's engine call, later on the io
        thread.
        """
        return OffCallers(function, self._turn, self._runner)

    def make_reply(self) -> BlockingReply[Any]:
        """Make a reply that a thread can wait for.

        Raises `EngineUnavailable` if this thread is inside a call of the engine, and would wait for itself.
        """
        self._turn.require_waiting_allowed()
        return BlockingReply(self._runner)

    async def call_async(
        self,
        call: BatchCall[Item, Result],
        items: Sequence[Item],
        *,
        size: int = 0,
        seconds: float | None = None,
        durable: bool = True,
        audit: AuditDraft | None = None,
    ) -> list[Result]:
        """Queue a batch and await its results. Raises `TimeoutError` after `seconds`, as `call` does.

        A power cut may lose the transaction if none of its operations is `durable`.
        """
        import asyncio  # noqa: PLC0415 - slow to import; the caller's event loop has imported it

        answer: AsyncReply[list[Result]] = AsyncReply(asyncio.get_running_loop())
        if audit is None:
            self.dispatch(Operation(call, items, answer, durable=durable, size=size))
        else:
            self.dispatch(Operation(call.with_draft(audit), items, answer, worker=audit.number, size=size))
        if seconds is None:
            return await answer.future
        async with asyncio.timeout(min(seconds, TIMEOUT_MAX)):
            return await answer.future

    def _handle(self, operations: list[AnyOperation]) -> None:
        with self._turn.held_by_io_thread():
            if self._turn.is_closed:
                self._refuse(operations)
            else:
                self._turn.note_batch(sum([operation.place <= CHANGE.place for operation in operations]))
                self._commit_all(operations)

    def _commit_all(self, operations: list[AnyOperation]) -> None:
        for operation in operations:
            operation.load()
        parts = [operations] if self._is_atomic else _by_call(operations)
        for part in parts:
            for batch in _bounded(part):
                left = batch if self._failure is None else self._without_late(batch, *self._failure)
                if left:
                    self._commit(left)
        if len(operations) > 1 and operations[0].place == operations[-1].place == SUBMIT.place:
            # The callers that got a reply may submit again at once. Let their threads run, so that the next
            # transaction contains these submits and the queued submits. Then transactions are fewer and larger.
            time.sleep(0)  # noqa: TID251 - some 60 microseconds, less than an fsync

    def _without_late(
        self, operations: list[AnyOperation], began: int, error: EngineUnavailable
    ) -> list[AnyOperation]:
        """Fail the operations that were queued before a call that has waited in vain, and return the others."""
        late = [operation for operation in operations if operation.queued < began]
        _fail(late, error)
        return [operation for operation in operations if operation.queued >= began]

    def _note_failure(self, began: int, error: EngineUnavailable) -> None:
        if _monotonic_ns() - began >= WAITED_NS:
            self._failure = began, error

    def _commit(self, batch: list[AnyOperation]) -> None:
        began = _monotonic_ns()
        made: list[MadeCall] = []
        try:
            answers = self._call_in_unit(batch, made)
        except EngineUnavailable as error:
            self._note_failure(began, error)
            _fail(batch, error)
        except Exception as error:  # every operation must get a reply
            if len(batch) == 1:
                batch[0].reply.fail(error)
            else:
                for operation in batch:
                    self._commit([operation])
        else:
            self._failure = None
            if self._activity is not None:  # before the replies, so that a caller finds its own jobs counted
                size = sum([len(op.items) or 1 for op in batch])
                self._activity.count_transaction(made, size, _monotonic_ns() - began)
            for operation, value in answers:
                operation.reply.resolve(value)

    def _call_in_unit(self, batch: list[AnyOperation], made: list[MadeCall]) -> list[tuple[AnyOperation, Any]]:
        """Make the engine calls of a batch in one transaction, which also stores counts of activity if they are
        due. Add the calls to `made`.
        """
        durable = any(operation.durable for operation in batch)
        if self._activity is None:
            with self._engine.unit(durable=durable):
                return self._call_engine(batch, made)
        try:
            with self._engine.unit(durable=durable):
                answers = self._call_engine(batch, made)
                self._activity.write_if_due()
        except Exception as error:
            self._activity.end_transaction(error)
            raise
        self._activity.end_transaction()
        return answers

    def _call_engine(self, batch: list[AnyOperation], made: list[MadeCall]) -> list[tuple[AnyOperation, Any]]:
        groups: dict[tuple[int, int], list[AnyOperation]] = {}
        for operation in batch:
            key = operation.merge_key
            if key in groups:
                groups[key].append(operation)
            else:
                groups[key] = [operation]
        answers: list[tuple[AnyOperation, Any]] = []
        for _, group in sorted(groups.items()):
            first = group[0]
            if isinstance(first, SingleOperation):
                answers += [(operation, operation.run(self._engine)) for operation in _single(group)]
            else:
                items = first.items if len(group) == 1 else [item for each in group for item in each.items]
                results = first.call.run(self._engine, first.worker, items)
                made.append((first.call.count, items, results))
                answers += _divided(group, results)
        return answers


def _fail(operations: Sequence[AnyOperation], error: Exception) -> None:
    for operation in operations:
        operation.reply.fail(error)


def _do_nothing(_engine: Engine) -> None:
    return None


def closed_error(engine: Engine) -> EngineUnavailable:
    """Make the error for a call that comes after `close`, or that was queued and had not begun then."""
    return EngineUnavailable(
        engine=engine.description,
        reason="the job manager is closed",
        remedy="make the call before close(), or make another JobManager or Mainspring",
    )


def _divided(group: list[AnyOperation], results: list[Any]) -> list[tuple[AnyOperation, Any]]:
    """Return each operation with its own results. `results` are those of all operations, in their order."""
    if len(group) == 1:
        return [(group[0], results)]
    answers: list[tuple[AnyOperation, Any]] = []
    start = 0
    for operation in group:
        end = start + len(operation.items)
        answers.append((operation, results[start:end]))
        start = end
    return answers


def _single(group: list[AnyOperation]) -> list[SingleOperation[Any]]:
    """Return the single operations among these operations: all of them, which mypy cannot know."""
    return [operation for operation in group if isinstance(operation, SingleOperation)]


def _by_call(operations: list[AnyOperation]) -> list[list[AnyOperation]]:
    """Group operations by call, for an engine that commits each call by itself.

    Operations that are not part of a batch stay alone.
    """
    if len(operations) == 1:
        return [operations]
    groups: dict[tuple[int, int], list[AnyOperation]] = {}
    for operation in operations:
        groups.setdefault(operation.merge_key, []).append(operation)
    return [
        part
        for _, group in sorted(groups.items())
        for part in ([group] if group[0].place < OTHER_CALLS else [[operation] for operation in group])
    ]


def _bounded(operations: list[AnyOperation]) -> Iterator[list[AnyOperation]]:
    all_items = sum([len(operation.items) for operation in operations])
    if all_items <= MAX_ITEMS and sum([operation.size for operation in operations]) <= MAX_BYTES:
        yield operations  # the usual case
        return
    batch: list[AnyOperation] = []
    items = size = 0
    for operation in operations:
        is_full = items + len(operation.items) > MAX_ITEMS or size + operation.size > MAX_BYTES
        if batch and is_full:
            yield batch
            batch, items, size = [], 0, 0
        batch.append(operation)
        items += len(operation.items)
        size += operation.size
    yield batch


class BlockingReply(Generic[T]):
    """A reply that a thread waits for with `get`."""

    __slots__ = ("_arrived", "_error", "_runners", "_value")

    def __init__(self, *runners: TaskRunner) -> None:
        self._runners = runners  # the runners that produce the reply
        self._value: T
        self._error: Exception | None = None
        self._arrived = Lock()
        self._arrived.acquire()

    def resolve(self, value: T) -> None:
        self._value = value
        self._arrived.release()

    def fail(self, error: Exception) -> None:
        self._error = error
        self._arrived.release()

    def get(self, seconds: float | None = None) -> T:
        """Wait for the reply, and return its value or raise its error; raise `TimeoutError` after `seconds`.

        While a thread of the pool that runs the io layer waits here, the pool may start another thread.
        """
        worker = current_worker()
        if worker is None and seconds is None:  # the usual case
            self._arrived.acquire()
        else:
            limit = -1 if seconds is None else min(seconds, TIMEOUT_MAX)
            with blocking_for(*self._runners):
                has_arrived = self._arrived.acquire(timeout=limit)
            if not has_arrived:
                raise TimeoutError(
                    f"the store has not answered within {seconds} s; the request stays queued, and may still take "
                    "effect"
                )
        if self._error is not None:
            raise self._error
        return self._value


class AsyncReply(Generic[T]):
    """A reply that a coroutine awaits as `future`. If the event loop has been closed, the reply is dropped."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.future: asyncio.Future[T] = loop.create_future()

    def resolve(self, value: T) -> None:
        self._tell(lambda: self.future.set_result(value))

    def fail(self, error: Exception) -> None:
        self._tell(lambda: self.future.set_exception(error))

    def _tell(self, settle: Callable[[], None]) -> None:
        def settle_unless_done() -> None:
            if not self.future.done():
                settle()

        with suppress(RuntimeError):  # the loop was closed
            self._loop.call_soon_threadsafe(settle_unless_done)


class CallbackReply(Generic[T]):
    """A reply that calls one function with the value, or another one with the error, on any thread."""

    __slots__ = ("_fail", "_resolve")

    def __init__(self, resolve: Callable[[T], object], fail: Callable[[Exception], object]) -> None:
        self._resolve = resolve
        self._fail = fail

    def resolve(self, value: T) -> None:
        self._resolve(value)

    def fail(self, error: Exception) -> None:
        self._fail(error)
