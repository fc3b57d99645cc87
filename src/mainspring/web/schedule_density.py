"""Refuses schedules over HTTP that recur too often, so that one token cannot flood the store with jobs.

Each schedule has a least time between two occurrences. All schedules that one caller has stored have a largest
number, and make at most as many jobs per second as the caller may submit.

The code of an application may declare any schedule: only those that callers of the API store are limited.
"""

from __future__ import annotations

from collections.abc import Iterable

from mainspring.jobs.recurrence.rules import Rule, rule_of
from mainspring.jobs.recurrence.schedule_records import ScheduleRecord
from mainspring.jobs.timestamps import MICROSECONDS
from mainspring.security.http_limits import HttpLimits
from mainspring.web.problems import refuse

RATED = 20
"""Over how many gaps between occurrences the rate of a schedule is averaged."""
EXAMINED = 122
"""How many gaps between occurrences are examined. A cron expression has the same seconds in all of its minutes, so
that the first two minutes show the shortest gap."""


def require_sparse(rule: Rule, now: int, limits: HttpLimits) -> None:
    """Raise `Refused` if two of the next occurrences of a schedule are closer than `schedule_seconds`.

    - `rule`: the cron expression or the interval
    - `now`: the time, in microseconds
    - `limits`: the limits of the server; `schedule_seconds` is the least time between two occurrences
    """
    least = round(limits.schedule_seconds * MICROSECONDS)
    before = rule.next_after(now)
    for _ in range(EXAMINED):
        after = None if before is None else rule.next_after(before)
        if before is None or after is None:
            return
        if after - before < least:
            raise refuse(
                422,
                "schedule-too-dense",
                f"the schedule has occurrences that are {(after - before) / MICROSECONDS:g} s apart, the least "
                f"time over HTTP is {limits.schedule_seconds:g} s; let it recur less often, or declare it in the "
                "code",
            )
        before = after


def rate_of(rule: Rule, now: int) -> float:
    """Return how many occurrences per second a rule has on average, beginning with the next one."""
    first = last = rule.next_after(now)
    gaps = 0
    while gaps < RATED and last is not None and (after := rule.next_after(last)) is not None:
        last, gaps = after, gaps + 1
    return gaps / (last - first) * MICROSECONDS if gaps and first is not None and last is not None else 0.0


def require_room(
    rule: Rule, own: Iterable[ScheduleRecord], now: int, limits: HttpLimits, *, in_progress: int = 0
) -> None:
    """Raise `Refused` if a caller has as many schedules as it may have, or if they make too many jobs per second.

    - `rule`: the rule of the schedule that the caller wants to store
    - `own`: the other schedules of the caller
    - `now`: the time, in microseconds
    - `limits`: the limits of the server
    - `in_progress`: how many other schedules the caller is storing at this moment
    """
    found = list(own)
    if len(found) + in_progress >= limits.caller_schedules:
        raise refuse(
            429,
            "too-many-schedules",
            f"this caller has stored {len(found):,} schedules, the limit is {limits.caller_schedules:,}; delete "
            "some, declare them in the code, or raise caller_schedules of HttpLimits",
        )
    rules = [rule, *(each for each in map(rule_of, found) if each is not None)]
    rate = sum(rate_of(each, now) for each in rules)
    if rate > limits.submit_rate:
        raise refuse(
            429,
            "submit-rate",
            f"the schedules of this caller would make {rate:,.3g} jobs per second, and a caller may submit "
            f"{limits.submit_rate:g}; let them recur less often, or raise submit_rate of HttpLimits",
        )
