"""Definitions of schedules: checks the arguments of `@app.cron`, `@app.every` and `put`, and makes the record.

A definition has no next occurrence. It takes only one value from the stored schedule: the anchor of an `Every`
without an anchor of its own. So the occurrences stay the same when any process stores the schedule again.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from mainspring.clock import Duration
from mainspring.jobs.ids import require_id
from mainspring.jobs.job_function import JobFunction
from mainspring.jobs.limit_registry import LimitRegistry
from mainspring.jobs.policies import CatchUp
from mainspring.jobs.recurrence.cron import Cron
from mainspring.jobs.recurrence.planning import MAX_OCCURRENCES
from mainspring.jobs.recurrence.rules import Every, encode_rule, rule_of
from mainspring.jobs.recurrence.schedule_records import Overlap, ScheduleRecord
from mainspring.jobs.submission import JobTemplate
from mainspring.jobs.timestamps import to_instant, to_microseconds

Misfire: TypeAlias = Literal["skip", "once"] | CatchUp
OverlapName: TypeAlias = Literal["skip", "queue", "replace", "allow"]
CallArguments: TypeAlias = tuple[Any, ...] | Mapping[str, Any]

# the submit options that a schedule can store
KEPT_OPTIONS = ("queue", "priority", "expires", "steps_aside", "then")


class ScheduleDefinition(Struct, frozen=True):
    """A schedule as `@app.cron`, `@app.every` or `put` defines it, without its state."""

    name: str
    job: JobFunction[..., Any]
    rule: Cron | Every
    given: dict[str, Any]
    misfire: Misfire
    overlap: Overlap
    jitter: int
    start: int | None
    end: int | None
    is_declared: bool = False
    """Whether a decorator in the code declares the schedule."""
    maker: str | None = None
    """The caller of the HTTP server that stores the schedule: see `ScheduleRecord.maker`."""

    def record(self, stored: ScheduleRecord | None, limits: LimitRegistry, now: int) -> ScheduleRecord:
        """Make the record for the store, without a next occurrence.

        `stored` is the existing record of the schedule, or None. An `Every` without an anchor gets the start of
        the schedule or `now` as its anchor; without a start, it keeps the stored anchor if its interval is the
        same.
        """
        handler = self.job.handler
        payload = handler.arguments.encode_bound(self.given)
        model = JobTemplate(handler, self.job.chosen, limits, now=0).job("", payload, self.given)
        return ScheduleRecord(
            name=self.name,
            type=model.type,
            queue=model.queue,
            priority=model.priority,
            payload=payload,
            codec=model.codec,
            rule=self._encoded_rule(stored, now),
            misfire="all" if isinstance(self.misfire, CatchUp) else self.misfire,
            catch_up=self.misfire.limit if isinstance(self.misfire, CatchUp) else 0,
            overlap=self.overlap,
            jitter=self.jitter,
            start=self.start,
            end=self.end,
            expires=model.expires,  # a duration, because the due time of the model job is 0
            limits=model.limits,
            next_due=None,
            steps_aside=model.steps_aside,
            follow_up=model.follow_up,
            is_declared=self.is_declared,
            maker=self.maker,
        )

    def _encoded_rule(self, stored: ScheduleRecord | None, now: int) -> str:
        rule = self.rule
        if not isinstance(rule, Every) or rule.anchor is not None:
            return encode_rule(rule)
        if self.start is None and stored is not None:
            before = rule_of(stored)
            if isinstance(before, Every) and before.interval == rule.interval:
                return stored.rule
        return encode_rule(Every(rule.interval, anchor=now if self.start is None else self.start))


def define_schedule(
    name: str,
    job: JobFunction[..., Any],
    rule: Cron | Every | str,
    *,
    arguments: CallArguments = (),
    misfire: Misfire = "once",
    overlap: OverlapName | Overlap = "skip",
    jitter: Duration = 0,
    start: datetime | None = None,
    end: datetime | None = None,
    is_declared: bool = False,
) -> ScheduleDefinition:
    """Check the arguments of a schedule, and return its definition.

    Raises `TypeError`, `ValueError`, `ScheduleInvalid` or `InvalidArguments` for a wrong one.
    """
    _check_job(name, job)
    bind = job.handler.arguments.bind
    given = bind((), arguments) if isinstance(arguments, Mapping) else bind(tuple(arguments), {})
    definition = ScheduleDefinition(
        name=require_id(name, "name"),
        job=job,
        rule=_to_rule(rule),
        given=given,
        misfire=_require_misfire(misfire),
        overlap=_to_overlap(overlap),
        jitter=to_microseconds(jitter, "jitter"),
        start=None if start is None else to_instant(start, "start"),
        end=None if end is None else to_instant(end, "end"),
        is_declared=is_declared,
    )
    if definition.start is not None and definition.end is not None and definition.end < definition.start:
        raise ValueError(f"schedule {name!r}: end must not be before start, got {end} and {start}")
    return definition


def _check_job(name: str, job: object) -> None:
    if not isinstance(job, JobFunction):
        raise TypeError(f"schedule {name!r}: job must be a job function, as @app.job returns it, got {job!r}")
    default = type(job.chosen)()
    chosen = [field for field in default.__struct_fields__ if field not in KEPT_OPTIONS]
    lost = [field for field in chosen if getattr(job.chosen, field) != getattr(default, field)]
    if job.handler.options.sequence_by is not None:
        lost.append("sequence_by")
    if lost:
        raise ValueError(
            f"schedule {name!r}: a schedule cannot store {' and '.join(lost)} of {job.name}; leave "
            f"{'it' if len(lost) == 1 else 'them'} out (a schedule stores {', '.join(KEPT_OPTIONS)})"
        )


def _to_rule(rule: object) -> Cron | Every:
    if isinstance(rule, str):
        return Cron(rule)
    if isinstance(rule, Cron | Every):
        return rule
    raise TypeError(f"rule must be a cron expression, a Cron or an Every, got {rule!r}")


def _require_misfire(misfire: object) -> Misfire:
    if isinstance(misfire, CatchUp):
        if misfire.limit > MAX_OCCURRENCES:
            raise ValueError(
                f"CatchUp makes up for {MAX_OCCURRENCES:,} occurrences at most, got {misfire.limit:,}"
            )
        return misfire
    if misfire in ("skip", "once"):
        return misfire
    raise ValueError(f"misfire must be 'skip', 'once' or CatchUp(limit), got {misfire!r}")


def _to_overlap(overlap: object) -> Overlap:
    try:
        return Overlap(overlap)  # type: ignore[arg-type]
    except ValueError:
        names = ", ".join(repr(str(name)) for name in Overlap)
        raise ValueError(f"overlap must be one of {names}, got {overlap!r}") from None
