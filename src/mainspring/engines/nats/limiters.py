"""Limiters: the stored state of sequences, of limits and of paused queues.

There is a limiter for each sequence, for each bucket of a limit, and for each queue with jobs under limits. The
limiter of a sequence admits one job at a time. The limiter of a queue admits jobs while the queue is not paused.

The record of a limiter counts the jobs that the limiter has admitted and the jobs that wait for it; for a rate,
the record also contains the state of the tokens. The record of each job says which limiters have admitted the job,
and where the job waits. Both records are written in one transaction, or in the order of a hand-over (see
`handover`), so the counts are exact.

A job holds its sequence from the moment its turn comes, also while the job waits for limits. A job holds either
all its limits or none. `jobs.limits` decides whether a limit admits a job. When the settings of a rate change, as
many tokens are missing as before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from mainspring.engines.nats.job_records import StoredJob, decode, encode
from mainspring.engines.nats.settings_cache import SettingsCache
from mainspring.engines.nats.subject_names import digest
from mainspring.engines.nats.transaction import Transaction
from mainspring.jobs.limits import SEPARATOR, Admission, Bucket, BucketState, Refusal, family_of
from mainspring.jobs.projection import Wait
from mainspring.jobs.records import NewJob
from mainspring.jobs.status import JobStatus
from mainspring.jobs.timestamps import MICROSECONDS

SEQUENCE_PREFIX = f"{SEPARATOR}sequence:"  # no family is empty, so no bucket starts with a separator
QUEUE_PREFIX = f"{SEPARATOR}queue:"
CURRENT = 1
"""The version of limiter records that this version of Mainspring writes."""
MAX_HOLDERS = 16
MAX_GROUPS = 512
"""How many groups the record of a limiter has before further groups share `SHARED_LINES` lines.

So the record stays small.
"""
SHARED_LINES = 64
MAX_RECORD = 100_000
"""The largest record of a limiter, in bytes, that is stored with the fronts of its lines."""
MAX_READY = 4
"""How many admitted jobs under the same limits wait for a worker at most, if one of these limits has a key."""
LEAD = 1 * MICROSECONDS
"""How long before its due time the server delivers a wake-up to a worker.

The worker keeps the wake-up until it is due, because the timer of the worker is more exact than the server's.
"""
CLEARED = {"Nats-TTL": "3600s", "KV-Operation": "PURGE"}
"""Headers of the empty message that clears the record of an idle limiter.

