"""Why a job is where it is, as far as the store knows. On a connection that only reads."""

from __future__ import annotations

from typing import Any

import apsw
import msgspec

from mainspring.engines.sqlite import line_statements
from mainspring.engines.sqlite.reading import find
from mainspring.engines.sqlite.rows import strings, to_json
from mainspring.jobs.engine import Situation
from mainspring.jobs.limits import Admission, BucketState, Limit, Refusal
from mainspring.jobs.queries import Query
from mainspring.jobs.records import JobRecord
from mainspring.jobs.status import JobStatus

BEHIND = """
SELECT id FROM jobs WHERE sequence = ?1 AND sequence IS NOT NULL AND status < 2 AND id <> ?2
    AND (status = 1 OR (turn, seq) < (SELECT turn, seq FROM jobs WHERE id = ?2))
ORDER BY status DESC, turn, seq LIMIT 1
"""
HOLDER = "SELECT id FROM jobs WHERE unique_key = ?1 AND status IN (0, 1) AND id <> ?2 ORDER BY seq DESC LIMIT 1"
IS_PAUSED = "SELECT EXISTS (SELECT 1 FROM paused_queues WHERE name = ?1)"

_limits = msgspec.json.Decoder(list[tuple[str, int, int | None, list[str]]]).decode
_states = msgspec.json.Decoder(list[tuple[str, int, int]]).decode


def situation_of(connection: apsw.Connection, job_id: str, now: int) -> Situation | None:
    """Gather what keeps a job from running."""

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
        behind=read(BEHIND, record.sequence, record.id) if is_pending and record.sequence is not None else None,
        full_bucket=None if refusal is None else refusal.bucket,
        limited_until=None if refusal is None else refusal.until,
        bucket_holders=() if refusal is None else tuple(strings(read(line_statements.HOLDERS_OF, refusal.bucket))),
        unique_holder=None if record.unique_key is None else read(HOLDER, record.unique_key, record.id),
    )


def _refusal(read: Any, record: JobRecord, now: int) -> Refusal | None:
    if not record.limits:
        return None
    limits = {family: Limit(most, per) for family, most, per, _ in _limits(read(line_statements.LIMITS))}
    rows = _states(read(line_statements.STATES, to_json(record.limits)))
    states = {bucket: BucketState(running, full_at) for bucket, running, full_at in rows}
    return Admission(limits, states, now).admit(record.limits)
