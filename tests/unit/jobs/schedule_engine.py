"""An engine in memory that records the calls for schedules, on a manual clock, and an application on it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, cast

from msgspec.structs import replace

from mainspring import ArgumentsTooLarge, EngineUnavailable, JobFunction
from mainspring.engines.sqlite.memory import MemoryEngine
from mainspring.jobs.audit_drafts import AuditDraft
from mainspring.jobs.commands import CancelJob, PutSchedule
from mainspring.jobs.engine import Engine
from mainspring.jobs.handle import ManagerProvider
from mainspring.jobs.handler_options import HandlerOptions
from mainspring.jobs.handlers import Handler, HandlerRegistry
from mainspring.jobs.info import JobInfo, to_info
from mainspring.jobs.io_layer import ARRANGE, FIRE, IoLayer
from mainspring.jobs.limit_registry import LimitRegistry
from mainspring.jobs.manager import JobManager
from mainspring.jobs.records import JobRecord, NewJob
from mainspring.jobs.recurrence.rules import Every, Rule, encode_rule
from mainspring.jobs.recurrence.schedule_records import (
    Fired,
    Firing,
    Overlap,
    ScheduleRecord,
)
from mainspring.jobs.redaction import Redactions
from mainspring.jobs.serializers import BUILT_IN, JsonSerializer
from mainspring.testing import ManualClock

MAX_PAYLOAD = 1_000


class ScheduleEngine(MemoryEngine):
    """An engine in memory that counts the calls for schedules. Its jobs end as soon as they are stored."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self.clock = clock
        self.jobs: list[NewJob] = []
        self.stored_at: list[int] = []
        self.calls: Counter[str] = Counter()
        self.fired_together: list[int] = []  # the number of firings of each call
        self.errors: defaultdict[str, int] = defaultdict(int)
        self.before_fire: Callable[[], None] = lambda: None
        self.before_arrange: Callable[[], None] = lambda: None
        self.open(lambda: None)

    def _called(self, verb: str) -> None:
        self.calls[verb] += 1
        if self.errors[verb]:
            self.errors[verb] -= 1
            raise EngineUnavailable(engine="schedule store", reason=f"{verb} fails", remedy="try again")

    def schedules(self, **query: Any) -> list[ScheduleRecord]:
        self._called("schedules")
        return super().schedules(**query)

    def arrange(self, arrangements: Sequence[Any], *, audit: AuditDraft | None = None) -> list[bool]:
        hook, self.before_arrange = self.before_arrange, lambda: None
        hook()
        self._called("arrange")
        return super().arrange(arrangements, audit=audit)

    def fire(self, firings: Sequence[Firing], *, audit: AuditDraft | None = None) -> list[Fired]:
        self.before_fire()
        self._called("fire")
        self.fired_together.append(len(firings))
        answers = super().fire(firings, audit=audit)
        stored = {job_id for answer in answers for job_id in answer.submitted}
        new = [job for firing in firings for job in firing.jobs if job.id in stored]
        self.jobs += new
        self.stored_at += [self.now()] * len(new)
        self.change([CancelJob(job.id) for job in new])
        return answers

    # -- for tests

    def put(self, name: str, rule: Rule | str, **changes: Any) -> ScheduleRecord:
        """Store a schedule, and replace an existing one."""
        before = super().schedules(names=[name])
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
        put = PutSchedule(replace(model, **changes), before[0].revision if before else None)
        assert super().arrange([put]) == [True]
        return super().schedules(names=[name])[0]

    def keep_job(self, schedule: str, job_id: str) -> None:
        """Store a job of an occurrence that does not end."""
        job = NewJob(job_id, "shop.report", "default", 1, 0, b"{}", "json", schedule=schedule, occurrence=0)
        assert self.submit([job]) == [None]

    @property
    def next_firing(self) -> int | None:
        """The earliest occurrence of all schedules, as a fetch returns it."""
        due = [r.next_due for r in super().schedules() if r.next_due is not None and not r.is_paused]
        return min(due, default=None)

    def due_times(self, name: str | None = None) -> list[datetime]:
        """Return the due times of the jobs, in the order in which they were stored."""
        instants = [job.due for job in self.jobs if name in (None, job.schedule)]
        return [datetime.fromtimestamp(instant / 1e6, UTC) for instant in instants]


class _FakeManager:
    """The part of a job manager that schedules use."""

    def __init__(self, engine: Engine, io: IoLayer | None) -> None:
        self.signer = None
        self.engine = engine
        self.registry = HandlerRegistry()
        self.arrange = engine.arrange if io is None else partial(io.call, ARRANGE)
        self.fire = engine.fire if io is None else partial(io.call, FIRE)
        self.submission = self
        self.serializers = BUILT_IN
        self._ids = 0

    def trigger(self, firing: Firing, _record: ScheduleRecord) -> Fired:
        (fired,) = self.fire([firing])
        return fired

    def new_id(self) -> str:
        self._ids += 1
        return f"job-{self._ids}"

    def store_declarations(self) -> None:
        """Store nothing: the handlers redact no parameters."""

    def redactions(self) -> Redactions:
        return Redactions()

    def infos(self, records: Sequence[JobRecord]) -> list[JobInfo]:
        return [to_info(record) for record in records]

    def check_size(self, handler: str, payload: bytes) -> None:
        if len(payload) > MAX_PAYLOAD:
            raise ArgumentsTooLarge(handler=handler, size=len(payload), limit=MAX_PAYLOAD)


class FakeApp:
    """The part of an application that schedules use."""

    def __init__(self, engine: Engine, io: IoLayer | None = None) -> None:
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