The subject is not purged: a server that is killed afterwards would find the record before the empty message again,
with jobs that have ended as holders. The second header says that the server need not store a delete marker when
the message expires.
"""
OVERDUE = 5 * MICROSECONDS
"""A wake-up that is this late is presumed lost."""

# States of a job towards its limiters, as they are stored.
NOT_REQUESTED = "away"
HOLDS_SEQUENCE = "held"
WAITS = "waits"
READY = "ready"
STARTED = "started"


def sequence_limiter(sequence: str) -> str:
    """Return the name of the limiter of a sequence: the record of the job that may run and those that wait."""
    return SEQUENCE_PREFIX + sequence


def queue_limiter(queue: str) -> str:
    """Return the name of the limiter of a queue: the record of the jobs that wait because the queue is paused."""
    return QUEUE_PREFIX + queue


def limiters_of(job: StoredJob | NewJob) -> tuple[str, ...]:
    """Return the names of the limiters of a job (of its sequence and its limits), in the order in which it
    requests them.
    """
    first = () if job.sequence is None else (sequence_limiter(job.sequence),)
    return (*first, *dict.fromkeys(job.limits))


def group_of(limits: Iterable[str]) -> str:
    """Return the name of the group of jobs under exactly these limits, given as limits with keys.

    A limit refuses either all jobs of a group or none.
    """
    return digest(*sorted(set(limits)))[:16]


def fair_bucket(buckets: Iterable[Bucket]) -> Bucket | None:
    """Return the first of these buckets (limit and key) that has a key; None if none has.

    The record of this bucket counts the admitted jobs under all these limits that have not started, so that jobs
    under different keys start in turn: see `MAX_READY`.
    """
    return next((bucket for bucket in buckets if not bucket.endswith(SEPARATOR)), None)


# -- the state of a job


class JobAdmission(NamedTuple):
    """Which limiters (of its sequence and limits) have admitted a job, and for which of them it waits."""

    state: str
    admitted_by: tuple[str, ...] = ()
    """The limiters (of its sequence and limits) that have admitted the job."""
    limiter: str = ""
    """The limiter (of its sequence, a limit or its queue) that the job waits for."""
    group: str = ""
    """The group in whose line the job waits."""
    reserved: tuple[str, ...] = ()
    """The rates that have reserved a token for the job. The start of the job uses the token up."""
    is_counted: bool = True
    """Whether the limiter of the job's key counts the job while the job is ready."""

    @property
    def buckets(self) -> tuple[str, ...]:
        """The limits that have admitted the job."""
        return tuple(name for name in self.admitted_by if not name.startswith(SEQUENCE_PREFIX))

    @property
    def is_admitted(self) -> bool:
        """Whether all limiters (of its sequence and limits) have admitted the job."""
        return self.state in (READY, STARTED)

    @property
    def changed_by_start(self) -> tuple[str, ...]:
        """The limiters (records of limits) that the start of the job changes, once all have admitted it."""
        fair = fair_bucket(self.buckets) if self.is_counted else None
        return tuple(dict.fromkeys(self.reserved if fair is None else (*self.reserved, fair)))

    @property
    def changed_by_next_step(self) -> tuple[str, ...]:
        """The limiters (records of its sequence and limits) that the next step of an admitted job changes: its
        start or end.

        Empty if the job is not admitted.
        """
        if not self.is_admitted:
            return ()
        return self.changed_by_start if self.state == READY else self.admitted_by


def admission_of(job: StoredJob) -> JobAdmission:
    """Return which limiters (of its sequence and limits) have admitted a job and for which it waits, from the
    job's record.
    """
    if not job.admission:
        return JobAdmission(NOT_REQUESTED)
    state, *rest = job.admission
    if state == WAITS:
        return JobAdmission(state, tuple(rest[2:]), rest[0], rest[1])
    if state == READY:
        number = 1 + int(rest[0])
        reserved = tuple(rest[1:number])
        return JobAdmission(state, tuple(rest[number:]), reserved=reserved, is_counted=job.is_counted_as_ready)
    return JobAdmission(state, tuple(rest))


def with_admission(job: StoredJob, admission: JobAdmission) -> StoredJob:
    """Return a copy of a job, whose record has this admission."""
    if admission.state == NOT_REQUESTED:
        return replace(job, admission=())
    more: tuple[str, ...] = ()
    if admission.state == WAITS:
        more = (admission.limiter, admission.group)
    elif admission.state == READY:
        more = (str(len(admission.reserved)), *admission.reserved)
    stored = (admission.state, *more, *admission.admitted_by)
    return replace(job, admission=stored, is_counted_as_ready=admission.is_counted)


def is_ready(job: StoredJob) -> bool:
    """Return whether a job needs no admission, or its sequence and all its limits have admitted it and it has not
    started yet.
    """
    return not job.needs_admission or admission_of(job).state == READY


def wait_of(job: StoredJob) -> Wait:
    """Return what a PENDING job waits for, as its record says: its sequence, its limits, or neither.

    A job with limits that have not admitted it waits for them, also before its due time and in a paused queue.
    """
    if job.status is not JobStatus.PENDING or not job.needs_admission:
        return Wait.NOTHING
    admission = admission_of(job)
    if admission.state == WAITS and admission.limiter.startswith(SEQUENCE_PREFIX):
        return Wait.SEQUENCE
    return Wait.LIMITS if job.limits and not admission.is_admitted else Wait.NOTHING


