"""Counts the scheduled jobs of each queue and job type by time, for `Engine.upcoming`.

The jobs of a lane that wait only for their time are in the index for claims, in the order of their due times. If
the whole time has few of them, they are read at once; else each period is counted, up to `MAX_IN_PERIOD`. So the
time does not grow with the number of jobs. Jobs that wait behind others of their sequence or group are left out:
they do not start by the clock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import apsw

from mainspring.jobs.store_statistics import MAX_IN_PERIOD, UpcomingJobs

FEW = 2_000
_SCHEDULED = """FROM jobs INDEXED BY claimable WHERE lane = ?1 AND status = 0 AND owner IS NULL AND crashes < 2
    AND wait = 0 AND ready >= ?2 AND ready < ?3"""
ALL_LANES = "SELECT id, queue, type FROM lanes"
# ?1 lane, ?2 from this instant on, ?3 before that instant, ?4 how many
DUE_TIMES = f"SELECT ready {_SCHEDULED} ORDER BY ready LIMIT ?4"
COUNT_PERIOD = f"SELECT count(*) FROM (SELECT 1 {_SCHEDULED} LIMIT ?4)"
# ?1 from this instant on, ?2 before that instant: the jobs that workers hold until they are due
HELD_TIMES = """
SELECT lane, due FROM jobs INDEXED BY jobs_by_owner
WHERE owner IS NOT NULL AND status = 0 AND due >= ?1 AND due < ?2
"""


def count_upcoming(connection: apsw.Connection, edges: Sequence[int]) -> list[UpcomingJobs]:
    """Count the scheduled jobs in each period between two successive instants of `edges`, by queue and job type.

    In each lane (jobs of one queue, type and priority), all jobs are counted if there are fewer than `FEW`, else
    up to `MAX_IN_PERIOD` in each period. Jobs that a worker has leased before their due time are counted in
    addition, without a bound. Of the other jobs, those with at least two crashes are left out, and those that wait
    behind another job of their sequence or under the same limits (`wait` is not 0).
    """
    first, last, periods = edges[0], edges[-1], len(edges) - 1
    found: dict[int, list[int]] = {}
    lanes: list[Any] = connection.execute(ALL_LANES).fetchall()
    for lane, _, _ in lanes:
        times = [time for (time,) in connection.execute(DUE_TIMES, (lane, first, last, FEW))]
        if not times:
            continue
        counts = found[lane] = [0] * periods
        if len(times) < FEW:
            for time in times:
                counts[bisect_right(edges, time) - 1] += 1
            continue
        for period in range(periods):
            bounds = (lane, edges[period], edges[period + 1], MAX_IN_PERIOD)
            counts[period] = connection.execute(COUNT_PERIOD, bounds).get
    for lane, due in connection.execute(HELD_TIMES, (first, last)):
        found.setdefault(lane, [0] * periods)[bisect_right(edges, due) - 1] += 1
    merged: dict[tuple[str, str], list[int]] = {}
    for lane, queue, type_ in lanes:
        if lane in found:
            total = merged.setdefault((queue, type_), [0] * periods)
            for period, count in enumerate(found[lane]):
                total[period] += count
    return [UpcomingJobs(queue, type_, tuple(counts)) for (queue, type_), counts in sorted(merged.items())]
