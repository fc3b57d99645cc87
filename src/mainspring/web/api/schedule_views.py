"""Schedules as the API shows and accepts them, and their previews and histories."""

from __future__ import annotations

from datetime import UTC, timedelta
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from mainspring.jobs.policies import CatchUp
from mainspring.jobs.recurrence.cron import Cron
from mainspring.jobs.recurrence.preview import PreviewDate
from mainspring.jobs.recurrence.rules import Every, Rule
from mainspring.jobs.recurrence.schedule_definition import Misfire
from mainspring.jobs.recurrence.schedule_history import HistoryEntry
from mainspring.jobs.recurrence.schedule_info import ScheduleInfo
from mainspring.jobs.recurrence.schedule_records import ScheduleRecord
from mainspring.jobs.timestamps import to_datetime, to_instant
from mainspring.web.api.endpoint import Instant
from mainspring.web.api.job_views import PriorityName, to_json
from mainspring.web.problems import Refused, refuse

MAX_EXPRESSION = 1_000
MAX_ZONE = 100
MAX_JITTER = 366 * 86_400
UPCOMING = 3

Expression = Annotated[
    str, Meta(max_length=MAX_EXPRESSION, description="A cron expression.", examples=["30 2 * * MON-FRI"])
]
Zone = Annotated[str, Meta(max_length=MAX_ZONE, description="A time zone.", examples=["Europe/Berlin"])]
GapName = Literal["auto", "shift", "skip"]
FoldName = Literal["auto", "first", "second", "both"]
Gap = Annotated[
    GapName,
    Meta(description="What to do with a time that does not exist because clocks are set forward."),
]
Fold = Annotated[
    FoldName, Meta(description="Which one counts when a time occurs twice because clocks are set back.")
]
Seconds = Annotated[float, Meta(ge=0)]


class CronRule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="cron", tag_field="kind"):
    """The rule of a schedule that recurs by the wall clock of a time zone: a cron expression."""

    expression: Expression
    tz: Zone = "UTC"
    dst_gap: Gap = "auto"
    dst_fold: Fold = "auto"

    def to_rule(self) -> Cron:
        """Return the rule as a `Cron`; raise `ScheduleInvalid` if the expression or the time zone is wrong."""
        return Cron(self.expression, tz=self.tz, dst_gap=self.dst_gap, dst_fold=self.dst_fold)


class EveryRule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="every", tag_field="kind"):
    """The rule of a schedule that recurs at a fixed interval, whatever the wall clock shows."""

    interval: Annotated[Seconds, Meta(description="The interval in seconds.", examples=[300])]
    anchor: Annotated[
        Instant | None,
        Meta(
            description="An instant at which the schedule occurs; by default `start`, or the time of storing it."
        ),
    ] = None

    def to_rule(self) -> Every:
        """Return the rule as an `Every`; raise `ScheduleInvalid` or `OverflowError` if the interval is wrong."""
        anchor = None if self.anchor is None else to_instant(self.anchor, "anchor")
        return Every(timedelta(seconds=self.interval), anchor=anchor)


RuleForm: TypeAlias = CronRule | EveryRule


def to_form(rule: Rule | None) -> RuleForm | None:
    """Convert the rule of a schedule to the form that the API shows; None for None, a rule that cannot be read."""
    match rule:
        case Cron():
            return CronRule(expression=rule.expression, tz=rule.tz, dst_gap=rule.dst_gap, dst_fold=rule.dst_fold)
        case Every():
            anchor = None if rule.anchor is None else to_datetime(rule.anchor)
            return EveryRule(interval=rule.interval.total_seconds(), anchor=anchor)
        case _:
            return None


class ScheduleBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The definition of a schedule that a caller stores."""

    type: Annotated[str, Meta(description="The job type.", examples=["shop.send_report"])]
    rule: Annotated[RuleForm, Meta(description="When it recurs.")]
    arguments: Annotated[
        msgspec.Raw,
        Meta(
            description="The arguments of each job, by name.",
            extra_json_schema={"type": "object", "additionalProperties": True, "default": {}},
        ),
    ] = msgspec.field(default_factory=lambda: msgspec.Raw(b"{}"))
    misfire: Annotated[
        Literal["once", "skip", "catch-up"],
        Meta(description="Of the occurrences that were missed, run the latest, none, or the latest `catch_up`."),
    ] = "once"
    catch_up: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="How many missed occurrences run; only with `catch-up`."),
    ] = None
    overlap: Annotated[
        Literal["skip", "queue", "replace", "allow"],
        Meta(description="What to do with an occurrence while an earlier job has not ended."),
    ] = "skip"
    jitter: Annotated[
        float, Meta(ge=0, le=MAX_JITTER, description="Delay each job at random, by up to so many seconds.")
    ] = 0.0
    start: Annotated[Instant | None, Meta(description="No occurrence is before this instant.")] = None
    end: Annotated[Instant | None, Meta(description="No occurrence is after this instant.")] = None
    queue: Annotated[str | None, Meta(description="A queue, instead of that of the handler.")] = None
    priority: Annotated[PriorityName | None, Meta(description="A priority, instead of that of the handler.")] = (
        None
    )

    def to_misfire(self) -> Misfire:
        """Return the misfire policy.

        Raises `ValueError` if `misfire` is `catch-up` and `catch_up` is missing, or if `catch_up` is given with
        another `misfire`.
        """
        if (self.catch_up is None) is (self.misfire == "catch-up"):
            raise ValueError(
                f"misfire is {self.misfire!r} and catch_up is {self.catch_up!r}; give catch_up if misfire is "
                "'catch-up', and leave it out otherwise"
            )
        if self.misfire == "catch-up":
            return CatchUp(self.catch_up or 0)
        return self.misfire


class ScheduleView(Struct, frozen=True, kw_only=True):
    """A schedule as the API shows it."""

    name: str
    type: str
    queue: str
    priority: PriorityName
    rule: Annotated[RuleForm | None, Meta(description="When it recurs; null if this version cannot read it.")]
    arguments: Annotated[Any, Meta(description="The arguments of each job, by name.")]
    misfire: Literal["once", "skip", "catch-up"]
    catch_up: int | None
    overlap: Literal["skip", "queue", "replace", "allow"]
    jitter: Annotated[float, Meta(description="The longest random delay of a job, in seconds.")]
    start: Instant | None
    end: Instant | None
    next_due: Annotated[Instant | None, Meta(description="The next occurrence; null if it has ended.")]
    last_due: Annotated[Instant | None, Meta(description="The last occurrence that was handled.")]
    upcoming: Annotated[
        list[Instant], Meta(description="The next occurrences in the time zone of the rule; none while paused.")
    ]
    is_paused: bool
    is_declared: Annotated[
        bool | None,
        Meta(description="Whether the code declares it. A worker that starts then stores that definition again."),
    ]
    created: Instant


def to_schedule_view(schedule: ScheduleInfo) -> ScheduleView:
    """Convert a snapshot of a schedule to the form that the API shows."""
    misfire = schedule.misfire
    return ScheduleView(
        name=schedule.name,
        type=schedule.type,
        queue=schedule.queue,
        priority=schedule.priority.name,  # type: ignore[arg-type] # the names are those of `PriorityName`
        rule=to_form(schedule.rule),
        arguments=to_json(schedule.arguments),
        misfire="catch-up" if isinstance(misfire, CatchUp) else misfire,
        catch_up=misfire.limit if isinstance(misfire, CatchUp) else None,
        overlap=str(schedule.overlap),  # type: ignore[arg-type] # the values are those of the view
        jitter=schedule.jitter.total_seconds(),
        start=schedule.start,
        end=schedule.end,
        next_due=schedule.next_due,
        last_due=schedule.last_due,
        upcoming=schedule.upcoming(UPCOMING),
        is_paused=schedule.is_paused,
        is_declared=schedule.is_declared,
        created=schedule.created,
    )


class SchedulePageView(Struct, frozen=True, kw_only=True):
    """A page of a list of schedules."""

    schedules: list[ScheduleView]
    next: Annotated[str | None, Meta(description="`after` of the next page; null on the last one.")]


class StoredScheduleView(Struct, frozen=True, kw_only=True):
    """The answer to a request that stored a schedule."""

    name: str
    is_new: bool
    is_paused: bool
    is_declared: Annotated[
        bool | None,
        Meta(description="Whether the code declares it. A worker that starts then stores that definition again."),
    ]
    next_due: Annotated[Instant | None, Meta(description="The next occurrence; null if there is none.")]


class ChangedScheduleView(Struct, frozen=True, kw_only=True):
    """The answer to a pause, a resume or a removal of a schedule."""

    name: str
    is_changed: Annotated[bool, Meta(description="False if the schedule was in this state before.")]


class TriggeredView(Struct, frozen=True, kw_only=True):
    """The answer to a trigger of a schedule: the job that was submitted."""

    name: str
    id: Annotated[str, Meta(description="The id of the new job.")]


class DateView(Struct, frozen=True, kw_only=True):
    """A coming occurrence of a schedule, or a time that a change of clocks drops."""

    local: Annotated[Instant, Meta(description="The time in the time zone of the rule.")]
    utc: Instant
    note: Annotated[str | None, Meta(description="How a change of clocks affects it; null if none does.")]
    is_skipped: Annotated[bool, Meta(description="True if it does not occur, because clocks are set forward.")]


def to_date_view(date: PreviewDate) -> DateView:
    """Convert a date of a schedule's preview to the form that the API shows."""
    return DateView(local=date.local, utc=date.local.astimezone(UTC), note=date.note, is_skipped=date.is_skipped)


