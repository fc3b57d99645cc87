"""Maintenance, which a worker does once a second beside running jobs.

It detects jumps of the wall clock, announces handlers that were registered late, rescues the jobs of dead workers,
detects stalls, sends the heartbeat every 15 seconds and prunes old jobs every minute. It never blocks: the io
layer calls the engine, and the answers come back later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from mainspring.clock import NANOSECONDS, Clock
from mainspring.errors import StoreReplaced
from mainspring.jobs.backlog import WaitingJobs
from mainspring.jobs.engine import Engine, Pruned, Retention, Swept
from mainspring.jobs.handlers import HandlerRegistry
from mainspring.jobs.io_layer import CallbackReply, SingleOperation
from mainspring.jobs.layers import Layers
from mainspring.jobs.periodic_reads import PeriodicReads
from mainspring.jobs.records import WorkerInfo, WorkerRecord
from mainspring.jobs.worker.failure_log import FailureLog
from mainspring.jobs.worker.slots import ExecutionKind, Occupancy
from mainspring.jobs.worker.unserved_queues import UnservedQueues
from mainspring.plurals import format_count
from mainspring.worker_health import WorkerHealth, WorkerState

if TYPE_CHECKING:
    from mainspring.jobs.worker.worker import Worker

T = TypeVar("T")

EVERY_SECONDS = 1.0
HEARTBEAT_TICKS = 15
ACTIONS = {  # what the worker could not do, and when it tries again
    "renew": ("send its heartbeat", "in 15 s"),
    "sweep": ("rescue jobs of dead workers", "in a second"),
    "prune": ("delete old jobs", "within a minute"),
    "workers": ("read which queues the other workers serve", "in 15 s"),
}
PRUNE_TICKS = 60  # once a minute, and every second while there is more to prune
MAX_PRUNES = 10  # at most this many small prunes in a row
JUMP_NS = 100_000_000  # a larger difference between the clocks counts as a jump
LONGEST_GAP_NS = 5 * NANOSECONDS  # a longer gap between two observations counts as this much for a stall
LONGEST_SILENCE_NS = 3_600 * NANOSECONDS  # the longest pause between two reports of the same stall

logger = logging.getLogger("mainspring.worker")


class Maintenance:
    """The maintenance of one worker. `tick` is called once a second."""

    def __init__(
        self,
        worker: Worker,
        layers: Layers,
        registry: HandlerRegistry,
        *,
        retention: Retention,
        health: HealthRecorder,
        stalls: StallDetector,
        queues: UnservedQueues,
        on_clock_jump: Callable[[], None],
    ) -> None:
        self._worker = worker
        self._engine = layers.engine
        self._io = layers.io
        self._control = layers.control
        self._clock = layers.clock
        self._registry = registry
        self._retention = retention
        self._health = health
        self._stalls = stalls
        self._queues = queues
        self._on_clock_jump = on_clock_jump
        self._ticks = 0
        self._clock_offset = self._measure_offset()
        self._is_sweeping = False
        self._is_more_to_prune = False
        self._next_comparison = 0
        self._unknown_types: set[str] = set()
        self._failures = {what: FailureLog() for what in ACTIONS}  # used by the threads that answer calls

    def tick(self) -> None:
        """Do the maintenance that is due: clock check and sweep each second, heartbeat and pruning less often.

        This method does not wait for the engine. No sweep begins while the engine has not answered the last one.
        """
        self._check_clock()
        self._ticks += 1
        self._worker.announce_handlers()
        number = self._worker.machine.number
        if self._ticks % HEARTBEAT_TICKS == 0:
            self._call("renew", lambda engine: engine.renew(number), lambda alive: self._renewed(number, alive))
        if not self._is_sweeping:
            self._is_sweeping = True
            self._call("sweep", lambda engine: engine.sweep(number), self._swept)
        if self._ticks % PRUNE_TICKS == 0 or self._is_more_to_prune:
            self._prune(MAX_PRUNES)

    def _call(self, what: str, call: Callable[[Engine], T], then: Callable[[T], None]) -> None:
        def answered(answer: T) -> None:
            self._failures[what].succeeded()
            then(answer)

        reply = CallbackReply(answered, lambda error: self._failed(what, error))
        self._io.dispatch(SingleOperation(call, reply, durable=False))

    def _failed(self, what: str, error: Exception) -> None:
        self._is_sweeping &= what != "sweep"
        self._control.post(self._health.failed, error)
        seconds = self._failures[what].failed(self._clock.monotonic_ns())
        if seconds is not None:
            action, again = ACTIONS[what]
            lasting = f" for {seconds:.0f} s" if seconds else ""
            number = self._worker.machine.number
            logger.error("worker %d could not %s%s and tries again %s: %s", number, action, lasting, again, error)

    # -- clock jumps: the wall clock was set, or the machine slept

    def _check_clock(self) -> None:
        offset = self._measure_offset()
        jump = offset - self._clock_offset
        if abs(jump) > JUMP_NS:
            logger.warning("the wall clock jumped by %.3f s; the worker sets its timers again", jump / NANOSECONDS)
            self._clock_offset = offset
            self._on_clock_jump()

    def _measure_offset(self) -> int:
        return self._engine.now() * 1_000 - self._clock.monotonic_ns()

    # -- heartbeat

    def _renewed(self, number: int, is_alive: bool) -> None:  # noqa: FBT001 - an answer, not an option
        if not is_alive:
            self._worker.declared_dead(number)

    # -- pruning

    def _prune(self, prunes: int) -> None:
        """Ask the engine to delete a few old jobs, and again while there are more, at most `prunes` times.

        Other operations can run between two deletions. The first deletion may overlook jobs that ended just now:
        on NATS, a busy worker should not update its projection for it.
        """
        is_periodic = prunes == MAX_PRUNES and not self._is_more_to_prune
        self._is_more_to_prune = False

        def prune(engine: Engine) -> Pruned:
            call = partial(engine.prune, self._retention)
            return PeriodicReads().measure(call) if is_periodic else call()

        self._call("prune", prune, lambda done: self._pruned(done, prunes))

    def _pruned(self, pruned: Pruned, prunes: int) -> None:
        if pruned.is_more and prunes > 1:
            self._prune(prunes - 1)
        else:
            self._is_more_to_prune = pruned.is_more

    # -- rescue and stalls

    def _swept(self, swept: Swept) -> None:
        self._is_sweeping = False
        log_rescue(swept)
        self._control.post(self._observe, swept)

    def _observe(self, swept: Swept) -> None:
        self._health.answered()
        self._stalls.observe(swept.waiting)
        self._queues.observe(swept.waiting)
        if self._queues.suspects and self._ticks >= self._next_comparison:
            self._next_comparison = self._ticks + HEARTBEAT_TICKS
            self._call(
                "workers", lambda engine: engine.workers(), lambda found: self._control.post(self._compare, found)
            )
        self._report_stalls()
        for name in {waiting.type for waiting in swept.waiting}:
            if name not in self._registry and name not in self._unknown_types:
                self._unknown_types.add(name)
                logger.warning(
                    "jobs of type %r are due, but this worker has no handler of that name; they wait for a worker "
                    "that has one: import its module with Mainspring(include=[...]), or add the name as an alias",
                    name,
                )

    def _compare(self, workers: Sequence[WorkerRecord]) -> None:
        self._queues.compare(workers, self._engine.now())
        self._report_stalls()

    def _report_stalls(self) -> None:
        texts = (self._stalls.stall, self._queues.problem)
        self._health.stall = "; ".join(text for text in texts if text is not None) or None


NAMED_JOBS = 100  # the largest number of ids in the field `jobs` of a log record


def log_rescue(swept: Swept) -> None:
    """Log which jobs of dead workers were rescued, and which became dead letters."""
    if swept.rescued:
        logger.warning(
            "rescued %s from workers that died or were removed, to run again; job ids: %s",
            format_count(len(swept.rescued), "job"),
            _some(swept.rescued),
            extra={"jobs": swept.rescued[:NAMED_JOBS]},
        )
    if swept.quarantined:
        logger.error(
            "%s moved to the dead letters, because too many workers died during an attempt, or because "
            "at_most_once allows no further attempt: %s",
            format_count(len(swept.quarantined), "job"),
            _some(swept.quarantined),
            extra={"jobs": swept.quarantined[:NAMED_JOBS]},
        )


def _some(ids: list[str]) -> str:
    return ", ".join(ids[:5]) + (", ..." if len(ids) > 5 else "")


class HealthRecorder:
    """Reports the health of a worker about once a second, from before its start until after its stop.

    The control layer calls it. If the control layer hangs, `WorkerHealth.turned_ns` grows old, and readers notice.
    """

    def __init__(self, clock: Clock, on_turn: Callable[[WorkerHealth], None]) -> None:
        self._clock = clock
        self._on_turn = on_turn
        self._answered: int | None = None
        self._error: str | None = None
        self._failing_since: int | None = None
        self.state = WorkerState.STARTING
        self.stall: str | None = None
        self.replaced: StoreReplaced | None = None
        """The error that says that the store was replaced, once a call has raised it. Any thread may read it."""
        self.latest: WorkerHealth | None = None
        """The last report; None before the first one. Any thread may read it."""

    def answered(self) -> None:
        """Record that the engine has answered a call, so that the last error is over."""
        self._answered = self._clock.monotonic_ns()
        self._error = None

    def failed(self, error: Exception) -> None:
        """Record the error of a call that the engine refused, or that did not reach the store."""
        self._error = str(error)
        if isinstance(error, StoreReplaced):
            self.replaced = error

    def report(self, jobs: int, trouble: str | None) -> None:
        """Report the health of the worker with `jobs` leased jobs; `trouble` says why it cannot fetch or settle,
        or None.

        If the store has failed before and works now, log that.
        """
        now = self._clock.monotonic_ns()
        text = self._error if trouble is None else trouble
        if text is not None and self._failing_since is None:
            self._failing_since = now
        elif text is None and self._failing_since is not None:
            seconds = (now - self._failing_since) / NANOSECONDS
            self._failing_since = None
            logger.info("the store works again, after %.0f s of errors", seconds)
        self.latest = WorkerHealth(self.state, now, self._answered, text, self.stall, jobs)
        self._on_turn(self.latest)


class HandlerAnnouncer:
    """Keeps the job types of one worker in the store up to date. Only the control layer uses it."""

    def __init__(
        self,
        info: WorkerInfo,
        registry: HandlerRegistry,
        layers: Layers,
        *,
        worker: Callable[[], int],
        on_dead: Callable[[int], None],
    ) -> None:
        self._info = info
        self._registry = registry
        self._io = layers.io
        self._control = layers.control
        self._worker = worker
        self._on_dead = on_dead
        self.is_busy = False
        """Whether the engine has not answered the last update of the job types yet."""

    def current_info(self) -> WorkerInfo:
        """Return the data with which the worker registers itself, with all handlers that are registered now.

        The caller stores the data: `update` counts these handlers as stored.
        """
        names = self._registry.local_names()
        timeouts = {name: self._registry.get(name).longest_run for name in names}
        known = {name: timeout for name, timeout in timeouts.items() if timeout is not None}
        self._info = replace(self._info, types=names, timeouts=known)
        return self._info

    def update(self) -> None:
        """Let the io layer store the worker's job types, if handlers were registered since they were stored last.

        Do nothing before the worker is enrolled, or while the engine has not answered another update.
        """
        number, before = self._worker(), self._info
        if self.is_busy or number == 0 or self._registry.local_names() == before.types:
            return
        self.is_busy = True
        info = self.current_info()
        reply: CallbackReply[bool] = CallbackReply(
            lambda is_alive: self._control.post(self._answered, number, is_alive),
            lambda error: self._control.post(self._failed, number, before, error),
        )
        self._io.dispatch(SingleOperation(lambda engine: engine.announce(number, info), reply, durable=False))

    def _answered(self, number: int, is_alive: bool) -> None:  # noqa: FBT001 - an answer
        self.is_busy = False
        if not is_alive:
            self._on_dead(number)
            return
        self.update()

    def _failed(self, number: int, before: WorkerInfo, error: Exception) -> None:
        self.is_busy = False
        if number == self._worker():  # otherwise the worker was registered again meanwhile, with all handlers
            self._info = before  # maintenance tries again within a second
            logger.warning(
                "worker %d could not store its new job types and tries again within a second: %s", number, error
            )


@dataclass(slots=True)
class _UnclaimedJobs:
    """Due jobs of one type and queue, and for how many nanoseconds no worker has claimed any of them."""

    waiting: WaitingJobs
    kind: ExecutionKind
    ns: int = 0

    @property
    def observed(self) -> int:
        """How many nanoseconds none of the jobs was claimed, until the engine last read them."""
        return self.ns - 1_000 * self.waiting.age


class StallDetector:
    """Reports a stall: jobs are due, this worker could run them, and no worker claims any of them.

    A backlog that workers process is not a stall. So the detector compares successive reports of waiting jobs: as
    long as `mark`, which names the first of these jobs, stays the same, none of them was claimed. If workers claim
    more urgent jobs for the same kind of slots, the others wait for their turn and are not stalled. Time without a
    report is not counted.

    Only the control layer uses it.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        after_ns: int,
        kind_of: Callable[[WaitingJobs], ExecutionKind | None],
        occupancy: Callable[[str], Occupancy],
        now: Callable[[], int],
    ) -> None:
        self._clock = clock
        self._after = after_ns  # 0 means never
        self._kind_of = kind_of  # returns how this worker would run such jobs; None if it does not serve them
        self._occupancy = occupancy  # returns how busy the slots for a job type are
        self._now = now  # returns the time by the engine's clock
        self._observed_ns = clock.monotonic_ns()
        self._unclaimed: dict[tuple[str, str], _UnclaimedJobs] = {}
        self._stalled: set[tuple[str, str]] = set()
        self._next_report = 0
        self._pause = 0
        self.stall: str | None = None
        """A description of the current stall; None if there is none."""

    def observe(self, waiting: Sequence[WaitingJobs]) -> None:
        """Compare the waiting jobs with those of the last call, and set `stall`.

        Log an error when a stall begins and, ever less often, while it lasts; log when it is over. With `after_ns`
        of 0, do nothing.
        """
        if self._after == 0:
            return
        now = self._clock.monotonic_ns()
        gap = min(LONGEST_GAP_NS, self._after // 2, now - self._observed_ns)
        self._observed_ns = now
        self._compare(waiting, gap)
        stalled = {name: found for name, found in self._unclaimed.items() if found.observed >= self._after}
        if stalled:
            self._report(stalled, now)
        elif self.stall is not None:
            logger.info("the stall of jobs of %s is over", ", ".join(sorted({name for name, _ in self._stalled})))
            self.stall = None
            self._stalled = set()

    def _compare(self, waiting: Sequence[WaitingJobs], gap: int) -> None:
        before, self._unclaimed = self._unclaimed, {}
        for found in waiting:
            kind = self._kind_of(found)
            if kind is None:
                continue
            last = before.get((found.type, found.queue))
            is_same = last is not None and last.waiting.mark == found.mark
            ns = last.ns + gap if last is not None and is_same else 0
            self._unclaimed[found.type, found.queue] = _UnclaimedJobs(found, kind, ns)
        claimed = [jobs for name, jobs in before.items() if self._was_claimed(name, jobs)]
        for jobs in self._unclaimed.values():
            if any(_come_before(others, jobs) for others in claimed):
                jobs.ns = 0

    def _was_claimed(self, name: tuple[str, str], before: _UnclaimedJobs) -> bool:
        after = self._unclaimed.get(name)
        return after is None or after.waiting.mark != before.waiting.mark

    def _report(self, stalled: dict[tuple[str, str], _UnclaimedJobs], now: int) -> None:
        self.stall = self._describe(list(stalled.values()))
        is_news = not self._stalled >= stalled.keys()
        self._stalled = set(stalled)
        if is_news:
            self._pause = self._after
        if is_news or now >= self._next_report:
            logger.error("%s", self.stall)
            self._next_report = now + self._pause
            self._pause = min(2 * self._pause, LONGEST_SILENCE_NS)

    def _describe(self, stalled: list[_UnclaimedJobs]) -> str:
        longest = max(stalled, key=lambda jobs: jobs.observed)
        what = "; ".join(jobs.waiting.describe(self._now()) for jobs in stalled[:5])
        count = len(stalled) - 5
        types = "1 more job type in its queue" if count == 1 else f"{count:,} more job types in their queues"
        more = f"; and jobs of {types}" if count > 0 else ""
        occupancy = self._occupancy(longest.waiting.type)
        seconds = longest.observed // NANOSECONDS
        return f"no worker has claimed any of these for {seconds} s: {what}{more}. {occupancy}; {occupancy.remedy}"


def _come_before(claimed: _UnclaimedJobs, others: _UnclaimedJobs) -> bool:
    """Return whether workers claim the jobs of `claimed` before `others`, for the same kind of slots.

    Some of `claimed` were claimed since the last observation, so `others` wait for their turn and are not stalled.
    Without ranks the order is unknown: return False.
    """
    first, second = claimed.waiting.rank, others.waiting.rank
    return claimed.kind is others.kind and first is not None and second is not None and first <= second
