"""Stores a job for each dead letter and each dead-letter handler, in the transaction that makes the dead letter.

A job becomes a dead letter when its outcome is FAILED, when it expires, when its row cannot be read, and when a
rescue finds that it may not run again. The code for each case passes its id to `DeadLetterNotifier.notify`.
"""

from __future__ import annotations

from collections.abc import Sequence

import apsw
import msgspec

from mainspring.engines.sqlite.codec import to_headers, to_json
from mainspring.engines.sqlite.store import Store
from mainspring.engines.sqlite.submitting import JobInserter
from mainspring.jobs.commands import DropDeadLetterHandler, PutDeadLetterHandler
from mainspring.jobs.dead_letter_jobs import DeadLetter, DeadLetterHandler, SignLetter, letter_jobs
from mainspring.jobs.ids import JobIds
from mainspring.jobs.timestamps import to_datetime

HANDLERS = "SELECT json_group_array(handler) FROM (SELECT handler FROM dead_letter_handlers ORDER BY type)"
PUT = """
INSERT INTO dead_letter_handlers VALUES (?1, ?2)
ON CONFLICT (type) DO UPDATE SET handler = ?2 WHERE handler <> ?2
"""
DROP = "DELETE FROM dead_letter_handlers WHERE type = ?1"
# batch of ids: those of them that are dead letters, in the order of submission
LETTERS = """
SELECT json_group_array(json_array(id, type, queue, error, created, due, finished, starts, failures, timeouts,
        crashes, interruptions, headers, origin, schedule)) FROM (
    SELECT j.*, l.type, l.queue FROM json_each(?1) AS v
    CROSS JOIN jobs AS j ON j.id = v.value AND j.status = 3 CROSS JOIN lanes AS l ON l.id = j.lane
    ORDER BY j.seq)
"""


class _LetterRow(msgspec.Struct, array_like=True, gc=False):
    id: str
    type: str
    queue: str
    error: str | None
    created: int
    due: int
    finished: int
    starts: int
    failures: int
    timeouts: int
    crashes: int
    interruptions: int
    headers: str | None
    origin: str | None
    schedule: str | None


_texts = msgspec.json.Decoder(list[str]).decode
_rows = msgspec.json.Decoder(list[_LetterRow]).decode
_handler = msgspec.json.Decoder(DeadLetterHandler).decode


class DeadLetterNotifier:
    """Stores the jobs and the settings of dead-letter handlers. For use inside a unit (one transaction)."""

    def __init__(self, store: Store, inserter: JobInserter) -> None:
        self._database = store.database
        self._now = store.now
        self._wake = store.wake
        self._notes = store.notes
        self._inserter = inserter
        self._ids = JobIds()
        self.sign: SignLetter | None = None
        """Signs the jobs of dead-letter handlers; None if they are not signed."""

    def notify(self, ids: Sequence[str]) -> None:
        """For each of these jobs that is a dead letter, store a job for each dead-letter handler, and wake
        workers. Dead letters of the jobs of dead-letter handlers get none.
        """
        handlers = [_handler(text) for text in _texts(self._database.write(HANDLERS))]
        if not handlers:
            return
        now = self._now()
        letters = [_letter(row) for row in _rows(self._database.write(LETTERS, (to_json(list(ids)),)))]
        jobs = letter_jobs(letters, handlers, now, lambda: self._ids.make(now)[0], self.sign)
        if jobs:
            self._inserter.submit(jobs)
            self._notes.add_jobs(jobs)
            self._wake()

    def change(self, command: PutDeadLetterHandler | DropDeadLetterHandler) -> bool:
        """Store or delete a dead-letter handler; return False if an equal one was stored, or none to delete."""
        if isinstance(command, PutDeadLetterHandler):
            self._database.write(PUT, (command.handler.type, to_json(command.handler)))
        else:
            self._database.write(DROP, (command.type,))
        return self._database.changes() > 0


def read_handlers(connection: apsw.Connection) -> list[DeadLetterHandler]:
    """Return the stored dead-letter handlers, by job type."""
    return [_handler(text) for text in _texts(connection.execute(HANDLERS).get)]


def _letter(row: _LetterRow) -> DeadLetter:
    return DeadLetter(
        id=row.id,
        type=row.type,
        queue=row.queue,
        error=row.error or "",
        created=to_datetime(row.created),
        due=to_datetime(row.due),
        finished=to_datetime(row.finished),
        starts=row.starts,
        failures=row.failures,
        timeouts=row.timeouts,
        crashes=row.crashes,
        interruptions=row.interruptions,
        headers={} if row.headers is None else to_headers(row.headers),
        origin=row.origin,
        schedule=row.schedule,
    )
