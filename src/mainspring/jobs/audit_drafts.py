"""Drafts of audit entries: what an engine needs to store the entries of a call together with its changes.

The job manager makes a draft for a call on behalf of an actor, and passes it to the engine with the call. Inside
of its transaction, the engine tells the draft which changes were made, and stores the entries that it returns.

Invariants
- An engine may ask again for the same changes, because a transaction was rolled back or its reply was lost. The
  draft then returns entries with the same ids and the same content, so the engine may store them twice.
- A change of many jobs in several calls has one draft. Each call stores the entry anew, with all jobs so far. So
  after a crash, the entry has the jobs of all transactions that were committed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from mainspring.jobs.audit import MAX_JOBS, MAX_NAMES, Actor, AuditEntry, AuditNote, clip, id_at
from mainspring.jobs.commands import (
    Arrangement,
    CancelJob,
    ChangeCallbackPause,
    Changed,
    Command,
    Delete,
    DirectWorker,
    DropDeadLetterHandler,
    DropLimit,
    DropRedaction,
    Edit,
    NoteTokenUses,
    PauseQueue,
    PauseSchedule,
    PutDeadLetterHandler,
    PutLimit,
    PutRedaction,
    PutSchedule,
    PutToken,
    RemoveSchedule,
    RemoveWorker,
    Reopen,
    Replay,
    Reschedule,
    RevokeToken,
)
from mainspring.jobs.recurrence.schedule_records import Fired, Firing
from mainspring.jobs.status import JobStatus
from mainspring.jobs.timestamps import MICROSECONDS, to_datetime

Place: TypeAlias = tuple[str, str]
"""The job type and the queue of a job or a schedule."""

ACTIONS: dict[type, str] = {
    CancelJob: "job.cancel",
    Reschedule: "job.reschedule",
    Reopen: "job.retry",
    Replay: "dead_letter.replay",
    Edit: "dead_letter.edit",
    Delete: "dead_letter.purge",
}
"""The audit action of each command about jobs. Commands that are not listed here have no audit entries."""

ALL_ACTIONS = (
    *ACTIONS.values(),
    "job.run_now",
    "schedule.put",
    "schedule.pause",
    "schedule.resume",
    "schedule.remove",
    "schedule.trigger",
    "queue.pause",
    "queue.resume",
    "limit.put",
    "limit.remove",
    "dead_letter_handler.put",
    "dead_letter_handler.remove",
    "redaction.remove",
    "callbacks.resume",
    "token.create",
    "token.revoke",
    "store.migrate",
    "worker.run",
    "worker.quiet",
    "worker.terminate",
    "worker.remove",
)
"""Every value that `AuditEntry.action` can have."""

STORE_ACTOR = "mainspring"
"""The name of the actor of changes that no caller has asked for."""

_numbers = count(1)


class JobTally(Struct, frozen=True):
    """Counts what the commands of one change did to jobs so far, with the first ids, the job types and the
    queues.
    """

    changed: int = 0
    asked_to_stop: int = 0
    refused: int = 0
    jobs: tuple[str, ...] = ()
    types: frozenset[str] = frozenset()
    queues: frozenset[str] = frozenset()

    def plus(
        self, commands: Sequence[Command], answers: Sequence[Changed], places: Mapping[str, Place]
    ) -> JobTally:
        """Return this tally plus some commands: each changed its job, asked it to stop, or was refused."""
        changed = asked = refused = 0
        jobs = list(self.jobs)
        types, queues = set(self.types), set(self.queues)
        for command, answer in zip(commands, answers, strict=True):
            if answer.is_done:
                changed += 1
            elif isinstance(command, CancelJob) and answer.status is JobStatus.RUNNING:
                asked += 1
            else:
                refused += 1
                continue
            if len(jobs) < MAX_JOBS:
                jobs.append(command.id)
            if command.id in places:
                type_, queue = places[command.id]
                types.add(type_)
                queues.add(queue)
        return JobTally(
            self.changed + changed,
            self.asked_to_stop + asked,
            self.refused + refused,
            tuple(jobs),
            frozenset(types),
            frozenset(queues),
        )


class AuditDraft:
    """The draft of audit entries: what is known of them before the engine has made the changes.

    A draft is for one call of the engine, or for several calls that change many jobs together.

    One thread at a time uses it.
    """

    __slots__ = ("_actor", "_after", "_before", "_is_bulk", "_note", "_now", "_random", "number")

    def __init__(self, actor: Actor, now: int, note: AuditNote | None = None, *, is_bulk: bool = False) -> None:
        self._actor = actor
        self._now = now
        self._note = note or AuditNote()
        self._is_bulk = is_bulk
        self._random = os.urandom(4).hex()[:7]
        self._before = JobTally()  # the result of the calls that were confirmed
        self._after = JobTally()  # the same, plus the last call
        self.number = next(_numbers)
        """A number that no other draft of this process has."""

    def confirm(self) -> None:
        """Record that the store has committed the last call: the next one adds its jobs to the same entry."""
        self._before = self._after

    def for_commands(
        self, commands: Sequence[Command], answers: Sequence[Changed], places: Mapping[str, Place]
    ) -> AuditEntry | None:
        """Return the audit entry for the commands of all confirmed calls and of the present call.

        Return None if no job was changed or asked to stop, or if the commands have no action.

        - `commands`: the commands of the present call
        - `answers`: the engine's answers to them, in the same order
        - `places`: the type and queue of each job before the commands, by its id
        """
        self._after = tally = self._before.plus(commands, answers, places)
        done = tally.changed + tally.asked_to_stop
        action = self._note.action or (ACTIONS.get(type(commands[0])) if commands else None)
        if not done or action is None:
            return None
        details: dict[str, Any] = {}
        if tally.asked_to_stop:
            details["asked_to_stop"] = tally.asked_to_stop
        if self._is_bulk:
            if tally.refused:
                details["refused"] = tally.refused
            target, jobs = None, tally.jobs
        else:
            (command,) = commands
            target, jobs = command.id, (command.new_id,) if isinstance(command, Replay) else ()
            if isinstance(command, Reschedule) and action == ACTIONS[Reschedule]:
                details["due"] = to_datetime(command.due).isoformat()
        types, queues = _names(tally.types), _names(tally.queues)
        return self._entry(0, action, target, details, count=done, jobs=jobs, types=types, queues=queues)

    def for_arrangement(self, index: int, arrangement: Arrangement, place: Place | None) -> AuditEntry | None:
        """Return the audit entry of an arrangement that has changed the store; None if its kind is not audited.

        - `index`: the index of the arrangement in its call
        - `place`: the type and queue of the schedule that it concerns; None for other arrangements
        """
        described = _describe(arrangement)
        if described is None:
            return None
        action, target, details = described
        type_, queue = place if place is not None else _place_of(arrangement)
        return self._entry(
            index,
            self._note.action or action,
            self._note.target or target,
            details,
            types=None if type_ is None else (type_,),
            queues=None if queue is None else (queue,),
        )

    def for_firing(self, firing: Firing, fired: Fired) -> AuditEntry | None:
        """Return the entry of a trigger; None if the trigger has made no job."""
        if not fired.is_done or not fired.submitted:
            return None
        job = firing.jobs[0]
        place = {"types": (job.type,), "queues": (job.queue,)}
        return self._entry(0, "schedule.trigger", firing.schedule, {}, jobs=fired.submitted, **place)

    def for_migration(self, source: str, target: str) -> AuditEntry:
        """Return the audit entry of a migration of jobs from the store `source` to the store `target`."""
        return self._entry(0, "store.migrate", source, {"to": clip(target)})

    def _entry(
        self, index: int, action: str, target: str | None, details: Mapping[str, Any], **rest: Any
    ) -> AuditEntry:
        actor = self._actor
        by_sudo = {} if actor.sudo_user is None else {"sudo_user": actor.sudo_user}
        return AuditEntry(
            id=self._id(index),
            at=to_datetime(self._now),
            actor=actor.name,
            source=actor.source,
            token=actor.token,
            request_id=actor.request_id,
            action=action,
            target=None if target is None else clip(target),
            details={**self._note.details, **details, **by_sudo},
            **rest,
        )

    def _id(self, index: int) -> str:
        """Return an id of 32 hexadecimal digits for an entry. The ids of one process sort by time, then by
        creation.

        Ids of jobs would not do: after the clock is set back, they go on from the latest time.
        """
        return f"{id_at(self._now)}{self.number & 0xFFFF_FFFF:08x}{index & 0xFFF:03x}{self._random}"


def draft_of_store(now: int) -> AuditDraft:
    """Return the draft for a change that an engine makes by itself: it removes a worker whose token has ended."""
    return AuditDraft(Actor(name=STORE_ACTOR, source="program"), now)


def _names(names: Iterable[str]) -> tuple[str, ...] | None:
    """Return names in alphabetical order; None if there are none, or more than `MAX_NAMES`."""
    found = sorted(names)
    return tuple(found) if 0 < len(found) <= MAX_NAMES else None


_Description: TypeAlias = tuple[str, str, dict[str, Any]]
"""The action, the target and the details of an arrangement."""


def _describe(arrangement: Arrangement) -> _Description | None:
    match arrangement:
        case PutSchedule() | PauseSchedule() | RemoveSchedule():
            return _describe_schedule(arrangement)
        case PauseQueue(queue, is_paused):
            return f"queue.{'pause' if is_paused else 'resume'}", queue, {}
        case PutLimit() | DropLimit():
            return _describe_limit(arrangement)
        case PutDeadLetterHandler() | DropDeadLetterHandler():
            return _describe_handler(arrangement)
        case DropRedaction(type_):
            return "redaction.remove", type_, {}
        case PutToken() | RevokeToken():
            return _describe_token(arrangement)
        case ChangeCallbackPause():
            return _describe_pause(arrangement)
        case DirectWorker() | RemoveWorker():
            return _describe_worker(arrangement)
        case PutRedaction() | NoteTokenUses():  # a process declares redactions by itself
            return None


def _describe_limit(arrangement: PutLimit | DropLimit) -> _Description:
    match arrangement:
        case PutLimit(family, most, per):
            return "limit.put", family, {"most": most, "per": None if per is None else per / MICROSECONDS}
        case DropLimit(family):
            return "limit.remove", family, {}


def _describe_token(arrangement: PutToken | RevokeToken) -> _Description:
    match arrangement:
        case PutToken(record):
            return "token.create", record.name, {"token": record.id, "scopes": list(record.scopes)}
        case RevokeToken(token):
            return "token.revoke", token, {"token": token}


def _describe_worker(arrangement: DirectWorker | RemoveWorker) -> _Description:
    match arrangement:
        case DirectWorker(number, direction):
            return f"worker.{direction}", str(number), {}
        case RemoveWorker(number, reason):
            return "worker.remove", str(number), {"reason": reason}


def _describe_handler(arrangement: PutDeadLetterHandler | DropDeadLetterHandler) -> _Description:
    match arrangement:
        case PutDeadLetterHandler(handler):
            return "dead_letter_handler.put", handler.type, {}
        case DropDeadLetterHandler(type_):
            return "dead_letter_handler.remove", type_, {}


def _describe_pause(arrangement: ChangeCallbackPause) -> _Description | None:
    lifted = arrangement.before if arrangement.after is None else None
    if lifted is None:  # a worker pauses receivers by itself
        return None
    return "callbacks.resume", lifted.host, {} if lifted.url is None else {"url": lifted.url}


def _describe_schedule(arrangement: PutSchedule | PauseSchedule | RemoveSchedule) -> _Description:
    match arrangement:
        case PutSchedule(record, expected):
            rule = msgspec.json.decode(record.rule)
            return "schedule.put", record.name, {"rule": rule, "is_new": expected is None}
        case PauseSchedule(name, is_paused):
            return f"schedule.{'pause' if is_paused else 'resume'}", name, {}
        case RemoveSchedule(name):
            return "schedule.remove", name, {}


def _place_of(arrangement: Arrangement) -> tuple[str | None, str | None]:
    """Return the job type and the queue that an arrangement names; None for each that it does not name."""
    match arrangement:
        case PutSchedule(record):
            return record.type, record.queue
        case PauseQueue(queue):
            return None, queue
        case ChangeCallbackPause(before):
            return None if before is None else before.type, None
        case _:
            return None, None
