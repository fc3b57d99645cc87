"""The io layer: everything that has queued up is committed as one unit, so all who wait share one fsync.

Operations of one verb become one call of the engine. If a unit fails for a reason that lies in one of its
operations, each is tried alone, so that nobody fails for another's mistake. An engine that is unavailable is so
for all of them. For an engine without transactions each verb is a unit of its own; it looks for mistakes before it
stores anything.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from threading import TIMEOUT_MAX, Lock
from typing import Any, Generic, Protocol, TypeVar

from mainspring.errors import EngineUnavailable, RunnerClosed
from mainspring.jobs.engine import Capability, Engine
from mainspring.runners.blocking import blocking_for
from mainspring.runners.func_queue import FuncQueue
from mainspring.runners.runner import TaskRunner
from mainspring.runners.worker import current_worker

T = TypeVar("T")

MAX_ITEMS = 5_000  # in one unit, so that nobody waits long behind a bulk operation
MAX_BYTES = 16_777_216
ORDER = ("submit", "arrange", "change", "fire", "report", "settle", "start", "take")  # what frees, then what takes
MERGED = frozenset(ORDER[:-1])  # verbs whose last argument is a batch that may grow
_PLACES = {verb: place for place, verb in enumerate(ORDER)}


class Reply(Protocol):
    """Where the answer to an operation goes."""

    def resolve(self, value: Any) -> None:
        """The unit was committed."""

    def fail(self, error: Exception) -> None:
        """Nothing of this operation was kept."""


class Operation:
    """One call of the engine: for a merged verb, `items` is the batch; else it is the tail of the arguments."""

    __slots__ = ("durable", "items", "options", "reply", "size", "verb", "worker")

    def __init__(
        self,
        verb: str,
        items: Sequence[Any],
        reply: Reply,
        *,
        worker: int | None = None,
        durable: bool = True,
        options: dict[str, Any] | None = None,
        size: int = 0,
    ) -> None:
        self.verb = verb
        self.size = size  # of what the items carry, in bytes
        self.items = items
        self.reply = reply
        self.worker = worker
        self.durable = durable
        self.options = options

    def load(self) -> None:
        """Called right before the unit begins: the last chance to add to the batch."""

    @property
    def merge_key(self) -> tuple[int, int]:
        """Equal for operations that become one call."""
        return _PLACES.get(self.verb, len(ORDER)), self.worker or 0


class LateOperation(Operation):
    """An operation whose batch is collected at the last moment: what came meanwhile goes along."""

    __slots__ = ("_collect",)

    def __init__(self, verb: str, collect: Callable[[], Sequence[Any]], reply: Reply, *, worker: int) -> None:
        super().__init__(verb, (), reply, worker=worker)
        self._collect = collect

    def load(self) -> None:
        self.items = self._collect()


class IoLayer:
    """Commits operations in batches, on a thread of `runner`."""

    def __init__(self, engine: Engine, runner: TaskRunner) -> None:
        self._engine = engine
        self._runner = runner
        self._is_atomic = Capability.ATOMIC_UNIT in engine.capabilities
        self._queue: FuncQueue[Operation] = FuncQueue(self._handle, runner, batch=True, name="io")
        self._is_closed = False
        self._handling = Lock()  # held while the engine carries out a batch

    def dispatch(self, operation: Operation) -> None:
        """Queue an operation; its reply comes on the io thread."""
        try:
            self._queue.dispatch(operation)
        except RunnerClosed:
            operation.reply.fail(closed_error(self._engine))
        else:
            if self._is_closed:  # looked at afterwards: `close` sets it first and takes back what is queued then
                self._refuse(self._queue.withdraw_all())

    def close(self, seconds: float) -> None:
        """Refuse every operation from now on, those included that are queued and have not begun.

        Operations that the engine carries out now may end within `seconds`.
        """
        self._is_closed = True
        self._refuse(self._queue.withdraw_all())
        if self._handling.acquire(timeout=seconds):
            self._handling.release()

    def _refuse(self, operations: list[Operation]) -> None:
        for operation in operations:
            operation.reply.fail(closed_error(self._engine))

    def call(
        self,
        verb: str,
        items: Sequence[Any],
        *,
        worker: int | None = None,
        size: int = 0,
        seconds: float | None = None,
    ) -> Any:
        """Queue an operation and wait for its answer; `TimeoutError` after `seconds` of real time.

        An operation that timed out stays queued: the engine may still carry it out.
        """
        answer = self.make_answer()
        self.dispatch(Operation(verb, items, answer, worker=worker, size=size))
        return answer.get(seconds)

    def make_answer(self) -> Answer[Any]:
        """Make a reply for a thread that waits."""
        return Answer(self._runner)

    async def call_async(self, verb: str, items: Sequence[Any], *, size: int = 0) -> Any:
        """Queue an operation and await its answer."""
        loop = asyncio.get_running_loop()
        answer = AsyncAnswer(loop)
        self.dispatch(Operation(verb, items, answer, size=size))
        return await answer.future

    def _handle(self, operations: list[Operation]) -> None:
        with self._handling:
            if self._is_closed:
                self._refuse(operations)
            else:
                self._carry_out_all(operations)

    def _carry_out_all(self, operations: list[Operation]) -> None:
        for operation in operations:
            operation.load()
        parts = [operations] if self._is_atomic else _by_verb(operations)
        for part in parts:
            for batch in _bounded(part):
                self._commit(batch)
        if len(operations) > 1 and operations[0].verb == operations[-1].verb == "submit":
            # Whoever was answered may submit again at once. Give the interpreter to them, so that this goes along
            # with what has queued up already: units are fewer and larger, and nobody waits for the one after next.
            time.sleep(0)  # noqa: TID251 - some 60 microseconds, less than an fsync

    def _commit(self, batch: list[Operation]) -> None:
        try:
            with self._engine.unit(durable=any(operation.durable for operation in batch)):
                answers = self._carry_out(batch)
        except EngineUnavailable as error:
            for operation in batch:
                operation.reply.fail(error)
        except Exception as error:  # a reply is owed, whatever happened
            if len(batch) == 1:
                batch[0].reply.fail(error)
            else:
                for operation in batch:
                    self._commit([operation])
        else:
            for operation, value in answers:
                operation.reply.resolve(value)

    def _carry_out(self, batch: list[Operation]) -> list[tuple[Operation, Any]]:
        groups: dict[tuple[int, int], list[Operation]] = {}
        for operation in batch:
            key = operation.merge_key
            if key in groups:
                groups[key].append(operation)
            else:
                groups[key] = [operation]
        answers: list[tuple[Operation, Any]] = []
        for _, group in sorted(groups.items()):
            if group[0].verb in MERGED and len(group) > 1:
                answers += self._call_merged(group)
            else:
                answers += [(operation, self._call(operation, operation.items)) for operation in group]
        return answers

    def _call_merged(self, group: list[Operation]) -> list[tuple[Operation, Any]]:
        results = self._call(group[0], [item for operation in group for item in operation.items])
        answers: list[tuple[Operation, Any]] = []
        start = 0
        for operation in group:
            end = start + len(operation.items)
            answers.append((operation, results[start:end]))
            start = end
        return answers

    def _call(self, operation: Operation, items: Sequence[Any]) -> Any:
        verb: Callable[..., Any] = getattr(self._engine, operation.verb)
        head = () if operation.worker is None else (operation.worker,)
        tail = (items,) if operation.verb in ORDER else items
        return verb(*head, *tail, **(operation.options or {}))


def closed_error(engine: Engine) -> EngineUnavailable:
    """Make the error of a call that came after `close`."""
    return EngineUnavailable(
        engine=engine.description,
        reason="the job manager is closed",
        remedy="make the call before close(), or make another JobManager or Mainspring",
    )


def _by_verb(operations: list[Operation]) -> list[list[Operation]]:
    """Divide operations into those that become one call, for an engine that cannot commit several as one."""
    if len(operations) == 1:
        return [operations]
    groups: dict[tuple[int, int], list[Operation]] = {}
    for operation in operations:
        groups.setdefault(operation.merge_key, []).append(operation)
    return [
        part
        for _, group in sorted(groups.items())
        for part in ([group] if group[0].verb in MERGED else [[operation] for operation in group])
    ]


def _bounded(operations: list[Operation]) -> Iterator[list[Operation]]:
    all_items = sum([len(operation.items) for operation in operations])
    if all_items <= MAX_ITEMS and sum([operation.size for operation in operations]) <= MAX_BYTES:
        yield operations  # nearly always
        return
    batch: list[Operation] = []
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


class Answer(Generic[T]):
    """A reply that a thread waits for."""

    __slots__ = ("_arrived", "_error", "_runners", "_value")

    def __init__(self, *runners: TaskRunner) -> None:
        self._runners = runners  # where the answer comes from
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
        """Wait, and return the value or raise the error; `TimeoutError` after `seconds`.

        A pool that runs the io layer may start another thread while one of its workers waits here.
        """
        worker = current_worker()
        if worker is None and seconds is None:  # as nearly always
            self._arrived.acquire()
        else:
            limit = -1 if seconds is None else min(seconds, TIMEOUT_MAX)
            with blocking_for(*self._runners):
                has_arrived = self._arrived.acquire(timeout=limit)
            if not has_arrived:
                raise TimeoutError(f"the store has not answered within {seconds} s; the request stays queued")
        if self._error is not None:
            raise self._error
        return self._value


class AsyncAnswer:
    """A reply that a coroutine awaits; the loop may be gone by then, and then nobody needs it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.future: asyncio.Future[Any] = loop.create_future()

    def resolve(self, value: Any) -> None:
        self._tell(lambda: self.future.set_result(value))

    def fail(self, error: Exception) -> None:
        self._tell(lambda: self.future.set_exception(error))

    def _tell(self, settle: Callable[[], None]) -> None:
        def settle_unless_done() -> None:
            if not self.future.done():
                settle()

        with suppress(RuntimeError):  # the loop was closed
            self._loop.call_soon_threadsafe(settle_unless_done)


class Callback:
    """A reply that calls back."""

    __slots__ = ("fail", "resolve")

    def __init__(self, resolve: Callable[[Any], None], fail: Callable[[Exception], None]) -> None:
        self.resolve = resolve
        self.fail = fail