# -- the state of a limiter


class Waiter(Struct, frozen=True, array_like=True, order=True, gc=False):
    """A job that waits for a limiter (a sequence, limit or queue). Waiters are ordered by `turn` and `place`."""

    turn: int
    place: int
    job_id: str
    others: tuple[str, ...] = ()
    """The other limiters of the job. They are read together with the job."""


class LimiterGroup(Struct, array_like=True):
    """A group in the record of a limiter: the jobs under the same limits, which wait in one line."""

    name: str
    waiting: int = 0
    ready: int = 0
    """How many jobs of the group were admitted and have not started; at most `MAX_READY`, if groups take turns.

    Jobs whose `JobAdmission.is_counted` is False are left out.
    """
    turn: int = 0
    place: int = 0
    """The position of the last job in the line is `turn` and `place`: see `Waiter`."""
    is_mixed: bool = False
    """Whether a job was added behind jobs with a later position, so that the messages are not in order."""
    front: list[Waiter] = field(default_factory=list)
    """The first jobs of the line. If this list is empty although jobs wait, the messages of the line must be read.

    Version 0.1 does not know this field and leaves it out when it writes the record. So the list is never
    outdated.
    """


class Limiter(Struct, array_like=True):
    """The record of a sequence, of a limit for one key, or of a queue: its jobs, and the tokens of a rate."""

    name: str
    admitted: int = 0
    holders: list[str] = field(default_factory=list)
    """The ids of admitted jobs, at most `MAX_HOLDERS` of them."""
    turn: int = 0
    place: int = 0
    """For a sequence, `turn` and `place` are the position of the job that holds it: see `Waiter`."""
    full_at: int = 0
    """The instant at which a rate has all its tokens again, if no further job starts."""
    interval: int = 0
    """The interval of the rate with which `full_at` was computed."""
    reserved: int = 0
    """How many tokens of the rate are reserved for jobs that are ready."""
    groups: list[LimiterGroup] = field(default_factory=list)
    """The groups in the order of their turns; the first group has the next turn."""
    wakeup: int | None = None
    """The due time of the next wake-up of this limiter; None if no wake-up is scheduled."""
    version: int = 0
    """`CURRENT` if this version of Mainspring has written the record; 0 if version 0.1 has written it."""

    @property
    def is_exact(self) -> bool:
        """Whether `holders` contains the ids of all admitted jobs."""
        return len(self.holders) == self.admitted

    @property
    def has_waiting(self) -> bool:
        """Whether any job waits for this sequence, limit or queue."""
        return any(group.waiting for group in self.groups)

    def is_idle(self) -> bool:
        """Return whether this sequence, limit or queue has neither admitted nor waiting jobs.

        A rate may still lack tokens.
        """
        return not self.admitted and not self.groups

    def find(self, name: str) -> LimiterGroup | None:
        """Return the group of this name (the jobs under the same limits); None if none of its jobs waits or is
        admitted and not started, or if its jobs wait in a line with other groups.
        """
        return next((group for group in self.groups if group.name == name), None)

    def group(self, name: str) -> LimiterGroup:
        """Return the group of this name, and create the group if it does not exist.

        A group has the jobs under the same limits. If the limiter has `MAX_GROUPS` groups already, return a group
        whose line several groups share.
        """
        group = self.find(name)
        if group is None and len(self.groups) >= MAX_GROUPS:
            name = f"shared {int(name, 16) % SHARED_LINES}"
            group = self.find(name)
        if group is None:
            group = LimiterGroup(name)
            self.groups.append(group)
        return group

    def rotate(self, group: LimiterGroup) -> None:
        """Move a group (jobs under the same limits) behind the others.

        Remove it if none of its jobs waits or is ready to start.
        """
        self.groups.remove(group)
        if group.waiting or group.ready:
            self.groups.append(group)

    def drop_if_empty(self, group: LimiterGroup) -> None:
        """Remove a group (jobs under the same limits) if none of its jobs waits or is admitted but not started."""
        if not (group.waiting or group.ready):
            self.groups.remove(group)

    def empty_fronts(self) -> None:
        """Remove the first waiting jobs from this record.

        A transaction that needs them reads the messages of waiting jobs.
        """
        for group in self.groups:
            group.front.clear()

    def count_ready(self, name: str) -> None:
        """Count a job of a group (jobs under the same limits) as admitted and not started.

        Do nothing if the group is new and the limiter has `MAX_GROUPS` groups.
        """
        if self.find(name) is not None or len(self.groups) < MAX_GROUPS:
            self.group(name).ready += 1

    def admit(self, job: StoredJob) -> None:
        """Count a job as admitted, and add its id to `holders`, unless `holders` has `MAX_HOLDERS` ids already."""
        self.admitted += 1
        if len(self.holders) < MAX_HOLDERS:
            self.holders.append(job.id)

    def release(self, job: StoredJob) -> None:
        """Count a job as no longer admitted, unless another process has already done so.

        That is known only if `holders` has the ids of all admitted jobs (`is_exact`).
        """
        if job.id in self.holders:
            self.holders.remove(job.id)
            self.admitted -= 1
        elif not self.is_exact:
            self.admitted -= 1


