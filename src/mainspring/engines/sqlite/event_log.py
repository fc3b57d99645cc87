"""The event log. While a client listens, each transaction stores the events that it causes.

Invariant: the numbers of events are consecutive as long as no event is missing. If no client was listening for a
while, the request of the next client (`listen`) leaves one number out. So a reader that finds consecutive numbers
knows that it misses nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable
from typing import TypeAlias

import apsw
import msgspec

from mainspring.engines.sqlite.codec import numbers, pairs_of_integers, strings, to_json
from mainspring.engines.sqlite.database import Database
from mainspring.engines.sqlite.settings_row import SettingsRow
from mainspring.jobs.events import Event, EventKind, EventPage, event_after
from mainspring.jobs.records import STATUS_AFTER, Lease, Outcome, OutcomeKind
from mainspring.jobs.status import JobStatus

MAX_EVENTS = 100_000  # how many of the latest events stay; older ones are deleted, even if a listener is slow

# ?1 until, ?2 now. If the stored time is more than a day ahead, a wrong clock has set it, and it is replaced.
LISTEN = "UPDATE settings SET listening = iif(listening > ?2 + 86400000000, ?1, max(listening, ?1))"
LISTENING = "SELECT listening FROM settings"
# If no client was listening, events are missing: the next event does not get the next number.
LEAVE_NUMBER_OUT = "UPDATE sqlite_sequence SET seq = seq + 1 WHERE name = 'events'"
# The numbers of a new file start with the time, so that positions of another file are not taken for positions of
# this one.
# ?1 now
FIRST_NUMBER = """
INSERT INTO sqlite_sequence (name, seq)
SELECT 'events', ?1 WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'events')
"""
LAST_POSITION = "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'events'), 0)"
# batch of [kind, at, id, type, queue, note]
WRITE = """
INSERT INTO events (kind, at, id, type, queue, note)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5 FROM jsonb_each(?1)
"""
# A mark is an event with a negative number, which readers skip: the `started` event of the running attempt of this
# job is not written any more.
# batch of seqs of jobs; ?2 now
MARK = """
INSERT OR REPLACE INTO events (seq, kind, at, id, type, queue)
SELECT -j.seq, 'started', ?2, j.id, l.type, l.queue
FROM json_each(?1) AS v CROSS JOIN jobs AS j ON j.seq = v.value JOIN lanes AS l ON l.id = j.lane
"""
# ?1 now
MARK_RUNNING = """
INSERT OR REPLACE INTO events (seq, kind, at, id, type, queue)
SELECT -j.seq, 'started', ?1, j.id, l.type, l.queue
FROM lanes AS l CROSS JOIN jobs AS j INDEXED BY jobs_by_lane ON j.lane = l.id AND j.status = 1
"""
HAS_MARKS = "SELECT EXISTS (SELECT 1 FROM events WHERE seq < 0)"
# batch of seqs of jobs
MARKED_AMONG = "SELECT json_group_array(-seq) FROM events WHERE seq IN (SELECT -value FROM json_each(?1))"
DELETE_MARKS = "DELETE FROM events WHERE seq IN (SELECT -value FROM json_each(?1))"
DELETE_ALL_MARKS = "DELETE FROM events WHERE seq < 0"
# batch of seqs of jobs; ?2 now
STARTED_AT = """
SELECT json_group_array(json_array(seq, coalesce(started, ?2)))
FROM jobs WHERE seq IN (SELECT value FROM json_each(?1))
"""
# batch of seqs of jobs; ?2 now
WRITE_STARTED = """
INSERT INTO events (kind, at, id, type, queue)
SELECT 'started', coalesce(j.started, ?2), j.id, l.type, l.queue
FROM json_each(?1) AS v CROSS JOIN jobs AS j ON j.seq = v.value JOIN lanes AS l ON l.id = j.lane
ORDER BY v.key
"""
# batch of ids
SEQS_OF = "SELECT json_group_array(seq) FROM jobs WHERE id IN (SELECT value FROM json_each(?1))"
# Writes the same event for several jobs; looks up their types and queues.
# batch of ids; ?2 kind, ?3 now, ?4 note
WRITE_FOR = """
INSERT INTO events (kind, at, id, type, queue, note)
SELECT ?2, ?3, j.id, l.type, l.queue, ?4
FROM json_each(?1) AS v CROSS JOIN jobs AS j ON j.id = v.value JOIN lanes AS l ON l.id = j.lane
"""
# Writes an event for the current status of each job; the note of a FAILED job is the first line of its error.
# batch of ids; ?2 the kind for PENDING jobs, ?3 now
WRITE_STATES = """
INSERT INTO events (kind, at, id, type, queue, note)
SELECT CASE j.status WHEN 0 THEN ?2 WHEN 3 THEN 'failed' ELSE 'canceled' END, ?3, j.id, l.type, l.queue,
       iif(j.status = 3, substr(j.error, 1, instr(j.error || char(10), char(10)) - 1), NULL)
