"""Stores the activity of a process: adds what it counted in each minute to the history of the store.

If the engine commits several calls in one transaction, the io layer writes the counts inside of a transaction that
it makes anyway, about once a second. A timer, which is set at the first new count, makes a transaction after 15
seconds if there was none. On other engines the timer starts a thread that sends the counts. So a process without
work never wakes up to store counts. A process that ends without `close` stores its last counts at the exit of the
interpreter.

Invariants
- A failure to store counts neither fails nor delays a job. The counts are kept and sent again, and dropped after a
  few tries.
- A batch of counts keeps its number when it is sent again, so that the store counts it once.
- At the exit of the interpreter no thread is started, because Python 3.12 refuses that, and the main thread waits
  at most `EXIT_SECONDS`. A forked child does not store the counts of its parent.
"""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from secrets import token_hex
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

from mainspring.clock import NANOSECONDS, Clock
from mainspring.errors import MainspringError
from mainspring.jobs.activity import ActivityRecorder, CountCall
from mainspring.jobs.activity_rows import ActivityBatch, counts_of
from mainspring.jobs.engine import Capability, Engine
from mainspring.runners.task import ShutdownBehavior, TaskTraits

if TYPE_CHECKING:
    from mainspring.jobs.io_layer import IoLayer
    from mainspring.runners.runner import TaskRunner
    from mainspring.runners.task import TaskHandle

EVERY_NS = NANOSECONDS  # a transaction contains counts if the last one that did began this long ago
LATEST_SECONDS = 15.0  # counts are stored after this time, even if there is no other transaction
EXIT_SECONDS = 1.0  # how long the exit of the interpreter waits for the store to add the last counts
MAX_TRIES = 4  # how often the same counts are sent before they are dropped
MAX_COUNTS = 2_000  # in one batch, so that it fits into one message of every store

COUNT_SUBMITS = ActivityRecorder.count_submits
_AT_EXIT = TaskTraits(shutdown=ShutdownBehavior.CONTINUE)  # the shutdown of the pool does not wait for such a task

logger = logging.getLogger("mainspring.activity")


