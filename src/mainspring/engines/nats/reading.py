"""Reads jobs: single ones from their records, lists and counts from the projection, waiting ones from the lanes.

The jobs that could start are found by lane: messages that its consumer has not delivered, or that were returned. A
check of a lane costs some requests, so each sweep checks only a few lanes: those in which jobs wait, and some of
the others in turn. For the other lanes it returns the last result, with its age. For types without a handler in
this process, it finds only whether there are messages of jobs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from mainspring.engines.nats import unique_keys
from mainspring.engines.nats.admission import AdmissionControl
from mainspring.engines.nats.job_records import StoredJob, to_record
from mainspring.engines.nats.limiters import is_ready
from mainspring.engines.nats.overdue import is_overdue
from mainspring.engines.nats.projector import Projector
from mainspring.engines.nats.queueing import NatsLane, NatsLanes, read_lane
from mainspring.engines.nats.settings_cache import SettingsCache
from mainspring.engines.nats.streams import Streams
from mainspring.engines.nats.subject_names import from_token
from mainspring.engines.nats.transaction import Transaction, TransactionManager
from mainspring.jobs.backlog import MAX_COUNTED, Backlog, WaitingJobs
from mainspring.jobs.engine import Hindrance, Situation
from mainspring.jobs.records import JobRecord, Page, Query
from mainspring.jobs.status import JobStatus
from mainspring.jobs.store_statistics import StoreStatistics, UpcomingJobs

NOT_PUBLISHED = "the server did not publish its message in time, for example because its storage was full"
NOT_PUBLISHED_REMEDY = "A worker stores it again within a minute, and the job starts; if none runs, start one."
BACKLOG_PAGE = 100  # how many messages of a lane are read, with their jobs; all others are assumed to be due jobs


class BacklogReader:
    """Counts the due jobs whose messages consumers have not delivered to a worker yet."""

    def __init__(self, transactions: TransactionManager, streams: Streams) -> None:
        self._transactions = transactions
        self._streams = streams
        self._names = transactions.names

    def lanes(self) -> dict[NatsLane, str]:
        """Return all lanes (queue, type, priority), each with the subject of its jobs. Lanes are never deleted."""
        found: dict[NatsLane, str] = {}
        position = 0
        while page := self._transactions.jetstream.scan(f"{self._names.lanes}>", after=position):
            for subject, entry in page:
                lane, ready = read_lane(self._names, subject)
                found[lane] = ready
                position = max(position, entry.revision)
        return found

    def read(self) -> list[Backlog]:
        """Count the due jobs that wait for a worker, by queue and job type; leave out those without such jobs.

        Only the first `BACKLOG_PAGE` messages of each lane (queue, type and priority) are read. If any of these is
        of a due job, all further messages that the consumer of the lane must still deliver count as due jobs, too.
        """
        found: dict[tuple[str, str], Backlog] = {}
        for lane, subject in self.lanes().items():
            waiting = self._read_lane(lane, subject)
            if waiting is not None:
                key = (lane.queue, lane.type)
                found[key] = _sum(found.get(key), waiting)
        return [found[key] for key in sorted(found)]

    def _read_lane(self, lane: NatsLane, subject: str) -> Backlog | None:
        info = self._streams.consumer_info(subject)
        delivered = 0 if info is None else int(info["delivered"]["stream_seq"])
        messages = self._transactions.jetstream.scan(subject, after=delivered, most=BACKLOG_PAGE)
        ids = [from_token(name.rpartition(".")[2]) for name, _ in messages]
        transaction = self._transactions.begin()
        transaction.prefetch_jobs(ids)
        jobs = filter(None, map(transaction.job, ids))
        waiting = [job for job in jobs if job.status is JobStatus.PENDING and job.owner is None]
        # The server publishes messages shortly before the jobs are due.
        due = [job.due for job in waiting if job.due <= transaction.now]
        if not due:
            return None
        unread = 0 if info is None else max(0, int(info["num_pending"]) - len(messages))
        return Backlog(lane.queue, lane.type, len(due) + unread, min(due))


def _sum(one: Backlog | None, other: Backlog) -> Backlog:
    if one is None:
        return other
    return Backlog(one.queue, one.type, one.count + other.count, min(one.oldest, other.oldest))


MAX_LANES = 8  # how many lanes with a handler in this process one sweep checks
MAX_OTHER_LANES = 20
NO_CONSUMER = {"num_pending": 1, "num_ack_pending": 0, "delivered": {"stream_seq": 0, "consumer_seq": 0}}
"""Stands for the consumer of a lane that no worker has served yet, with at least one message."""
MAX_MESSAGES = 16  # how many messages of one lane are read, including those of leased jobs


class WaitingJobFinder:
    """Finds the due jobs that could start, in each call those of a few lanes (queue, type and priority)."""

    def __init__(
        self, transactions: TransactionManager, streams: Streams, lanes: NatsLanes, settings_cache: SettingsCache
    ) -> None:
        self._transactions = transactions
        self._streams = streams
        self._lanes = lanes
        self._settings_cache = settings_cache
        self._turns = {True: 0, False: 0}  # the next lane to check, with a handler in this process and without
        self._found: dict[NatsLane, WaitingJobs] = {}  # the last result of each lane
        self._checked: dict[NatsLane, int] = {}  # the time of the last result

    def find(self, types: frozenset[str]) -> tuple[WaitingJobs, ...]:
        """Return the due jobs that could start, by job type and queue, as this and earlier calls have found them.

        `types` are the job types with a handler in this process. For each other type, only whether there are
        messages of jobs is found: its count is 1 for each queue and priority that has messages. Jobs of paused
        queues are left out.
        """
        lanes = [lane for lane in self._lanes.all if lane.queue not in self._settings_cache.paused]
        self._found = {lane: found for lane, found in self._found.items() if lane in lanes}
        known = [lane for lane in lanes if lane.type in types]
        busy = [lane for lane in known if lane in self._found]
        idle = [lane for lane in known if lane not in self._found]
        chosen = self._in_turn(busy, MAX_LANES, has_handler=True)
        chosen += self._in_turn(idle, max(1, MAX_LANES - len(chosen)), has_handler=True)
        waiting = self._check(chosen)
        for lane in chosen:
            self._record(lane, waiting.get(lane))
        others = self._in_turn([lane for lane in lanes if lane.type not in types], MAX_OTHER_LANES)
        pages = self._transactions.jetstream.scan_each([(self._lanes.all[lane], 0) for lane in others], most=1)
        for lane, page in zip(others, pages, strict=True):
            self._record(lane, WaitingJobs(lane.type, lane.queue, "", 1) if page else None)
        now = self._transactions.now()
        return _by_name(
            {lane: replace(each, age=max(0, now - self._checked[lane])) for lane, each in self._found.items()}
        )

    def _in_turn(self, lanes: list[NatsLane], most: int, *, has_handler: bool = False) -> list[NatsLane]:
        if len(lanes) <= most:
            return lanes
        turn = self._turns[has_handler] = (self._turns[has_handler] + most) % len(lanes)
        return (lanes[turn:] + lanes[:turn])[:most]

    def _record(self, lane: NatsLane, found: WaitingJobs | None) -> None:
        self._found.pop(lane, None)
        if found is not None:
            self._found[lane] = found
            self._checked[lane] = self._transactions.now()

    def _check(self, lanes: Sequence[NatsLane]) -> dict[NatsLane, WaitingJobs]:
        """Return the due jobs that could start of each lane (queue, type and priority) that has some.

        The requests for all lanes are sent together, in at most three rounds.
        """
        infos = self._streams.consumer_infos(self._lanes.all[lane] for lane in lanes)
        found = {lane: infos.get(self._lanes.all[lane], NO_CONSUMER) for lane in lanes}
        busy = {lane: info for lane, info in found.items() if info["num_pending"] or info["num_ack_pending"]}
        return {
            lane: _describe(lane, busy[lane], jobs)
            for lane, jobs in self._read(busy).items()
            if jobs  # otherwise all of them run, or were canceled
        }

    def _read(self, infos: Mapping[NatsLane, dict[str, Any]]) -> dict[NatsLane, list[StoredJob]]:
        """Return, for each lane (queue, type and priority), which jobs of its first messages could start.

        Messages that the consumer has delivered are left out, unless it has delivered all of them.
        """
        places = [(self._lanes.all[lane], _delivered(info)) for lane, info in infos.items()]
        pages = self._transactions.jetstream.scan_each(places, most=MAX_MESSAGES)
        ids = [[from_token(subject.rpartition(".")[2]) for subject, _ in page] for page in pages]
        transaction = self._transactions.begin()
        transaction.prefetch_jobs(job_id for page in ids for job_id in page)
        found = [[job for job_id in page if (job := transaction.job(job_id)) is not None] for page in ids]
        return {
            lane: [job for job in jobs if _could_start(job, transaction.now)]
            for lane, jobs in zip(infos, found, strict=True)
        }


def _delivered(info: dict[str, Any]) -> int:
    """Return the revision after which to read the messages of a lane (queue, type and priority).

    The revision is that of the last message that the consumer has delivered, and 0 if the consumer has delivered
    all.
    """
    return int(info["delivered"]["stream_seq"]) if info["num_pending"] else 0


def _describe(lane: NatsLane, info: dict[str, Any], jobs: Sequence[StoredJob]) -> WaitingJobs:
    oldest = min(jobs, key=lambda job: job.due)
    count = min(MAX_COUNTED, max(len(jobs), info["num_pending"]))
    mark = f"{info['delivered']['consumer_seq']} {oldest.id}#{oldest.token}"
    return WaitingJobs(lane.type, lane.queue, mark, count, oldest.id, oldest.due)


def _could_start(job: StoredJob, now: int) -> bool:
    is_free = job.status is JobStatus.PENDING and job.owner is None
    return is_free and job.due <= now and is_ready(job)


def _by_name(found: dict[NatsLane, WaitingJobs]) -> tuple[WaitingJobs, ...]:
    """Merge the reports of all priorities for each job type and queue, sorted by name."""
    together: dict[tuple[str, str], WaitingJobs] = {}
    for lane in sorted(found, key=lambda lane: (lane.type, lane.queue, lane.priority)):
        this, name = found[lane], (lane.type, lane.queue)
        other = together.get(name)
        together[name] = this if other is None else _join(other, this)
    return tuple(together.values())


def _join(one: WaitingJobs, other: WaitingJobs) -> WaitingJobs:
    older = min(one, other, key=lambda waiting: waiting.since or 0)
    count = min(MAX_COUNTED, one.count + other.count)
    age = max(one.age, other.age)
    return WaitingJobs(one.type, one.queue, f"{one.mark} {other.mark}", count, older.oldest, older.since, age=age)


class JobReader:
    """Finds, counts and explains jobs. Any thread may use it."""

    def __init__(
        self,
        transactions: TransactionManager,
        projector: Projector,
        *,
        admission: AdmissionControl,
        settings_cache: SettingsCache,
    ) -> None:
        self._transactions = transactions
        self._projector = projector
        self._admission = admission
        self._settings_cache = settings_cache

    def find(self, query: Query) -> Page:
        """Return a page of the jobs that match a query: by ids from their records, otherwise from the
        projection. A query by ids ignores `search`, `limit` and `after`.
        """
        if query.ids is None:
            return self._projector.catch_up().find(query)
        transaction = self._transactions.begin()
        transaction.prefetch_jobs(query.ids)
        jobs = [job for job_id in dict.fromkeys(query.ids) if (job := transaction.job(job_id)) is not None]
        wanted = [
            to_record(job)
            for job in sorted(jobs, key=_place, reverse=query.newest_first)
            if _is_wanted(job, query)
        ]
        return Page(wanted, None)

    def counts(self, *, queue: str | None, type_: str | None) -> dict[JobStatus, int]:
        """Count jobs by status, from the projection. For a periodic read, its state may be a little old."""
        return self._projector.catch_up().counts(queue=queue, type=type_)

    def count_up_to(self, query: Query, most: int) -> int:
        """Count the jobs that match a query, at most `most`, from the projection.

        For a periodic read, its state may be a little old.
        """
        return self._projector.catch_up().count_up_to(query, most)

    def queues(self) -> tuple[str, ...]:
        """List the queues that have jobs, from the projection, whose state may be a little old in a periodic
        read.
        """
        return self._projector.catch_up().queues()

    def statistics(self, lookahead: int) -> StoreStatistics:
        """Count due, blocked and scheduled jobs by the projection, after it has applied all changes until now.

        For a periodic read, the state of the projection may be older, and the counts are for the time of that
        state. The settings, and the states of the limits of waiting jobs, are read from the server, in one step
        each.
        """
        projection = self._projector.catch_up()
        self._settings_cache.refresh()
        transaction = self._transactions.begin()
        return projection.statistics(
            self._projector.as_of(transaction.now),
            paused=self._settings_cache.paused,
            find_full=partial(self._admission.find_full, transaction),
            lookahead=lookahead,
        )

    def upcoming(self, edges: Sequence[int]) -> list[UpcomingJobs]:
        """Count scheduled jobs by time, from the projection.

        In a periodic read, the state of the projection may be a little old.
        """
        return self._projector.catch_up().upcoming(edges)

    def situation(self, job_id: str) -> Situation | None:
        """Return the facts that explain the status of a job; None if there is no such job."""
        transaction = self._transactions.begin()
        job = transaction.job(job_id)
        if job is None:
            return None
        self._settings_cache.refresh()
        is_pending = job.status is JobStatus.PENDING
        refusal, holders = (
            self._admission.refusal_of(transaction, job) if is_pending and job.limits else (None, ())
        )
        return Situation(
            record=to_record(job),
            is_queue_paused=job.queue in self._settings_cache.paused,
            behind=self._admission.blocking_job(transaction, job)
            if is_pending and job.sequence is not None
            else None,
            full_bucket=None if refusal is None else refusal.bucket,
            limited_until=None if refusal is None else refusal.until,
            bucket_holders=holders,
            unique_holder=unique_keys.find_alive_holder(transaction, job),
            hindrance=self._find_hindrance(transaction, job),
        )

    def _find_hindrance(self, transaction: Transaction, job: StoredJob) -> Hindrance | None:
        """Return what keeps the server from delivering a job that has been due for a while; None if nothing does.

        This tests whether the server stores messages, because no other answer tells it.
        """
        if (
            job.status is not JobStatus.PENDING
            or job.owner is not None
            or not is_overdue(job.due, transaction.now)
        ):
            return None
        problem = transaction.test_storage()
        if problem is not None:
            return Hindrance(problem.text, problem.advice)
        if transaction.stored(transaction.names.scheduled("job", job.id)).revision:
            return Hindrance(NOT_PUBLISHED, NOT_PUBLISHED_REMEDY)
        return None


def _place(job: StoredJob) -> int:
    return job.place


def _is_wanted(job: JobRecord, query: Query) -> bool:
    return (
        query.status in (None, job.status)
        and query.queue in (None, job.queue)
        and query.type in (None, job.type)
        and (query.types is None or job.type in query.types)
        and (query.queues is None or job.queue in query.queues)
        and query.is_replayed in (None, job.replayed_as is not None)
        and query.is_limited in (None, bool(job.limits))
        and query.is_bound in (None, bool(job.limits) or job.sequence is not None)
        and (query.due_until is None or job.due <= query.due_until)
        and (query.created_since is None or job.created >= query.created_since)
        and (query.created_until is None or job.created < query.created_until)
    )
