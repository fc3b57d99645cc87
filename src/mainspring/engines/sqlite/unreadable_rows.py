"""Makes pending jobs dead letters whose rows cannot be read, because another program has written them.

A claim reads many rows at once. A row that it cannot read must not keep the other jobs from running. So such a job
becomes a dead letter, and the claim goes on without it. Unreadable are arguments that are not stored as their
codec says, headers and follow-up jobs that are not the right JSON, and texts that are not UTF-8.

Invariants
- Rows are examined one by one only after an error, or if they are under limits.
- The dead letter itself can be read. Arguments that were not readable are stored as the bytes that they had.
  Unreadable headers and follow-up jobs are deleted, because nothing can use them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import msgspec

from mainspring.engines.sqlite.codec import (
    CODES,
    UNREADABLE,
    Extras,
    LeaseRow,
    lease_rows,
    to_follow_up,
    to_headers,
)
from mainspring.engines.sqlite.dead_letters import DeadLetterNotifier
from mainspring.engines.sqlite.store import Store
from mainspring.jobs.events import EventKind
from mainspring.jobs.serializers import JsonSerializer
from mainspring.jobs.status import JobStatus, require_transition

_FAILED = CODES[require_transition(JobStatus.PENDING, JobStatus.FAILED)]

# ?1 seq: texts as bytes, because they need not be UTF-8
COLUMNS_OF = """
SELECT id, codec, typeof(payload), CAST(payload AS BLOB), CAST(headers AS BLOB), CAST(follow_up AS BLOB)
FROM jobs WHERE seq = ?1 AND status = 0
"""
# ?1 seq, ?2 now, ?3 error; then whether the arguments, the headers and the follow-up job are readable
GIVE_UP = f"""
UPDATE jobs SET status = {_FAILED}, finished = ?2, error = ?3, owner = NULL, moved = iif(grp IS NULL, NULL, 1),
    payload = iif(?4, payload, CAST(payload AS BLOB)), headers = iif(?5, headers, NULL),
    follow_up = iif(?6, follow_up, NULL)
WHERE seq = ?1 AND status = 0
"""

logger = logging.getLogger("mainspring.sqlite")

_raw_rows = msgspec.json.Decoder(list[msgspec.Raw]).decode
_row = msgspec.json.Decoder(LeaseRow).decode
_SEQ = re.compile(rb"\[(\d+),")


class RowReader:
    """Reads the rows of jobs to claim, and makes jobs whose rows cannot be read dead letters.

    For use inside a unit (one transaction).
    """

    def __init__(self, store: Store, dead_letters: DeadLetterNotifier) -> None:
        self._database = store.database
        self._heads = store.heads
        self._parked_groups = store.parked_groups
        self._events = store.events
        self._now = store.now
        self._dead_letters = dead_letters
        self.given_up = 0
        """How many unreadable jobs became dead letters. If it grows, other jobs may be due behind these."""

    def read(self, statement: str, bindings: tuple[Any, ...]) -> list[LeaseRow]:
        """Execute a statement that picks jobs; return the rows that can be decoded.

        The other jobs become dead letters. Raises the error of the decoder if its cause is neither the arguments
        nor the headers nor the follow-up job of a row.
        """
        try:
            return lease_rows(self._database.write(statement, bindings))
        except UNREADABLE:
            data = self._database.write(f"SELECT CAST(({statement}) AS BLOB)", bindings)
        rows: list[LeaseRow] = []
        for raw in _raw_rows(data):
            try:
                rows.append(_row(raw))
            except UNREADABLE as error:
                found = _SEQ.match(bytes(raw))
                if found is None:
                    raise
                self._give_up(int(found[1]), error)
        return rows

    def keep_readable(self, rows: list[LeaseRow]) -> list[LeaseRow]:
        """Return the rows whose arguments, headers and follow-up job can be decoded.

        The other jobs become dead letters.
        """
        kept: list[LeaseRow] = []
        for row in rows:
            try:
                _read_values(row)
            except UNREADABLE as error:
                self._give_up(row.seq, error)
            else:
                kept.append(row)
        return kept

    def _give_up(self, seq: int, cause: Exception) -> None:
        job_id, codec, kind, payload, headers, follow_up = self._database.write(COLUMNS_OF, (seq,))
        problems = [
            _problem("its arguments", lambda: _require_payload(codec, kind, payload)),
            None if headers is None else _problem("its headers", lambda: to_headers(headers.decode())),
            None if follow_up is None else _problem("its follow-up job", lambda: to_follow_up(follow_up)),
        ]
        named = [problem for problem in problems if problem is not None]
        if not named:  # another column is unreadable: no claim could go on
            raise cause
        error = f"unreadable: {'; '.join(named)}; another program has written this row"
        logger.error("job %s becomes a dead letter: %s", job_id, error)
        memberships = self._heads.memberships_of_rows([seq])
        values = (seq, self._now(), error, *(problem is None for problem in problems))
        self._database.write(GIVE_UP, values)
        self.given_up += 1
        self._parked_groups.update_after_leaving(memberships)
        self._events.write_states([job_id], EventKind.FAILED)
        self._dead_letters.notify([job_id])


def _read_values(row: LeaseRow) -> None:
    """Raise an error if the arguments, the headers or the follow-up job of a row cannot be decoded for a lease."""
    if row.codec != JsonSerializer.name:
        bytes.fromhex(row.payload)
    extras = row.extras
    if isinstance(extras, str):
        to_headers(extras)
    elif isinstance(extras, Extras):
        if extras.headers is not None:
            to_headers(extras.headers)
        if extras.follow_up is not None:
            to_follow_up(extras.follow_up)


def _require_payload(codec: str, kind: str, payload: bytes) -> None:
    if kind == "blob":
        return
    if kind != "text":
        raise ValueError(f"the column has a value of type {kind}")
    if codec == JsonSerializer.name:
        payload.decode()
    else:
        try:
            bytes.fromhex(payload.decode())
        except ValueError:
            raise ValueError(f"the codec is {codec}, and the column has a text instead of a blob") from None


def _problem(what: str, read: Callable[[], object]) -> str | None:
    try:
        read()
    except UNREADABLE as error:
        return f"{what} cannot be read ({error})"
    return None
