"""Job records as rows of the table `jobs`: a whole batch as one JSON text and one statement.

What only claims look at (`ready`, `turn`, `wait`, `forget`) stays as the table has it by default: nothing is ever
claimed from a projection.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mainspring.engines.sqlite.groups import number_of, to_group
from mainspring.engines.sqlite.lanes import Lane
from mainspring.engines.sqlite.rows import CODES, to_json, to_optional_json, to_text
from mainspring.jobs.records import JobRecord

COLUMNS = (
    "seq",
    "id",
    "lane",
    "status",
    "due",
    "created",
    "payload",
    "codec",
    "token",
    "owner",
    "starts",
    "failures",
    "timeouts",
    "crashes",
    "interruptions",
    "started",
    "finished",
    "result",
    "error",
    "stop",
    "origin",
    "replayed_as",
    "history",
    "sequence",
    "aside",
    "grp",
    "unique_key",
    "expires",
    "schedule",
    "occurrence",
    "headers",
    "follow_up",
    "progress",
)
_PACKED = {"payload", "result"}


def _value(place: int, column: str) -> str:
    plain = f"value ->> {place}"
    if column not in _PACKED:
        return plain
    return f"CASE value ->> {COLUMNS.index('codec')} WHEN 'json' THEN {plain} ELSE unhex({plain}) END"


# batch of rows. REPLACE, because a job whose id was used before takes the place of that one.
PUT = f"""
INSERT OR REPLACE INTO jobs ({", ".join(COLUMNS)})
SELECT {", ".join(_value(place, column) for place, column in enumerate(COLUMNS))} FROM jsonb_each(?1)
"""
# batch of [number, name] of groups. Nobody counts who is in them: they stay until the projection begins anew.
PUT_GROUPS = f"""
INSERT INTO groups (id, name, jobs, due, seq) SELECT value ->> 0, value ->> 1, {1 << 40}, 0, 0 FROM json_each(?1)
WHERE true ON CONFLICT DO NOTHING
"""
# batch of ids
FORGET = "DELETE FROM jobs WHERE id IN (SELECT value FROM json_each(?1))"


def lane_of_record(record: JobRecord) -> Lane:
    """Return the lane of a job."""
    exact = record.sequence is not None or bool(record.limits)
    return Lane(record.queue, record.type, record.priority, int(exact))


def projected_rows(rows: Iterable[tuple[int, int, JobRecord]]) -> str:
    """Encode places, lanes and records."""
    return to_json([_row(place, lane, record) for place, lane, record in rows])


def projected_groups(rows: Iterable[tuple[int, int, JobRecord]]) -> str | None:
    """Encode the groups of records; None if there are none."""
    groups = {group for _, lane, record in rows if (group := to_group(lane, record.limits)) is not None}
    return to_json([(number_of(group), group) for group in groups]) if groups else None


def _row(place: int, lane: int, record: JobRecord) -> tuple[Any, ...]:
    codec = record.codec
    return (
        place,
        record.id,
        lane,
        CODES[record.status],
        record.due,
        record.created,
        to_text(record.payload, codec),
        codec,
        record.token,
        record.owner,
        record.starts,
        record.failures,
        record.timeouts,
        record.crashes,
        record.interruptions,
        record.started,
        record.finished,
        None if record.result is None else to_text(record.result, codec),
        record.error,
        1 if record.stop_requested else None,
        record.origin,
        record.replayed_as,
        to_json(record.history) if record.history else None,
        record.sequence,
        int(record.steps_aside),
        number_of(to_group(lane, record.limits)),
        record.unique_key,
        record.expires,
        record.schedule,
        record.occurrence,
        to_optional_json(record.headers),
        to_optional_json(record.follow_up),
        to_optional_json(record.progress),
    )
