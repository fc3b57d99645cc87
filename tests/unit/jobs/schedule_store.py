"""A fake store that keeps only schedules, on a manual clock, and an application on it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from threading import RLock
from typing import Any, cast

from msgspec.structs import replace

from mainspring import ArgumentsTooLarge, EngineUnavailable, JobFunction
from mainspring.jobs.commands import PauseSchedule, PutSchedule, RemoveSchedule
from mainspring.jobs.engine import Engine
from mainspring.jobs.handle import ManagerProvider
from mainspring.jobs.handler_options import HandlerOptions
from mainspring.jobs.handlers import Handler
from mainspring.jobs.io_layer import ARRANGE, FIRE, IoLayer
from mainspring.jobs.limit_registry import LimitRegistry
from mainspring.jobs.manager import JobManager
from mainspring.jobs.records import NewJob
from mainspring.jobs.recurrence.rules import Every, Rule, encode_rule
from mainspring.jobs.recurrence.schedule_records import (
    Fired,
    Firing,
    Occurrence,
    OccurrenceKind,
    Overlap,
    ScheduleRecord,
)
from mainspring.jobs.serializers import JsonSerializer
from mainspring.jobs.timestamps import to_instant
from mainspring.testing import ManualClock

MAX_PAYLOAD = 1_000


class FakeScheduleStore:
    """Keeps schedules as an engine does. Jobs count as running until a test ends them."""

    start_lead = 10_000

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.jobs: list[NewJob] = []
        self.stored_at: list[int] = []
        self.alive: dict[str, str] = {}
        self.calls: Counter[str] = Counter()
        self.fired_together: list[int] = []  # the number of firings of each call
        self.errors: defaultdict[str, int] = defaultdict(int)
        self.before_fire: Callable[[], None] = lambda: None
        self.before_arrange: Callable[[], None] = lambda: None
        self._lock = RLock()
        self._records: dict[str, ScheduleRecord] = {}
        self._history: defaultdict[str, list[Occurrence]] = defaultdict(list)

    def now(self) -> int:
        return to_instant(self.clock.now(), "now")

    def _called(self, verb: str) -> None:
        self.calls[verb] += 1
        if self.errors[verb]:
            self.errors[verb] -= 1
            raise EngineUnavailable(engine="schedule store", reason=f"{verb} fails", remedy="try again")

    def schedules(
        self, *, names: Sequence[str] | None = None, due_until: int | None = None, limit: int | None = None
    ) -> list[ScheduleRecord]:
        with self._lock:
            self._called("schedules")
            found = [self._records[name] for name in sorted(self._records) if names is None or name in names]
        if due_until is None:
            return found
        due = [r for r in found if not r.is_paused and r.next_due is not None and r.next_due <= due_until]
        return sorted(due, key=lambda record: (record.next_due, record.name))[:limit]

    def occurrences(self, schedule: str, limit: int) -> list[Occurrence]:
        return self._history[schedule][::-1][:limit]

    def arrange(self, arrangements: Sequence[Any]) -> list[bool]:
        hook, self.before_arrange = self.before_arrange, lambda: None
        hook()
        with self._lock:
            self._called("arrange")
            return [self._arrange(arrangement) for arrangement in arrangements]

    def _arrange(self, arrangement: Any) -> bool:
        match arrangement:
            case PutSchedule(record=record, expected=expected):
                before = self._records.get(record.name)
                if (None if before is None else before.revision) != expected:
                    return False
                kept: dict[str, Any] = {"created": self.now(), "revision": 1}
                if before is not None:
                    kept = {"created": before.created, "revision": before.revision + 1}
                    kept |= {"is_paused": before.is_paused, "last_due": before.last_due}
                self._records[record.name] = replace(record, **kept)
            case PauseSchedule(name=name, is_paused=is_paused, next_due=next_due):
                before = self._records.get(name)
                if before is None or before.is_paused == is_paused:
                    return False
                due = before.next_due if is_paused else next_due
                self._records[name] = replace(before, is_paused=is_paused, next_due=due)
            case RemoveSchedule(name=name):
                return self._records.pop(name, None) is not None
            case _:
                raise TypeError(arrangement)
        return True

    def fire(self, firings: Sequence[Firing]) -> list[Fired]:
        self.before_fire()
        with self._lock:
            self._called("fire")
            self.fired_together.append(len(firings))
            return [self._fire(firing) for firing in firings]

    def _fire(self, firing: Firing) -> Fired:
        stored = self._records.get(firing.schedule)
        if stored is None or stored.is_paused:
            return Fired(False)
        if (stored.revision, stored.next_due) != (firing.revision, firing.expected):
            return Fired(False)
        self._records[firing.schedule] = replace(stored, next_due=firing.next_due, last_due=firing.last_due)
        history = self._history[firing.schedule]
        history += firing.records
        busy = self.alive.get(firing.schedule)
        if firing.overlap is Overlap.SKIP and busy is not None:
            history += [
                Occurrence(job.occurrence or 0, job.occurrence or 0, 1, OccurrenceKind.SKIPPED, busy, self.now())
                for job in firing.jobs
            ]
            return Fired(True, (), busy)
        known = {(job.schedule, job.occurrence) for job in self.jobs}
        new = [job for job in firing.jobs if (job.schedule, job.occurrence) not in known]
        self.jobs += new
        self.stored_at += [self.now()] * len(new)
        return Fired(True, tuple(job.id for job in new))

    # -- for tests

    def put(self, name: str, rule: Rule | str, **changes: Any) -> ScheduleRecord:
        """Store a schedule, and replace an existing one."""
        before = self._records.get(name)
        model = ScheduleRecord(
            name=name,
            type="shop.report",
            queue="default",
            priority=1,
            payload=b"{}",
            codec="json",
            rule=rule if isinstance(rule, str) else encode_rule(rule),
            misfire="once",
            catch_up=0,
            overlap=Overlap.ALLOW,
            jitter=0,
            start=None,
            end=None,
            expires=None,
            limits=(),
            next_due=None if isinstance(rule, str) else rule.next_after(self.now()),
        )
        put = PutSchedule(replace(model, **changes), None if before is None else before.revision)
        assert self.arrange([put]) == [True]
        return self._records[name]

    @property
    def next_firing(self) -> int | None:
        """The earliest occurrence of all schedules, as a fetch returns it."""
        due = [r.next_due for r in self._records.values() if r.next_due is not None and not r.is_paused]
        return min(due, default=None)

    def due_times(self, name: str | None = None) -> list[datetime]:
        """Return the due times of the jobs, in the order in which they were stored."""
        instants = [job.due for job in self.jobs if name in (None, job.schedule)]
        return [datetime.fromtimestamp(instant / 1e6, UTC) for instant in instants]


class _FakeManager:
    """The part of a job manager that schedules use."""

    def __init__(self, engine: Engine | FakeScheduleStore, io: IoLayer | None) -> None:
        self.engine = engine
        self.arrange = engine.arrange if io is None else partial(io.call, ARRANGE)
        self.fire = engine.fire if io is None else partial(io.call, FIRE)
        self.submission = self
        self._ids = 0

    def new_id(self) -> str:
        self._ids += 1
        return f"job-{self._ids}"

    def check_size(self, handler: str, payload: bytes) -> None:
        if len(payload) > MAX_PAYLOAD:
            raise ArgumentsTooLarge(handler=handler, size=len(payload), limit=MAX_PAYLOAD)


class FakeApp:
    """The part of an application that schedules use."""

    def __init__(self, engine: Engine | FakeScheduleStore, io: IoLayer | None = None) -> None:
        self.limits = LimitRegistry()
        self._manager = cast(JobManager, _FakeManager(engine, io))

    def manager(self) -> JobManager:
        return self._manager

    def job(
        self, function: Callable[..., Any], *, name: str = "shop.report", **options: Any
    ) -> JobFunction[..., Any]:
        """Make a job function, as `@app.job` does."""
        handler = Handler(name, function, HandlerOptions(**options), JsonSerializer())
        return JobFunction(handler, function, cast(ManagerProvider, self))


def every(**interval: float) -> Every:
    """An interval, anchored at 1970."""
    return Every(timedelta(**interval), anchor=0)
