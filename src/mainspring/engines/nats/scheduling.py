"""Schedules on the server: put, paused, removed, listed and fired.

Every change is stored only if the record is as its author has seen it, so of two who change or fire a schedule at
the same moment one is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from secrets import token_hex

from msgspec.structs import replace

from mainspring.engines.nats.agenda import Agenda
from mainspring.engines.nats.commands import Commands
from mainspring.engines.nats.firing import Firings
from mainspring.engines.nats.journal import Journal
from mainspring.engines.nats.stored import decode
from mainspring.engines.nats.stored_schedules import Skipped, StoredSchedule, read_schedule
from mainspring.engines.nats.submitting import Submitting
from mainspring.engines.nats.workspace import Workshop, Workspace
from mainspring.jobs.commands import PauseSchedule, PutSchedule
from mainspring.jobs.recurrence.schedule_records import Fired, Firing, Occurrence, ScheduleRecord


class Scheduling:
    """Keeps schedules. Changes come from one thread, readers from any."""

    def __init__(self, workshop: Workshop, submitting: Submitting, commands: Commands, journal: Journal) -> None:
        self._workshop = workshop
        self.agenda = Agenda(workshop)
        """A copy of all schedules."""
        self._firings = Firings(workshop, self.agenda, submitting, commands, journal)

    @property
    def must_refresh(self) -> bool:
        """Whether somebody has told of a change."""
        return self.agenda.must_refresh

    @must_refresh.setter
    def must_refresh(self, value: bool) -> None:
        self.agenda.must_refresh = value

    def forget(self) -> None:
        """Begin anew: the stream may be another one."""
        self.agenda.forget()

    # -- changes

    def put(self, order: PutSchedule) -> bool:
        """Store a schedule, if its author has seen the one that is there."""

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
        """Let a schedule rest, or wake it up."""

        def pause(stored: ScheduleRecord | None, _now: int) -> ScheduleRecord | None:
            if stored is None or stored.is_paused is order.is_paused:
                return None
            if order.expected not in (None, stored.revision):
                return None
            next_due = stored.next_due if order.is_paused else order.next_due
            return replace(stored, is_paused=order.is_paused, next_due=next_due)

        return self._change(order.name, pause)

    def _change(self, name: str, change: Callable[[ScheduleRecord | None, int], ScheduleRecord | None]) -> bool:
        """Let a record be another one, unless there is nothing to change."""
        nonce = token_hex(8)

        def work(workspace: Workspace) -> bool:
            stored = read_schedule(workspace, name)
            if stored.nonce == nonce:  # it was stored, only the answer to that was lost
                return self._confirm(workspace, name, stored)
            record = change(stored.record, workspace.now)
            if record is not None:
                self.agenda.write(workspace, name, StoredSchedule(record, stored.jobs, nonce))
            return record is not None

        return self._workshop.carry_through(work)

    def remove(self, name: str) -> bool:
        """Forget a schedule and its occurrences; the jobs that it has made stay."""
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
        """Move schedules on and store the jobs of their occurrences, each if nobody was quicker."""
        return self._firings.fire_all(firings)

    # -- reading

    def next_firing(self) -> int | None:
        """Return the first occurrence of all schedules that are not paused."""
        return self.agenda.next_firing()

    def find(self, names: Sequence[str] | None, due_until: int | None, limit: int | None) -> list[ScheduleRecord]:
        """List schedules by name; or those that are due by then, the earliest first."""
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
