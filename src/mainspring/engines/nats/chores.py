"""Reminders (chores): messages that the server delivers at a given time, for any worker to carry out.

    enter    a job in a sequence or under limits is due, and requests admission
    expire   the time in which a job had to start is over
    poke     a sequence or limit may admit jobs again, for example because a rate has tokens
    forget   the time for which a result was kept is over

A chore is only a reminder: the worker reads the records to find whether there is anything to do. A chore that is
delivered early is kept until it is due.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from mainspring.engines.nats.gate_records import is_ready
from mainspring.engines.nats.gates import Gates
from mainspring.engines.nats.intake import MessageIntake
from mainspring.engines.nats.journal import NatsJournal
from mainspring.engines.nats.messages import ACK, Message, Pull, nak
from mainspring.engines.nats.naming import from_token
from mainspring.engines.nats.queueing import Queueing
from mainspring.engines.nats.stored import StoredJob, change, decode
from mainspring.engines.nats.streams import Streams
from mainspring.engines.nats.workspace import Workshop, Workspace
from mainspring.errors import EngineUnavailable
from mainspring.jobs import transitions
from mainspring.jobs.status import JobStatus
from mainspring.jobs.timestamps import MICROSECONDS

AT_ONCE = 50
PAUSE_SECONDS = 5.0

logger = logging.getLogger("mainspring.nats")


class Chores:
    """Carries out chores."""

    def __init__(
        self,
        workshop: Workshop,
        streams: Streams,
        intake: MessageIntake,
        *,
        gates: Gates,
        queueing: Queueing,
        journal: NatsJournal,
        wake: Callable[[], None],
    ) -> None:
        self._workshop = workshop
        self._streams = streams
        self._intake = intake
        self._gates = gates
        self._queueing = queueing
        self._journal = journal
        self._wake = wake
        self._kept: dict[str, Message] = {}  # by subject: those that are not due yet, or were too many at once
        self._planned: int | None = None

    def consumer(self) -> str:
        """Return the name of the consumer that delivers chores."""
        return self._streams.consumer_of(f"{self._workshop.names.chores}>")

    def carry_out(self, *, looks: bool = False) -> None:
        """Carry out the due chores that were delivered; fetch more if any were, or if `looks` is true."""
        came = self._intake.take_chores()
        if came or looks:
            came += self._intake.fetch([Pull(self.consumer(), AT_ONCE)])
        for message in came:
            self._kept[message.subject] = message
        now = self._workshop.now()
        due = [message for message in self._kept.values() if _due_of(message) <= now][:AT_ONCE]
        if due:
            for message in due:
                del self._kept[message.subject]
            self._do_all(due)
        self._plan(now)

    def _do_all(self, messages: list[Message]) -> None:
        """Carry out chores, many in one transaction. A chore that fails does not block the claiming of jobs."""
        answer = ACK
        try:
            self._workshop.carry_through_many(messages, self._do, before=self._prefetch, at_once=AT_ONCE)
        except EngineUnavailable:
            self._kept |= {message.subject: message for message in messages}
            raise
        except Exception:
            if len(messages) > 1:
                for message in messages:
                    self._do_all([message])
                return
            logger.exception("chore %s could not be done; it comes again", messages[0].subject)
            answer = nak(PAUSE_SECONDS)
        self._workshop.link.send([(message.reply, answer) for message in messages])

    def _prefetch(self, workspace: Workspace, messages: Sequence[Message]) -> None:
        keys = [self._split(message) for message in messages]
        ids = [from_token(key) for kind, key in keys if kind != "poke"]
        workspace.prefetch_jobs(ids)
        jobs = (workspace.job(job_id) for job_id in ids)
        self._gates.prefetch(workspace, [job for job in jobs if job is not None and job.is_gated])

    def _split(self, message: Message) -> tuple[str, str]:
        kind, _, key = message.subject.removeprefix(self._workshop.names.chores).partition(".")
        return kind, key

    def _plan(self, now: int) -> None:
        """Schedule a wake-up for the next chore that was delivered early."""
        if not self._kept:
            return
        due = min(_due_of(message) for message in self._kept.values())
        if self._planned is None or not now < self._planned <= due:
            self._planned = due
            self._workshop.link.wake_after(max(0, due - now) / MICROSECONDS, self._wake)

    def held(self) -> list[str]:
        """Return the reply subjects of the chores that are kept."""
        return [message.reply for message in list(self._kept.values())]

    def give_back(self) -> list[str]:
        """Drop the chores that are kept; return their reply subjects."""
        replies = self.held()
        self._kept.clear()
        return replies

    def _do(self, workspace: Workspace, message: Message) -> None:
        kind, key = self._split(message)
        if kind == "poke":
            family, gate, _ = decode(message.data, tuple[str, str, int])
            self._gates.poke(workspace, family, gate)
            return
        job = workspace.job(from_token(key))
        if job is None:
            return
        if kind == "enter":
            self._enter(workspace, job)
        elif kind == "expire" and job.expires is not None:
            self._expire(workspace, job, job.expires)
        elif kind == "forget" and job.keep_result_until is not None and job.keep_result_until <= workspace.now:
            workspace.put_job(change(job, result=None, keep_result_until=None))

    def _enter(self, workspace: Workspace, job: StoredJob) -> None:
        if job.status is JobStatus.PENDING and job.owner is None and not is_ready(job):
            # It is due; or it was rescheduled while the server fired, which may have deleted the new schedule.
            self._queueing.enqueue(workspace, job)

    def _expire(self, workspace: Workspace, job: StoredJob, expires: int) -> None:
        if expires <= workspace.now:
            self.expire(workspace, job)
        elif job.status is JobStatus.PENDING:  # it was rescheduled while the server fired
            names = workspace.names
            workspace.draft.schedule(names.at("expire", job.id), names.chore("expire", job.id), expires)

    def expire(self, workspace: Workspace, job: StoredJob) -> None:
        """Fail a job that has not started before it expires."""
        if job.status is JobStatus.PENDING and job.owner is None:
            after = transitions.expired(self._queueing.dequeue(workspace, job), workspace.now)
            workspace.put_job(after)
            self._journal.write_failed(workspace, after)


def _due_of(message: Message) -> int:
    """Return when a chore is due: the last element of its data; without data, it is due on delivery."""
    return int(decode(message.data, list[Any])[-1]) if message.data else 0
