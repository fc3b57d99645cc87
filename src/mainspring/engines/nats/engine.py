"""The NATS engine: implements the `Engine` protocol on NATS JetStream.

One stream stores jobs and all that changes together with them, another one guarded records. The server publishes
jobs that are due later shortly before they are due. Consumers that all workers share deliver the jobs that are
due soon.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from msgspec.structs import replace

from mainspring.clock import Clock, SystemClock
from mainspring.engines.nats.audit import NatsAudit, RecordArrangement, record_nothing
from mainspring.engines.nats.components import NatsComponents
from mainspring.engines.nats.deliveries import IN_PROGRESS, nak
from mainspring.engines.nats.earlier_records import take_over
from mainspring.engines.nats.overdue import OverdueMessages
from mainspring.engines.nats.projector import JobPruner, kept_by_status
from mainspring.engines.nats.remote_workers import NatsRemoteWorkers, find_unauthorized
from mainspring.engines.nats.requests import NatsRequests
from mainspring.engines.nats.settings import NatsSettings, parse_url
from mainspring.engines.nats.spent_envelopes import SpentEnvelopes
from mainspring.engines.nats.workers import HeartbeatEntry, HeartbeatThread
from mainspring.errors import EngineUnavailable
from mainspring.jobs import transitions
from mainspring.jobs.activity import MINUTE, EngineNote
from mainspring.jobs.activity_rows import ActivityBatch, ActivityCount
from mainspring.jobs.audit import AuditEntry, AuditQuery
from mainspring.jobs.audit_drafts import AuditDraft, draft_of_store
from mainspring.jobs.backlog import Backlog
from mainspring.jobs.callback_pauses import CallbackPauseRecord
from mainspring.jobs.commands import (
    Arrangement,
    ChangeCallbackPause,
    Changed,
    Command,
    DirectWorker,
    DropDeadLetterHandler,
    DropLimit,
    DropRedaction,
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
    RevokeToken,
    TokenArrangement,
)
from mainspring.jobs.dead_letter_jobs import DeadLetterHandler, SignLetter
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
    RemoteTerms,
    RunningLease,
    WorkerInfo,
    WorkerRecord,
)
from mainspring.jobs.recurrence.schedule_records import Fired, Firing, Occurrence, ScheduleRecord
from mainspring.jobs.request_records import NewRequest, RequestEnd, RequestRecord
from mainspring.jobs.status import JobStatus
from mainspring.jobs.store_statistics import LOOKAHEAD, StoreStatistics, UpcomingJobs
from mainspring.security.tokens import TokenRecord

P = ParamSpec("P")
T = TypeVar("T")

START_LEAD = 50_000
CLUSTER_START_LEAD = 250_000


def _bounded(call: Callable[Concatenate[NatsEngine, P], T]) -> Callable[Concatenate[NatsEngine, P], T]:
    """Let all requests of a call share the timeout of the settings. A bounded call must not call another one.

    The timeout begins again when a long call has made progress (`Connection.restart_deadline`): it bounds the time
    without an answer that helps.
    """

    @wraps(call)
    def bounded(self: NatsEngine, /, *args: P.args, **kwargs: P.kwargs) -> T:
        jetstream = self._jetstream
        try:  # as `shared_deadline` does, whose generator would be a measurable part of a single submit
            jetstream.begin_deadline()
            return call(self, *args, **kwargs)
        finally:
            jetstream.end_deadline()

    return bounded


class NatsEngine:
    """Stores jobs on NATS servers, for any number of processes on any number of machines."""

    capabilities = frozenset(
        {Capability.SHARED, Capability.ANY_THREAD, Capability.REMOTE_WORKERS, Capability.ADMITS_AT_SUBMIT}
    )

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
        components = NatsComponents(
            servers,
            self.settings,
            clock or SystemClock(),
            make_projection=make_projection,
            wake=self._wake_up,
        )
        self.components = components
        self._jetstream = components.jetstream
        self._names = components.names
        self._workers = components.workers
        self._remote = NatsRemoteWorkers(components.transactions, components.leases)
        self._overdue = OverdueMessages(components.jetstream, components.names)
        self._requests = NatsRequests(components.jetstream, components.names, components.streams)
        self.projector = components.projector
        self.audit = NatsAudit(components.jetstream, components.names, components.streams)
        """The audit trail."""
        self.spent_envelopes = SpentEnvelopes(components.jetstream, components.names)
        components.streams.on_new_stream = self._discard_state
        if retention is not None:
            components.transactions.retention = kept_by_status(retention)
        self._pruner = JobPruner(components.projector, self._change)
        self._heartbeat = HeartbeatThread(self.settings.lease, self._beat)
        self._wake: Callable[[], None] = _do_nothing
        self._types: dict[int, frozenset[str]] = {}
        self._hears_others = False

    @property
    def description(self) -> str:
        return f"NATS at {self._jetstream.address}, prefix {self._names.prefix!r}"

    @property
    def start_lead(self) -> int:
        """How many microseconds before its due time the start of a leased job is stored; more on a cluster."""
        return CLUSTER_START_LEAD if self._jetstream.reads_leader else START_LEAD

    @property
    def is_followed(self) -> bool:
        return self.components.event_log.is_followed

    def now(self) -> int:
        return self._jetstream.now()

    def latest(self) -> int:
        return self._jetstream.latest()

    # -- opening and closing

    @_bounded
    def open(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self.components.lanes.clear()
        self.components.schedules.clear()
        self.components.leases.clear()
        self._jetstream.open()
        try:
            self.components.streams.prepare()
            if self.settings.creates_streams:
                take_over(self._jetstream, self._names)
            self.components.streams.sample_time()
            self._jetstream.on_connection = self._on_connection
            self._jetstream.subscribe(f"{self._names.notifications}*", self._on_notification)
            self._hears_others = False
            self._hear_others()
        except BaseException:
            self._jetstream.close()
            raise
        self._expire_caches()

    def _hear_others(self) -> None:
        """Subscribe to the notifications of other roles, if this process is in the account of a role."""
        if self._jetstream.has_imported_api and not self._hears_others:
            self._hears_others = True
            self._jetstream.subscribe_soon(f"{self._names.imported_notifications}>", self._on_notification)

    def close(self) -> None:
        self._heartbeat.stop()
        self.components.monitor.stop()
        self.components.delivery_buffer.return_all()
        self._workers.drop_all()
        self.projector.close()
        self._jetstream.close()
        self._heartbeat.join()

    def unit(self, *, durable: bool) -> AbstractContextManager[None]:
        return nullcontext()

    def _wake_up(self) -> None:
        self._wake()

    def _on_connection(self, is_connected: bool) -> None:  # noqa: FBT001 - a callback
        if not is_connected:
            self.components.monitor.reset()
        else:
            self._hear_others()
            self._heartbeat.call_now()  # the last heartbeat declares the connection that was lost
            self.components.streams.forget_consumers()
            self.components.streams.must_measure = True
            self.components.lanes.must_read = True
            self._expire_caches()
            self.components.delivery_buffer.restart_idle_pulls()
            self._wake()

    def _expire_caches(self) -> None:
        """Mark cached settings, schedules, listeners and tokens as outdated, because notifications may be lost."""
        self.components.settings_cache.must_refresh = True
        self.components.event_log.must_refresh = True
        self.components.schedules.must_refresh = True
        self.components.tokens.changes += 1

    def _discard_state(self) -> None:
        """Discard all cached state and leases, because the stream was created again."""
        self.components.lanes.clear()
        self.components.schedules.clear()
        self.components.settings_cache.clear()
        self.components.tokens.changes += 1
        self.components.quotas.clear()
        self._requests.forget()
        self.components.leases.clear()
        self._workers.drop_all()
        self._jetstream.last_record = 0
        self.projector.close()

    def _on_notification(self, subject: str, data: bytes) -> None:
        """Handle a notification from another process: mark a cache as outdated, or add a stop request.

        Then wake the workers of this process, except after a change of listeners or tokens.
        """
        match subject.rpartition(".")[2]:
            case "lane":
                self.components.lanes.must_read = True
            case "settings":
                self.components.settings_cache.must_refresh = True
            case "schedule":
                self.components.schedules.must_refresh = True
            case "listen":
                self.components.event_log.must_refresh = True
                return
            case "tokens":
                self.components.tokens.changes += 1
                return
            case "storage":
                self._overdue.must_hurry = True
                return
            case "stop":
                self.components.stop_requests.add(data.decode())
            case _:
                return
        self._wake()

    @_bounded
    def _beat(self) -> None:
        """Send the heartbeats of this process's workers, and tell the server which messages are in progress.

        Wake the workers if one of them was declared dead.
        """
        self._jetstream.send([(active.reply, IN_PROGRESS) for active in self.components.leases.all()])
        self._jetstream.send(
            [
                *self.components.delivery_buffer.progress_replies(),
                *((reply, IN_PROGRESS) for reply in self.components.reminders.kept_replies()),
            ]
        )
        are_alive = [self._workers.renew(worker) for worker in self._workers.numbers]
        if not all(are_alive):
            self._wake()  # the next fetch tells the worker that it was declared dead

    # -- submitters

    @_bounded
    def submit(self, jobs: Sequence[NewJob]) -> list[Conflict | None]:
        components = self.components
        components.streams.measure_time_if_old()
        components.quotas.check(jobs)
        results = components.submitter.submit(jobs) if jobs else []
        self._wake()
        return results

    @_bounded
    def change(self, commands: Sequence[Command], *, audit: AuditDraft | None = None) -> list[Changed]:
        return self._change(commands, audit=audit)

    def _change(self, commands: Sequence[Command], *, audit: AuditDraft | None = None) -> list[Changed]:
        recorder = self.audit.recorder(audit)
        results = self.components.commands.carry_out_all(self.components.transactions, commands, recorder)
        self._wake()
        return results

    @_bounded
    def arrange(self, arrangements: Sequence[Arrangement], *, audit: AuditDraft | None = None) -> list[bool]:
        return self._arrange_all(arrangements, audit=audit)

    def _arrange_all(self, arrangements: Sequence[Arrangement], *, audit: AuditDraft | None = None) -> list[bool]:
        recorder = self.audit.recorder(audit)
        results: list[bool] = []
        for index, arrangement in enumerate(arrangements):
            record = record_nothing if recorder is None else recorder.for_arrangement(index, arrangement)
            results.append(self._arrange(arrangement, record))
            self._jetstream.restart_deadline()  # a thousand schedules may take longer than one timeout
        if any(results) and not all(isinstance(each, TokenArrangement) for each in arrangements):
            self._wake()
        return results

    def _arrange(self, arrangement: Arrangement, record: RecordArrangement) -> bool:
        match arrangement:
            case PutSchedule() | PauseSchedule() | RemoveSchedule():
                return self._arrange_schedule(arrangement, record)
            case PauseQueue():
                is_changed = self.components.settings_cache.change(arrangement, record)
                if is_changed:
                    self.components.admission.apply_queue_change(self.components.transactions, arrangement.queue)
                    self.components.fetcher.hand_back_paused()
                return is_changed
            case PutLimit() | DropLimit():
                is_changed = self.components.settings_cache.change(arrangement, record)
                if is_changed:
                    self.components.admission.apply_limit_changes(
                        self.components.transactions, [arrangement.family]
                    )
                return is_changed
            case (
                PutDeadLetterHandler()
                | DropDeadLetterHandler()
                | PutRedaction()
                | DropRedaction()
                | ChangeCallbackPause()
            ):
                return self.components.settings_cache.change(arrangement, record)
            case PutToken() | RevokeToken() | NoteTokenUses():
                return self.components.tokens.change(arrangement, record)
            case DirectWorker():
                return self._remote.direct(arrangement, record)
            case RemoveWorker():
                return self._remote.remove(arrangement, record, self.components.rescuer.in_flight.of)

    def _arrange_schedule(
        self, arrangement: PutSchedule | PauseSchedule | RemoveSchedule, record: RecordArrangement
    ) -> bool:
        match arrangement:
            case PutSchedule():
                return self.components.schedules.put(arrangement, record)
            case PauseSchedule():
                return self.components.schedules.pause(arrangement, record)
            case RemoveSchedule():
                return self.components.schedules.remove(arrangement, record)

    # -- workers

    @_bounded
    def enroll(self, worker: WorkerInfo) -> int:
        if not self.settings.may_claim:
            raise EngineUnavailable(
                engine=self.description,
                reason=f"the role {self.settings.role!r} may not claim jobs",
                remedy="run workers as a user with the role worker: see `mainspring nats permissions`",
            )
        # Checked before the registration, because a migration does not start while a worker is registered, even
        # for a moment. Checked again after it, because a migration may have begun meanwhile.
        self.components.checkpoints.require_no_migration()
        enroll = self._workers.enroll if worker.remote is None else self._remote.enroll
        number = enroll(worker)
        try:
            self.components.checkpoints.require_no_migration()
        except BaseException:
            self._workers.leave(number, ())
            raise
        if worker.remote is not None:
            return number
        self._types[number] = frozenset(worker.types)
        self._heartbeat.start()
        return number

    @_bounded
    def renew(self, worker: int, *, longest_lease: int | None = None) -> bool:
        return self._workers.renew(worker) or self._remote.renew(worker, longest_lease)

    @_bounded
    def announce(self, worker: int, info: WorkerInfo) -> bool:
        is_known = self._workers.announce(worker, info)
        if is_known:
            self._types[worker] = frozenset(info.types)
        return is_known

    @_bounded
    def leave(self, worker: int) -> None:
        if not self._workers.is_enrolled(worker) and self._remote.leave(worker):
            return
        self._types.pop(worker, None)
        held = [active for active in self.components.leases.of(worker) if active.job.status is JobStatus.PENDING]
        leases = [transitions.lease_of(active.job, active.job.place, is_started=False) for active in held]
        self.components.settler.settle(worker, [Outcome(lease, OutcomeKind.HANDED_BACK) for lease in leases])
        if not self._workers.is_enrolled(worker):
            # The worker was declared dead, and continues under another number. Its running jobs can still be
            # settled, if no other worker has claimed them.
            return
        left = self.components.leases.of(worker)
        self._workers.leave(worker, tuple(active.job.id for active in left))
        for active in left:
            self.components.leases.drop(active.job.id)
        self._jetstream.send([(active.reply, nak(0)) for active in left])
        if not self._workers.numbers:
            self.components.monitor.stop()
            self.components.delivery_buffer.return_all()
            self._jetstream.send([(reply, nak(0)) for reply in self.components.reminders.drop_kept()])

    @_bounded
    def take(self, worker: int, demands: Sequence[Demand], *, lead: int, start_lead: int) -> Taken:
        self.components.rescuer.take_over()
        connection = self._jetstream.connection_id
        self.components.streams.measure_time_if_old()
        if not self._workers.is_enrolled(worker):
            terms = self._remote.terms_of(worker)
            if terms is not None:
                return self._take_for_remote(worker, terms, demands)
        if not self._workers.has_lease(worker) and not self._workers.renew(worker):
            return Taken([], None, is_more=False, stops=[], is_alive=False)
        next_firing = self.components.schedules.next_firing()  # this step may fail, so it comes before the claims
        taken = self.components.fetcher.fetch(worker, demands, lead, start_lead)
        if taken.leases and not self._workers.may_start(worker, connection):
            self._hand_back(worker, taken.leases)
            taken = replace(taken, leases=[], is_more=True, is_alive=self._workers.is_enrolled(worker))
        return replace(taken, next_firing=next_firing)

    @_bounded
    def spent(self, ids: Sequence[str]) -> dict[str, int]:
        return self.spent_envelopes.find(ids)

    def sign_letters(self, sign: SignLetter) -> None:
        self.components.dead_letters.sign = sign

    def _take_for_remote(self, worker: int, terms: RemoteTerms, demands: Sequence[Demand]) -> Taken:
        """Claim due jobs for a remote worker, and store its leases, so that any process can settle the jobs.

        If the worker has left or has died meanwhile, hand the jobs back.
        """
        taken = self.components.fetcher.fetch(worker, demands, 0, 0, is_remote=True)
        if taken.leases and not self._remote.keep(worker, taken.leases, terms):
            self._hand_back(worker, taken.leases)
            return Taken([], None, is_more=False, stops=[], is_alive=False)
        return taken

    @_bounded
    def leased(self, worker: int) -> list[RunningLease]:
        return self._remote.leased(worker)

    @_bounded
    def start(self, worker: int, leases: Sequence[Lease]) -> list[bool]:
        connection = self._jetstream.connection_id
        results = self.components.start_writer.start(worker, leases) if leases else []
        if any(results) and not self._workers.may_start(worker, connection):
            started = [lease for lease, is_started in zip(leases, results, strict=True) if is_started]
            self._hand_back(worker, [replace(lease, is_started=True) for lease in started])
            return [False] * len(leases)
        return results

    def _hand_back(self, worker: int, leases: Sequence[Lease]) -> None:
        """Hand back jobs that must not start, because other workers may count this worker as dead.

        No crash is charged. If the server cannot be reached, only drop the leases: then the process that gets the
        next delivery of a job decides about the job.
        """
        try:
            self.components.settler.settle(worker, [Outcome(lease, OutcomeKind.HANDED_BACK) for lease in leases])
        except EngineUnavailable:
            for lease in leases:
                self.components.leases.drop(lease.id)

    @_bounded
    def settle(self, worker: int, outcomes: Sequence[Outcome]) -> list[bool]:
        results = self.components.settler.settle(worker, outcomes) if outcomes else []
        self.spent_envelopes.remember(list(zip(outcomes, results, strict=True)), self.now())
        if any(results) and not self._workers.is_enrolled(worker):
            settled = [outcome.lease.id for outcome, is_done in zip(outcomes, results, strict=True) if is_done]
            self._remote.forget(worker, settled)
        if any(outcome.kind is not OutcomeKind.COMPLETED or outcome.lease.frees_others for outcome in outcomes):
            self._wake()
        return results

    @_bounded
    def report(self, worker: int, reports: Sequence[ProgressReport]) -> list[bool]:
        return self.components.settler.report(worker, reports) if reports else []

    @_bounded
    def fire(self, firings: Sequence[Firing], *, audit: AuditDraft | None = None) -> list[Fired]:
        results = self.components.schedules.fire_all(firings, self.audit.recorder(audit))
        if any(result.is_done for result in results):
            self._wake()
        return results

    @_bounded
    def prune(self, retention: Retention) -> Pruned:
        self.components.transactions.retention = kept_by_status(retention)
        if self.settings.may_claim:
            # a reminder deletes a result when its time to live is over
            self.components.reminders.handle_due(fetches=True)
        is_more_audit = self.audit.prune(retention, self.now())
        if self.projector.is_open or self.settings.projection is not None:
            self.components.orphan_repair.repair()
            self._jetstream.restart_deadline()
            pruned = self._pruner.prune(retention, self.now())
            return replace(pruned, is_more=pruned.is_more or is_more_audit)
        return Pruned(0, is_more=is_more_audit)

    @_bounded
    def sweep(self, worker: int) -> Swept:
        rescued, quarantined = self.components.rescuer.sweep(self._remove_unauthorized)
        # The notifications of new lanes and of stop requests may be lost.
        has_new_lanes = bool(self.components.lanes.read_new(self.components.transactions.begin()))
        must_stop = self.components.stop_requests.read()
        were_skipped = self.components.delivery_repair.repair_next_lane()
        self._overdue.repair(is_first=self.components.rescuer.lowest_worker in self._workers.numbers)
        if rescued or has_new_lanes or must_stop or were_skipped:
            self._wake()
        return Swept(rescued, quarantined, self.components.waiting_jobs.find(self._types.get(worker, frozenset())))

    def _remove_unauthorized(self, entries: dict[int, HeartbeatEntry]) -> bool:
        """Remove the remote workers whose token was revoked or has expired, with an audit entry for each.

        Return whether there was one.
        """
        now = self.now()
        removals = find_unauthorized(entries, self.components.tokens.list, now)
        if removals:
            self._arrange_all(removals, audit=draft_of_store(now))
        return bool(removals)

    @_bounded
    def repair_orphans(self, overdue: int | None = None) -> list[str]:
        """Repair overdue jobs that have neither a message nor a live worker; return the ids of the repaired jobs.

        Jobs without an owner are queued again, and jobs of dead workers are rescued. Each call checks one page of
        the PENDING jobs and one page of the RUNNING jobs whose due time passed `overdue` or more microseconds ago.
        In a process with a projection, `prune` does the same.
        """
        repair = self.components.orphan_repair.repair
        return repair() if overdue is None else repair(overdue)

    # -- readers

    @_bounded
    def find(self, query: Query) -> Page:
        return self.components.reader.find(query)

    @_bounded
    def counts(self, *, queue: str | None = None, type: str | None = None) -> dict[JobStatus, int]:
        return self.components.reader.counts(queue=queue, type_=type)

    @_bounded
    def count_up_to(self, query: Query, most: int) -> int:
        return self.components.reader.count_up_to(query, most)

    @_bounded
    def queues(self) -> tuple[str, ...]:
        return self.components.reader.queues()

    @_bounded
    def situation(self, job_id: str) -> Situation | None:
        return self.components.reader.situation(job_id)

    @_bounded
    def schedules(
        self, *, names: Sequence[str] | None = None, due_until: int | None = None, limit: int | None = None
    ) -> list[ScheduleRecord]:
        return self.components.schedules.find(names, due_until, limit)

    @_bounded
    def occurrences(self, schedule: str, limit: int) -> list[Occurrence]:
        return self.components.schedules.occurrences(schedule, limit)

    @_bounded
    def paused_queues(self) -> tuple[str, ...]:
        self.components.settings_cache.refresh()
        return tuple(sorted(self.components.settings_cache.paused))

    @_bounded
    def callback_pauses(self) -> tuple[CallbackPauseRecord, ...]:
        return self.components.settings_cache.callback_pauses()

    @_bounded
    def limits(self) -> list[PutLimit]:
        self.components.settings_cache.current_quotas()  # reads the settings if they may be outdated
        return self.components.settings_cache.list_limits()

    @_bounded
    def dead_letter_handlers(self) -> list[DeadLetterHandler]:
        self.components.settings_cache.refresh()
        return list(self.components.settings_cache.dead_letter_handlers)

    @_bounded
    def redactions(self) -> dict[str, tuple[str, ...]]:
        return self.components.settings_cache.redactions()

    @_bounded
    def tokens(self) -> list[TokenRecord]:
        return self.components.tokens.list()

    @property
    def token_changes(self) -> int:
        return self.components.tokens.changes

    @_bounded
    def audit_entries(self, query: AuditQuery) -> list[AuditEntry]:
        return self.audit.read(query)

    @_bounded
    def workers(self) -> list[WorkerRecord]:
        return self._workers.states()

    @_bounded
    def backlog(self) -> list[Backlog]:
        return self.components.backlog_reader.read()

    @_bounded
    def statistics(self, *, lookahead: int = LOOKAHEAD) -> StoreStatistics:
        return self.components.reader.statistics(lookahead)

    @_bounded
    def upcoming(self, edges: Sequence[int]) -> list[UpcomingJobs]:
        return self.components.reader.upcoming(edges)

    def take_notes(self) -> list[EngineNote]:
        notes = self.components.transactions.notes
        taken = []
        while notes:
            taken.append(notes.popleft())
        return taken

    @_bounded
    def record_activity(self, batch: ActivityBatch) -> None:
        self.components.activity.record(batch)

    @_bounded
    def activity(self, since: int, until: int, *, step: int = MINUTE) -> list[ActivityCount]:
        return self.components.activity.read(since, until, step)

    @_bounded
    def begin_requests(self, requests: Sequence[NewRequest]) -> list[RequestRecord | None]:
        return self._requests.begin(requests)

    @_bounded
    def end_requests(self, ends: Sequence[RequestEnd]) -> list[bool]:
        return self._requests.end(ends)

    @_bounded
    def listen(self, until: int) -> str:
        return self.components.event_log.listen(until)

    @_bounded
    def holds(self, position: str) -> bool:
        return self.components.event_log.holds(position)

    @_bounded
    def events(self, after: str, limit: int) -> EventPage:
        return self.components.event_log.read(after, limit)

    def backup(self, path: str) -> None:
        raise EngineUnavailable(
            engine=self.description,
            reason=f"the engine cannot copy a store on servers to {path}",
            remedy="back up the servers: `nats stream backup`, or copy the store directory of a stopped server",
        )


def _do_nothing() -> None:
    return None
