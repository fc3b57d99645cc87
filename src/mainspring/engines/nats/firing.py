"""Firing: a schedule moves on and the jobs of its occurrences are stored, in one draft, if nobody was quicker.

A firing that makes up for more occurrences than fit into a draft is stored in parts, and the schedule moves on
with the last of them. Whoever fires it again, because the first one died on the way, finds which occurrences have
their jobs, and stores the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from secrets import token_hex

from msgspec import Struct
from msgspec.structs import replace

from mainspring.engines.nats import uniqueness
from mainspring.engines.nats.agenda import Agenda
from mainspring.engines.nats.commands import Commands
from mainspring.engines.nats.journal import Journal
from mainspring.engines.nats.stored import StoredJob
from mainspring.engines.nats.stored_schedules import (
    KEPT_JOBS,
    StoredSchedule,
    read_schedule,
    remember_skipped,
)
from mainspring.engines.nats.submitting import Submitting
from mainspring.engines.nats.workspace import Workshop, Workspace
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

AT_ONCE = 50
"""Firings in one draft."""
MOST_JOBS = 100
"""Jobs of one firing in one draft."""
LOOKS_BACK = (Overlap.SKIP, Overlap.REPLACE)


class Shot(Struct, frozen=True):
    """A firing, or a part of one."""

    firing: Firing
    occurrences: frozenset[int | None]
    """Those of the whole firing: none of their jobs is an earlier one."""
    nonce: str
    is_last: bool = True


class Firings:
    """Carries out decisions about occurrences."""

    def __init__(
        self, workshop: Workshop, agenda: Agenda, submitting: Submitting, commands: Commands, journal: Journal
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
                return Fired(False)  # somebody else goes on with it, or it is not to go on
            submitted += fired.submitted
            skipped_for = skipped_for or fired.skipped_for
        return Fired(True, tuple(submitted), skipped_for)

    def _carry_through(self, shots: Sequence[Shot]) -> list[Fired]:
        attempted: dict[str, Fired] = {}

        def fire(workspace: Workspace, shot: Shot) -> Fired:
            stored = read_schedule(workspace, shot.firing.schedule)
            if stored.nonce == shot.nonce:  # it was stored, only the answer to that was lost
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
    """Answer whether the job of an occurrence was stored before."""
    return uniqueness.find_in_the_way(workspace, replace(job, unique=None)) is not None


def _alive_jobs(workspace: Workspace, stored: StoredSchedule) -> list[StoredJob]:
    workspace.prefetch_jobs(stored.jobs)
    jobs = [workspace.job(job_id) for job_id in stored.jobs]
    return [job for job in jobs if job is not None and not job.is_over]


def _still_alive(workspace: Workspace, jobs: tuple[str, ...], *, must_read: bool) -> tuple[str, ...]:
    """Return the jobs to remember: those that have ended are found when there are many, or when asked for."""
    if must_read or len(jobs) > KEPT_JOBS:
        jobs = tuple(job.id for job in _alive_jobs(workspace, StoredSchedule(None, jobs)))
    return jobs[-KEPT_JOBS:]


def _skipped(job: NewJob, earlier: str, now: int) -> Occurrence:
    due = job.due if job.occurrence is None else job.occurrence
    note = f"job {earlier} of an earlier occurrence has not ended"
    return Occurrence(due, due, 1, OccurrenceKind.SKIPPED, note, now)


def _prefetch(workspace: Workspace, shots: Sequence[Shot]) -> None:
    """Read at once what firings depend on: schedules first, then their earlier jobs and what new ones may meet."""
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
