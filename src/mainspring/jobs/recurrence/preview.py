"""The preview of a schedule: its coming occurrences, and the effect of daylight saving time on them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any
from zoneinfo import ZoneInfo

from mainspring.clock import SystemClock
from mainspring.jobs.recurrence.cron import Cron
from mainspring.jobs.recurrence.planning import first_due
from mainspring.jobs.recurrence.rules import Rule

_MOVED = "moved by a DST gap from "
SEARCH_FACTOR = 10  # the factor by which more occurrences are searched, to find those that a DST gap drops


@dataclass(frozen=True, slots=True)
class BoundedRule:
    """A rule, with the start and the end of its schedule."""

    rule: Rule
    start: int | None = None
    end: int | None = None

    def after(self, instant: int, count: int) -> list[int]:
        """Return at most `count` occurrences after an instant, between the start and the end of the schedule."""
        found: list[int] = []
        following = first_due(self.rule, self.start, self.end, instant)
        while following is not None and len(found) < count:
            found.append(following)
            following = first_due(self.rule, self.start, self.end, following)
        return found


@dataclass(frozen=True, slots=True)
class PreviewDate:
    """One line of the preview of a schedule: an occurrence, or a local time that a DST gap skips."""

    local: datetime
    note: str | None
    is_skipped: bool = False

    def fields(self) -> dict[str, Any]:
        """Return the occurrence, or the skipped time, as a dict for JSON output."""
        return {
            "local": self.local.isoformat(),
            "utc": self.local.astimezone(UTC),
            "note": self.note,
            "skipped": self.is_skipped,
        }


def first_moment(since: datetime | date | None, rule: Rule) -> datetime:
    """Return the instant at which a preview begins: `since`, or now if it is None.

    A date begins at midnight in the time zone of the rule.
    """
    if since is None:
        return SystemClock().now()
    if isinstance(since, datetime):
        return since
    zone = ZoneInfo(rule.tz) if isinstance(rule, Cron) else UTC
    return datetime(since.year, since.month, since.day, tzinfo=zone)


def next_dates(bounded: BoundedRule, after: int, count: int) -> list[PreviewDate]:
    """Return the next occurrences after an instant, at most `count`, in the order of time.

    Between them are the local times that a DST gap drops, up to the last occurrence, with `is_skipped` True.
    """
    occurring = bounded.after(after, count)
    dates = {instant: PreviewDate(*bounded.rule.local(instant)) for instant in occurring}
    rule = bounded.rule
    if isinstance(rule, Cron) and rule.dst_gap == "skip" and occurring:
        shifted = Cron(rule.expression, tz=rule.tz, dst_gap="shift", dst_fold=rule.dst_fold)
        for instant in BoundedRule(shifted, bounded.start, bounded.end).after(after, SEARCH_FACTOR * count):
            if instant > occurring[-1]:
                break
            if instant not in dates:
                local, note = shifted.local(instant)
                missing = (note or "").removeprefix(_MOVED)
                dates[instant] = PreviewDate(local, f"skipped: there is no {missing}", is_skipped=True)
    return [dates[instant] for instant in sorted(dates)]
