"""Fetches jobs for a worker: pulls as many deliveries from the lanes as it has free slots, and claims the jobs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from math import floor

from mainspring.engines.nats.claiming import ClaimDecision, ClaimResult, FreeSlots, LeadTimes, NatsJobClaimer
from mainspring.engines.nats.deliveries import ACK, Delivery, FetchRequest, nak
from mainspring.engines.nats.delivery_buffer import DeliveryBuffer
from mainspring.engines.nats.job_records import StoredJob
from mainspring.engines.nats.leases import ActiveLease, StopRequests
from mainspring.engines.nats.queueing import JobQueue, NatsLane, NatsLanes
from mainspring.engines.nats.reminders import ReminderHandler
from mainspring.engines.nats.settings_cache import SettingsCache
from mainspring.engines.nats.streams import Streams
from mainspring.engines.nats.transaction import Transaction, TransactionManager
from mainspring.engines.nats.workers import WorkerRegistry
from mainspring.jobs import transitions
from mainspring.jobs.engine import Demand, Taken
from mainspring.jobs.records import Lease, is_suspect
from mainspring.jobs.status import JobStatus

WEIGHTS = {0: 1, 1: 3, 2: 6}
"""The weight of each priority in the division of free slots: urgent jobs get more, and every lane gets some."""
MAX_ROUNDS = 4
MAX_PULL = 400

logger = logging.getLogger("mainspring.nats")


class LaneShares:
    """Divides free slots among lanes (queue, type and priority) by priority.

    Over many fetches, each lane gets about its share.
    """

    def __init__(self) -> None:
        self._credit: dict[NatsLane, float] = {}  # the exact shares so far, minus the starts that were given

    def divide(self, starts: int, lanes: Sequence[NatsLane]) -> dict[NatsLane, int]:
        """Divide a number of starts among lanes (queue, type and priority). Lanes that get none are left out."""
        total = sum(WEIGHTS[lane.priority] for lane in lanes)
        credit = {lane: self._credit.get(lane, 0.0) + starts * WEIGHTS[lane.priority] / total for lane in lanes}
        shares = {lane: max(0, floor(credit[lane])) for lane in lanes}
        spare = starts - sum(shares.values())
        for lane in sorted(lanes, key=lambda lane: credit[lane] - shares[lane], reverse=True)[: max(0, spare)]:
            shares[lane] += 1
        self._credit |= {lane: credit[lane] - shares[lane] for lane in lanes}
        return {lane: share for lane, share in shares.items() if share}


class LaneFetcher:
    """Finds messages of jobs, in the delivery buffer and at the consumers of the lanes (queue, type and
    priority).
    """

    def __init__(
        self, transactions: TransactionManager, streams: Streams, delivery_buffer: DeliveryBuffer, lanes: NatsLanes
    ) -> None:
        self._transactions = transactions
        self._streams = streams
        self._delivery_buffer = delivery_buffer
        self._lanes = lanes
        self._shares = LaneShares()
        self.put_back = delivery_buffer.put_back
        """Keep deliveries in the buffer for the next fetch."""

    def all_lanes(self) -> list[NatsLane]:
        """Return all lanes (queue, type and priority), including those that other processes have just created."""
        if self._lanes.must_read:
            self._lanes.read_new(self._transactions.begin())
        return list(self._lanes.all)

    def consumers_of(self, slots: FreeSlots) -> list[str]:
        """Return the consumers of the lanes whose jobs these free slots accept; create those that do not exist.

        A lane has the jobs of one queue, type and priority.
        """
        return list(self._streams.consumers_of(self._lanes.all[lane] for lane in slots.lanes).values())

    def start_idle_pulls(self, consumers: list[str], *, adds: bool) -> None:
        """Start idle pulls: the next message of any of these consumers wakes this process.

        With `adds`, the idle pulls of other consumers stay; otherwise they end.
        """
        others = self._delivery_buffer.idle_consumers if adds else ()
        self._delivery_buffer.start_idle_pulls(dict.fromkeys((*others, *consumers)))

    def find(self, slots: FreeSlots, pending: dict[NatsLane, int | None], leads: LeadTimes) -> list[Delivery]:
        """Take messages of jobs for free slots: from the buffer and, if these are too few, from the consumers.

        For each lane (queue, type and priority) whose consumer was asked, store in `pending` how many more
        messages the consumer has. The consumer of a lane with 0 there is not asked. There may be more messages
        than free slots.
        """
        until = None if slots.ahead else self._transactions.now() + leads.start
        open_lanes = slots.open_lanes()
        buffered = self._delivery_buffer.take_jobs([self._lanes.all[lane][:-1] for lane in open_lanes], until)
        lanes = [lane for lane in open_lanes if pending[lane] != 0]
        if len(buffered) >= slots.starts or not lanes:
            return buffered
        by_lane = self._shares.divide(slots.starts, lanes)
        shares = {self._lanes.all[lane]: share for lane, share in by_lane.items()}
        consumers = self._streams.consumers_of(shares)
        requests = [FetchRequest(consumer, min(shares[lane], MAX_PULL)) for lane, consumer in consumers.items()]
        found = self._delivery_buffer.fetch(requests)
        for lane in by_lane:
            prefix = self._lanes.all[lane][:-1]
            left = [delivery.pending for delivery in found if delivery.subject.startswith(prefix)]
            pending[lane] = min(left) if left else 0
        # If a job was delivered twice, only the newer message is still on the server.
        newest = {delivery.subject: delivery for delivery in sorted([*buffered, *found], key=_revision)}
        return list(newest.values())


class JobFetcher:
    """Fetches jobs for workers, and leases the jobs to them."""

    def __init__(
        self,
        transactions: TransactionManager,
        lane_fetcher: LaneFetcher,
        claimer: NatsJobClaimer,
        *,
        workers: WorkerRegistry,
        settings_cache: SettingsCache,
        job_queue: JobQueue,
        reminders: ReminderHandler,
        stop_requests: StopRequests,
    ) -> None:
        self._transactions = transactions
        self._lane_fetcher = lane_fetcher
        self._claimer = claimer
        self._workers = workers
        self._settings_cache = settings_cache
        self._job_queue = job_queue
        self._reminders = reminders
        self._stop_requests = stop_requests
        self._leases = stop_requests.leases

    def fetch(
        self, worker: int, demands: Sequence[Demand], lead: int, start_lead: int, *, is_remote: bool = False
    ) -> Taken:
        """Lease jobs to a worker, at most as many as its free slots can take. Take the requests to stop its jobs.

        Also handle due reminders (such as that a job expires), hand back jobs of paused queues that have not
        started, and start idle pulls. Return no leases and `is_alive=False` if the worker is not enrolled; the
        caller has checked that a remote worker is. A fetch for a remote worker does not end the idle pulls of
        other workers.
        """
        if not is_remote and not self._workers.is_enrolled(worker):
            return Taken([], None, False, [], is_alive=False)
        if self._settings_cache.refresh_if_needed():
            self.hand_back_paused()
        self._reminders.handle_due()
        lanes = [lane for lane in self._lane_fetcher.all_lanes() if lane.queue not in self._settings_cache.paused]
        demanded = [FreeSlots(demand, lanes) for demand in demands]
        consumers = {slots: self._lane_fetcher.consumers_of(slots) for slots in demanded}
        reminder_consumer = self._reminders.consumer()  # this step may fail, so it comes before the claims
        leases: list[Lease] = []
        is_more = False
        for slots in demanded:
            if any(map(is_suspect, leases)):
                slots.suspects = 0
            is_more |= self._fill(worker, slots, LeadTimes(lead, start_lead), leases)
        idle = [consumer for slots in demanded if slots.starts for consumer in consumers[slots]]
        self._lane_fetcher.start_idle_pulls([*idle, reminder_consumer], adds=is_remote)
        return Taken(leases, None, is_more, self._stop_requests.take(worker))

    def _fill(self, worker: int, slots: FreeSlots, leads: LeadTimes, leases: list[Lease]) -> bool:
        """Lease jobs for the free slots of one `Demand`, and add them to `leases`.

        Return whether more due jobs may wait. An error is raised only if `leases` is empty. Otherwise it is
        logged and True is returned, because the worker must run the jobs that are leased.
        """
        try:
            return self._fill_until_full(worker, slots, leads, leases)
        except Exception:
            if not leases:
                raise
            logger.exception(
                "%s: fetching more jobs failed; the worker runs the jobs that it has claimed",
                self._transactions.jetstream.address,
            )
            return True

    def _fill_until_full(self, worker: int, slots: FreeSlots, leads: LeadTimes, leases: list[Lease]) -> bool:
        # For each lane, how many messages its consumer has left; None if that is unknown.
        pending: dict[NatsLane, int | None] = dict.fromkeys(slots.lanes)
        left: list[ClaimDecision] = []
        try:
            for _ in range(MAX_ROUNDS + len(slots.lanes)):
                deliveries = (
                    self._lane_fetcher.find(slots, pending, leads)
                    if self._transactions.jetstream.is_connected
                    else []
                )
                decisions = self._claimer.claim(worker, slots, deliveries, leads) if deliveries else []
                left += [decision for decision in decisions if decision.result is ClaimResult.LEFT]
                leases += [
                    _lease_of(decision, decision.job, slots)
                    for decision in decisions
                    if decision.job is not None and decision.result in (ClaimResult.STARTED, ClaimResult.HELD)
                ]
                open_counts = [pending[lane] for lane in slots.open_lanes()]
                if not slots.starts or not (None in open_counts or any(open_counts)):
                    break
        finally:
            self._lane_fetcher.put_back((decision.delivery, decision.job) for decision in left)
        # If True, the worker fetches again when it has free slots. Without free slots it has no idle pulls, which
        # would report further jobs.
        return bool(left) or not slots.starts or slots.has_closed_lanes

    def hand_back_paused(self) -> None:
        """Hand back the jobs of paused queues that workers of this process have leased and not started.

        The engine would refuse their starts. Jobs that run are left alone.
        """
        paused = [active for active in self._leases.all() if active.job.queue in self._settings_cache.paused]
        for active in paused:
            if active.job.status is JobStatus.PENDING:
                self._transactions.run(partial(self._hand_back, active))

    def _hand_back(self, active: ActiveLease, transaction: Transaction) -> None:
        job = transaction.job(active.job.id)
        is_held = job is not None and (job.owner, job.status) == (active.worker, JobStatus.PENDING)
        if job is not None and is_held:
            self._job_queue.enqueue(transaction, transitions.lease_revoked(job))
        transaction.batch.send(active.reply, ACK if is_held else nak(0))
        transaction.batch.after_commit(partial(self._leases.drop, active.job.id))


def _lease_of(decision: ClaimDecision, job: StoredJob, slots: FreeSlots) -> Lease:
    is_started = decision.result is ClaimResult.STARTED
    at_most_once = slots.is_at_most_once(job.type)
    return transitions.lease_of(job, job.place, is_started=is_started, at_most_once=at_most_once)


def _revision(delivery: Delivery) -> int:
    return delivery.revision