class PreviewView(Struct, frozen=True, kw_only=True):
    """The coming occurrences of a cron expression or of a stored schedule."""

    rule: RuleForm
    is_paused: Annotated[bool, Meta(description="True if the schedule is paused: the dates apply once resumed.")]
    dates: list[DateView]


class HistoryEntryView(Struct, frozen=True, kw_only=True):
    """An entry of a schedule's history: a job, or successive occurrences without a job."""

    at: Annotated[Instant, Meta(description="The occurrence, or the last of successive ones.")]
    kind: Annotated[
        str, Meta(description="occurrence or trigger for a job; skipped, coalesced or missed without a job.")
    ]
    job_id: str | None
    status: str | None
    first: Annotated[Instant, Meta(description="The first of successive occurrences.")]
    count: int
    note: Annotated[str | None, Meta(description="The error of the job, or why there is none.")]


def to_entry_view(entry: HistoryEntry) -> HistoryEntryView:
    """Convert an entry of a schedule's history to the form that the API shows."""
    return HistoryEntryView(
        at=entry.at,
        kind=entry.kind,
        job_id=entry.job_id,
        status=entry.status,
        first=entry.first,
        count=entry.count,
        note=entry.note,
    )


class HistoryView(Struct, frozen=True, kw_only=True):
    """The latest jobs of a schedule, and its occurrences without a job, the latest first."""

    name: str
    history: list[HistoryEntryView]


# -- revisions


def etag_of(record: ScheduleRecord) -> str:
    """Return the entity tag of a schedule. It changes with the definition, not with pauses and occurrences."""
    return f'"{record.created:x}-{record.revision}"'


def check_preconditions(record: ScheduleRecord | None, if_match: str | None, if_none_match: str | None) -> None:
    """Raise `Refused` if the headers If-Match or If-None-Match forbid a change of a schedule (RFC 9110).

    - `record`: the stored schedule; None if there is none
    - `if_match`, `if_none_match`: the values of the headers; None if the request has none
    """
    current = None if record is None else etag_of(record)
    if if_match is not None and (current is None or not _names(if_match, current)):
        raise _failed(
            "the schedule was changed or removed meanwhile: If-Match names another version",
            "read it again, and repeat the change",
        )
    if if_none_match is not None and current is not None and _names(if_none_match, current):
        raise _failed(
            "the schedule exists, and If-None-Match excludes it",
            "choose another name, or send If-Match with the ETag of the schedule to change it",
        )


def _names(header: str, current: str) -> bool:
    tags = [tag.strip() for tag in header.split(",")]
    return "*" in tags or current in tags


def _failed(problem: str, remedy: str) -> Refused:
    return refuse(412, "precondition-failed", f"{problem}; {remedy}")


EXAMPLE_RULE: dict[str, Any] = {
    "kind": "cron",
    "expression": "30 2 * * *",
    "tz": "Europe/Berlin",
    "dst_gap": "shift",
    "dst_fold": "first",
}
EXAMPLE_SCHEDULE: dict[str, Any] = {
    "name": "nightly-report",
    "type": "shop.send_report",
    "queue": "reports",
    "priority": "BEST_EFFORT",
    "rule": EXAMPLE_RULE,
    "arguments": {"customer": "ann"},
    "misfire": "once",
    "catch_up": None,
    "overlap": "skip",
    "jitter": 0.0,
    "start": None,
    "end": None,
    "next_due": "2026-11-18T01:30:00Z",
    "last_due": "2026-11-17T01:30:00Z",
    "upcoming": ["2026-11-18T02:30:00+01:00", "2026-11-19T02:30:00+01:00", "2026-11-20T02:30:00+01:00"],
    "is_paused": False,
    "is_declared": False,
    "created": "2026-11-01T09:00:00Z",
}
