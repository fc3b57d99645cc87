"""Refuses schedules over HTTP that recur too often, so that one token cannot flood the store with jobs.

The code of an application may declare any schedule: only those that callers of the API store are limited.
"""

from __future__ import annotations

from mainspring.jobs.recurrence.rules import Rule
from mainspring.jobs.timestamps import MICROSECONDS
from mainspring.security.http_limits import HttpLimits
from mainspring.web.problems import refuse

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
