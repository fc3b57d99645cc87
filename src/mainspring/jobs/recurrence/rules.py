"""Rules of schedules. A rule computes the next and the last occurrence, and counts occurrences.

`Every` is in this module, `Cron` in `cron.py`. Rules are immutable values that can be compared. They read no
clock. Instants are microseconds since 1970 (UTC). A store keeps the data of `describe()` as JSON, and
`decode_rule` makes an equal rule from this text. Equal rules have equal texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from mainspring.clock import Duration, to_nanoseconds
from mainspring.errors import MainspringError, ScheduleInvalid
from mainspring.jobs.recurrence.cron import Cron
from mainspring.jobs.recurrence.schedule_records import ScheduleRecord
from mainspring.jobs.timestamps import LAST_INSTANT, to_datetime, to_microseconds

_ONE = timedelta(microseconds=1)
_LONGEST = timedelta.max // _ONE

CACHED_RULES = 20_000
_decode_description = msgspec.json.Decoder(dict[str, Any]).decode

UNREADABLE = (MainspringError, msgspec.MsgspecError, TypeError, ValueError, LookupError)
"""The exceptions that `decode_rule` raises for a rule of another version that this version cannot read."""


class Rule(Protocol):
    """The instants at which a schedule recurs. A search takes a bounded number of steps, however long the span."""

    def next_after(self, instant: int) -> int | None:
        """Return the first occurrence strictly after `instant`; None if there is none."""

    def last_until(self, instant: int, after: int) -> int | None:
        """Return the latest occurrence in (after, instant]; None if there is none."""

    def count_between(self, after: int, until: int, limit: int) -> int:
        """Count the occurrences in (after, until], but stop at `limit`."""

    def local(self, instant: int) -> tuple[datetime, str | None]:
        """Return an occurrence in the time zone of the rule, and a text for users if a clock change affects it."""

    def describe(self) -> dict[str, object]:
        """Return the rule as plain data, from which `rule_from` makes an equal rule."""


@dataclass(frozen=True, slots=True, init=False)
class Every:
    """Recur at a fixed interval: at `anchor` and every whole number of intervals before and after it.

    Without an anchor, the occurrences are aligned to 1970-01-01 00:00 UTC. A schedule gets an anchor when it is
    first stored: its start, or the time at which it is stored. So all workers agree. Changes of wall clocks have
    no effect: `Every(timedelta(days=1))` means every 24 hours.
    """

    interval: timedelta
    anchor: int | None = field(kw_only=True)

    def __init__(self, interval: Duration, *, anchor: int | None = None) -> None:
        object.__setattr__(self, "interval", _to_interval(interval))
        if isinstance(anchor, bool) or not isinstance(anchor, int | None):
            raise ScheduleInvalid(
                rule=f"every {self.interval}",
                problem=f"anchor is {anchor!r}",
                remedy="give microseconds since 1970 (UTC) as an int, or None",
            )
        object.__setattr__(self, "anchor", anchor)

    def next_after(self, instant: int) -> int | None:
        found = self._floor(instant) + self.interval // _ONE
        return found if found <= LAST_INSTANT else None

    def last_until(self, instant: int, after: int) -> int | None:
        found = self._floor(min(instant, LAST_INSTANT))
        return found if found > after else None

    def count_between(self, after: int, until: int, limit: int) -> int:
        between = self._floor(min(until, LAST_INSTANT)) - self._floor(after)
        return max(0, min(limit, between // (self.interval // _ONE)))

    def local(self, instant: int) -> tuple[datetime, str | None]:
        return to_datetime(instant), None

    def describe(self) -> dict[str, object]:
        return {"kind": "every", "interval": self.interval // _ONE, "anchor": self.anchor}

    def _floor(self, instant: int) -> int:
        """Return the latest occurrence that is not after `instant`."""
        return instant - (instant - (self.anchor or 0)) % (self.interval // _ONE)


class Upcoming(Struct, frozen=True):
    """An upcoming occurrence of a rule, for display."""

    instant: int
    local: datetime
    """The same instant in the time zone of the rule."""
    note: str | None
    """How a clock change affects the occurrence; None if no clock change affects it."""


def upcoming(rule: Rule, after: int, count: int) -> list[Upcoming]:
    """Return at most `count` occurrences of a rule after an instant, for display."""
    found: list[Upcoming] = []
    instant = rule.next_after(after)
    while instant is not None and len(found) < count:
        found.append(Upcoming(instant, *rule.local(instant)))
        instant = rule.next_after(instant)
    return found


def rule_from(description: Mapping[str, Any]) -> Rule:
    """Make a rule from the data of `describe()`; raise `ScheduleInvalid` if they describe no rule."""
    match description:
        case {"kind": "cron", "expression": expression, "tz": tz, "dst_gap": dst_gap, "dst_fold": dst_fold}:
            return Cron(expression, tz=tz, dst_gap=dst_gap, dst_fold=dst_fold)
        case {"kind": "every", "interval": int(interval), "anchor": anchor} if interval <= _LONGEST:
            return Every(_ONE * interval, anchor=anchor)
        case _:
            raise ScheduleInvalid(
                rule=f"the rule described by {description!r}",
                problem="it is neither a complete cron rule nor a complete every rule",
                remedy="pass the data that describe() of a rule returned; if a newer version of Mainspring has "
                "stored this rule, update Mainspring",
            )


def encode_rule(rule: Rule) -> str:
    """Encode a rule as the text that the store keeps."""
    return msgspec.json.encode(rule.describe(), order="sorted").decode()


@lru_cache(CACHED_RULES)
def decode_rule(text: str) -> Rule:
    """Decode a stored rule.

    Raises one of the exceptions in `UNREADABLE` if a newer version of Mainspring has stored a rule that this one
    cannot read.
    """
    return rule_from(_decode_description(text))


def rule_of(record: ScheduleRecord) -> Rule | None:
    """Return the rule of a stored schedule; None if this version cannot read the rule."""
    try:
        return decode_rule(record.rule)
    except UNREADABLE:
        return None


def _to_interval(interval: Duration) -> timedelta:
    try:
        nanoseconds = to_nanoseconds(interval, "interval")
        if nanoseconds >= 1_000:
            return _ONE * to_microseconds(interval, "interval")
        problem = f"the interval is {interval!r}, less than a microsecond"
    except (TypeError, ValueError, OverflowError) as error:
        problem = str(error)
    raise ScheduleInvalid(
        rule=f"every {interval!r}",
        problem=problem,
        remedy="give a timedelta or seconds, such as timedelta(minutes=5) or 300",
    )
