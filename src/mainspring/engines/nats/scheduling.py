"""Stores, pauses, removes, lists and fires schedules.

Every change is stored only if the record has not changed since it was read, so of two workers that change or fire
a schedule at the same time one is refused. A firing advances the schedule and stores the jobs of its occurrences
in one transaction (a `Workspace`). A firing that catches up on more occurrences than fit into a transaction is
stored in parts, and the last part advances the schedule; a worker that fires it again finds which occurrences have
their jobs.

The agenda is a copy of all schedules, so that a worker knows the next occurrence without a request. It is
refreshed when a change was announced, and after two seconds at the latest. A refresh reads only what was stored
since the last one. Newer revisions replace older ones, in whatever order they arrive. The server refuses an action
that relies on an outdated copy.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from secrets import token_hex
from threading import RLock

from msgspec import Struct
from msgspec.structs import replace

from mainspring.engines.nats import uniqueness
from mainspring.engines.nats.commands import NatsCommands
from mainspring.engines.nats.drafts import StreamEntry
from mainspring.engines.nats.journal import NatsJournal
from mainspring.engines.nats.naming import from_token
from mainspring.engines.nats.stored import StoredJob, decode, encode
from mainspring.engines.nats.stored_schedules import (
    GONE,
    KEPT_JOBS,
    REMOVED_KEPT_SECONDS,
    Skipped,
    StoredSchedule,
    read_schedule,
    remember_skipped,
)
from mainspring.engines.nats.submitting import NatsSubmitting
from mainspring.engines.nats.workspace import Workshop, Workspace
from mainspring.jobs.commands import PauseSchedule, PutSchedule
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
from mainspring.jobs.timestamps import MICROSECONDS

FRESH = 2 * MICROSECONDS
REMOVED = {"Nats-TTL": f"{REMOVED_KEPT_SECONDS}s"}


class Agenda:
    """A copy of all schedules, with an order by next occurrence of those not paused. Usable from any thread."""

    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop
        self._lock = RLock()  # guards what follows
        self._known: dict[str, tuple[int, ScheduleRecord | None]] = {}  # with the revision of the record
        self._order: list[tuple[int, str]] = []
        self._position = 0
        self._refreshed = 0
        self.must_refresh = True
        """Whether a change was announced."""

    def forget(self) -> None:
        """Forget all schedules: the stream may have been created anew."""
        with self._lock:
            self._known.clear()
            self._order.clear()
            self._position = 0
            self.must_refresh = True

    # -- reading

    def next_firing(self) -> int | None:
        """Return the earliest next occurrence; None if there is none."""
        with self._lock:
            self._refresh_if_needed()
            return self._order[0][0] if self._order else None

    def find_due(self, until: int, limit: int | None, names: Iterable[str] | None = None) -> list[ScheduleRecord]:
        """List the schedules that are due by an instant, the earliest first."""
        wanted = None if names is None else set(names)
        found: list[ScheduleRecord] = []
        with self._lock:
            self._refresh_if_needed()
            for due, name in self._order:
                if due > until or len(found) == limit:
                    break
                record = self._known[name][1]
                if record is not None and (wanted is None or name in wanted):
                    found.append(record)
        return found

    def read_all(self) -> list[ScheduleRecord]:
        """List all schedules as the server has them now, by name."""
        with self._lock:
            found = self._scan(after=0)
            latest = max((entry.revision for entry in found.values()), default=0)
            for name, (revision, _) in list(self._known.items()):
                if name not in found and revision <= latest:
                    self._drop(name)
            return sorted(
                (record for _, record in self._known.values() if record is not None),
                key=lambda record: record.name,
            )

    def _refresh_if_needed(self) -> None:
        now = self._workshop.now()
        if self.must_refresh or not 0 <= now - self._refreshed < FRESH:
            self.must_refresh = False  # before the scan: a change that is announced meanwhile causes another
            try:
                self._scan(self._position)
            except BaseException:
                self.must_refresh = True
                raise
            self._refreshed = now

    def _scan(self, after: int) -> dict[str, StreamEntry]:
        """Read the schedules that were stored after a revision."""
        prefix = self._workshop.names.schedules
        found: dict[str, StreamEntry] = {}
        while page := self._workshop.link.scan(f"{prefix}>", after=after):
            for subject, entry in page:
                name = from_token(subject.removeprefix(prefix))
                found[name] = entry
                self._learn(name, entry.revision, decode(entry.data, StoredSchedule) if entry.data else GONE)
            after = page[-1][1].revision
        self._position = max(self._position, after)
        return found

    def _learn(self, name: str, revision: int, stored: StoredSchedule) -> None:
        if name in self._known and self._known[name][0] > revision:
            return
        self._drop(name)
        record = stored.record
        self._known[name] = (revision, record)
        if record is not None and record.next_due is not None and not record.is_paused:
            insort(self._order, (record.next_due, name))

    def _drop(self, name: str) -> None:
        _, record = self._known.pop(name, (0, None))
        if record is not None and record.next_due is not None and not record.is_paused:
            del self._order[bisect_left(self._order, (record.next_due, name))]

    # -- writing

    def write(self, workspace: Workspace, name: str, stored: StoredSchedule) -> None:
        """Store a schedule, and notify all processes."""
        subject = workspace.names.schedule(name)
        is_mark = stored.record is None and not stored.jobs
        workspace.put(subject, encode(stored), REMOVED if is_mark else None)
        self.tell(workspace)

        def note() -> None:
            with self._lock:
                self._learn(name, workspace.revisions()[subject], stored)

        workspace.draft.then(note)

    def tell(self, workspace: Workspace) -> None:
        """Notify all processes that schedules have changed, once per transaction."""
        news = (f"{workspace.names.notes}schedule", b"")
        if news not in workspace.draft.sends:
            workspace.draft.send(*news)

    def correct(self, workspace: Workspace, name: str, stored: StoredSchedule) -> None:
        """Update an outdated copy of a schedule with what a transaction has read."""
        revision = workspace.entry(workspace.names.schedule(name)).revision

        def note() -> None:
            with self._lock:
                if revision:
                    self._learn(name, revision, stored)
                else:  # even its tombstone has expired: other removals may have been missed, so read all again
                    self._drop(name)
                    self._position = 0
                    self.must_refresh = True

        workspace.draft.then(note)


AT_ONCE = 50
"""Firings in one transaction."""
MOST_JOBS = 100
"""Jobs of one firing in one transaction."""
LOOKS_BACK = (Overlap.SKIP, Overlap.REPLACE)


class Shot(Struct, frozen=True):
    """A firing, or a part of one."""

    firing: Firing
    occurrences: frozenset[int | None]
    """Occurrences of the whole firing: their jobs do not count as earlier ones."""
    nonce: str
    is_last: bool = True


class Firings:
    """Fires schedules: stores the jobs of their occurrences, and advances them."""

    def __init__(
        self,
        workshop: Workshop,
        agenda: Agenda,
        submitting: NatsSubmitting,
        commands: NatsCommands,
        journal: NatsJournal,
    ) -> None:
        self._workshop = workshop
        self._agenda = agenda
        self._submitting = submitting
        self._commands = commands
        self._journal = journal

    def fire_all(self, firings: Sequence[Firing]) -> list[Fired]:
        """Carry out firings in order: small ones together, large ones in parts."""
        answers: list[Fired] = []
        for is_large, group in groupby(firings, lambda firing: len(firing.jobs) > MOST_JOBS):
            if is_large:
                answers += map(self._fire_in_parts, group)
            else:
                answers += self._carry_through([_whole(firing) for firing in group])
        return answers

    def _fire_in_parts(self, firing: Firing) -> Fired:
        submitted: list[str] = []
        skipped_for: str | None = None
        for part in _parts_of(firing):
            (fired,) = self._carry_through([part])
            if not fired.is_done:
                return Fired(False)  # another worker fires it, or it was changed, paused or removed
            submitted += fired.submitted
            skipped_for = skipped_for or fired.skipped_for
        return Fired(True, tuple(submitted), skipped_for)

    def _carry_through(self, shots: Sequence[Shot]) -> list[Fired]:
        attempted: dict[str, Fired] = {}

        def fire(workspace: Workspace, shot: Shot) -> Fired:
            stored = read_schedule(workspace, shot.firing.schedule)
            if stored.nonce == shot.nonce:  # it was stored, only the answer was lost
                self._agenda.correct(workspace, shot.firing.schedule, stored)
                self._agenda.tell(workspace)
            else:
                attempted[shot.nonce] = self._fire(workspace, shot, stored)
            return attempted[shot.nonce]

        return self._workshop.carry_through_many(shots, fire, before=_prefetch, at_once=AT_ONCE)

    def _fire(self, workspace: Workspace, shot: Shot, stored: StoredSchedule) -> Fired:
        firing, record = shot.firing, stored.record
        if record is None or not _is_still_due(record, firing):
            self._agenda.correct(workspace, firing.schedule, stored)
            return Fired(False)
        jobs = [job for job in firing.jobs if not _has_job(workspace, job)]
        alive = _alive_jobs(workspace, stored) if jobs and firing.overlap in LOOKS_BACK else None
        earlier = [job for job in alive or () if job.occurrence not in shot.occurrences]
        skipped: list[Occurrence] = []
        submitted: tuple[str, ...] = ()
        if earlier and firing.overlap is Overlap.SKIP:
            skipped = [_skipped(job, earlier[0].id, workspace.now) for job in jobs]
        else:
            if firing.overlap is Overlap.REPLACE:
                for job in earlier:
                    self._commands.cancel(workspace, job)
            add, nonce = self._submitting.add, shot.nonce
            submitted = tuple(job.id for job in jobs if add(workspace, job, nonce) is None)
        self._note(workspace, record, [*(firing.records if shot.is_last else ()), *skipped])
        if shot.is_last:
            record = replace(record, next_due=firing.next_due, last_due=firing.last_due)
        known = stored.jobs if alive is None else tuple(job.id for job in alive)
        kept = _still_alive(workspace, (*known, *submitted), must_read=alive is not None)
        self._agenda.write(workspace, firing.schedule, StoredSchedule(record, kept, shot.nonce))
        return Fired(True, submitted, earlier[0].id if skipped else None)

    def _note(self, workspace: Workspace, schedule: ScheduleRecord, occurrences: list[Occurrence]) -> None:
        remember_skipped(workspace, schedule.name, occurrences)
        for occurrence in occurrences:
            note = f"{occurrence.kind}: {occurrence.note}"
            event = Event(EventKind.SKIPPED, workspace.now, schedule.name, schedule.type, schedule.queue, note)
            self._journal.write_event(workspace, event)


def _whole(firing: Firing) -> Shot:
    return Shot(firing, frozenset(job.occurrence for job in firing.jobs), token_hex(8))


def _parts_of(firing: Firing) -> Iterator[Shot]:
    whole = _whole(firing)
    for start in range(0, len(firing.jobs), MOST_JOBS):
        end = start + MOST_JOBS
        part = replace(firing, jobs=firing.jobs[start:end])
        is_last = end >= len(firing.jobs)
        yield replace(whole, firing=part, nonce=f"{whole.nonce}-{start}", is_last=is_last)


def _is_still_due(stored: ScheduleRecord, firing: Firing) -> bool:
    is_same = (stored.revision, stored.next_due) == (firing.revision, firing.expected)
    return is_same and not stored.is_paused


def _has_job(workspace: Workspace, job: NewJob) -> bool:
    """Return whether the job of an occurrence was stored before."""
    return uniqueness.find_occurrence(workspace, job) is not None


def _alive_jobs(workspace: Workspace, stored: StoredSchedule) -> list[StoredJob]:
    workspace.prefetch_jobs(stored.jobs)
    jobs = [workspace.job(job_id) for job_id in stored.jobs]
    return [job for job in jobs if job is not None and not job.is_over]


def _still_alive(workspace: Workspace, jobs: tuple[str, ...], *, must_read: bool) -> tuple[str, ...]:
    """Return the jobs to keep in the record; ended ones are removed if there are many, or with `must_read`."""
    if must_read or len(jobs) > KEPT_JOBS:
        jobs = tuple(job.id for job in _alive_jobs(workspace, StoredSchedule(None, jobs)))
    return jobs[-KEPT_JOBS:]


def _skipped(job: NewJob, earlier: str, now: int) -> Occurrence:
    due = job.due if job.occurrence is None else job.occurrence
    note = f"job {earlier} of an earlier occurrence has not ended"
    return Occurrence(due, due, 1, OccurrenceKind.SKIPPED, note, now)


def _prefetch(workspace: Workspace, shots: Sequence[Shot]) -> None:
    """Read in bulk what firings depend on: schedules, then earlier jobs and what new jobs may conflict with."""
    names = workspace.names
    workspace.prefetch(names.schedule(shot.firing.schedule) for shot in shots)
    subjects: list[str] = []
    for shot in shots:
        firing = shot.firing
        subjects += [names.job(job.id) for job in firing.jobs]
        subjects += [names.occurrence(job.schedule or "", job.occurrence or 0) for job in firing.jobs]
        if firing.records:
            subjects.append(names.skipped(firing.schedule))
        if firing.overlap in LOOKS_BACK:
            subjects += map(names.job, read_schedule(workspace, firing.schedule).jobs)
    workspace.prefetch(subjects)


class NatsScheduling:
    """Changes, fires and lists schedules. One thread writes, any thread may read."""

    def __init__(
        self, workshop: Workshop, submitting: NatsSubmitting, commands: NatsCommands, journal: NatsJournal
    ) -> None:
        self._workshop = workshop
        self.agenda = Agenda(workshop)
        """A copy of all schedules."""
        self._firings = Firings(workshop, self.agenda, submitting, commands, journal)

    @property
    def must_refresh(self) -> bool:
        """Whether a change was announced."""
        return self.agenda.must_refresh

    @must_refresh.setter
    def must_refresh(self, value: bool) -> None:
        self.agenda.must_refresh = value

    def forget(self) -> None:
        """Forget all schedules: the stream may have been created anew."""
        self.agenda.forget()

    # -- changes

    def put(self, order: PutSchedule) -> bool:
        """Store a schedule, if its author has read the current revision."""

        def put(stored: ScheduleRecord | None, now: int) -> ScheduleRecord | None:
            if order.expected != (None if stored is None else stored.revision):
                return None
            if stored is None:
                return replace(order.record, revision=1, created=now)
            return replace(
                order.record,
                revision=stored.revision + 1,
                created=stored.created,
                is_paused=stored.is_paused,
                last_due=stored.last_due,
            )

        return self._change(order.record.name, put)

    def pause(self, order: PauseSchedule) -> bool:
        """Pause or resume a schedule."""

        def pause(stored: ScheduleRecord | None, _now: int) -> ScheduleRecord | None:
            if stored is None or stored.is_paused is order.is_paused:
                return None
            if order.expected not in (None, stored.revision):
                return None
            next_due = stored.next_due if order.is_paused else order.next_due
            return replace(stored, is_paused=order.is_paused, next_due=next_due)

        return self._change(order.name, pause)

    def _change(self, name: str, change: Callable[[ScheduleRecord | None, int], ScheduleRecord | None]) -> bool:
        """Replace the record of a schedule with the result of `change`; return False if that is None."""
        nonce = token_hex(8)

        def work(workspace: Workspace) -> bool:
            stored = read_schedule(workspace, name)
            if stored.nonce == nonce:  # it was stored, only the answer was lost
                return self._confirm(workspace, name, stored)
            record = change(stored.record, workspace.now)
            if record is not None:
                self.agenda.write(workspace, name, StoredSchedule(record, stored.jobs, nonce))
            return record is not None

        return self._workshop.carry_through(work)

    def remove(self, name: str) -> bool:
        """Delete a schedule and its skipped occurrences; its jobs stay."""
        nonce = token_hex(8)

        def work(workspace: Workspace) -> bool:
            stored = read_schedule(workspace, name)
            if stored.nonce == nonce:
                return self._confirm(workspace, name, stored)
            if stored.record is None:
                return False
            self.agenda.write(workspace, name, StoredSchedule(None, stored.jobs, nonce))
            skipped = workspace.names.skipped(name)
            if workspace.get(skipped):
                workspace.forget(skipped)
            return True

        return self._workshop.carry_through(work)

    def _confirm(self, workspace: Workspace, name: str, stored: StoredSchedule) -> bool:
        self.agenda.correct(workspace, name, stored)
        self.agenda.tell(workspace)
        return True

    def fire_all(self, firings: Sequence[Firing]) -> list[Fired]:
        """Advance schedules and store the jobs of their occurrences, each unless another worker was faster."""
        return self._firings.fire_all(firings)

    # -- reading

    def next_firing(self) -> int | None:
        """Return the earliest next occurrence of all schedules that are not paused."""
        return self.agenda.next_firing()

    def find(self, names: Sequence[str] | None, due_until: int | None, limit: int | None) -> list[ScheduleRecord]:
        """List schedules by name; or those that are due by an instant, the earliest first."""
        if due_until is not None:
            return self.agenda.find_due(due_until, limit, names)
        if names is None:
            return self.agenda.read_all()[:limit]
        found = self._workshop.link.read(map(self._workshop.names.schedule, names))
        stored = [decode(entry.data, StoredSchedule).record for entry in found.values() if entry.data]
        records = [record for record in stored if record is not None]
        return sorted(records, key=lambda record: record.name)[:limit]

    def occurrences(self, schedule: str, limit: int) -> list[Occurrence]:
        """List the occurrences for which no job was made, the latest first."""
        data = self._workshop.link.read_one(self._workshop.names.skipped(schedule)).data
        kept = decode(data, Skipped).occurrences if data else ()
        return list(kept[: -limit - 1 : -1])
