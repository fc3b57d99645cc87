"""The NATS engine: implements the `Engine` protocol on NATS JetStream, with the components of `parts`.

One stream stores everything. Each verb is one or a few transactions, which the server stores all or none. The
server schedules jobs that are due later, and publishes them a short lead ahead. Consumers that all workers share
deliver jobs that are due.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from msgspec.structs import replace

from mainspring.clock import Clock, SystemClock
from mainspring.engines.nats.messages import IN_PROGRESS, nak
from mainspring.engines.nats.parts import Parts
from mainspring.engines.nats.projector import Pruning, kept_by_status
from mainspring.engines.nats.settings import NatsSettings, parse_url
from mainspring.engines.nats.workers import Heartbeat
from mainspring.errors import EngineUnavailable
from mainspring.jobs import transitions
from mainspring.jobs.backlog import Backlog
from mainspring.jobs.commands import (
    Arrangement,
    Changed,
    Command,
    DropLimit,
    PauseQueue,
    PauseSchedule,
    PutLimit,
    PutSchedule,
    RemoveSchedule,
)
from mainspring.jobs.engine import Capability, Demand, Pruned, Retention, Situation, Swept, Taken
from mainspring.jobs.events import EventPage
from mainspring.jobs.projection import Projection
from mainspring.jobs.records import (
    Conflict,
    Lease,
    NewJob,
    Outcome,
    OutcomeKind,
    Page,
    ProgressReport,
    Query,
    WorkerInfo,
    WorkerRecord,
)
from mainspring.jobs.recurrence.schedule_records import Fired, Firing, Occurrence, ScheduleRecord
from mainspring.jobs.status import JobStatus

START_LEAD = 50_000
CLUSTER_START_LEAD = 250_000


class NatsEngine:
    """Stores jobs on NATS servers, for any number of processes on any number of machines."""

    capabilities = frozenset({Capability.SHARED})

    def __init__(
        self,
        url: str,
        *,
        make_projection: Callable[[str], Projection],
        settings: NatsSettings | None = None,
        retention: Retention | None = None,
        clock: Clock | None = None,
    ) -> None:
        servers, self.settings = parse_url(url, settings or NatsSettings())
        parts = Parts(
            servers,
            self.settings,
            clock or SystemClock(),
            make_projection=make_projection,
            wake=self._wake_up,
        )
        self.parts = parts
        self._link = parts.link
        self._names = parts.names
        self._workers = parts.workers
        self.projector = parts.projector
        parts.streams.on_new_stream = self._begin_anew
        if retention is not None:
            parts.workshop.retention = kept_by_status(retention)
        self._pruning = Pruning(parts.projector, self.change)
        self._heartbeat = Heartbeat(self.settings.lease, self._beat)
        self._wake: Callable[[], None] = _nothing
        self._types: dict[int, frozenset[str]] = {}

    @property
    def description(self) -> str:
        return f"NATS at {self._link.address}, prefix {self._names.prefix!r}"

    @property
    def start_lead(self) -> int:
        """How long before a job is due its start is committed: longer if several servers have to agree."""
        return CLUSTER_START_LEAD if self._link.reads_leader else START_LEAD

    @property
    def is_followed(self) -> bool:
        return self.parts.journal.is_followed

    def now(self) -> int:
        return self._link.now()

    # -- opening and closing

    def open(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self.parts.lanes.forget()
        self.parts.scheduling.forget()
        self.parts.hands.clear()
        self._link.open()
        try:
            self.parts.streams.prepare()
            self._link.on_connection = self._note_connection
            self._link.subscribe(f"{self._names.notes}*", self._hear)
        except BaseException:
            self._link.close()
            raise
        self.parts.book.must_refresh = self.parts.journal.must_refresh = self.parts.scheduling.must_refresh = True

    def close(self) -> None:
        self._heartbeat.stop()
        self.parts.intake.give_back()
        self._workers.forget_ours()
        self.projector.close()
        self._link.close()
        self._heartbeat.join()

    def unit(self, *, durable: bool) -> AbstractContextManager[None]:
        return nullcontext()

    def _wake_up(self) -> None:
        self._wake()

    def _note_connection(self, is_there: bool) -> None:  # noqa: FBT001 - a callback
        if is_there:
            self.parts.streams.forget_consumers()
            self.parts.streams.must_measure = True
            self.parts.lanes.must_read = True
            self.parts.book.must_refresh = self.parts.journal.must_refresh = self.parts.scheduling.must_refresh = (
                True
            )
            self.parts.intake.rearm()
            self._wake()

    def _begin_anew(self) -> None:
        """Discard all cached state and leases: the stream was created anew."""
        self.parts.lanes.forget()
        self.parts.scheduling.forget()
        self.parts.book.forget()
        self.parts.hands.clear()
        self._workers.forget_ours()
        self._link.last_record = 0
        self.projector.close()

    def _hear(self, subject: str, data: bytes) -> None:
        """Handle a note from another process."""
        match subject.removeprefix(self._names.notes):
            case "lane":
                self.parts.lanes.must_read = True
            case "settings":
                self.parts.book.must_refresh = True
            case "schedule":
                self.parts.scheduling.must_refresh = True
            case "listen":
                self.parts.journal.must_refresh = True
                return
            case "stop":
                self.parts.stops.add(data.decode())
            case _:
                return
        self._wake()

    def _beat(self) -> None:
        """Send the heartbeats of our workers, and tell the server which messages are still in progress."""
        self._link.send([(hand.reply, IN_PROGRESS) for hand in self.parts.hands.all()])
        self._link.send(
            [*self.parts.intake.keep_alive(), *((reply, IN_PROGRESS) for reply in self.parts.chores.held())]
        )
        for worker in self._workers.numbers:
            self._workers.renew(worker)

    # -- submitters

    def submit(self, jobs: Sequence[NewJob]) -> list[Conflict | None]:
        with self._link.one_deadline():
            self.parts.streams.measure_time_if_old()
            answers = self.parts.submitting.submit(jobs) if jobs else []
        self._wake()
        return answers

    def change(self, commands: Sequence[Command]) -> list[Changed]:
        with self._link.one_deadline():
            answers = self.parts.commands.carry_out_all(self.parts.workshop, commands)
        self._wake()
        return answers

    def arrange(self, arrangements: Sequence[Arrangement]) -> list[bool]:
        with self._link.one_deadline():
            answers = [self._arrange(arrangement) for arrangement in arrangements]
        if any(answers):
            self._wake()
        return answers

    def _arrange(self, arrangement: Arrangement) -> bool:
        match arrangement:
            case PutSchedule():
                return self.parts.scheduling.put(arrangement)
            case PauseSchedule():
                return self.parts.scheduling.pause(arrangement)
            case RemoveSchedule():
                return self.parts.scheduling.remove(arrangement.name)
            case PauseQueue():
                is_changed = self.parts.book.arrange(arrangement)
                if is_changed:
                    self.parts.gates.queue_changed(self.parts.workshop, arrangement.queue)
                    self.parts.taking.give_back_paused()
                return is_changed
            case PutLimit() | DropLimit():
                is_changed = self.parts.book.arrange(arrangement)
                if is_changed:
                    self.parts.gates.limits_changed(self.parts.workshop, [arrangement.family])
                return is_changed

    # -- workers

    def enroll(self, worker: WorkerInfo) -> int:
        if not self.settings.may_take:
            raise EngineUnavailable(
                engine=self.description,
                reason=f"the role {self.settings.role!r} may not take jobs",
                remedy="run workers as a user with the role worker: see `mainspring nats permissions`",
            )
        number = self._workers.enroll(worker)
        try:
            self.parts.receipts.require_no_move()
        except BaseException:
            self._workers.leave(number, ())
            raise
        self._types[number] = frozenset(worker.types)
        self._heartbeat.start()
        return number

    def renew(self, worker: int) -> bool:
        return self._workers.renew(worker)

    def announce(self, worker: int, types: tuple[str, ...]) -> bool:
        is_known = self._workers.announce(worker, types)
        if is_known:
            self._types[worker] = frozenset(types)
        return is_known

    def leave(self, worker: int) -> None:
        self._types.pop(worker, None)
        held = [hand for hand in self.parts.hands.of(worker) if hand.job.status is JobStatus.PENDING]
        leases = [transitions.lease_of(hand.job, hand.job.place, is_started=False) for hand in held]
        self.parts.settling.settle(worker, [Outcome(lease, OutcomeKind.HANDED_BACK) for lease in leases])
        if not self._workers.is_enrolled(worker):
            # It was declared dead, and continues under another number. Its running jobs can still be settled, if
            # no other worker has claimed them: the record decides.
            return
        left = self.parts.hands.of(worker)
        self._workers.leave(worker, tuple(hand.job.id for hand in left))
        for hand in left:
            self.parts.hands.drop(hand.job.id)
        self._link.send([(hand.reply, nak(0)) for hand in left])
        if not self._workers.numbers:
            self.parts.intake.give_back()
            self._link.send([(reply, nak(0)) for reply in self.parts.chores.give_back()])

    def take(self, worker: int, demands: Sequence[Demand], *, lead: int, start_lead: int) -> Taken:
        self.parts.streams.measure_time_if_old()
        next_firing = self.parts.scheduling.next_firing()  # what may fail comes before jobs are claimed
        taken = self.parts.taking.take(worker, demands, lead, start_lead)
        if not self._workers.is_fresh(worker):
            return self._give_up(worker, taken)
        return replace(taken, next_firing=next_firing)

    def _give_up(self, worker: int, taken: Taken) -> Taken:
        """Hand back what was claimed: we were cut off for longer than a lease, so others may own the jobs."""
        self._hand_back(worker, taken.leases)
        self._workers.forget_one(worker)
        return Taken([], None, is_more=False, stops=[], is_alive=False)

    def start(self, worker: int, leases: Sequence[Lease]) -> list[bool]:
        answers = self.parts.starting.start(worker, leases) if leases else []
        if not self._workers.is_fresh(worker):
            started = [lease for lease, is_started in zip(leases, answers, strict=True) if is_started]
            self._hand_back(worker, [replace(lease, is_started=True) for lease in started])
            return [False] * len(leases)
        return answers

    def _hand_back(self, worker: int, leases: Sequence[Lease]) -> None:
        """Hand back jobs that no handler has seen, so that they do not count as crashes."""
        try:
            self.parts.settling.settle(worker, [Outcome(lease, OutcomeKind.HANDED_BACK) for lease in leases])
        except EngineUnavailable:
            for lease in leases:
                self.parts.hands.drop(lease.id)

    def settle(self, worker: int, outcomes: Sequence[Outcome]) -> list[bool]:
        answers = self.parts.settling.settle(worker, outcomes) if outcomes else []
        if any(outcome.kind is not OutcomeKind.COMPLETED or outcome.lease.frees_others for outcome in outcomes):
            self._wake()
        return answers

    def report(self, worker: int, reports: Sequence[ProgressReport]) -> list[bool]:
        return self.parts.settling.report(worker, reports)

    def fire(self, firings: Sequence[Firing]) -> list[Fired]:
        answers = self.parts.scheduling.fire_all(firings)
        if any(answer.is_done for answer in answers):
            self._wake()
        return answers

    def prune(self, retention: Retention) -> Pruned:
        self.parts.workshop.retention = kept_by_status(retention)
        if self.settings.may_take:
            self.parts.chores.carry_out(looks=True)  # deletes results that were kept for a time
        if self.projector.is_open or self.settings.projection is not None:
            self.parts.reaping.reap()
            return self._pruning.prune(retention, self.now())
        return Pruned(0, is_more=False)

    def sweep(self, worker: int) -> Swept:
        rescued, quarantined = self.parts.rescuing.sweep()
        has_new_lanes = bool(self.parts.lanes.read_new(self.parts.workshop.open()))  # a note may be lost,
        must_stop = self.parts.stops.look()  # so may a request to stop
        was_overlooked = self.parts.overlooked.look()
        if rescued or has_new_lanes or must_stop or was_overlooked:
            self._wake()
        return Swept(rescued, quarantined, self.parts.waiting.look(self._types.get(worker, frozenset())))

    def reap(self, overdue: int | None = None) -> list[str]:
        """Queue jobs again that have lost their message; a process with a projection does so once a minute."""
        return self.parts.reaping.reap() if overdue is None else self.parts.reaping.reap(overdue)

    # -- readers

    def find(self, query: Query) -> Page:
        return self.parts.reading.find(query)

    def counts(self, *, queue: str | None = None, type: str | None = None) -> dict[JobStatus, int]:
        return self.parts.reading.counts(queue=queue, type_=type)

    def queues(self) -> tuple[str, ...]:
        return self.parts.reading.queues()

    def situation(self, job_id: str) -> Situation | None:
        return self.parts.reading.situation(job_id)

    def schedules(
        self, *, names: Sequence[str] | None = None, due_until: int | None = None, limit: int | None = None
    ) -> list[ScheduleRecord]:
        return self.parts.scheduling.find(names, due_until, limit)

    def occurrences(self, schedule: str, limit: int) -> list[Occurrence]:
        return self.parts.scheduling.occurrences(schedule, limit)

    def paused_queues(self) -> tuple[str, ...]:
        self.parts.book.refresh()
        return tuple(sorted(self.parts.book.paused))

    def limits(self) -> list[PutLimit]:
        return self.parts.book.list_limits()

    def workers(self) -> list[WorkerRecord]:
        return self._workers.states()

    def backlog(self) -> list[Backlog]:
        return self.parts.backlogs.read()

    def listen(self, until: int) -> str:
        return self.parts.journal.listen(until)

    def events(self, after: str, limit: int) -> EventPage:
        return self.parts.journal.read(after, limit)

    def backup(self, path: str) -> None:
        raise EngineUnavailable(
            engine=self.description,
            reason=f"it cannot be copied to {path}",
            remedy="back up the servers: `nats stream backup`, or the store directory of a stopped one",
        )


def _nothing() -> None:
    return None
