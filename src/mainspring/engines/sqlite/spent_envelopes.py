"""Remembers the envelopes of signed jobs that were deleted, until their signatures end: `jobs/spent_envelopes.py`.

A job that is stored needs no such row, because no other job can have its id.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import apsw
import msgspec

from mainspring.engines.sqlite.codec import CANCELED, COMPLETED, UNREADABLE, to_headers, to_json
from mainspring.engines.sqlite.database import Database
from mainspring.jobs.job_policies import SIGNATURE
from mainspring.jobs.spent_envelopes import Envelope, envelope_of

# batch of ids or of seqs: the signed jobs among them
_SIGNED = f"""
SELECT json_group_array(json_array(id, headers, due)) FROM jobs
WHERE {{key}} IN (SELECT value FROM json_each(?1)) AND headers IS NOT NULL
    AND (substr(headers, 1, 1) <> '{{{{' OR instr(headers, '{SIGNATURE}'))
"""
SIGNED_BY_ID = _SIGNED.format(key="id")
SIGNED_BY_SEQ = _SIGNED.format(key="seq")
# batch of [id, signed, until]
REMEMBER = """
INSERT INTO spent_envelopes SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each(?1) WHERE true
ON CONFLICT (id) DO UPDATE SET signed = max(signed, excluded.signed), until = max(until, excluded.until)
"""
FORGET = """
DELETE FROM spent_envelopes WHERE id IN (SELECT id FROM spent_envelopes WHERE until < ?1 LIMIT ?2)
"""
IS_ANY = "SELECT EXISTS (SELECT 1 FROM spent_envelopes)"
# ?1 after this id, ?2 now, ?3 how many
REMEMBERED = "SELECT id, signed, until FROM spent_envelopes WHERE id > ?1 AND until >= ?2 ORDER BY id LIMIT ?3"
# ?1 after this seq, ?2 how many: the signed jobs that were completed or canceled
ENDED = f"""
SELECT seq, id, headers, due FROM jobs NOT INDEXED
WHERE seq > ?1 AND status IN ({COMPLETED}, {CANCELED}) AND headers IS NOT NULL
    AND (substr(headers, 1, 1) <> '{{' OR instr(headers, '{SIGNATURE}'))
ORDER BY seq LIMIT ?2
"""
FIND = "SELECT id, signed FROM spent_envelopes WHERE id IN (SELECT value FROM json_each(?1))"

_rows = msgspec.json.Decoder(list[tuple[str, str, int]]).decode


def remember_deleted(
    database: Database, now: int, *, ids: Sequence[str] | None = None, seqs: Sequence[int] = ()
) -> None:
    """Store the envelopes (ids and times of signatures) of jobs that are about to be deleted.

    So no copy of these jobs can run.

    The jobs are given by their ids or their seqs.

    Envelopes whose signatures have ended are left out. For use inside a unit (one transaction).
    """
    by_id = ids is not None
    batch = to_json(list(ids if ids is not None else seqs))
    rows = _rows(database.write(SIGNED_BY_ID if by_id else SIGNED_BY_SEQ, (batch,)))
    found = [envelope_of(job_id, to_headers(headers), due) for job_id, headers, due in rows]
    kept = [envelope for envelope in found if envelope is not None and envelope.until >= now]
    if kept:
        database.write(REMEMBER, (to_json(kept),))


def forget_ended(database: Database, now: int, most: int) -> None:
    """Delete at most `most` envelopes (signed ids of deleted jobs) whose signatures have ended.

    For use inside a unit (one transaction).
    """
    database.write(FORGET, (now, most))


def read_spent(connection: apsw.Connection, ids: Sequence[str]) -> dict[str, int]:
    """Return when jobs with these ids were signed that are deleted and whose signatures are remembered, by id."""
    if not connection.execute(IS_ANY).get:
        return {}
    rows: Any = connection.execute(FIND, (to_json(list(ids)),)).fetchall()
    return dict(rows)


def read_all_envelopes(connection: apsw.Connection, now: int, size: int) -> Iterator[list[Envelope]]:
    """Yield pages of the envelopes that must not be used again, up to `size` each; pages may be empty.

    An envelope is the signed id of a job and the times of its signature. They are those of deleted, COMPLETED and
    CANCELED jobs whose signatures have not ended.
    """
    last_id = ""
    while rows := _fetch(connection, REMEMBERED, (last_id, now, size)):
        last_id = rows[-1][0]
        yield [Envelope(*row) for row in rows]
    last_seq = 0
    while rows := _fetch(connection, ENDED, (last_seq, size)):
        last_seq = rows[-1][0]
        found = [_readable_envelope(job_id, headers, due) for _, job_id, headers, due in rows]
        yield [envelope for envelope in found if envelope is not None and envelope.until >= now]


def _fetch(connection: apsw.Connection, statement: str, bindings: tuple[Any, ...]) -> list[Any]:
    rows: list[Any] = connection.execute(statement, bindings).fetchall()
    return rows


def _readable_envelope(job_id: str, headers: str, due: int) -> Envelope | None:
    try:
        return envelope_of(job_id, to_headers(headers), due)
    except UNREADABLE:  # another program has spoiled the row
        return None