def convert_tokens(limiter: Limiter, interval: int, now: int) -> None:
    """Compute `full_at` for a new interval of the rate, with as many tokens missing as before."""
    if limiter.interval not in (0, interval):
        missing = -(-max(0, limiter.full_at - now) // limiter.interval)
        limiter.full_at = now + missing * interval
    limiter.interval = interval


class Limiters:
    """Reads, checks and writes limiters within one transaction.

    A limiter is the record of a sequence, of a limit for one key, or of a queue.
    """

    def __init__(self, transaction: Transaction, settings_cache: SettingsCache) -> None:
        self.transaction = transaction
        self.now = transaction.now
        self._settings_cache = settings_cache
        self._limiters: dict[str, Limiter] = {}
        self.exact: set[str] = set()
        """The names of the limiters whose records contained the ids of all admitted jobs when they were read."""
        self.saved: dict[str, Limiter] = {}
        """The limiters that this transaction writes, by subject."""
        self.has_old = False
        """Whether version 0.1 has written a record that this transaction has read."""

    # -- records

    def prefetch(self, jobs: Iterable[StoredJob]) -> None:
        """Read the limiters (records of sequences and limits) of these jobs, and the settings, in one request."""
        self.prefetch_named(limiter for job in jobs for limiter in limiters_of(job))

    def prefetch_named(self, names: Iterable[str], also: Iterable[str] = ()) -> None:
        """Read limiters (records of sequences, limits and queues) by name, the settings, and the records of the
        subjects in `also`, in one request.
        """
        self.transaction.prefetch([self.transaction.names.settings, *map(self._subject, names), *also])

    def is_paused(self, queue: str) -> bool:
        """Return whether a queue is paused, by the settings as this transaction reads them."""
        return queue in self._settings_cache.read(self.transaction).paused

    def get(self, name: str) -> Limiter:
        """Return the limiter (of a sequence, limit or queue) as this transaction sees it; an empty one if it has
        no record.

        Call `save` after a change of the limiter.
        """
        limiter = self._limiters.get(name)
        if limiter is None:
            subject = self._subject(name)
            found = self.transaction.get_struct(subject, Limiter)
            if found is not None and found.version != CURRENT:
                self.has_old = True
            limiter = self._limiters[name] = found or Limiter(name)
            limiter.version = CURRENT
            if limiter.is_exact:
                self.exact.add(name)
        return limiter

    def read(self) -> list[Limiter]:
        """Return all limiters (of sequences, limits and queues) with a record that this transaction has read."""
        records = [self.transaction.get(subject) for subject in self.transaction.read_limiters()]
        return [self.get(decode(data, Limiter).name) for data in records if data]

    def get_confirmed(self, name: str) -> Limiter:
        """Return the limiter of a sequence, limit or queue.

        If this transaction has found no record of it, read the record again to make sure.
        """
        subject = self._subject(name)
        if subject not in self.saved and not self.transaction.stored(subject).revision:
            self.transaction.confirm(subject)
            self._limiters.pop(name, None)
        return self.get(name)

    def save(self, limiter: Limiter) -> None:
        """Write the record of a limiter (of a sequence, limit or queue).

        The record of a limiter without jobs is cleared, or expires when its rate has all tokens again.
        """
        transaction, subject = self.transaction, self._subject(limiter.name)
        self.saved[subject] = limiter
        if not limiter.is_idle():
            data = encode(limiter)
            if len(data) > MAX_RECORD:
                limiter.empty_fronts()
                data = encode(limiter)
            transaction.put(subject, data)
        elif limiter.full_at > self.now:
            seconds = (limiter.full_at - self.now) // MICROSECONDS + 1
            transaction.put(subject, encode(limiter), {"Nats-TTL": f"{seconds}s"})
        else:
            transaction.put(subject, b"", CLEARED)

    def _subject(self, name: str) -> str:
        return self.transaction.names.limiter(family_of(name), name)

    # -- limits

    def refusal(self, buckets: tuple[Bucket, ...]) -> Refusal | None:
        """Return the refusal of the first bucket (limit and key) that refuses a job; None if all admit it."""
        return self._admission(buckets).refusal(buckets)

    def refusal_by(self, limiter: Limiter) -> Refusal | None:
        """Return the refusal of one limiter (a limit for one key, or a queue); None if it admits a job."""
        if limiter.name.startswith(QUEUE_PREFIX):
            is_open = not self.is_paused(limiter.name.removeprefix(QUEUE_PREFIX))
            return None if is_open else Refusal(limiter.name, None)
        return self.refusal((limiter.name,))

    def has_turn(self, buckets: tuple[Bucket, ...]) -> bool:
        """Return whether one more job under these limits may be admitted, for the sake of fairness.

        If one of the limits has a key, at most `MAX_READY` admitted jobs under the same limits wait for a worker,
        so that jobs under different keys start in turn.
        """
        fair = fair_bucket(buckets)
        group = None if fair is None else self.get(fair).find(group_of(buckets))
        return group is None or group.ready < MAX_READY

    def _admission(self, buckets: tuple[Bucket, ...]) -> Admission:
        limits = self._settings_cache.read(self.transaction).limits
        states = {}
        for bucket in buckets:
            limiter = self.get(bucket)
            limit = limits.get(family_of(bucket))
            full_at = 0
            if limit is not None and limit.per is not None:
                convert_tokens(limiter, limit.interval, self.now)
                full_at = max(limiter.full_at, self.now) + limiter.reserved * limit.interval
            states[bucket] = BucketState(limiter.admitted, full_at)
        return Admission(limits, states, self.now)

    def admit(self, job: StoredJob, admitted_by: tuple[str, ...]) -> None:
        """Admit a job to all its limits, and offer the job to workers. Its rates reserve a token each.

        The caller has checked that no limit refuses the job. `admitted_by` names the limiters that have admitted
        the job before: that of its sequence, if any.
        """
        buckets = tuple(dict.fromkeys(job.limits))
        reserved = tuple(bucket for bucket in buckets if self._interval(bucket))
        for bucket in buckets:
            limiter = self.get(bucket)
            limiter.admit(job)
            limiter.reserved += bucket in reserved
        fair = fair_bucket(buckets)
        is_counted = fair is None or not self._is_narrow(fair)
        if fair is not None and is_counted:
            self.get(fair).count_ready(group_of(buckets))
        for bucket in buckets:
            self.save(self.get(bucket))
        admission = JobAdmission(READY, (*admitted_by, *buckets), reserved=reserved, is_counted=is_counted)
        job = with_admission(job, admission)
        self.transaction.put_job(job)
        self.transaction.publish_ready(job)

    def end_ready(self, admission: JobAdmission, *, is_started: bool) -> list[str]:
        """Count a job no longer as admitted and not started.

        Return the names of the limits, with their keys, that may have room now. If the job has started, its tokens
        are used up. Otherwise its rates get the tokens back.
        """
        fair = fair_bucket(admission.buckets) if admission.is_counted else None
        changed = admission.changed_by_start
        if changed:
            self.prefetch_named(changed)
        for bucket in admission.reserved:
            limiter = self.get(bucket)
            limiter.reserved -= 1
            interval = self._interval(bucket) if is_started else 0
            if interval:
                convert_tokens(limiter, interval, self.now)
                limiter.full_at = max(limiter.full_at, self.now) + interval
            self.save(limiter)
        group = None if fair is None else self.get(fair).find(group_of(admission.buckets))
        if fair is not None and group is not None and group.ready:
            group.ready -= 1
            self.get(fair).drop_if_empty(group)
            self.save(self.get(fair))
        return list(changed)

    def use_tokens(self, bucket: Bucket, full_at: int) -> None:
        """Use up tokens of a rate, so that the rate does not have all its tokens again before `full_at`.

        `bucket` is the name of the limit with its key. Do nothing if the limit is no rate, or if `full_at` has
        passed.
        """
        interval = self._interval(bucket)
        if interval and full_at > self.now:
            limiter = self.get(bucket)
            convert_tokens(limiter, interval, self.now)
            limiter.full_at = max(limiter.full_at, full_at)
            self.save(limiter)

    def _is_narrow(self, bucket: Bucket) -> bool:
        """Return whether a bucket (limit and key) belongs to a concurrency of at most `MAX_READY`.

        The admitted jobs of such a bucket that wait for a worker need no count, because the concurrency keeps them
        few enough.
        """
        limit = self._settings_cache.read(self.transaction).limits.get(family_of(bucket))
        return limit is not None and limit.per is None and limit.most <= MAX_READY

    def _interval(self, bucket: Bucket) -> int:
        """Return the microseconds in which a rate refills one token; 0 if the bucket belongs to no rate.

        A bucket is the part of a limit for one key.
        """
        limit = self._settings_cache.read(self.transaction).limits.get(family_of(bucket))
        return 0 if limit is None or limit.per is None else limit.interval

    # -- wake-ups

    def wake_at_token(self, limiter: Limiter, refusal: Refusal) -> None:
        """Schedule a wake-up for the instant at which a rate has a token again.

        If the rate lacks no tokens, all of them are reserved for admitted jobs, and the next start of such a job
        admits waiting ones.
        """
        if refusal.until is not None and limiter.full_at > self.now:
            self.wake_at(limiter, refusal.until)

    def wake_at(self, limiter: Limiter, instant: int) -> None:
        """Schedule a wake-up, at which a worker admits the jobs that wait for a sequence, limit or queue.

        Do nothing if one is scheduled for this time or earlier and is not overdue.
        """
        if limiter.wakeup is not None and self.now - OVERDUE < limiter.wakeup <= instant + 1_000:
            return
        limiter.wakeup = instant
        self.save(limiter)
        names, batch = self.transaction.names, self.transaction.batch
        key, data = digest(limiter.name), encode([family_of(limiter.name), limiter.name, instant])
        if instant - self.now <= LEAD:
            batch.put(names.reminder("poke", key), data)
        else:
            batch.schedule(names.scheduled("poke", key), names.reminder("poke", key), instant - LEAD, data)