class ActivityWriter:
    """Stores the counts of an `ActivityRecorder`. Any thread may call any method, unless it says otherwise."""

    def __init__(
        self, engine: Engine, recorder: ActivityRecorder, clock: Clock, *, has_timer: bool = True
    ) -> None:
        self.recorder = recorder
        self._engine = engine
        self._clock = clock
        self._has_timer = has_timer
        self._is_atomic = Capability.ATOMIC_UNIT in engine.capabilities
        self._sender = token_hex(8)
        self._io: IoLayer | None = None
        self._runner: TaskRunner | None = None
        self._is_timer_set = False
        self._timer: TaskHandle | None = None
        self._at_exit: Callable[[], None] | None = None
        self._next_ns = 0  # when the next transaction may contain counts
        # Only the io thread uses the following attributes. If the engine is not atomic, the lock guards them.
        self._lock = Lock()
        self._number = 0
        self._batches: deque[ActivityBatch] = deque()  # not stored yet
        self._tries = 0
        self._written = 0  # how many of the batches the current transaction contains

    def attach(self, io: IoLayer, runner: TaskRunner) -> None:
        """Use this io layer, and the timer of its runner, to store counts."""
        self._io = io
        self._runner = runner

    @property
    def has_news(self) -> bool:
        """Whether there are counts that are not stored yet."""
        return bool(self._batches) or self.recorder.has_news

    # -- counting

    def count_call(
        self, count: CountCall | None, items: Sequence[Any], results: Sequence[Any], nanoseconds: int
    ) -> None:
        """Count a call of the engine that was committed alone, on the thread of its caller.

        This method raises no error.
        """
        try:
            if count is COUNT_SUBMITS and len(items) == 1 and results[0] is None:  # the usual case
                self.recorder.count_single_submit(items[0], nanoseconds)
                if not self._is_timer_set:
                    self.note_news()
            else:
                self.count_transaction([(count, items, results)], len(items), nanoseconds)
        except Exception:  # not raised, because the caller would take the error for a failed commit
            logger.exception("a call of the engine succeeded, but could not be counted for statistics")

    def count_transaction(
        self,
        calls: Sequence[tuple[CountCall | None, Sequence[Any], Sequence[Any]]],
        operations: int,
        nanoseconds: int,
    ) -> None:
        """Count a committed transaction and what its engine calls did. This method raises no error."""
        try:
            recorder = self.recorder
            recorder.count_commit(nanoseconds, operations)
            for count, items, results in calls:
                if count is not None:
                    count(recorder, items, results)
            self._count_notes()
            if not self._is_timer_set and recorder.has_news:
                self.note_news()
        except Exception:
            logger.exception("a transaction was committed, but could not be counted for statistics")

    def _count_notes(self) -> None:
        notes = self._engine.take_notes()
        if notes:
            self.recorder.count_notes(notes)

    # -- the timer

    def note_news(self) -> None:
        """Set the timer that stores the counts after 15 seconds, unless it is set already.

        The first call also makes the exit of the interpreter store counts. Does nothing before `attach`, after
        `close`, or with `has_timer=False`.
        """
        if self._is_timer_set or not self._has_timer or self._runner is None:
            return
        self._is_timer_set = True
        try:
            self._timer = self._runner.post(self._on_timer, delay=LATEST_SECONDS)
        except MainspringError:  # the runner is closed or full; the next count sets the timer again
            self._is_timer_set = False
        if self._at_exit is None:  # after `post` has started the pool, so that this runs before its shutdown
            self._at_exit = partial(_flush_at_exit, weakref.ref(self), os.getpid())
            atexit.register(self._at_exit)

    def close(self) -> None:
        """Cancel the timer, and do not set it again. Counts that are not stored yet are dropped."""
        self._has_timer = False
        if self._at_exit is not None:
            atexit.unregister(self._at_exit)
        if self._timer is not None:
            self._timer.cancel()

    def _on_timer(self) -> None:
        self._is_timer_set = False
        if self.has_news:
            self._start_flush()

    # -- in transactions of the io layer

    def write_if_due(self) -> None:
        """Write the counts as a part of the current transaction, at most once a second.

        The io thread calls this method. Do nothing on an engine that does not commit several calls in one
        transaction. An error is not raised, so that the transaction can go on.
        """
        if not self._is_atomic or self._clock.monotonic_ns() < self._next_ns or not self.has_news:
            return
        self._collect()
        self._next_ns = self._clock.monotonic_ns() + EVERY_NS
        try:
            for batch in self._batches:
                self._engine.record_activity(batch)
        except Exception as error:  # the transaction is for jobs, and must go on
            self._note_failure(error)
        else:
            self._written = len(self._batches)

    def end_transaction(self, error: Exception | None = None) -> None:
        """Drop the counts that a committed transaction contained; after an `error`, keep them to be written again.

        After four failures in a row, they are dropped, too. The io thread calls it.
        """
        if self._written:
            if error is None:
                self._note_success(self._written)
            else:
                self._note_failure(error)
            self._written = 0

    # -- at any time

    def flush(self, seconds: float) -> None:
        """Store all counts now, and wait for that up to `seconds`; inside a call of the engine, do not wait.

        This method raises no error if that fails.
        """
        wait = self._start_flush() if self.has_news else None
        if wait is not None:
            with suppress(MainspringError, TimeoutError):
                wait(seconds)

    def flush_at_exit(self) -> None:
        """Store all counts on a thread of the runner, and wait up to `EXIT_SECONDS` for that.

        This method raises no error.
        """
        if self._runner is not None and self.has_news:
            with suppress(Exception, KeyboardInterrupt):
                self._runner.submit(self._store_at_exit, traits=_AT_EXIT).result(EXIT_SECONDS)

    def _store_at_exit(self) -> None:
        if not self._is_atomic:
            self._send()
        elif self._io is not None:
            self._next_ns = 0
            self._io.make_empty_transaction()

    def _start_flush(self) -> Callable[[float], object] | None:
        """Start to store all counts; return a function that waits up to a number of seconds for that.

        Return None if this thread must not wait, or if there is no io layer.
        """
        if not self._is_atomic:
            thread = Thread(target=self._send, name="mainspring-activity", daemon=True)
            thread.start()
            return thread.join
        self._next_ns = 0
        return None if self._io is None else self._io.start_empty_transaction()

    def _send(self) -> None:
        """Send all counts to an engine that needs no transaction for them; if that fails, set the timer again."""
        with self._lock:
            self._collect()
            while self._batches:
                try:
                    self._engine.record_activity(self._batches[0])
                except Exception as error:
                    self._note_failure(error)
                    break
                self._note_success(1)
        if self._batches:
            self.note_news()

    # -- batches

    def _collect(self) -> None:
        """Make batches of the counts since the last call, for the store."""
        counts = list(counts_of(self.recorder.take_minutes()))
        for start in range(0, len(counts), MAX_COUNTS):
            self._number += 1
            part = tuple(counts[start : start + MAX_COUNTS])
            self._batches.append(ActivityBatch(self._sender, self._number, part))

    def _note_success(self, batches: int) -> None:
        self._tries = 0
        for _ in range(batches):
            self._batches.popleft()

    def _note_failure(self, error: Exception) -> None:
        self._next_ns = self._clock.monotonic_ns() + round(LATEST_SECONDS * NANOSECONDS)
        self._tries += 1
        if self._tries >= MAX_TRIES:
            self._tries = 0
            self._batches.clear()
            logger.warning("the history lacks counts of this process, which could not be stored: %s", error)


def _flush_at_exit(reference: weakref.ref[ActivityWriter], process: int) -> None:
    writer = reference()
    if writer is not None and os.getpid() == process:
        writer.flush_at_exit()
