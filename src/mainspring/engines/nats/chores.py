"""Chores: what the server reminds us of in its time, for any worker to look into.

    enter    a job under a sequence or limits is due, and asks to pass
    expire   a job should have started by now
    poke     a rate admits again
    forget   a result was to be kept until now

A chore is only a reminder: the records say whether there is anything to do. One that comes early is kept until its
time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from mainspring.engines.nats.gate_records import is_ready
from mainspring.engines.nats.gates import Gates
from mainspring.engines.nats.intake import Intake
from mainspring.engines.nats.journal import Journal
from mainspring.engines.nats.messages import ACK, Message, Pull, nak
from mainspring.engines.nats.naming import from_token
from mainspring.engines.nats.queueing import Queueing
from mainspring.engines.nats.stored import StoredJob, change, decode
from mainspring.engines.nats.streams import Streams
from mainspring.engines.nats.workspace import Workshop, Workspace
from mainspring.errors import EngineUnavailable
from mainspring.jobs import transitions
from mainspring.jobs.instants import MICROSECONDS
from mainspring.jobs.status import JobStatus

AT_ONCE = 50
PAUSE_SECONDS = 5.0

logger = logging.getLogger("mainspring.nats")


class Chores:
    """Carries out chores."""

    def __init__(
        self,
        workshop: Workshop,
        streams: Streams,
        intake: Intake,
        *,
        gates: Gates,
        queueing: Queueing,
        journal: Journal,
        wake: Callable[[], None],
    ) -> None:
        self._workshop = workshop
        self._streams = streams
        self._intake = intake
        self._gates = gates
        self._queueing = queueing
        self._journal = journal
        self._wake = wake
        self._early: list[Message] = []

    def consumer(self) -> str:
        """Return the consumer that delivers chores."""
        return self._streams.consumer_of(f"{self._workshop.names.chores}>")

    def carry_out(self, *, looks: bool = False) -> None:
        """Do what there is to do, among what came by itself; and what is there, if one looks."""
        messages = self._early + self._intake.take_chores()
        if messages or looks:
            messages += self._intake.fetch([Pull(self.consumer(), AT_ONCE)])
        self._early = []
        for message in {message.subject: message for message in messages}.values():
            due = _due_of(message)
            if due > self._workshop.now():
                self._wait(message, due)
            else:
                self._workshop.link.send([(message.reply, self._try(message))])

    def _try(self, message: Message) -> bytes:
        """Do a chore; return what to answer. One that cannot be done keeps nobody from taking jobs."""
        try:
            self._workshop.carry_through(partial(self._do, message))
        except EngineUnavailable:
            raise
        except Exception:
            logger.exception("chore %s could not be done; it comes again", message.subject)
            return nak(PAUSE_SECONDS)
        return ACK

    def _wait(self, message: Message, due: int) -> None:
        self._early.append(message)
        seconds = (due - self._workshop.now()) / MICROSECONDS
        self._workshop.link.call_later(
            lambda: _nothing(asyncio.get_running_loop().call_later(max(0, seconds), self._wake))
        )

    def held(self) -> list[str]:
        """Return where the chores that we keep are acknowledged."""
        return [message.reply for message in self._early]

    def give_back(self) -> list[str]:
        """Let go of the chores that we keep; return where they are acknowledged."""
        replies = self.held()
        self._early = []
        return replies

    def _do(self, message: Message, workspace: Workspace) -> None:
        kind, _, key = message.subject.removeprefix(workspace.names.chores).partition(".")
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
            # It is due; or it was put off while the server fired, which then may have deleted the new schedule.
            self._queueing.enqueue(workspace, job)

    def _expire(self, workspace: Workspace, job: StoredJob, expires: int) -> None:
        if expires <= workspace.now:
            self.expire(workspace, job)
        elif job.status is JobStatus.PENDING:  # it was put off while the server fired
            names = workspace.names
            workspace.draft.schedule(names.at("expire", job.id), names.chore("expire", job.id), expires)

    def expire(self, workspace: Workspace, job: StoredJob) -> None:
        """Give up a job that has not started within its time."""
        if job.status is JobStatus.PENDING and job.owner is None:
            after = transitions.expired(self._queueing.dequeue(workspace, job), workspace.now)
            workspace.put_job(after)
            self._journal.write_failed(workspace, after)


def _due_of(message: Message) -> int:
    """Return when a chore is to be done, which it says last; those that say nothing come in time."""
    return int(decode(message.data, list[Any])[-1]) if message.data else 0


def _nothing(_handle: asyncio.TimerHandle) -> None:
    return None
