"""Stores, pauses and fires schedules.

A firing is one transaction. It does nothing if the schedule has changed since the worker read it, so each
occurrence fires only once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw
import msgspec

from mainspring.engines.sqlite.codec import (
    pairs,
    strings,
    to_bytes,
    to_follow_up,
    to_json,
    to_optional_json,
    to_stored,
)
from mainspring.engines.sqlite.commands import Commands
from mainspring.engines.sqlite.store import Store
from mainspring.engines.sqlite.submitting import JobInserter
from mainspring.jobs.commands import CancelJob, PauseSchedule, PutSchedule, RemoveSchedule
from mainspring.jobs.events import Event, EventKind
from mainspring.jobs.records import NewJob
from mainspring.jobs.recurrence.schedule_records import (
    Fired,
    Firing,
    Occurrence,
    OccurrenceKind,
    Overlap,
    ScheduleRecord,
)

COLUMNS = """name, type, queue, priority, payload, codec, rule, misfire, catch_up, overlap, jitter, begins, ends,
    expires, limits, next_due, last_due, is_paused, revision, created, aside, follow_up, declared,
    signature, maker"""

KEPT_OCCURRENCES = 100

ALL = f"SELECT {COLUMNS} FROM schedules ORDER BY name"
NAMED = f"SELECT {COLUMNS} FROM schedules WHERE name IN (SELECT value FROM json_each(?1)) ORDER BY name"
DUE = f"""
SELECT {COLUMNS} FROM schedules WHERE is_paused = 0 AND next_due IS NOT NULL AND next_due <= ?1
ORDER BY next_due, name LIMIT ?2
"""
PLACE = "SELECT type, queue FROM schedules WHERE name = ?1"
REVISION = "SELECT revision FROM schedules WHERE name = ?1"
PUT = f"""
INSERT INTO schedules ({COLUMNS})
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23,
        ?24, ?25)
"""
REPLACE = """
UPDATE schedules SET type = ?2, queue = ?3, priority = ?4, payload = ?5, codec = ?6, rule = ?7, misfire = ?8,
    catch_up = ?9, overlap = ?10, jitter = ?11, begins = ?12, ends = ?13, expires = ?14, limits = ?15,
    next_due = ?16, aside = ?17, follow_up = ?18, declared = ?19, signature = ?20, maker = ?21,
    revision = revision + 1
WHERE name = ?1
"""
PAUSE = """
UPDATE schedules SET is_paused = 1 WHERE name = ?1 AND is_paused = 0 AND revision = coalesce(?2, revision)
"""
RESUME = """
UPDATE schedules SET is_paused = 0, next_due = ?2
WHERE name = ?1 AND is_paused = 1 AND revision = coalesce(?3, revision)
"""
REMOVE = "DELETE FROM schedules WHERE name = ?1 AND revision = coalesce(?2, revision)"
REMOVE_OCCURRENCES = "DELETE FROM occurrences WHERE schedule = ?1"

# batch of [name, revision, expected next due]: those that still match a schedule that is not paused. A trigger
# expects no next due, and matches a paused schedule as well.
STILL_DUE = """
SELECT json_group_array(v.value) FROM json_each(?1) AS v CROSS JOIN schedules
ON name = v.value ->> 0 AND revision = v.value ->> 1
AND (v.value ->> 2 IS NULL OR (next_due = v.value ->> 2 AND is_paused = 0))
"""
# batch of [name, next due, last due]
ADVANCE_SCHEDULES = """
UPDATE schedules SET next_due = v.value ->> 1, last_due = v.value ->> 2 FROM json_each(?1) AS v
WHERE name = v.value ->> 0
"""
# batch of names: [schedule, its first job that has not ended]
ALIVE = """
SELECT json_group_array(json_array(schedule, id)) FROM (
    SELECT schedule, jobs.id AS id, min(seq) FROM json_each(?1) AS v
    CROSS JOIN jobs ON schedule = v.value AND schedule IS NOT NULL AND status < 2 GROUP BY schedule)
