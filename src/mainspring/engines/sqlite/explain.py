"""Explains to operators why a job waits, and finds for workers the due jobs that could start.

`find_waiting` reads the first jobs of each lane: a few look-ups, however many jobs there are. Under limits, the
head of a group can be claimed until a worker with room has tried it. So this module evaluates the limits, without
counting a start. It reads a bounded number of heads, because the transaction locks the file meanwhile. Suspects
do not count as waiting while one of them runs: a worker takes one suspect at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import apsw
import msgspec

from mainspring.engines.sqlite.codec import strings, to_json
from mainspring.engines.sqlite.reading import find
from mainspring.engines.sqlite.store import Store
from mainspring.engines.sqlite.waiting_statements import HOLDERS_OF, LIMITS, STATES
from mainspring.jobs.backlog import MAX_COUNTED, LaneHead, WaitingJobs, merge_lanes
from mainspring.jobs.engine import Situation
from mainspring.jobs.limits import Admission, BucketState, Limit, Refusal
from mainspring.jobs.records import JobRecord, Query
from mainspring.jobs.status import JobStatus

BLOCKING_JOB = """
SELECT id FROM jobs WHERE sequence = ?1 AND sequence IS NOT NULL AND status < 2 AND id <> ?2
    AND (status = 1 OR (turn, seq) < (SELECT turn, seq FROM jobs WHERE id = ?2))
ORDER BY status DESC, turn, seq LIMIT 1
"""
UNIQUE_KEY_HOLDER = (
    "SELECT id FROM jobs WHERE unique_key = ?1 AND status IN (0, 1) AND id <> ?2 ORDER BY seq DESC LIMIT 1"
)
IS_PAUSED = "SELECT EXISTS (SELECT 1 FROM paused_queues WHERE name = ?1)"

_limits = msgspec.json.Decoder(list[tuple[str, int, int | None, list[str]]]).decode
_states = msgspec.json.Decoder(list[tuple[str, int, int]]).decode


def situation_of(connection: apsw.Connection, job_id: str, now: int) -> Situation | None:
    """Return a job with the facts that keep it from starting, if there are any; None if there is no such job."""

    def read(sql: str, *bindings: Any) -> Any:
        return connection.execute(sql, bindings).get

    found = find(connection, Query(ids=(job_id,))).records
    if not found:
        return None
    record = found[0]
    is_pending = record.status is JobStatus.PENDING
    refusal = _refusal(read, record, now) if is_pending else None
    return Situation(
        record=record,
        is_queue_paused=bool(read(IS_PAUSED, record.queue)),
        behind=read(BLOCKING_JOB, record.sequence, record.id)
        if is_pending and record.sequence is not None
        else None,
        full_bucket=None if refusal is None else refusal.bucket,
        limited_until=None if refusal is None else refusal.until,
        bucket_holders=() if refusal is None else tuple(strings(read(HOLDERS_OF, refusal.bucket))),
        unique_holder=None if record.unique_key is None else read(UNIQUE_KEY_HOLDER, record.unique_key, record.id),
    )


def _refusal(read: Any, record: JobRecord, now: int) -> Refusal | None:
    if not record.limits:
        return None
    limits = {family: Limit(most, per) for family, most, per, _ in _limits(read(LIMITS))}
    rows = _states(read(STATES, to_json(record.limits)))
    states = {bucket: BucketState(running, full_at) for bucket, running, full_at in rows}
    return Admission(limits, states, now).admit(record.limits)


MOST_HEADS = 2_000  # how many heads are read at most in all lanes together, unless there are over a thousand lanes
FEWEST_HEADS = 2  # how many heads are read in each lane at least, if it has as many

# The due jobs of the lane `l` in one index, with the condition of that index; ?1 now. In the statements below, ?2
# is the largest number of jobs of each lane to read, ?3 whether suspects are left out.
_DUE = """SELECT seq FROM jobs INDEXED BY {index}
    WHERE lane = l.id AND status = 0 AND owner IS NULL AND wait = 0 AND {condition} AND ready <= ?1"""
_ALIVE = "AND (expires IS NULL OR expires > ?1)"
_FROM = "FROM lanes AS l CROSS JOIN jobs AS j"
_SERVED = "l.queue NOT IN (SELECT name FROM paused_queues)"
_COLUMNS = "l.type, l.queue, l.priority, j.id, j.token, j.ready"
_CLAIMABLE = _DUE.format(index="claimable", condition="crashes < 2")
_SUSPECT = _DUE.format(index="suspects", condition="crashes >= 2")


def _both(statement: str, columns: str, order: str = "") -> str:
    """Return a statement that reads the index of claimable jobs.

    Unless ?3 is true, it then reads that of jobs with two crashes.
    """
    parts = f"{statement.format(due=_CLAIMABLE)} UNION ALL {statement.format(due=_SUSPECT)} AND NOT ?3"
    return f"SELECT json_group_array(json_array({columns})) FROM ({parts} {order})"


# ?1 now: [whether a suspect waits while another one runs, the number of lanes with due heads]
CIRCUMSTANCES = f"""
SELECT json_array(
    EXISTS (SELECT 1 FROM jobs INDEXED BY suspects
            WHERE lane >= 0 AND status = 0 AND owner IS NULL AND crashes >= 2 AND wait = 0)
    AND EXISTS (SELECT 1 FROM jobs INDEXED BY jobs_by_owner
                WHERE owner IS NOT NULL AND status = 1 AND crashes >= 2),
    (SELECT count(*) FROM lanes AS l WHERE l.exact = 1 AND (EXISTS ({_CLAIMABLE}) OR EXISTS ({_SUSPECT}))))
