"""Executes commands on single jobs: cancel, reschedule, reopen, replay, edit, delete, change limits."""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.engines.sqlite import statements as sql
from mainspring.engines.sqlite.codec import (
    STATUSES,
    headers_column,
    limits_of,
    number_of,
    pairs,
    to_group,
    to_json,
    to_stored,
)
from mainspring.engines.sqlite.spent_envelopes import remember_deleted
from mainspring.engines.sqlite.store import Store
from mainspring.engines.sqlite.waiting_groups import Memberships
from mainspring.jobs.activity import EngineNote
from mainspring.jobs.commands import (
    CancelJob,
    Changed,
    ChangeLimits,
    Command,
    Delete,
    Edit,
    Reopen,
    Replay,
    Reschedule,
)
from mainspring.jobs.events import EventKind
from mainspring.jobs.status import FINAL, JobStatus

QUEUE_AND_TYPE_OF = "SELECT queue, type FROM lanes WHERE id = (SELECT lane FROM jobs WHERE id = ?1)"
UNIQUE_KEY_OF = "SELECT unique_key FROM jobs WHERE id = ?1"


class Commands:
    """Executes commands on jobs. For use inside a unit (one transaction)."""

    def __init__(self, store: Store) -> None:
        self._database = store.database
        self._lanes = store.lanes
        self._heads = store.heads
        self._parked_groups = store.parked_groups
        self._groups = store.groups
        self._events = store.events
        self._notes = store.notes
        self._now = store.now

    def execute(self, commands: Sequence[Command]) -> list[Changed]:
        """Execute commands in order, and return an answer for each. Adjacent cancels are executed as one batch."""
        ids = [command.id for command in commands]
        memberships = self._heads.memberships_of_jobs(ids)
        found = pairs(self._database.write(sql.STATUSES_OF, (to_json(ids),)))
        statuses = {job_id: STATUSES[code] for job_id, code in found}
        answers: list[Changed] = []
        cancels: list[str] = []
        for command in commands:
            status = statuses.get(command.id)
            if isinstance(command, CancelJob):
                cancels.append(command.id)
                is_done = status is JobStatus.PENDING
                answers.append(Changed(is_done, status))
                if is_done:
                    statuses[command.id] = JobStatus.CANCELED
                continue
            self._cancel(cancels)
            answer = Changed(False, None) if status is None else self._execute_one(command, status, memberships)
            answers.append(answer)
            if answer.is_done:
                _follow(command, statuses)
        self._cancel(cancels)
        self._parked_groups.update_after_leaving(memberships)
        self._write_events(commands, answers)
        return answers

    def _cancel(self, ids: list[str]) -> None:
        if ids:
            batch = to_json(ids)
            self._database.write(sql.REQUEST_STOP, (batch, self._now()))
            self._database.write(sql.CANCEL, (batch, self._now()))
            ids.clear()

    def _execute_one(self, command: Command, status: JobStatus, memberships: Memberships) -> Changed:
        write = self._database.write
        match command:
            case Reopen() | Replay() if status is JobStatus.FAILED:
                return self._revive(command, status, memberships)
            case Reschedule() if status is JobStatus.PENDING:
                write(sql.RESCHEDULE, (command.id, command.due))
                self._set_headers(command.id, command.headers)
            case ChangeLimits() if status is JobStatus.PENDING:
                memberships.add([(None, self._regroup(command))])
            case Edit() if status is JobStatus.FAILED:
                write(sql.EDIT, (command.id, to_stored(command.payload, command.codec), command.codec))
                self._set_headers(command.id, command.headers)
                self._set_search_keys(command.id, command.search, memberships)
            case Delete() if status in FINAL and command.status in (None, status):
                remember_deleted(self._database, self._now(), ids=[command.id])
                write(sql.DELETE, (command.id,))
            case _:
                return Changed(False, status)
        return Changed(True, status)

    def _set_headers(self, job_id: str, headers: dict[str, str] | None) -> None:
        """Store the headers of a job, which have a new signature; None changes nothing."""
        if headers is not None:
            self._database.write(sql.SET_HEADERS, (job_id, headers_column(headers)))

    def _regroup(self, command: ChangeLimits) -> str | None:
        lane = self._lanes.lane_under(command.id, command.limits)
        group = to_group(lane, command.limits)
        if group is not None:
            self._groups.add_jobs({group: 0})
        self._database.write(sql.REGROUP, (command.id, number_of(group), lane))
        return group

    def _set_search_keys(self, job_id: str, search: tuple[str, ...], memberships: Memberships) -> None:
        """Store the search keys of a job whose arguments were changed.

        If `search=` of its handler has other parameters now, the job is stored with the jobs that are indexed by
        these parameters (another lane), also under its limits (another group).
        """
        write = self._database.write
        write(sql.SET_SEARCH_KEYS, (job_id, to_json(search) if search else None))
        before, name = write(sql.LANE_AND_GROUP_OF, (job_id,))
        limits = limits_of(name)
        lane = self._lanes.lane_under(job_id, limits, search)
        if lane != before:
            group = to_group(lane, limits)
            if group is not None:
                self._groups.add_jobs({group: 0})
                memberships.add([(None, group)])
            write(sql.MOVE_TO_LANE, (job_id, lane, number_of(group)))

    def _revive(self, command: Reopen | Replay, status: JobStatus, memberships: Memberships) -> Changed:
        write = self._database.write
        replayed_as = write(sql.REPLAYED_AS, (command.id,))
        if replayed_as is not None:  # the replay has taken over the work of this dead letter
            return Changed(False, status, replayed_as)
        if isinstance(command, Replay):
            self._replay(command, memberships)
            return Changed(True, status)
        key = write(UNIQUE_KEY_OF, (command.id,))
        holder = None if key is None else write(sql.ALIVE_HOLDER, (key, command.id))
        if holder is not None:
            return Changed(False, status, holder, is_unique_conflict=True)
        write(sql.REOPEN, (command.id, command.due))
        self._set_headers(command.id, command.headers)
        return Changed(True, status)

    def _replay(self, command: Replay, memberships: Memberships) -> None:
        payload = None if command.payload is None else to_stored(command.payload, command.codec)
        self._database.write(
            sql.REPLAY, (command.id, command.new_id, command.due, self._now(), payload, command.codec)
        )
        self._set_headers(command.new_id, command.headers)
        self._database.write(sql.LINK_REPLAY, (command.id, command.new_id))
        self._groups.add_job_like(command.id)
        queue, type_ = self._database.write(QUEUE_AND_TYPE_OF, (command.id,))
        self._notes.add(EngineNote("submitted", queue, type_))
        if command.payload is None:
            self._database.write(sql.COPY_SEARCH_KEYS, (command.id, command.new_id))
        else:
            self._set_search_keys(command.new_id, command.search, memberships)

    def _write_events(self, commands: Sequence[Command], answers: list[Changed]) -> None:
        if not self._events.has_listener():
            return
        for command, answer in zip(commands, answers, strict=True):
            if not answer.is_done:
                continue
            match command:
                case CancelJob():
                    self._events.write_for([command.id], EventKind.CANCELED, "canceled before it started")
                case Reschedule():
                    self._events.write_for([command.id], EventKind.RESCHEDULED)
                case Reopen():
                    self._events.write_for([command.id], EventKind.REOPENED)
                case Replay():
                    self._events.write_for([command.new_id], EventKind.SUBMITTED, f"a replay of {command.id}")
                case _:
                    pass


def _follow(command: Command, statuses: dict[str, JobStatus]) -> None:
    """Update the cached statuses after a command, for the commands after it in the batch."""
    if isinstance(command, Reopen):
        statuses[command.id] = JobStatus.PENDING
    elif isinstance(command, Replay):
        statuses[command.new_id] = JobStatus.PENDING
    elif isinstance(command, Delete):
        del statuses[command.id]
