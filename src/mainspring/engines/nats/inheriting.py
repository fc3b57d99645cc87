"""Inheriting: the settings and schedules of another store hold here from now on.

A schedule goes on at the very occurrence at which it stood. What is here already under the same name, and is not
from this move, is not overwritten, unless it never had any effect.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from mainspring.engines.nats.agenda import Agenda
from mainspring.engines.nats.gates import Gates
from mainspring.engines.nats.receipts import Receipts
from mainspring.engines.nats.settings_book import SettingsBook
from mainspring.engines.nats.stored_schedules import (
    KEPT_JOBS,
    KEPT_OCCURRENCES,
    Skipped,
    StoredSchedule,
    read_schedule,
)
from mainspring.engines.nats.workspace import Workshop, Workspace
from mainspring.jobs.commands import Arrangement, PauseQueue, PutLimit
from mainspring.jobs.transfers import (
    CHANGED,
    MISSING,
    TAKEN,
    Deviation,
    TravellingSchedule,
    TravellingSettings,
)

AT_ONCE = 50
"""Schedules in one draft."""


class Inheritance:
    """Takes over what holds for all jobs. Called by the mover alone."""

    def __init__(
        self, workshop: Workshop, receipts: Receipts, *, gates: Gates, agenda: Agenda, book: SettingsBook
    ) -> None:
        self._workshop = workshop
        self._receipts = receipts
        self._gates = gates
        self._agenda = agenda
        self._book = book

    # -- settings

    def arrangements(self, settings: TravellingSettings) -> list[Arrangement]:
        """Return what is to be arranged here, so that the same holds; a limit of the same name stays as it is."""
        self._book.refresh()
        known = {limit.family for limit in self._book.list_limits()}
        limits = [limit for limit in settings.limits if limit.family not in known]
        return [*(PauseQueue(queue, is_paused=True) for queue in settings.paused), *limits]

    def note_settings(self, move_id: str, settings: TravellingSettings) -> None:
        """Take over how many tokens of rates are used up, and note that all settings are here."""

        def use_up(workspace: Workspace, rate: tuple[str, int]) -> None:
            self._gates.use_up(workspace, *rate)

        def note(workspace: Workspace) -> None:
            receipt = self._receipts.require(workspace, move_id)
            self._receipts.write(workspace, replace(receipt, has_settings=True))

        self._workshop.carry_through_many(list(settings.rates.items()), use_up, before=self._prefetch_gates)
        self._workshop.carry_through(note)

    def _prefetch_gates(self, workspace: Workspace, rates: Sequence[tuple[str, int]]) -> None:
        self._gates.prefetch_named(workspace, [bucket for bucket, _ in rates])

    def compare_settings(self, settings: TravellingSettings) -> list[Deviation]:
        """Say which pauses and limits are not here as they were there."""
        self._book.refresh()
        here = {limit.family: limit for limit in self._book.list_limits()}
        paused = [
            Deviation("queue", queue, "is not paused there")
            for queue in settings.paused
            if queue not in self._book.paused
        ]
        return paused + [
            Deviation("limit", limit.family, TAKEN if limit.family in here else MISSING)
            for limit in settings.limits
            if not _is_same(limit, here.get(limit.family))
        ]

    # -- schedules

    def store_schedules(self, move_id: str, schedules: Sequence[TravellingSchedule]) -> None:
        """Store schedules as they were; one that never fired here is only a declaration, and is replaced."""

        def work(workspace: Workspace, schedule: TravellingSchedule) -> None:
            record = schedule.record
            there = read_schedule(workspace, record.name)
            if there.nonce == move_id or (there.record is not None and there.record.last_due is not None):
                return
            if not self._receipts.keep_open(workspace, move_id):
                return  # another mover was quicker, so workers may have begun
            revision = 0 if there.record is None else there.record.revision + 1
            stored = StoredSchedule(
                replace(record, revision=max(record.revision, revision)), schedule.alive[-KEPT_JOBS:], move_id
            )
            self._agenda.write(workspace, record.name, stored)
            left_out = Skipped(schedule.left_out[-KEPT_OCCURRENCES:])
            workspace.put_struct(workspace.names.skipped(record.name), left_out)

        self._workshop.carry_through_many(schedules, work, before=_prefetch_schedules, at_once=AT_ONCE)

    def compare_schedules(self, move_id: str, schedules: Sequence[TravellingSchedule]) -> list[Deviation]:
        """Read schedules back, and say which are not here as they were there."""
        workspace = self._workshop.open()
        deviations = []
        for start in range(0, len(schedules), AT_ONCE):
            part = schedules[start : start + AT_ONCE]
            _prefetch_schedules(workspace, part)
            for schedule in part:
                problem = _problem_of_schedule(workspace, schedule, move_id)
                if problem is not None:
                    deviations.append(Deviation("schedule", schedule.record.name, problem))
        return deviations

    def remove_schedules(self, move_id: str) -> None:
        """Take schedules of a move away again."""

        def work(workspace: Workspace, name: str) -> None:
            if read_schedule(workspace, name).nonce == move_id:
                self._agenda.write(workspace, name, StoredSchedule(None))
                workspace.forget(workspace.names.skipped(name))

        names = [record.name for record in self._agenda.read_all()]
        self._workshop.carry_through_many(names, work, before=_prefetch_named, at_once=AT_ONCE)


def _problem_of_schedule(workspace: Workspace, schedule: TravellingSchedule, move_id: str) -> str | None:
    name = schedule.record.name
    stored = read_schedule(workspace, name)
    if stored.record is None:
        return MISSING
    if stored.nonce != move_id:
        return TAKEN
    skipped = workspace.get_struct(workspace.names.skipped(name), Skipped) or Skipped()
    here = (replace(stored.record, revision=0), stored.jobs, skipped.occurrences)
    there = (
        replace(schedule.record, revision=0),
        schedule.alive[-KEPT_JOBS:],
        schedule.left_out[-KEPT_OCCURRENCES:],
    )
    return None if here == there else CHANGED


def _prefetch_schedules(workspace: Workspace, schedules: Sequence[TravellingSchedule]) -> None:
    _prefetch_named(workspace, [schedule.record.name for schedule in schedules])


def _prefetch_named(workspace: Workspace, schedules: Sequence[str]) -> None:
    subjects = workspace.names
    workspace.prefetch([*map(subjects.schedule, schedules), *map(subjects.skipped, schedules)])


def _is_same(limit: PutLimit, other: PutLimit | None) -> bool:
    return other is not None and (limit.most, limit.per) == (other.most, other.per)
