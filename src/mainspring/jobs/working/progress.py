"""How far jobs have come: what handlers say about it goes to the store, but not more often than anybody looks.

Invariants
- The first report of a job is stored at once, further ones every half second at most, always the latest.
- One report of a job is under way at a time, so they arrive in order.
- What a handler said last is stored before the outcome of its job.
- A job that reports nothing costs nothing.
- The begin of a handler is reported while the engine writes events, before anything that the handler says.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import Lock
from typing import TypeAlias

from mainspring.clock import Clock
from mainspring.jobs.context import JobContext
from mainspring.jobs.engine import Engine
from mainspring.jobs.io_layer import REPORT, Callback, IoLayer, Operation
from mainspring.jobs.records import Lease, Progress, ProgressReport
from mainspring.timing.timer import Timer
from mainspring.timing.wheel import TimerEntry

INTERVAL_NS = 500_000_000

Key: TypeAlias = tuple[Hashable, int]


class _Course:
    """The reports of one job, from the first one until it is quiet or ends. Guarded by the lock of `Reporting`."""

    __slots__ = ("alarm", "is_due", "is_under_way", "key", "latest", "then")

    def __init__(self, key: Key, first: ProgressReport) -> None:
        self.key = key
        self.latest: ProgressReport | None = first
        self.is_due = True  # the interval since the last one is over
        self.is_under_way = False
        self.alarm: TimerEntry | None = None
        self.then: Callable[[], None] | None = None  # what waits for the last report


class ReportingContext(JobContext):
    """The context of a job in the hands of a worker: one function, `Reporting.report`, serves all of them."""

    __slots__ = ()

    def _tell(self, done: float, total: float | None, note: str | None) -> None:
        report = self._report
        if report is not None:
            report(self._lease, done, total, note)


class Reporting:
    """Stores the progress of the jobs of one worker. From any thread."""

    def __init__(
        self,
        io: IoLayer,
        timer: Timer,
        clock: Clock,
        engine: Engine,
        *,
        worker: Callable[[], int],
        announce: Callable[[], None],
    ) -> None:
        self._io = io
        self._timer = timer
        self._clock = clock
        self._engine = engine
        self._worker = worker
        self._announce = announce  # that the store has answered
        self._lock = Lock()  # guards what follows, and all courses
        self._courses: dict[Key, _Course] = {}
        self._under_way = 0
        self._is_closed = False
        self.sent = 0
        """Grows with every report that goes to the store."""

    def report(self, lease: Lease, done: float, total: float | None, note: str | None) -> None:
        """Note how far a job has come."""
        latest = ProgressReport(lease, Progress(done, total, note, self._engine.now()))
        key = (lease.ref, lease.token)
        with self._lock:
            course = self._courses.get(key)
            if course is None:
                course = self._courses[key] = _Course(key, latest)
            else:
                course.latest = latest
        self._go_on(course)

    def begin(self, lease: Lease) -> None:
        """Let the engine write that the handler of a job begins, if it writes events."""
        if self._engine.is_followed:
            with self._lock:
                self._under_way += 1
                self.sent += 1
            reply: Callback[list[bool]] = Callback(
                lambda _answers: self._end_one(), lambda _error: self._end_one()
            )
            news = [ProgressReport(lease, None)]
            self._io.dispatch(Operation(REPORT, news, reply, worker=self._worker(), durable=False))

    def finish(self, lease: Lease, then: Callable[[], None]) -> None:
        """Do something as soon as the last report of a job is stored; at once if there is none."""
        with self._lock:
            course = self._courses.get((lease.ref, lease.token))
            if course is not None:
                course.then = then
        if course is None:
            then()
        else:
            self._go_on(course)

    @property
    def is_idle(self) -> bool:
        """Whether no job has reported anything that could still be under way."""
        return not self._courses

    def is_busy(self) -> bool:
        """Answer whether the store still owes an answer."""
        return self._under_way > 0

    def close(self) -> None:
        """Set no more alarms: the timer is about to be closed."""
        with self._lock:
            self._is_closed = True

    def _go_on(self, course: _Course) -> None:
        with self._lock:
            report = self._take_next(course)
            is_over = report is None and self._let_go(course)
        if report is not None:
            reply: Callback[list[bool]] = Callback(
                lambda _answers: self._answered(course), lambda _error: self._answered(course)
            )
            self._io.dispatch(Operation(REPORT, [report], reply, worker=self._worker(), durable=False))
        elif is_over and course.then is not None:
            course.then()

    def _take_next(self, course: _Course) -> ProgressReport | None:
        """Return what is to be stored now, if anything. The lock is held."""
        report = course.latest
        if report is None or course.is_under_way or not (course.is_due or course.then is not None):
            return None
        course.latest = None
        course.is_under_way, course.is_due = True, False
        self._under_way += 1
        self.sent += 1
        if course.then is None and not self._is_closed:
            due = self._clock.monotonic_ns() + INTERVAL_NS
            course.alarm = self._timer.call_at(due, lambda: self._ring(course))
        return report

    def _let_go(self, course: _Course) -> bool:
        """Forget a course that is quiet or at its end; False if it is neither, or forgotten. The lock is held."""
        if course.is_under_way or course.latest is not None or not (course.is_due or course.then is not None):
            return False
        if self._courses.get(course.key) is not course:
            return False
        del self._courses[course.key]
        if course.alarm is not None:
            self._timer.cancel(course.alarm)
        return True

    def _ring(self, course: _Course) -> None:
        with self._lock:
            course.is_due = True
        self._go_on(course)

    def _answered(self, course: _Course) -> None:
        with self._lock:
            course.is_under_way = False
        self._go_on(course)
        self._end_one()  # last: a thread that waits for rest must see what follows from the answer

    def _end_one(self) -> None:
        with self._lock:
            self._under_way -= 1
        self._announce()
