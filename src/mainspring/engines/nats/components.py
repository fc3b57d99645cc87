"""Builds the components of the NATS engine, and passes to each component the components that it uses."""

from __future__ import annotations

from collections.abc import Callable

from mainspring.clock import Clock
from mainspring.engines.nats import unique_keys
from mainspring.engines.nats.activity import NatsActivity
from mainspring.engines.nats.admission import AdmissionControl
from mainspring.engines.nats.claiming import ClaimDecider, NatsJobClaimer, StartWriter
from mainspring.engines.nats.commands import NatsCommands
from mainspring.engines.nats.dead_letters import DeadLetterWriter
from mainspring.engines.nats.delivery_buffer import DeliveryBuffer
from mainspring.engines.nats.event_log import NatsEventLog
from mainspring.engines.nats.fetching import JobFetcher, LaneFetcher
from mainspring.engines.nats.jetstream import JetStream
from mainspring.engines.nats.leases import ActiveLeases, StopRequests
from mainspring.engines.nats.migration import JobImporter, MigrationCheckpoints, SettingsImporter
from mainspring.engines.nats.presence import OwnPresence, PresenceMonitor
from mainspring.engines.nats.projector import Projector
from mainspring.engines.nats.queueing import JobQueue, NatsLanes
from mainspring.engines.nats.quotas import NatsQuotas
from mainspring.engines.nats.reading import BacklogReader, JobReader, WaitingJobFinder
from mainspring.engines.nats.reminders import ReminderHandler
from mainspring.engines.nats.repair import DeliveryRepair, InFlightJobs, NatsJobRescuer, OrphanRepair
from mainspring.engines.nats.scheduling import NatsSchedules
from mainspring.engines.nats.settings import NatsSettings
from mainspring.engines.nats.settings_cache import SettingsCache
from mainspring.engines.nats.settling import NatsJobSettler
from mainspring.engines.nats.streams import Streams
from mainspring.engines.nats.subject_names import API, CONNECTIONS, USER_INFO, SubjectNames
from mainspring.engines.nats.submitting import JobSubmitter
from mainspring.engines.nats.tokens import NatsTokens
from mainspring.engines.nats.transaction import TransactionManager
from mainspring.engines.nats.workers import WorkerRegistry
from mainspring.jobs.projection import Projection


class NatsComponents:
    """The components of one NATS engine. `NatsEngine` calls them."""

    def __init__(
        self,
        servers: list[str],
        settings: NatsSettings,
        clock: Clock,
        *,
        make_projection: Callable[[str], Projection],
        wake: Callable[[], None],
    ) -> None:
        self.names = names = SubjectNames(settings.prefix)
        self.jetstream = jetstream = JetStream(servers, settings, names.stream, clock)
        self.streams = streams = Streams(jetstream, names, settings)
        self.transactions = transactions = TransactionManager(jetstream, names)
        self.lanes = lanes = NatsLanes(names)
        self.leases = leases = ActiveLeases()
        self.event_log = event_log = NatsEventLog(jetstream, names)
        self.settings_cache = settings_cache = SettingsCache(transactions)
        self.tokens = NatsTokens(transactions)
        self.admission = admission = AdmissionControl(settings_cache)
        job_queue = JobQueue(admission, lanes, names)
        own_presence = OwnPresence(jetstream, names)
        jetstream.optional_subjects = _optional_subjects(names)
        self.monitor = monitor = PresenceMonitor(jetstream, names, own_presence)
        monitor.on_death = wake
        self.workers = workers = WorkerRegistry(jetstream, names, settings, own_presence.declare)
        self.delivery_buffer = delivery_buffer = DeliveryBuffer(jetstream, names, wake, streams.forget_consumers)
        self.submitter = submitter = JobSubmitter(transactions, job_queue, event_log)
        self.dead_letters = dead_letters = DeadLetterWriter(settings_cache, submitter)
        self.commands = NatsCommands(job_queue=job_queue, submitter=submitter, event_log=event_log)
        self.schedules = NatsSchedules(transactions, submitter, self.commands, event_log)
        self.settler = NatsJobSettler(
            transactions,
            leases,
            workers,
            submitter=submitter,
            job_queue=job_queue,
            admission=admission,
            event_log=event_log,
            dead_letters=dead_letters,
        )
        self.rescuer = NatsJobRescuer(
            transactions,
            workers,
            job_queue=job_queue,
            admission=admission,
            event_log=event_log,
            dead_letters=dead_letters,
            monitor=monitor,
            in_flight=InFlightJobs(transactions, streams, lanes),
        )
        self.reminders = ReminderHandler(
            transactions,
            streams,
            delivery_buffer,
            admission=admission,
            job_queue=job_queue,
            event_log=event_log,
            dead_letters=dead_letters,
            wake=wake,
        )
        transactions.on_job_end = unique_keys.release_later
        self.stop_requests = StopRequests(transactions, leases)
        decider = ClaimDecider(
            leases=leases,
            settings_cache=settings_cache,
            admission=admission,
            job_queue=job_queue,
            workers=workers,
            rescuer=self.rescuer,
            reminders=self.reminders,
            event_log=event_log,
        )
        self.fetcher = JobFetcher(
            transactions,
            LaneFetcher(transactions, streams, delivery_buffer, lanes),
            NatsJobClaimer(transactions, delivery_buffer, decider),
            workers=workers,
            settings_cache=settings_cache,
            job_queue=job_queue,
            reminders=self.reminders,
            stop_requests=self.stop_requests,
        )
        self.waiting_jobs = WaitingJobFinder(transactions, streams, lanes, settings_cache)
        self.delivery_repair = DeliveryRepair(transactions, streams, lanes, job_queue)
        self.backlog_reader = BacklogReader(transactions, streams)
        self.start_writer = StartWriter(transactions, leases, settings_cache, event_log)
        self.projector = Projector(jetstream, names, streams, make_projection)
        self.activity = NatsActivity(jetstream, names, self.projector)
        self.quotas = NatsQuotas(transactions, settings_cache, streams, self.projector)
        self.reader = JobReader(transactions, self.projector, admission=admission, settings_cache=settings_cache)
        self.orphan_repair = OrphanRepair(
            transactions,
            self.projector,
            job_queue=job_queue,
            admission=admission,
            rescuer=self.rescuer,
            workers=workers,
        )
        self.checkpoints = MigrationCheckpoints(transactions, workers)
        self.job_importer = JobImporter(transactions, self.checkpoints, job_queue=job_queue, admission=admission)
        self.settings_importer = SettingsImporter(
            transactions,
            self.checkpoints,
            admission=admission,
            schedule_cache=self.schedules.schedule_cache,
            settings_cache=settings_cache,
            tokens=self.tokens,
        )


def _optional_subjects(names: SubjectNames) -> tuple[str, ...]:
    """Return the subjects, in lower case, that a user without permission for them can do without."""
    optional = (names.presence, CONNECTIONS, USER_INFO, names.activity, *_optional_requests(names))
    return tuple(subject.lower() for subject in optional)


def _optional_requests(names: SubjectNames) -> list[str]:
    """Return the subjects of API requests about streams that jobs do not need: activity and idempotency keys."""
    verbs = ("STREAM.INFO", "STREAM.CREATE", "STREAM.UPDATE", "DIRECT.GET")
    streams = (names.activity_stream, names.requests_stream)
    return [f"{api}.{verb}.{stream}" for api in (API, names.api) for verb in verbs for stream in streams]
