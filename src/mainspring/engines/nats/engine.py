"""Jobs on NATS JetStream: the verbs, put together from their parts.

One stream keeps everything; each verb is one or a few drafts that the server takes all or none. The server keeps
the time of what is due later, and delivers it a short lead ahead; consumers shared by all workers hand out what is
due.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from msgspec.structs import replace

from mainspring.clock import Clock, SystemClock
from mainspring.engines.nats import uniqueness
from mainspring.engines.nats.chores import Chores
from mainspring.engines.nats.commands import Commands
from mainspring.engines.nats.deciding import Deciding
from mainspring.engines.nats.gates import Gates
from mainspring.engines.nats.hands import Hands
from mainspring.engines.nats.heartbeat import Heartbeat
from mainspring.engines.nats.intake import Intake
from mainspring.engines.nats.journal import Journal
from mainspring.engines.nats.lanes import Lanes
from mainspring.engines.nats.link import Link
from mainspring.engines.nats.messages import IN_PROGRESS, nak
from mainspring.engines.nats.naming import Names
from mainspring.engines.nats.projector import Projector
from mainspring.engines.nats.pruning import Pruning, kept_by_status
from mainspring.engines.nats.queueing import Queueing
from mainspring.engines.nats.reading import Reading
from mainspring.engines.nats.reaping import Reaping
from mainspring.engines.nats.rescuing import Rescuing
from mainspring.engines.nats.scheduling import Scheduling
from mainspring.engines.nats.settings import NatsSettings, parse_url
from mainspring.engines.nats.settings_book import SettingsBook
from mainspring.engines.nats.settling import Settling
from mainspring.engines.nats.starting import Starting
from mainspring.engines.nats.stops import Stops
from mainspring.engines.nats.streams import Streams
from mainspring.engines.nats.submitting import Submitting
from mainspring.engines.nats.taking import Taking
from mainspring.engines.nats.workers import Workers
from mainspring.engines.nats.workspace import Workshop
from mainspring.errors import EngineUnavailable
from mainspring.jobs import transitions
from mainspring.jobs.engine import (
    Arrangement,
    Capability,
    Changed,
    Command,
    Conflict,
    Demand,
    DropLimit,
    EventPage,
    Fired,
    Firing,
    Lease,
    NewJob,
    Occurrence,
    Outcome,
    OutcomeKind,
    Page,
    PauseQueue,
    PauseSchedule,
    ProgressReport,
    Pruned,
    PutLimit,
    PutSchedule,
    Query,
    RemoveSchedule,
    Retention,
    ScheduleRecord,
    Situation,
    Swept,
    Taken,
    WorkerInfo,
)
from mainspring.jobs.projecting import Projection
from mainspring.jobs.status import JobStatus


class NatsEngine:
    """Keeps jobs on NATS servers, for any number of processes on any number of machines."""

    start_lead = 50_000
    capabilities = frozenset({Capability.SHARED})

    def __init__(
        self,
        url: str,
        *,
        make_projection: Callable[[str], Projection],
        settings: NatsSettings | None = None,
        clock: Clock | None = None,
    ) -> None:
        servers, self.settings = parse_url(url, settings or NatsSettings())
        self._names = names = Names(self.settings.prefix)
        self._link = link = Link(servers, self.settings, names.stream, clock or SystemClock())
        self._streams = streams = Streams(link, names, self.settings)
        self._workshop = workshop = Workshop(link, names)
        self._lanes = lanes = Lanes(names)
        self._hands = hands = Hands()
        self._journal = journal = Journal(link, names)
        self._book = book = SettingsBook(workshop)
        self._gates = gates = Gates(book)
        queueing = Queueing(gates, lanes)
        self._workers = workers = Workers(link, names, self.settings)
        self._intake = intake = Intake(link, names, self._wake_up, streams.forget_consumers)
        self._submitting = submitting = Submitting(workshop, queueing, journal)
        self._commands = Commands(queueing=queueing, submitting=submitting, journal=journal)
        self._scheduling = Scheduling(workshop, submitting, self._commands, journal)
        self._settling = Settling(
            workshop, hands, submitting=submitting, queueing=queueing, gates=gates, journal=journal
        )
        self._rescuing = Rescuing(
            workshop, workers, queueing=queueing, gates=gates, lanes=lanes, book=book, journal=journal
        )
        self._chores = Chores(
            workshop,
            streams,
            intake,
            gates=gates,
            queueing=queueing,
            journal=journal,
            wake=self._wake_up,
        )
        workshop.on_end = uniqueness.release_later
        self._stops = Stops(workshop, hands)
        deciding = Deciding(
            hands=hands,
            book=book,
            gates=gates,
            queueing=queueing,
            workers=workers,
            rescuing=self._rescuing,
            chores=self._chores,
            journal=journal,
        )
        self._taking = Taking(
            workshop,
            streams,
            intake,
            hands,
            lanes,
            deciding=deciding,
            book=book,
            gates=gates,
            queueing=queueing,
            workers=workers,
            chores=self._chores,
            stops=self._stops,
        )
        self._starting = Starting(workshop, hands, book, journal)
        self.projector = Projector(link, names, streams, make_projection)
        self._reading = Reading(workshop, self.projector, gates=gates, book=book, workers=workers)
        self._pruning = Pruning(self.projector, self.change)
        self._reaping = Reaping(
            workshop, self.projector, queueing=queueing, rescuing=self._rescuing, workers=workers
        )
        self._heartbeat = Heartbeat(self.settings.lease, self._beat)
        self._wake: Callable[[], None] = _nothing
        self._types: dict[int, frozenset[str]] = {}

    @property
    def description(self) -> str:
        return f"NATS at {self._link.address}, prefix {self._names.prefix!r}"

    def now(self) -> int:
        return self._link.now()

    # -- opening and closing

    def open(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._lanes.forget()
        self._scheduling.forget()
        self._hands.clear()
        self._link.open()
        try:
            self._streams.prepare()
            self._link.on_connection = self._note_connection
            self._link.subscribe(f"{self._names.notes}*", self._hear)
        except BaseException:
            self._link.close()
            raise
        self._book.must_refresh = self._journal.must_refresh = self._scheduling.must_refresh = True

    def close(self) -> None:
        self._heartbeat.stop()
        self._intake.give_back()
        self._workers.forget_ours()
        self.projector.close()
        self._link.close()
        self._heartbeat.join()

    def unit(self, *, durable: bool) -> AbstractContextManager[None]:
        return nullcontext()

    def _wake_up(self) -> None:
        self._wake()

    def _note_connection(self, is_there: bool) -> None:  # noqa: FBT001 - a fact
        if is_there:
            self._streams.forget_consumers()
            self._streams.must_measure = True
            self._lanes.must_read = True
            self._book.must_refresh = self._journal.must_refresh = self._scheduling.must_refresh = True
            self._intake.rearm()
            self._wake()

    def _hear(self, subject: str, data: bytes) -> None:
        """React to what other processes did."""
        match subject.removeprefix(self._names.notes):
            case "lane":
                self._lanes.must_read = True
            case "settings":
                self._book.must_refresh = True
            case "schedule":
                self._scheduling.must_refresh = True
            case "listen":
                self._journal.must_refresh = True
                return
            case "stop":
                self._stops.add(data.decode())
            case _:
                return
        self._wake()

    def _beat(self) -> None:
        """Say that we live, and what we still have."""
        self._link.send([(hand.reply, IN_PROGRESS) for hand in self._hands.all()])
        self._link.send([*self._intake.keep_alive(), *((reply, IN_PROGRESS) for reply in self._chores.held())])
        for worker in self._workers.numbers:
            self._workers.renew(worker)

    # -- submitters

    def submit(self, jobs: Sequence[NewJob]) -> list[Conflict | None]:
        self._streams.measure_time_if_old()
        answers = self._submitting.submit(jobs) if jobs else []
        self._wake()
        return answers

    def change(self, commands: Sequence[Command]) -> list[Changed]:
        answers = self._commands.carry_out_all(self._workshop, commands)
        self._wake()
        return answers

    def arrange(self, arrangements: Sequence[Arrangement]) -> list[bool]:
        answers = [self._arrange(arrangement) for arrangement in arrangements]
        if any(answers):
            self._wake()
        return answers

    def _arrange(self, arrangement: Arrangement) -> bool:
        match arrangement:
            case PutSchedule():
                return self._scheduling.put(arrangement)
            case PauseSchedule():
                return self._scheduling.pause(arrangement)
            case RemoveSchedule():
                return self._scheduling.remove(arrangement.name)
            case PauseQueue():
                is_changed = self._book.arrange(arrangement)
                if is_changed:
                    self._gates.queue_changed(self._workshop, arrangement.queue)
                    self._taking.give_back_paused()
                return is_changed
            case PutLimit() | DropLimit():
                is_changed = self._book.arrange(arrangement)
                if is_changed:
                    self._gates.limits_changed(self._workshop, [arrangement.family])
                return is_changed

    # -- workers

    def enroll(self, worker: WorkerInfo) -> int:
        number = self._workers.enroll(worker)
        self._types[number] = frozenset(worker.types)
        self._heartbeat.start()
        return number

    def renew(self, worker: int) -> bool:
        return self._workers.renew(worker)

    def leave(self, worker: int) -> None:
        self._types.pop(worker, None)
        held = [hand for hand in self._hands.of(worker) if hand.job.status is JobStatus.PENDING]
        leases = [transitions.lease_of(hand.job, hand.job.place, is_started=False) for hand in held]
        self._settling.settle(worker, [Outcome(lease, OutcomeKind.HANDED_BACK) for lease in leases])
        left = self._hands.of(worker)
        self._workers.leave(worker, tuple(hand.job.id for hand in left))
        for hand in left:
            self._hands.drop(hand.job.id)
        self._link.send([(hand.reply, nak(0)) for hand in left])
        if not self._workers.numbers:
            self._intake.give_back()
            self._link.send([(reply, nak(0)) for reply in self._chores.give_back()])

    def take(self, worker: int, demands: Sequence[Demand], *, lead: int, start_lead: int) -> Taken:
        self._streams.measure_time_if_old()
        next_firing = self._scheduling.next_firing()  # whatever may fail comes before jobs are taken
        taken = self._taking.take(worker, demands, lead, start_lead)
        if not self._workers.is_fresh(worker):
            return self._give_up(worker, taken)
        return replace(taken, next_firing=next_firing)

    def _give_up(self, worker: int, taken: Taken) -> Taken:
        """We were cut off for longer than a lease: what was taken may belong to others by now."""
        for lease in taken.leases:
            self._hands.drop(lease.id)
        self._workers.forget_one(worker)
        return Taken([], None, is_more=False, stops=[], is_alive=False)

    def start(self, worker: int, leases: Sequence[Lease]) -> list[bool]:
        answers = self._starting.start(worker, leases) if leases else []
        if not self._workers.is_fresh(worker):
            for lease in leases:
                self._hands.drop(lease.id)
            return [False] * len(leases)
        return answers

    def settle(self, worker: int, outcomes: Sequence[Outcome]) -> list[bool]:
        answers = self._settling.settle(worker, outcomes) if outcomes else []
        if any(outcome.kind is not OutcomeKind.COMPLETED or outcome.lease.frees_others for outcome in outcomes):
            self._wake()
        return answers

    def report(self, worker: int, reports: Sequence[ProgressReport]) -> list[bool]:
        return self._settling.report(worker, reports)

    def fire(self, firings: Sequence[Firing]) -> list[Fired]:
        answers = self._scheduling.fire_all(firings)
        if any(answer.is_done for answer in answers):
            self._wake()
        return answers

    def prune(self, retention: Retention) -> Pruned:
        self._workshop.retention = kept_by_status(retention)
        self._chores.carry_out(looks=True)  # results that were to be kept for a time
        if self.projector.is_open or self.settings.projection is not None:
            self._reaping.reap()
            return self._pruning.prune(retention, self.now())
        return Pruned(0, is_more=False)

    def sweep(self, worker: int) -> Swept:
        swept = self._rescuing.sweep(self._types.get(worker, frozenset()))
        has_new_lanes = bool(self._lanes.read_new(self._workshop.open()))  # notes may be lost,
        must_stop = self._stops.look()  # those about stops as well
        if swept.rescued or has_new_lanes or must_stop:
            self._wake()
        return swept

    def reap(self, overdue: int | None = None) -> list[str]:
        """Queue again jobs that lost their message; a process with a projection does it once a minute."""
        return self._reaping.reap() if overdue is None else self._reaping.reap(overdue)

    # -- readers

    def find(self, query: Query) -> Page:
        return self._reading.find(query)

    def counts(self, *, queue: str | None = None, type: str | None = None) -> dict[JobStatus, int]:
        return self._reading.counts(queue=queue, type_=type)

    def situation(self, job_id: str) -> Situation | None:
        return self._reading.situation(job_id)

    def schedules(
        self, *, names: Sequence[str] | None = None, due_until: int | None = None, limit: int | None = None
    ) -> list[ScheduleRecord]:
        return self._scheduling.find(names, due_until, limit)

    def occurrences(self, schedule: str, limit: int) -> list[Occurrence]:
        return self._scheduling.occurrences(schedule, limit)

    def paused_queues(self) -> tuple[str, ...]:
        self._book.refresh()
        return tuple(sorted(self._book.paused))

    def limits(self) -> list[PutLimit]:
        return self._book.list_limits()

    def listen(self, until: int) -> str:
        return self._journal.listen(until)

    def events(self, after: str, limit: int) -> EventPage:
        return self._journal.read(after, limit)

    def backup(self, path: str) -> None:
        raise EngineUnavailable(
            engine=self.description,
            reason=f"it cannot be copied to {path}",
            remedy="back up the servers: `nats stream backup`, or the store directory of a stopped one",
        )


def _nothing() -> None:
    return None
