"""Finds the fullest slot of time among the jobs that become due next, with a bounded number of index entries read.

A slot is a span of `SLOT_MICROSECONDS`. A worker gets all jobs of a slot within a fraction of a second, so that
most of them start late if there are thousands.

The jobs of a lane are in the index for claims, in the order of their due times. The search skips `STEP` jobs at a
time, and counts the slot that it has reached. When fewer jobs are left, it counts all of their slots. So it misses
no slot with `STEP` or more jobs, however they are distributed, and reads each entry at most twice. Jobs in
sequences and under limits are left out: they do not start together.
"""

from __future__ import annotations

from typing import Any

import apsw

from mainspring.jobs.store_statistics import HOT_JOBS, MAX_COUNTED, SLOT_MICROSECONDS, JobsInSlot

STEP = 500
_SCHEDULED = """FROM jobs INDEXED BY claimable
    WHERE lane = ?1 AND status = 0 AND owner IS NULL AND crashes < 2 AND wait = 0 AND ready > ?2"""
LANES_WITH_JOBS = f"""
SELECT id, queue, type FROM lanes WHERE exact = 0
AND EXISTS (SELECT 1 {_SCHEDULED.replace("lane = ?1", "lane = lanes.id").replace("?2", "?1")})
"""
# ?1 lane, ?2 after this instant, ?3 how many jobs to skip
NEXT_AFTER_SKIP = f"SELECT ready {_SCHEDULED} ORDER BY ready LIMIT 1 OFFSET ?3"
# ?1 lane, ?2 after this instant, ?3 until then, ?4 the largest count
COUNT_SLOT = f"SELECT count(*) FROM (SELECT 1 {_SCHEDULED} AND ready <= ?3 LIMIT ?4)"
# ?1 lane, ?2 after this instant, ?3 the width of a slot: the slots of all further jobs, and how many each has
REST = f"SELECT ready / ?3 AS slot, count(*) {_SCHEDULED} GROUP BY slot ORDER BY slot"
AT_ONCE = f"""
SELECT max(jobs) FROM (
    SELECT count(*) AS jobs FROM (SELECT ready {_SCHEDULED} AND ready <= ?3 ORDER BY ready LIMIT ?4)
    GROUP BY ready)
"""


class _Search:
    """The search for the slot of time in which most jobs of one lane (a queue, job type and priority) are due."""

    def __init__(self, connection: apsw.Connection, lane: int, now: int, most: int) -> None:
        self._connection = connection
        self._lane = lane
        self._now = now
        self._most = most
        self._fullest = (now, now)  # after the first of these instants, up to the second
        self.count = 0  # of jobs in the fullest slot
        self.examined = 0  # at least so many jobs, up to the end of the last slot that was counted
        self.end = now

    def run(self, lookahead: int) -> None:
        """Examine about `lookahead` of the next scheduled jobs of one queue, type and priority; remember the slot
        of time in which most are due.
        """
        skip = 0
        while self.examined < lookahead:
            reached = self._read(NEXT_AFTER_SKIP, self.end, skip)
            if reached is None:
                self._count_rest()
                return
            begin = max(self.end, reached - reached % SLOT_MICROSECONDS - 1)  # after this instant
            end = reached - reached % SLOT_MICROSECONDS + SLOT_MICROSECONDS - 1
            count = self._read(COUNT_SLOT, begin, end, self._most)
            if count > self.count:
                self._fullest, self.count = (begin, end), count
            self.examined += max(skip + 1, count)  # some of those that were skipped may be in this slot
            self.end = end
            skip = STEP - 1

    def _count_rest(self) -> None:
        """Count the remaining jobs of this queue, type and priority, fewer than `STEP`, in each slot of time."""
        slots: list[Any] = self._connection.execute(REST, (self._lane, self.end, SLOT_MICROSECONDS)).fetchall()
        for slot, count in slots:
            end = (slot + 1) * SLOT_MICROSECONDS - 1
            if count > self.count:
                self._fullest, self.count = (max(self.end, end - SLOT_MICROSECONDS), end), count
            self.examined += count
        if slots:
            self.end = (slots[-1][0] + 1) * SLOT_MICROSECONDS - 1

    @property
    def rank(self) -> tuple[int, int]:
        """The sort key of the slot of time in which most jobs of this lane are due: its number of jobs, then, for
        equal numbers, the earlier slot.
        """
        return self.count, -self._fullest[0]

    def result(self, queue: str, type_: str, most: int) -> JobsInSlot:
        """Return the fullest slot, with its jobs counted up to `most`."""
        count = self.count if self.count < self._most else self._read(COUNT_SLOT, *self._fullest, most)
        at_once = self._read(AT_ONCE, *self._fullest, most)
        return JobsInSlot(queue, type_, self._fullest[0] + 1, count, at_once, self._average_of_others())

    def _average_of_others(self) -> float:
        slots = (self.end - self._now) // SLOT_MICROSECONDS
        return (self.examined - self.count) / max(1, slots)

    def _read(self, sql: str, *bindings: int) -> Any:
        return self._connection.execute(sql, (self._lane, *bindings)).get


def find_fullest_slot(
    connection: apsw.Connection, now: int, *, lookahead: int, most: int = MAX_COUNTED
) -> JobsInSlot | None:
    """Return the slot of time with the largest number of scheduled jobs of one lane; None if there are none.

    A lane has the jobs of one queue, type and priority.

    About the next `lookahead` jobs are examined, an equal share of them in each lane. Jobs in sequences and under
    limits are left out. Counts stop at `most`. While slots are compared, they stop at the share of a lane or at
    `HOT_JOBS`, whichever is larger: of the slots that reach this number, the earliest is returned.
    """
    lanes: list[Any] = connection.execute(LANES_WITH_JOBS, (now,)).fetchall()
    fullest: tuple[_Search, str, str] | None = None
    share = max(STEP, lookahead // max(1, len(lanes)))
    for lane, queue, type_ in lanes:
        search = _Search(connection, lane, now, min(most, max(HOT_JOBS, share)))
        search.run(share)
        if fullest is None or search.rank > fullest[0].rank:
            fullest = (search, queue, type_)
    return None if fullest is None else fullest[0].result(*fullest[1:], most)