"""

PLAIN = _both(
    f"""SELECT {_COLUMNS}, (SELECT count(*) FROM ({{due}} LIMIT ?2)) AS number
    {_FROM} ON j.seq = ({{due}} {_ALIVE} ORDER BY ready, seq LIMIT 1) WHERE l.exact = 0 AND {_SERVED}""",
    "type, queue, priority, id, token, ready, number",
)
BOUND = _both(
    f"""SELECT {_COLUMNS}, j.grp, l.id AS lane, j.seq
    {_FROM} ON j.seq IN ({{due}} {_ALIVE} ORDER BY ready, seq LIMIT ?2) WHERE l.exact = 1 AND {_SERVED}""",
    "type, queue, priority, id, token, ready, grp",
    "ORDER BY lane, ready, seq",
)


class HeadRow(msgspec.Struct, array_like=True, gc=False):
    """A database row of the first waiting job of a sequence, or of the jobs of one queue, type and priority under
    the same limits.
    """

    type: str
    queue: str
    priority: int
    id: str
    token: int
    ready: int
    grp: int | None


class _FirstRow(LaneHead, array_like=True, frozen=True, gc=False):
    """A database row of the first job of a lane (a queue, job type and priority)."""


_circumstances = msgspec.json.Decoder(tuple[int, int]).decode
_firsts = msgspec.json.Decoder(list[_FirstRow]).decode
_heads = msgspec.json.Decoder(list[HeadRow]).decode


def find_waiting(store: Store, now: int) -> tuple[WaitingJobs, ...]:
    """Return the due jobs that could start, counted by job type and queue, without paused queues.

    Of a sequence, and of the jobs under the same limits, only the first waiting job counts, and only if its limits
    would admit it. Of each queue, type and priority, a bounded number of jobs is read. For use inside a unit (one
    transaction).
    """
    write = store.database.write
    is_suspect_running, lanes = _circumstances(write(CIRCUMSTANCES, (now,)))
    firsts: list[LaneHead] = list(_firsts(write(PLAIN, (now, MAX_COUNTED, is_suspect_running))))
    if lanes:
        most = min(MAX_COUNTED, max(FEWEST_HEADS, MOST_HEADS // lanes))
        heads = _heads(write(BOUND, (now, most, is_suspect_running)))
        firsts += _first_of_lanes(_admitted(store, heads))
    return merge_lanes(firsts)


def _admitted(store: Store, heads: list[HeadRow]) -> list[HeadRow]:
    """Return those first waiting jobs that have no limits, or that their limits would admit, each on its own."""
    groups = store.groups.load(heads)
    if not groups:
        return heads
    limits = store.groups.limits
    admission = store.bucket_counts.dry_run({bucket for number in groups for bucket in limits[number]})
    return [head for head in heads if head.grp is None or admission.refusal(limits[head.grp]) is None]


def _first_of_lanes(heads: Iterable[HeadRow]) -> list[LaneHead]:
    lanes: dict[tuple[str, str, int], list[HeadRow]] = {}
    for head in heads:
        lanes.setdefault((head.type, head.queue, head.priority), []).append(head)
    return [
        LaneHead(*lane, found[0].id, found[0].token, min(head.ready for head in found), len(found))
        for lane, found in lanes.items()
    ]