"""
ALIVE_OF = "SELECT json_group_array(id) FROM jobs WHERE schedule = ?1 AND schedule IS NOT NULL AND status < 2"
# batch of [schedule, occurrence]: those that have a job
KNOWN = """
SELECT json_group_array(json_array(schedule, occurrence)) FROM json_each(?1) AS v
CROSS JOIN jobs ON schedule = v.value ->> 0 AND occurrence = v.value ->> 1 AND schedule IS NOT NULL
"""
# batch of [schedule, due, until, count, kind, note, decided]
RECORD = """
INSERT INTO occurrences (schedule, due, until, count, kind, note, decided)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6
FROM json_each(?1)
"""
FORGET = f"""
DELETE FROM occurrences WHERE rowid IN (
    SELECT rowid FROM occurrences WHERE schedule = ?1 ORDER BY rowid DESC LIMIT -1 OFFSET {KEPT_OCCURRENCES})
"""
OCCURRENCES = """
SELECT due, until, count, kind, note, decided FROM occurrences WHERE schedule = ?1 ORDER BY rowid DESC LIMIT ?2
"""


_limits = msgspec.json.Decoder(tuple[str, ...]).decode
_seen = msgspec.json.Decoder(list[tuple[str, int, int | None]]).decode
_alive = msgspec.json.Decoder(list[tuple[str, str]]).decode


class ScheduleWriter:
    """Stores, pauses and fires schedules. For use inside a unit (one transaction)."""

    def __init__(self, store: Store, inserter: JobInserter, commands: Commands) -> None:
        self._database = store.database
        self._events = store.events
        self._now = store.now
        self._inserter = inserter
        self._commands = commands

    def put(self, command: PutSchedule) -> bool:
        """Store a schedule if the stored one has the expected revision; if this is None, only if none is stored.

        Return whether it was stored. A schedule that is replaced keeps its pause and its last due time.
        """
        record = command.record
        if self._database.write(REVISION, (record.name,)) != command.expected:
            return False
        columns = _columns(record)
        follow_up = to_optional_json(record.follow_up)
        follows = (int(record.steps_aside), follow_up, record.is_declared, record.signature, record.maker)
        if command.expected is None:
            place = (record.next_due, record.last_due, int(record.is_paused), 1, self._now())
            self._database.write(PUT, (*columns, *place, *follows))
        else:
            self._database.write(REPLACE, (*columns, record.next_due, *follows))
        return True

    def pause(self, command: PauseSchedule) -> bool:
        """Pause a schedule, or resume it with a new next due time; return whether its state has changed.

        False means that it was paused or resumed already, is missing, or has another revision than expected.
        """
        if command.is_paused:
            self._database.write(PAUSE, (command.name, command.expected))
        else:
            self._database.write(RESUME, (command.name, command.next_due, command.expected))
        return self._database.changes() > 0

    def remove(self, command: RemoveSchedule) -> bool:
        """Delete a schedule and its record of skipped occurrences.

        Return False if the schedule is missing or has another revision than expected.
        """
        self._database.write(REMOVE, (command.name, command.expected))
        is_removed = self._database.changes() > 0
        if is_removed:
            self._database.write(REMOVE_OCCURRENCES, (command.name,))
        return is_removed

    def fire(self, firings: Sequence[Firing]) -> list[Fired]:
        """Advance schedules and store the jobs of their occurrences; return an answer for each firing.

        A firing is refused if its schedule has changed or was paused since the caller read it, or if the batch has
        another firing of it. If a job of the schedule has not ended, `overlap` may skip or cancel jobs.
        """
        valid = self._valid(firings)
        if not valid:
            return [Fired(False)] * len(firings)
        write = self._database.write
        advanced = [(f.schedule, f.next_due, f.last_due) for f in valid.values() if f.expected is not None]
        write(ADVANCE_SCHEDULES, (to_json(advanced),))
        alive = dict(_alive(write(ALIVE, (to_json([firing.schedule for firing in valid.values()]),))))
        known = self._known(list(valid.values()))
        answers = [Fired(False)] * len(firings)
        jobs: list[NewJob] = []
        for place, firing in valid.items():
            stored = [job for job in firing.jobs if (job.schedule, job.occurrence) not in known]
            answers[place] = self._fire(firing, stored, alive.get(firing.schedule))
            jobs += stored if answers[place].submitted else ()
        if jobs:
            self._inserter.submit(jobs)
        return answers

    def _valid(self, firings: Sequence[Firing]) -> dict[int, Firing]:
        """Return, by index, the first firing of each schedule that has not changed since the caller read it.

        Triggers (without an expected occurrence) come last, so that none of them makes the firing of an occurrence
        in the same batch invalid.
        """
        asked = [(firing.schedule, firing.revision, firing.expected) for firing in firings]
        still_due = set(_seen(self._database.write(STILL_DUE, (to_json(asked),))))
        valid: dict[int, Firing] = {}
        moved: set[str] = set()
        for place, firing in sorted(enumerate(firings), key=lambda numbered: numbered[1].expected is None):
            if asked[place] in still_due and firing.schedule not in moved:
                moved.add(firing.schedule)
                valid[place] = firing
        return valid

    def _known(self, firings: Sequence[Firing]) -> set[tuple[str | None, int | None]]:
        asked = [(job.schedule, job.occurrence) for firing in firings for job in firing.jobs]
        return set(pairs(self._database.write(KNOWN, (to_json(asked),)))) if asked else set()

    def _fire(self, firing: Firing, jobs: list[NewJob], alive: str | None) -> Fired:
        records = list(firing.records)
        is_skipped = bool(jobs) and alive is not None and firing.overlap is Overlap.SKIP
        if is_skipped:
            note = f"job {alive} of an earlier occurrence has not ended"
            records += [_skipped(job, note, self._now()) for job in jobs]
        elif alive is not None and firing.overlap is Overlap.REPLACE and jobs:
            before = strings(self._database.write(ALIVE_OF, (firing.schedule,)))
            self._commands.execute([CancelJob(job_id) for job_id in before])
        self._record(firing.schedule, records)
        if is_skipped:
            return Fired(True, (), alive)
        return Fired(True, tuple(job.id for job in jobs))

    def _record(self, schedule: str, records: list[Occurrence]) -> None:
        if not records:
            return
        batch = [(schedule, r.due, r.until, r.count, r.kind, r.note, r.decided) for r in records]
        self._database.write(RECORD, (to_json(batch),))
        self._database.write(FORGET, (schedule,))
        if self._events.has_listener():
            kind, queue = self._database.write(PLACE, (schedule,))
            self._events.write(
                Event(EventKind.SKIPPED, r.decided, schedule, kind, queue, f"{r.kind}: {r.note}") for r in records
            )


def _skipped(job: NewJob, note: str, now: int) -> Occurrence:
    at = job.due if job.occurrence is None else job.occurrence
    return Occurrence(at, at, 1, OccurrenceKind.SKIPPED, note, now)


def _columns(record: ScheduleRecord) -> tuple[Any, ...]:
    return (
        record.name,
        record.type,
        record.queue,
        record.priority,
        to_stored(record.payload, record.codec),
        record.codec,
        record.rule,
        record.misfire,
        record.catch_up,
        record.overlap.value,
        record.jitter,
        record.start,
        record.end,
        record.expires,
        to_json(record.limits),
    )


def read_schedules(
    connection: apsw.Connection, names: Sequence[str] | None, due_until: int | None, limit: int | None
) -> list[ScheduleRecord]:
    """List at most `limit` schedules, sorted by name: all, or those with one of `names`.

    With `due_until`, list the schedules that are due by then and not paused, the earliest first; `names` is
    ignored.
    """
    if due_until is not None:
        rows: list[Any] = connection.execute(DUE, (due_until, -1 if limit is None else limit)).fetchall()
    elif names is not None:
        rows = connection.execute(NAMED, (to_json(list(names)),)).fetchall()
    else:
        rows = connection.execute(ALL).fetchall()
    return [_record_of(row) for row in rows[:limit]]


def _record_of(row: Sequence[Any]) -> ScheduleRecord:
    return ScheduleRecord(
        name=row[0],
        type=row[1],
        queue=row[2],
        priority=row[3],
        payload=to_bytes(row[4]),
        codec=row[5],
        rule=row[6],
        misfire=row[7],
        catch_up=row[8],
        overlap=Overlap(row[9]),
        jitter=row[10],
        start=row[11],
        end=row[12],
        expires=row[13],
        limits=_limits(row[14]),
        next_due=row[15],
        last_due=row[16],
        is_paused=bool(row[17]),
        revision=row[18],
        created=row[19],
        steps_aside=bool(row[20]),
        follow_up=None if row[21] is None else to_follow_up(row[21]),
        is_declared=None if row[22] is None else bool(row[22]),
        signature=row[23],
        maker=row[24],
    )


def read_occurrences(connection: apsw.Connection, schedule: str, limit: int) -> list[Occurrence]:
    """List at most `limit` records of occurrences for which a schedule made no job, the latest first."""
    rows: list[Any] = connection.execute(OCCURRENCES, (schedule, limit)).fetchall()
    return [Occurrence(row[0], row[1], row[2], OccurrenceKind(row[3]), row[4], row[5]) for row in rows]