FROM json_each(?1) AS v CROSS JOIN jobs AS j ON j.id = v.value JOIN lanes AS l ON l.id = j.lane
"""
CANCELED_AMONG = """
SELECT json_group_array(j.id) FROM json_each(?1) AS v CROSS JOIN jobs AS j ON j.id = v.value AND j.status = 4
"""
DELETE_OLD = "DELETE FROM events WHERE seq > 0 AND seq <= (SELECT max(seq) FROM events) - ?1"
DELETE_WITHOUT_LISTENER = "DELETE FROM events WHERE (SELECT listening FROM settings) <= ?1"
# ?1 after this seq, ?2 how many: the last number that was used, and the rows
READ = """
SELECT json_array(
    (SELECT seq FROM sqlite_sequence WHERE name = 'events'),
    json_group_array(json_array(seq, kind, at, id, type, queue, note))) FROM (
    SELECT * FROM events WHERE seq > ?1 ORDER BY seq LIMIT ?2)
"""
# ?1 after this seq: until when a client listens, the last number that was used, and how many events there are
STATE_SINCE = """
SELECT json_array(
    (SELECT listening FROM settings),
    coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'events'), 0),
    (SELECT count(*) FROM events WHERE seq > ?1))
"""

_page = msgspec.json.Decoder(tuple[int | None, list[tuple[int, EventKind, int, str, str, str, str | None]]]).decode
_state = msgspec.json.Decoder(tuple[int, int, int]).decode
_Row: TypeAlias = tuple[EventKind, int, str, str, str, str | None]
_POSITION = re.compile(r"[0-9]{1,18}", re.ASCII)


class EventWriter:
    """Writes events to the event log. Methods must be called inside a unit (one transaction).

    The `started` event of an attempt is written when its worker reports that the handler begins, or with the end
    of the attempt. A mark says that the event must not be written any more: it was written when the handler began,
    or the attempt started before a client listened. So the many short attempts, whose begin and end are reported
    together, write two rows and no mark.
    """

    def __init__(self, database: Database, settings: SettingsRow, now: Callable[[], int]) -> None:
        self._database = database
        self._settings = settings
        self._now = now
        self.is_followed = False
        """The last result of `has_listener`. Any thread may read this attribute."""

    def has_listener(self) -> bool:
        """Return whether a client of any process listens to events.

        The store is read only if it may have changed.
        """
        self.is_followed = self._settings.listening > self._now()
        return self.is_followed

    def write_begun(self, leases: Iterable[Lease]) -> None:
        """Write the `started` events of handlers that begin now, unless they were written before.

        Also store a mark for each of these jobs: the event must not be written again.

        Call it only if a client listens.
        """
        begun = {lease.ref: lease for lease in leases}  # a batch may have several reports of a job
        marked = self._marked_among(begun)
        now = self._now()
        new = [lease for ref, lease in begun.items() if ref not in marked]
        if new:
            self._write_rows([(EventKind.STARTED, now, lease.id, lease.type, lease.queue, None) for lease in new])
            self._database.write(MARK, (to_json([lease.ref for lease in new]), now))

    def write_started_of(self, ids: list[str]) -> None:
        """Write the `started` events of the running attempts of these jobs, which crashed, unless written before.

        Delete the marks of these jobs, which say that the event was written. Call it only if a client listens.
        """
        seqs = numbers(self._database.write(SEQS_OF, (to_json(ids),)))
        marked = self._marked_among(seqs)
        self._database.write(WRITE_STARTED, (to_json([seq for seq in seqs if seq not in marked]), self._now()))
        self._delete_marks(marked)

    def _marked_among(self, seqs: Iterable[Hashable]) -> set[Hashable]:
        """Return those of the jobs `seqs` that have a mark in the table of events.

        A mark says that the `started` event of the running attempt must not be written: it was written when the
        handler began, or the attempt started before a client listened.
        """
        if not self._database.write(HAS_MARKS):  # nearly always: handlers are short, or no process follows
            return set()
        return set(numbers(self._database.write(MARKED_AMONG, (to_json(list(seqs)),))))

    def _delete_marks(self, seqs: Iterable[Hashable]) -> None:
        if batch := list(seqs):
            self._database.write(DELETE_MARKS, (to_json(batch),))

    def _started_rows(self, outcomes: list[Outcome], now: int) -> list[_Row]:
        """Return the rows of the `started` events of attempts that end now, unless these were written before.

        Delete the marks of these jobs, which say that the event must not be written.
        """
        marked = self._marked_among([outcome.lease.ref for outcome in outcomes])
        self._delete_marks(marked)
        begun = [
            outcome
            for outcome in outcomes
            if outcome.kind is not OutcomeKind.HANDED_BACK and outcome.lease.ref not in marked
        ]
        unmeasured = [outcome.lease.ref for outcome in begun if outcome.began is None]
        times: dict[Hashable, int] = {}
        if unmeasured:
            times.update(pairs_of_integers(self._database.write(STARTED_AT, (to_json(unmeasured), now))))
        return [
            (
                EventKind.STARTED,
                times.get(lease.ref, now) if outcome.began is None else outcome.began,
                lease.id,
                lease.type,
                lease.queue,
                None,
            )
            for outcome in begun
            for lease in (outcome.lease,)
        ]

    def write(self, events: Iterable[Event]) -> None:
        """Write these events. Call it only if a client listens."""
        self._write_rows([(e.kind, e.at, e.id, e.type, e.queue, e.note) for e in events])

    def _write_rows(self, batch: list[_Row]) -> None:
        if batch:
            self._database.write(WRITE, (to_json(batch),))

    def write_for(self, ids: list[str], kind: EventKind, note: str | None = None) -> None:
        """Write an event for each of the jobs `ids`, all of the same kind and with the same text `note`, if a
        client listens.
        """
        if ids and self.has_listener():
            self._database.write(WRITE_FOR, (to_json(ids), kind.value, self._now(), note))

    def write_states(self, ids: list[str], pending: EventKind) -> None:
        """Write an event about the current status of each of these jobs, if a client listens.

        - `ids`: the jobs; each must be PENDING, FAILED or CANCELED
        - `pending`: the kind of the event for jobs that are PENDING, such as `RESCUED`
        """
        if ids and self.has_listener():
            self._database.write(WRITE_STATES, (to_json(ids), pending.value, self._now()))

    def write_outcomes(self, outcomes: Iterable[Outcome]) -> None:
        """Write the `started` events and the end events of attempts with these outcomes, if a client listens."""
        if not self.has_listener():
            return
        outcomes = list(outcomes)
        pending = [o.lease.id for o in outcomes if STATUS_AFTER[o.kind] is JobStatus.PENDING]
        canceled = set(strings(self._database.write(CANCELED_AMONG, (to_json(pending),)))) if pending else set()
        now = self._now()
        rows = self._started_rows(outcomes, now)
        for outcome in outcomes:
            lease = outcome.lease
            if outcome.kind is OutcomeKind.COMPLETED:  # nearly always
                kind: EventKind | None = EventKind.COMPLETED
            else:
                kind = event_after(
                    outcome.kind, JobStatus.CANCELED if lease.id in canceled else STATUS_AFTER[outcome.kind]
                )
            if kind is not None:
                rows.append((kind, now, lease.id, lease.type, lease.queue, first_line(outcome.error)))
        self._write_rows(rows)

    def prune(self) -> None:
        """Delete all events if no client of any process listens; otherwise all but the latest `MAX_EVENTS`.

        The store records until when a client listens: see `listen`.
        """
        self._database.write(DELETE_WITHOUT_LISTENER, (self._now(),))
        self._database.write(DELETE_OLD, (MAX_EVENTS,))

    def listen(self, until: int) -> str:
        """Record that a client listens until the instant `until`; return the position after which it reads events.

        A later end that another client has asked for stays, unless it is more than a day ahead. If no client was
        listening before, leave one number of the events out, and store a mark for each running attempt, so that
        its `started` event is not written later. Also delete all but the latest `MAX_EVENTS` events.
        """
        self._settings.forget()
        now = self._now()
        self._database.write(FIRST_NUMBER, (now,))  # before the first insert, which would set another
        if self._database.write(LISTENING) < now:  # no client was listening
            self._database.write(LEAVE_NUMBER_OUT)
            self._database.write(DELETE_ALL_MARKS)
            self._database.write(MARK_RUNNING, (now,))
        self._database.write(LISTEN, (until, now))
        self._database.write(DELETE_OLD, (MAX_EVENTS,))
        return str(self._database.write(LAST_POSITION))


def read_events(connection: apsw.Connection, after: str, limit: int) -> EventPage:
    """Read at most `limit` events after a position.

    `is_complete` is False if an event between the position and the end of the page is missing; if the page has
    fewer than `limit` events, also if a later one is missing.
    """
    start = int(after)
    last, rows = _page(connection.execute(READ, (start, limit)).get)
    end = rows[-1][0] if rows else start
    is_complete = end - start == len(rows) and (len(rows) == limit or end == (last or 0))
    return EventPage(
        [Event(*row[1:]) for row in rows], str(end), [str(row[0]) for row in rows], is_complete=is_complete
    )


def holds_position(connection: apsw.Connection, position: str, now: int) -> bool:
    """Return whether a client listens, and all events after a position are stored; False for a text that is no
    position.
    """
    if not _POSITION.fullmatch(position):
        return False
    listening, last, count = _state(connection.execute(STATE_SINCE, (int(position),)).get)
    return listening > now and last - int(position) == count


def first_line(error: str | None) -> str | None:
    """Return the first line of an error text: the description without the traceback."""
    return None if error is None else error.partition("\n")[0]
