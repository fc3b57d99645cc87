"""A yard with gates: jobs come, start and go on a real server, step by step and by a clock that a test moves."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import count

from mainspring.clock import Clock
from mainspring.engines.nats.drafts import StreamEntry
from mainspring.engines.nats.gate_records import Gate, is_ready, standing_of
from mainspring.engines.nats.gates import Gates
from mainspring.engines.nats.link import Link
from mainspring.engines.nats.naming import Names, digest, from_token
from mainspring.engines.nats.settings import NatsSettings
from mainspring.engines.nats.settings_book import SettingsBook
from mainspring.engines.nats.stored import StoredJob, change, decode, make_job
from mainspring.engines.nats.streams import Streams
from mainspring.engines.nats.workspace import Workshop, Workspace
from mainspring.jobs import transitions
from mainspring.jobs.commands import DropLimit, PauseQueue, PutLimit
from mainspring.jobs.limits import family_of
from mainspring.jobs.records import NewJob
from mainspring.jobs.status import JobStatus

MICROSECONDS = 1_000_000
WORKER = 7


class Yard:
    """What one process knows and does."""

    def __init__(self, url: str, prefix: str, clock: Clock) -> None:
        self.clock = clock
        settings = NatsSettings(prefix=prefix)
        self.names = Names(prefix)
        self.link = Link([url], settings, self.names.stream, clock)
        self.link.open()
        Streams(self.link, self.names, settings).prepare()
        self.workshop = Workshop(self.link, self.names)
        self.book = SettingsBook(self.workshop)
        self.gates = Gates(self.book)
        self._numbers = count()

    def close(self) -> None:
        self.link.close()

    # -- settings

    def limit(self, family: str, most: int, per: float | None = None) -> bool:
        micros = None if per is None else round(per * MICROSECONDS)
        is_changed = self.book.arrange(PutLimit(family, most, micros))
        self.gates.limits_changed(self.workshop, [family])
        return is_changed

    def drop_limit(self, family: str) -> bool:
        is_changed = self.book.arrange(DropLimit(family))
        self.gates.limits_changed(self.workshop, [family])
        return is_changed

    def pause(self, queue: str, *, is_paused: bool = True) -> bool:
        is_changed = self.book.arrange(PauseQueue(queue, is_paused))
        self.gates.queue_changed(self.workshop, queue)
        return is_changed

    # -- jobs

    def submit(
        self,
        *job_ids: str,
        sequence: str | None = None,
        limits: tuple[str, ...] = (),
        after: float = 0,
        queue: str = "default",
    ) -> None:
        """Store jobs in one step, due so many seconds from now; those that are due ask at their gates."""
        due = self.workshop.now() + round(after * MICROSECONDS)
        new = [
            NewJob(job_id, "ping", queue, 1, due, b"", "json", sequence=sequence, limits=limits)
            for job_id in job_ids
        ]
        self.workshop.carry_through(lambda ws: self._submit(ws, new))

    def _submit(self, workspace: Workspace, jobs: Iterable[NewJob]) -> None:
        for new in jobs:
            place = workspace.now * 1_000 + next(self._numbers)
            job = make_job(new, now=workspace.now, place=place, nonce=new.id)
            workspace.put_job(job)
            if job.due <= workspace.now:
                self.gates.enter(workspace, job)

    def enter(self, job_id: str) -> None:
        """The chore of a job that has become due."""
        self.workshop.carry_through(lambda ws: self.gates.enter(ws, need(ws.job(job_id))))

    def start(self, job_id: str) -> bool:
        """A worker starts a job, if it may, and acknowledges its message."""
        job = self.job(job_id)
        ready = self.names.ready_of(job.queue, job.type, job.priority, job.id)
        revision = self.link.read_one(ready).revision
        is_started = self.workshop.carry_through(lambda ws: self._start(ws, job_id))
        if is_started:
            self.acknowledge(ready, revision)
        return is_started

    def acknowledge(self, subject: str, revision: int) -> None:
        """Take a message away, and none that came later."""
        self.link.api(f"STREAM.PURGE.{self.names.stream}", {"filter": subject, "seq": revision + 1})

    def _start(self, workspace: Workspace, job_id: str) -> bool:
        job = need(workspace.job(job_id))
        if job.status is not JobStatus.PENDING or not is_ready(job):
            return False
        started = transitions.started(job, WORKER, workspace.now, is_held=False)
        workspace.put_job(self.gates.started(workspace, started))
        return True

    def end(self, job_id: str) -> None:
        """A job that runs is completed."""
        self.workshop.carry_through(lambda ws: self._end(ws, job_id))

    def _end(self, workspace: Workspace, job_id: str) -> None:
        job = change(need(workspace.job(job_id)), status=JobStatus.COMPLETED, owner=None)
        workspace.put_job(self.gates.leave(workspace, job, keeps_sequence=False))

    def retry(self, job_id: str, after: float = 0, *, keeps_sequence: bool = True) -> None:
        """A job that runs is to run again."""
        self.workshop.carry_through(lambda ws: self._retry(ws, job_id, after, keeps_sequence=keeps_sequence))

    def _retry(self, workspace: Workspace, job_id: str, after: float, *, keeps_sequence: bool) -> None:
        due = workspace.now + round(after * MICROSECONDS)
        job = change(need(workspace.job(job_id)), status=JobStatus.PENDING, owner=None, due=due)
        if not keeps_sequence:
            job = change(job, turn=due)
        job = self.gates.leave(workspace, job, keeps_sequence=keeps_sequence)
        workspace.put_job(job)
        if job.due <= workspace.now:
            self.gates.enter(workspace, job)

    def cancel(self, job_id: str) -> None:
        """A job that waits is called off."""
        self.workshop.carry_through(lambda ws: self._cancel(ws, job_id))

    def _cancel(self, workspace: Workspace, job_id: str) -> None:
        job = need(workspace.job(job_id))
        assert job.status is JobStatus.PENDING
        workspace.purge(self.names.ready_of(job.queue, job.type, job.priority, job.id))
        job = self.gates.withdraw(workspace, job)
        workspace.put_job(change(job, status=JobStatus.CANCELED))

    def run(self, job_id: str) -> None:
        """A job starts and is completed."""
        assert self.start(job_id), f"{job_id} may not start: {self.job(job_id).gates}"
        self.end(job_id)

    # -- chores

    def poke(self, gate: str) -> None:
        """The chore of a gate."""
        self.workshop.carry_through(lambda ws: self.gates.poke(ws, family_of(gate), gate))

    def poke_all(self) -> None:
        """Do all pokes whose time has come."""
        for subject, entry in self.scan(f"{self.names.chores}poke.>"):
            family, gate, instant = decode(entry.data, tuple[str, str, int])
            if instant <= self.workshop.now():
                self.workshop.carry_through(partial(self.gates.poke, family=family, gate=gate))
                self.acknowledge(subject, entry.revision)

    def has_poke(self, gate: str) -> bool:
        """Whether a reminder to check a gate is stored."""
        key = digest(gate)
        found = self.link.read([self.names.at("poke", key), self.names.chore("poke", key)])
        return any(entry.revision for entry in found.values())

    # -- looking

    def job(self, job_id: str) -> StoredJob:
        return need(self.workshop.open().job(job_id))

    def state(self, job_id: str) -> str:
        return standing_of(self.job(job_id)).state

    def ready(self) -> list[str]:
        """The jobs that may be started, in the order in which they stand in their lane."""
        workspace = self.workshop.open()
        found = [from_token(subject.rpartition(".")[2]) for subject, _ in self.scan(f"{self.names.ready}>")]
        workspace.prefetch_jobs(found)
        jobs = [need(workspace.job(job_id)) for job_id in found]
        return [job.id for job in jobs if job.status is JobStatus.PENDING and is_ready(job)]

    def gate(self, name: str) -> Gate | None:
        data = self.link.read_one(self.names.gate(family_of(name), name)).data
        return decode(data, Gate) if data else None

    def scan(self, subject: str) -> list[tuple[str, StreamEntry]]:
        return self.link.scan(subject, most=5_000)


def need(job: StoredJob | None) -> StoredJob:
    assert job is not None
    return job
