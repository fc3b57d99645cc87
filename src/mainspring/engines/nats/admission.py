"""Admission control for jobs in sequences and under limits: puts a job into its lane, or makes it wait in line.

A job is put into its lane when all its limiters have admitted the job. The engine requests the sequence first; the
job holds the sequence until the job has ended. Then the engine requests all limits of the job at once. If a
limiter refuses, the job waits in the line of that limiter. The transaction in which a job leaves a limiter also
admits the next job. A hand-over does the same in several steps, without a transaction: see `handover`. The groups
of a limiter take turns. Only a few jobs of a key are in the lanes at once, so that the keys take turns in the
lanes, too.

Invariant: if a job waits for a limiter, then an admitted job will leave that limiter, or a wake-up is scheduled,
or jobs of the same group are ready and will start; or the limiter is that of a paused queue, and the job waits
until the queue is resumed. A transaction that adds a job to a line also writes the record of the limiter. So a
transaction or a hand-over that makes room at the same time cannot overlook the added job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial

from mainspring.engines.nats.handover import FleetVersion, order_writes
from mainspring.engines.nats.job_records import StoredJob, decode, decode_job, encode
from mainspring.engines.nats.limiters import (
    HOLDS_SEQUENCE,
    MAX_READY,
    NOT_REQUESTED,
    QUEUE_PREFIX,
    READY,
    SEQUENCE_PREFIX,
    STARTED,
    WAITS,
    JobAdmission,
    Limiter,
    LimiterGroup,
    Limiters,
    admission_of,
    fair_bucket,
    group_of,
    limiters_of,
    queue_limiter,
    sequence_limiter,
    with_admission,
)
from mainspring.engines.nats.settings_cache import SettingsCache
from mainspring.engines.nats.subject_names import digest, from_token, to_token
from mainspring.engines.nats.transaction import OrderedWrites, Transaction, TransactionManager
from mainspring.engines.nats.waiting_lines import WaitingLines
from mainspring.engines.nats.write_batch import StoredMessage
from mainspring.jobs.limits import Refusal, family_of
from mainspring.jobs.timestamps import MICROSECONDS

MAX_BEHIND = 1_000
"""For how many jobs this process remembers which jobs wait behind them."""
MAX_GROUPS_BEHIND = 2
"""Of how many groups of a limiter the first waiting job is remembered."""
MAX_PASSES = 50
"""How many jobs one limiter tries to admit in one transaction; an immediate wake-up admits the remaining jobs."""
REPLICA_LAG = MICROSECONDS // 2
"""Time after which a line is read again, because a replica that lags behind did not have its messages."""


class Admitter:
    """Admits jobs to their sequences and limits, or makes them wait in line, within one transaction.

    A limiter is the stored state of one sequence, of a limit for one key, or of a queue. A line has the jobs that
    wait for a limiter.
    """

    def __init__(self, transaction: Transaction, settings_cache: SettingsCache) -> None:
        self._transaction = transaction
        self.limiters = Limiters(transaction, settings_cache)
        self.lines = WaitingLines(transaction)
        self._has_read_holders = False

    def prefetch_next(self, leaving: Mapping[str, int], also: Iterable[str]) -> None:
        """Read the jobs that wait next for sequences and limits (limiters), and records of the subjects in `also`.

        `leaving` has, for the name of each limiter, the number of jobs that leave it, or whose start changes it.
        """
        heads: list[tuple[Limiter, LimiterGroup, int]] = []
        for name, number in leaving.items():
            limiter = self.limiters.get(name)
            groups = [group for group in limiter.groups if group.waiting]
            heads += [(limiter, group, -(-number // len(groups))) for group in groups[:number]]
        self.lines.prefetch(heads, also)

    # -- requesting

    def acquire_sequence(self, job: StoredJob) -> bool:
        """Give a job its sequence, so that it may run, and return True; or make it wait for the sequence, and
        return False.

        If the job comes before the job that has the sequence now, and no worker has leased that one, the job gets
        the sequence, and the other one waits again.
        """
        assert job.sequence is not None
        limiter = self.limiters.get(sequence_limiter(job.sequence))
        self._release_ended(limiter)
        if limiter.is_idle():
            self._give_sequence(limiter, job)
            return True
        if limiter.admitted and (job.turn, job.place) < (limiter.turn, limiter.place):
            holder = self._transaction.job(limiter.holders[0])
            if holder is not None and not holder.is_over and holder.owner is None:
                self._displace(limiter, holder)
                self._give_sequence(limiter, job)
                return True
        self._wait(limiter, job)
        self._admit_next_in_sequence(limiter)
        return False

    def _give_sequence(self, limiter: Limiter, job: StoredJob) -> None:
        limiter.admit(job)
        limiter.turn, limiter.place = job.turn, job.place
        self.limiters.save(limiter)

    def _displace(self, limiter: Limiter, holder: StoredJob) -> None:
        """Let the job that has a sequence wait for it again, because a job that comes before it was added.

        `holder` is the job that has the sequence. No worker has leased it.
        """
        self._transaction.withdraw_ready(holder)
        holder, freed = self.release(holder, keeps_sequence=False)
        self._wait(limiter, holder)
        self.admit_waiting([name for name in freed if name != limiter.name])

    def request_limits_again(self, job: StoredJob) -> None:
        """Take an admitted job out of its limits, and request them again, because its queue was paused.

        The job then waits until the queue is resumed, and waiting jobs of other queues are admitted to the limits.
        """
        self._transaction.withdraw_ready(job)
        job, freed = self.release(job, keeps_sequence=True)
        self._try_limits(job)
        self.admit_waiting(freed)

    def request_limits(self, job: StoredJob) -> None:
        """Admit a job to its limits, or make the job wait in line.

        First admit the jobs that wait for these limits, as far as the limits have room. If jobs under the same
        limits still wait afterwards, the job waits behind them.
        """
        for bucket in dict.fromkeys(job.limits):
            limiter = self.limiters.get(bucket)
            self._admit_under_limit(limiter)
            group = limiter.find(group_of(job.limits))
            if group is not None and group.waiting:
                self._wait(limiter, job)
                return
        self._try_limits(job)

    def _try_limits(self, job: StoredJob) -> bool:
        """Admit a job to all its limits, and return True; or make it wait for the first limit that refuses it.

        Return False if the job waits. A job under limits also waits if its queue is paused, or if as many jobs
        under the same limits as allowed are admitted and not started yet.
        """
        buckets = tuple(dict.fromkeys(job.limits))
        admitted_by = () if job.sequence is None else (sequence_limiter(job.sequence),)
        if buckets and self.limiters.is_paused(job.queue):
            self._wait(self.limiters.get(queue_limiter(job.queue)), job)
            return False
        refusal = self.limiters.refusal(buckets)
        while refusal is not None and self._release_ended(self.limiters.get(refusal.bucket)):
            refusal = self.limiters.refusal(buckets)
        fair = fair_bucket(buckets)
        if refusal is not None:
            limiter = self.limiters.get(refusal.bucket)
            self._wait(limiter, job)
            self.limiters.wake_at_token(limiter, refusal)
        elif fair is not None and not self.limiters.has_turn(buckets):
            self._wait(self.limiters.get(fair), job)
        else:
            self.limiters.admit(job, admitted_by)
            return True
        return False

    def _wait(self, limiter: Limiter, job: StoredJob) -> None:
        is_sequence = limiter.name.startswith(SEQUENCE_PREFIX)
        group = limiter.group("" if is_sequence else group_of(job.limits))
        self.lines.append(limiter, group, job)
        self.limiters.save(limiter)
        admitted_by = () if is_sequence or job.sequence is None else (sequence_limiter(job.sequence),)
        admission = JobAdmission(WAITS, admitted_by, limiter.name, group.name)
        self._transaction.put_job(with_admission(job, admission))

    # -- releasing

    def yield_sequence(self, job: StoredJob) -> StoredJob:
        """Give up the sequence of a job that will run again, if a job with an earlier position waits for it.

        Then let the job wait for the sequence, and admit the first job that waits. Return the job with its new
        state; otherwise unchanged.
        """
        limiter = self.limiters.get(admission_of(job).admitted_by[0])
        group = limiter.find("")
        first = None if group is None else self.lines.first(limiter, group)
        if first is None or (first.turn, first.place) > (job.turn, job.place):
            return job
        limiter.release(job)
        self._wait(limiter, job)
        self._admit_next_in_sequence(limiter)
        return with_admission(job, JobAdmission(WAITS, (), limiter.name, ""))

    def release(self, job: StoredJob, *, keeps_sequence: bool) -> tuple[StoredJob, list[str]]:
        """Take a job out of its sequence and limits, admitted or waiting.

        Return the job, and the names of the limiters that it has left. A limiter is the stored state of a
        sequence, or of a limit for one key.

        With `keeps_sequence`, the job keeps its sequence if it holds it. No waiting job is admitted here: the
        caller passes the names to `admit_waiting`.
        """
        admission = self._current_admission(job)
        if admission.state == WAITS:
            limiter = self.limiters.get(admission.limiter)
            group = limiter.group(admission.group)
            self.lines.remove(limiter, group, job.id)
            limiter.drop_if_empty(group)
            self.limiters.save(limiter)
        kept = tuple(name for name in admission.admitted_by if keeps_sequence and name.startswith(SEQUENCE_PREFIX))
        freed = [name for name in admission.admitted_by if name not in kept]
        for name in freed:
            self.limiters.get(name).release(job)
            self.limiters.save(self.limiters.get(name))
        if admission.state == READY:
            self.limiters.end_ready(admission, is_started=False)
        job = with_admission(job, JobAdmission(HOLDS_SEQUENCE if kept else NOT_REQUESTED, kept))
        self._transaction.put_job(job)  # so that no later lookup in this transaction finds the job in its old line
        return job, freed

    def _current_admission(self, job: StoredJob) -> JobAdmission:
        """Return which limiters (sequence and limits) have admitted a job, and which make it wait.

        A hand-over passes the place of an ended job to the next one in three writes. If one that is not complete
        has admitted the job, the record of the limiter says so, and the record of the job does not yet. Then also
        delete the message that says that the job waits.
        """
        admission = admission_of(job)
        if admission.state == WAITS and job.id in self.limiters.get(admission.limiter).holders:
            self.lines.delete_message(admission.limiter, admission.group, job.id)
            return _handed_over(admission.limiter)
        return admission

    def release_leftover(self, job: StoredJob) -> None:
        """Remove a job that is due again from the limiters (sequence and limits) that still count its last run.

        They still count that run if its place has not been passed to the next job yet: see `handover`.
        """
        for name in limiters_of(job):
            limiter = self.limiters.get(name)
            if job.id in limiter.holders:
                limiter.release(job)
                self.limiters.save(limiter)

    # -- hand-overs

    def finish(self, job: StoredJob) -> None:
        """Complete the hand-over of an ended job: release the job, admit the next one of the same sequence or
        limit (limiter), and queue that one for workers.

        If the job was released or reopened meanwhile, only queue the jobs that its limiter has admitted. The
        caller must have read the record of the job after the record of the limiter, because the job may have been
        reopened.
        """
        (name,) = limiters_of(job)
        limiter = self.limiters.get_confirmed(name)
        current = self._transaction.job(job.id)
        if current is not None and current.is_over and job.id in limiter.holders:
            limiter.release(job)
            self.limiters.save(limiter)
            self.admit_waiting([name])
        else:
            self.complete_admissions(name)

    def complete_admissions(self, name: str, *, stores_messages: bool = True) -> None:
        """Queue every job for workers that a limiter has admitted, and admit waiting jobs instead of ended and
        deleted ones.

        A limiter is the stored state of a sequence, or of a limit for one key.

        With `stores_messages`, also store the messages to workers again of admitted jobs that no worker has
        leased.
        """
        transaction, limiter = self._transaction, self.limiters.get_confirmed(name)
        transaction.prefetch_jobs(limiter.holders)
        for job_id in list(limiter.holders):
            transaction.confirm(transaction.names.job(job_id))
            job = transaction.job(job_id)
            if job is None or job.is_over:
                limiter.holders.remove(job_id)
                limiter.admitted -= 1
                self.limiters.save(limiter)
                continue
            admission = admission_of(job)
            is_incomplete = admission.state == WAITS and admission.limiter == name
            if is_incomplete:
                job = with_admission(job, _handed_over(name))
            if is_incomplete or (stores_messages and admission.state == READY and job.owner is None):
                group = "" if limiter.name.startswith(SEQUENCE_PREFIX) else group_of(job.limits)
                self.lines.delete_message(limiter.name, group, job_id)
                transaction.put_job(job)
                transaction.publish_ready(job)
        self.admit_waiting([name])

    # -- holders that have ended

    def _release_ended(self, limiter: Limiter) -> bool:
        """Release the jobs of a limiter that have ended or were deleted; return whether there were any.

        This is called for the first job that would wait for a limiter, so that it does not wait for jobs that have
        left already. A limiter (the stored state of a sequence or limit) has such jobs for some milliseconds,
        until their place is handed over to the next job; or for longer, because the server has lost the last
        change of the limiter. If jobs wait already, do nothing.
        """
        if limiter.has_waiting or not limiter.holders:
            return False
        self._prefetch_holders()
        transaction = self._transaction
        ended = [job_id for job_id in limiter.holders if _has_ended(transaction.job(job_id))]
        # The transaction may have read these jobs before it has read the limiter, and they may run again.
        ended = [job_id for job_id in ended if _has_ended(transaction.current_job(job_id))]
        for job_id in ended:
            limiter.holders.remove(job_id)
            limiter.admitted -= 1
        if ended:
            self.limiters.save(limiter)
        return bool(ended)

    def _prefetch_holders(self) -> None:
        """Read the jobs that were admitted by the limiters for which a job may have to wait, in one request.

        A limiter is the stored state of a sequence, or of a limit for one key.

        Do nothing if this transaction has read them before.
        """
        if not self._has_read_holders:
            self._has_read_holders = True
            full = [limiter for limiter in self.limiters.read() if self._is_full(limiter)]
            self._transaction.prefetch_jobs(job_id for limiter in full for job_id in limiter.holders)

    def _is_full(self, limiter: Limiter) -> bool:
        """Return whether the next job may become the first one that waits for a limiter (a sequence or a limit).

        This is so if no job waits for it yet, and it is that of a sequence, or refuses jobs now.
        """
        if limiter.has_waiting:
            return False
        return limiter.name.startswith(SEQUENCE_PREFIX) or self.limiters.refusal_by(limiter) is not None

    # -- admitting

    def admit_waiting(self, names: Iterable[str]) -> None:
        """Admit the jobs that wait for these limiters (sequences, limits, queues), as far as each has room."""
        for name in names:
            limiter = self.limiters.get(name)
            if name.startswith(SEQUENCE_PREFIX):
                self._admit_next_in_sequence(limiter)
            else:
                self._admit_under_limit(limiter)

    def _admit_next_in_sequence(self, limiter: Limiter) -> None:
        group = limiter.find("")
        if limiter.admitted or group is None:
            return
        job = self.lines.first(limiter, group)
        if job is None:
            self.limiters.wake_at(limiter, self.limiters.now + REPLICA_LAG)
            return
        self.lines.remove(limiter, group, job.id)
        limiter.drop_if_empty(group)
        self._give_sequence(limiter, job)
        if job.due <= self.limiters.now:
            self.request_limits(job)
            return
        self._transaction.put_job(with_admission(job, JobAdmission(HOLDS_SEQUENCE, (limiter.name,))))
        names, batch = self._transaction.names, self._transaction.batch
        subject, reminder = names.scheduled("job", job.id), names.reminder("enter", job.id)
        batch.schedule(subject, reminder, job.due, encode([job.due]))

    def _admit_under_limit(self, limiter: Limiter) -> None:
        skipped: set[str] = set()  # groups with enough ready jobs, or whose first job another limit refuses
        for _ in range(MAX_PASSES):
            groups = (group for group in limiter.groups if group.waiting and group.name not in skipped)
            group = next(groups, None)
            if group is None:
                return
            refusal = self.limiters.refusal_by(limiter)
            if refusal is not None:
                self.limiters.wake_at_token(limiter, refusal)
                return
            job = None if group.ready >= MAX_READY else self.lines.first(limiter, group)
            if job is not None:
                self.lines.remove(limiter, group, job.id)
                limiter.rotate(group)
                self.limiters.save(limiter)
                if self._try_limits(job):
                    continue
            elif group.ready < MAX_READY:
                self.limiters.wake_at(limiter, self.limiters.now + REPLICA_LAG)
            skipped.add(group.name)
        if limiter.has_waiting:
            self.limiters.wake_at(limiter, self.limiters.now)


def _has_ended(job: StoredJob | None) -> bool:
    """Return whether a job has ended, or was deleted afterwards."""
    return job is None or job.is_over


def _handed_over(limiter: str) -> JobAdmission:
    """Return the admission of a job to which a hand-over gave the place of an ended job.

    It says that this limiter (the stored state of a sequence or limit) has admitted the job, and that the start of
    the job changes no limiter.
    """
    return JobAdmission(READY, (limiter,), is_counted=False)


CHECKED_AT_ONCE = 16
"""How many limiters of a changed limit are checked in the transaction that handles the change."""
MAX_WAKEUPS = 300
"""How many limiters of a changed limit one transaction checks or wakes; a later check finds the other limiters."""
RELEASED_AT_ONCE = 100
"""How many jobs one transaction takes out of their limits when their queue is paused."""
PAGE = 500
RECHECK_DELAY = 5 * MICROSECONDS
"""Time from a change of settings to a second check of the limiters.

Transactions that ran during the change may have read the old settings.
"""


class AdmissionControl:
    """Admits jobs to sequences and limits, and lets the next jobs in when others leave.

    Any thread may call `refusal_of`, `find_full` and `blocking_job`. Only the thread that writes calls the other
    methods.
    """

    def __init__(self, settings_cache: SettingsCache) -> None:
        self._settings_cache = settings_cache
        self._fleet = FleetVersion()
        # for each job that a hand-over of this process admitted last, the records of the jobs that wait behind it
        self._behind: dict[str, list[str]] = {}

    def _admitter(self, transaction: Transaction) -> Admitter:
        admitter = transaction.admitter
        if not isinstance(admitter, Admitter):
            admitter = transaction.admitter = Admitter(transaction, self._settings_cache)
        return admitter

    def prefetch(self, transaction: Transaction, jobs: Iterable[StoredJob], also: Sequence[str] = ()) -> None:
        """Read the limiters that the next step of each job changes, then the jobs that wait next for these.

        A limiter is the stored state of a sequence, or of a limit for one key.

        The next step of a job is a request, a start or an end. The second read includes the subjects in `also`.
        The two reads take one request to the server each, and more if a limiter's record names too few of the
        waiting jobs. There is no second read if this process admitted the jobs that end, and has not forgotten
        which jobs wait behind them.
        """
        limited = [(job, admission_of(job)) for job in jobs if job.needs_admission]
        changed = [
            (job, limiters_of(job) if job.is_over else admission.changed_by_next_step)
            for job, admission in limited
        ]
        leaving = Counter(name for _, names in changed for name in names)
        requested = [name for job, admission in limited if not admission.is_admitted for name in limiters_of(job)]
        if leaving or requested:
            admitter = self._admitter(transaction)
            behind = [subject for job, names in changed if names for subject in self._behind.pop(job.id, ())]
            admitter.limiters.prefetch_named([*leaving, *requested], behind)
            admitter.prefetch_next(leaving, also)

    # -- jobs

    def request(self, transaction: Transaction, job: StoredJob) -> None:
        """Admit a due job to its sequence and limits, or make it wait.

        Do nothing if the job already waits, was admitted or has started.
        """
        state = admission_of(job).state
        if state not in (NOT_REQUESTED, HOLDS_SEQUENCE):
            return
        admitter = self._admitter(transaction)
        admitter.limiters.prefetch([job])
        if state == NOT_REQUESTED:
            admitter.release_leftover(job)
        if job.sequence is None or state == HOLDS_SEQUENCE or admitter.acquire_sequence(job):
            admitter.request_limits(job)

    def record_start(self, transaction: Transaction, job: StoredJob) -> StoredJob:
        """Record the start of a ready job, and admit jobs that wait for a limiter that the start has changed.

        A job is ready if its sequence and all its limits have admitted it; another job is returned unchanged. The
        caller writes the returned job.
        """
        admission = admission_of(job)
        if admission.state != READY:
            return job
        admitter = self._admitter(transaction)
        admitter.admit_waiting(admitter.limiters.end_ready(admission, is_started=True))
        return with_admission(job, admission._replace(state=STARTED))

    def release(self, transaction: Transaction, job: StoredJob, *, keeps_sequence: bool) -> StoredJob:
        """Take a job that no longer runs out of its sequence and limits, and admit waiting jobs instead.

        The caller writes the returned job, and calls `request` if the job is due again. With `keeps_sequence`, the
        job keeps its sequence, unless it has ended, or a job that comes before it waits for the sequence.
        """
        admitter = self._admitter(transaction)
        admitter.limiters.prefetch([job])
        job, freed = admitter.release(job, keeps_sequence=keeps_sequence and not job.is_over)
        admitter.admit_waiting(freed)
        return admitter.yield_sequence(job) if admission_of(job).state == HOLDS_SEQUENCE else job

    def withdraw(self, transaction: Transaction, job: StoredJob, *, keeps_turn: bool = False) -> StoredJob:
        """Take a PENDING job out of its sequence and limits, and admit waiting jobs instead.

        With `keeps_turn`, the job keeps its sequence, or its place in the line for it. The caller writes the
        returned job.
        """
        job = self.release(transaction, job, keeps_sequence=keeps_turn)
        if keeps_turn and admission_of(job).state == NOT_REQUESTED:
            job = self.hold_sequence(transaction, job)
        return job

    def hold_sequence(self, transaction: Transaction, job: StoredJob) -> StoredJob:
        """Request the sequence of a job that is due later: the job holds the sequence, or waits in line for it.

        Return the job with its new state.
        """
        admitter = self._admitter(transaction)
        admitter.limiters.prefetch([job])
        limiter = sequence_limiter(job.sequence or "")
        if admitter.acquire_sequence(job):
            return with_admission(job, JobAdmission(HOLDS_SEQUENCE, (limiter,)))
        return with_admission(job, JobAdmission(WAITS, (), limiter, ""))

    # -- hand-overs

    def order_writes(self, transaction: Transaction) -> OrderedWrites | None:
        """Return the writes of a transaction in the order of a hand-over; None if they need an atomic batch.

        A hand-over stores that a job has ended, then that the next job of the sequence or limit is admitted.
        """
        limiters = self._admitter(transaction).limiters
        ordered = None if self._fleet.has_old(limiters) else order_writes(transaction, limiters)
        if ordered is not None:
            self._remember_behind(transaction, ordered, limiters)
        return ordered

    def _remember_behind(self, transaction: Transaction, ordered: OrderedWrites, limiters: Limiters) -> None:
        """Remember which jobs wait behind those that a hand-over admits, to read them early when those end."""
        if len(self._behind) > MAX_BEHIND:
            self._behind.clear()
        names = transaction.names
        for record, _ in ordered.ready:
            limiter = limiters.saved.get(ordered.keys[record.subject])
            if limiter is not None:
                fronts = [group.front[0] for group in limiter.groups[:MAX_GROUPS_BEHIND] if group.front]
                job_id = from_token(record.subject.removeprefix(names.jobs))
                self._behind[job_id] = [names.job(waiter.job_id) for waiter in fronts]

    def finish(self, transaction: Transaction, job: StoredJob) -> None:
        """Pass the place of an ended job to the next one, if the process that began this hand-over has not
        completed it.

        Do nothing if the job does not have exactly one limiter (sequence or limit): only such a job has a
        hand-over.
        """
        if len(limiters_of(job)) == 1:
            admitter = self._admitter(transaction)
            admitter.limiters.prefetch([job])
            admitter.finish(job)

    def finish_deleted(self, transaction: Transaction, subject: str) -> None:
        """Admit the jobs that wait for a limiter, because a job was deleted before the next one got its place.

        `subject` is the subject of the limiter's record, which has the state of a sequence or limit. `handover`
        explains hand-overs.
        """
        limiter = transaction.get_struct(subject, Limiter)
        if limiter is not None:
            self._admitter(transaction).complete_admissions(limiter.name)

    def finish_for(self, transaction: Transaction, job: StoredJob) -> bool:
        """Pass the places of ended jobs to waiting jobs, for the limiter (sequence or limit) that a job waits for.

        Return whether anything was written: False if the job does not wait for a limiter.
        """
        admission = admission_of(job)
        if admission.state != WAITS:
            return False
        self._admitter(transaction).complete_admissions(admission.limiter, stores_messages=False)
        return bool(transaction.written)

    # -- limiters

    def prefetch_limiters(self, transaction: Transaction, names: Iterable[str]) -> None:
        """Read limiters (stored states of sequences, limits and queues) by name, in one request."""
        self._admitter(transaction).limiters.prefetch_named(names)

    def use_tokens(self, transaction: Transaction, bucket: str, full_at: int) -> None:
        """Use up tokens of a rate, so that the rate does not have all its tokens again before `full_at`."""
        self._admitter(transaction).limiters.use_tokens(bucket, full_at)

    def wake(self, transaction: Transaction, family: str, name: str) -> None:
        """Admit the jobs that wait for a limiter: a sequence, a limit for one key, or a queue.

        With an empty `name`, do so for all keys of the limit `family`.

        If `name` is the limiter of a paused queue, first take jobs of the queue that were admitted and have not
        started out of their limits.
        """
        admitter = self._admitter(transaction)
        if not name:
            self._check_family(transaction, family)
            return
        admitter.limiters.prefetch_named([name])
        limiter = admitter.limiters.get(name)
        if limiter.wakeup is not None:
            limiter.wakeup = None
            admitter.limiters.save(limiter)
        if name.startswith(QUEUE_PREFIX):
            self._release_if_paused(transaction, name.removeprefix(QUEUE_PREFIX))
        admitter.admit_waiting([name])

    def apply_limit_changes(self, transactions: TransactionManager, families: Iterable[str]) -> None:
        """Admit the jobs that wait for limits whose settings have changed, as far as the limits have room now.

        A wake-up five seconds later does this once more: see `RECHECK_DELAY`.
        """
        for family in families:
            transactions.run(partial(self._apply_limit_change, family=family))

    def _apply_limit_change(self, transaction: Transaction, family: str) -> None:
        self._check_family(transaction, family)
        self._check_again_later(transaction, family, "")

    def _check_again_later(self, transaction: Transaction, family: str, name: str) -> None:
        names, key = transaction.names, digest(family, name, "again")
        instant = transaction.now + RECHECK_DELAY
        data = encode([family, name, instant])
        transaction.batch.schedule(names.scheduled("poke", key), names.reminder("poke", key), instant, data)

    def _check_family(self, transaction: Transaction, family: str) -> None:
        admitter = self._admitter(transaction)
        found = _scan_all(transaction, transaction.names.limiters_of_family(family))
        limiters = [decode(message.data, Limiter) for _, message in found if message.data]
        names = [limiter.name for limiter in limiters if limiter.has_waiting]
        admitter.limiters.prefetch_named(names[:CHECKED_AT_ONCE])
        admitter.admit_waiting(names[:CHECKED_AT_ONCE])
        for name in names[CHECKED_AT_ONCE:MAX_WAKEUPS]:
            data = encode([family, name, 0])
            transaction.batch.put(transaction.names.reminder("poke", digest(name)), data)
        if len(names) > MAX_WAKEUPS:  # at the time of the later check, no job waits for the limiters handled here
            self._check_again_later(transaction, family, "")

    # -- queues

    def apply_queue_change(self, transactions: TransactionManager, queue: str) -> None:
        """Take admitted jobs of a paused queue that have not started out of their limits, or admit the waiting
        jobs of a resumed queue.

        A wake-up five seconds later does this once more: see `RECHECK_DELAY`.
        """
        transactions.run(partial(self._apply_queue_change, queue=queue))

    def _apply_queue_change(self, transaction: Transaction, queue: str) -> None:
        name = queue_limiter(queue)
        self.wake(transaction, family_of(name), name)
        self._check_again_later(transaction, family_of(name), name)

    def _release_if_paused(self, transaction: Transaction, queue: str) -> None:
        """Release the limits of admitted jobs of a paused queue that have not started, for other queues.

        After 100 jobs, store a wake-up for the others. Do nothing if the queue is not paused.
        """
        admitter = self._admitter(transaction)
        if not admitter.limiters.is_paused(queue):
            return
        ready = _scan_all(transaction, f"{transaction.names.ready}{to_token(queue)}.>")
        found = [from_token(subject.rpartition(".")[2]) for subject, message in ready if _may_be_limited(message)]
        transaction.prefetch_jobs(found)
        jobs = [job for job in map(transaction.job, found) if job is not None and job.limits]
        held = [job for job in jobs if admission_of(job).state == READY][:RELEASED_AT_ONCE]
        for job in held:
            admitter.request_limits_again(job)
        if len(held) == RELEASED_AT_ONCE:
            name = queue_limiter(queue)
            data = encode([family_of(name), name, 0])
            transaction.batch.put(transaction.names.reminder("poke", digest(name)), data)

    # -- readers

    def refusal_of(self, transaction: Transaction, job: StoredJob) -> tuple[Refusal | None, tuple[str, ...]]:
        """Return the refusal of the first limit that refuses a job, and ids of jobs that this limit has admitted.

        The refusal is None if no limit refuses the job now, or if the job was admitted already or has started.
        There are no ids then, nor if the limit is a rate.
        """
        limiters = Limiters(transaction, self._settings_cache)
        if admission_of(job).state in (READY, STARTED):
            return None, ()
        limiters.prefetch([job])
        refusal = limiters.refusal(tuple(dict.fromkeys(job.limits)))
        if refusal is None or refusal.until is not None:
            return refusal, ()
        return refusal, tuple(limiters.get(refusal.bucket).holders)

    def find_full(
        self, transaction: Transaction, combinations: Collection[tuple[str, ...]]
    ) -> list[tuple[str, ...]]:
        """Return those sets of buckets (limit and key) that admit no job now.

        All their records are read in one step.
        """
        limiters = Limiters(transaction, self._settings_cache)
        limiters.prefetch_named({bucket for buckets in combinations for bucket in buckets})
        return [buckets for buckets in combinations if limiters.refusal(tuple(dict.fromkeys(buckets))) is not None]

    def blocking_job(self, transaction: Transaction, job: StoredJob) -> str | None:
        """Return the id of the job that a job waits for in its sequence; None if it waits for no other job."""
        if job.sequence is None:
            return None
        admitter = Admitter(transaction, self._settings_cache)
        limiter = admitter.limiters.get(sequence_limiter(job.sequence))
        group = limiter.find("")
        if limiter.admitted:
            front: str | None = limiter.holders[0]
        else:
            first = None if group is None else admitter.lines.first(limiter, group)
            front = None if first is None else first.id
        return None if front == job.id else front


def _may_be_limited(message: StoredMessage) -> bool:
    """Return whether the job of a message that offers it to workers may be under limits.

    The message of a job under limits has data, or a header that names the limit and key (the limiter). A message
    that the server published at a scheduled time has neither, because a job under limits has no such message.
    """
    return bool(message.limiter) or (bool(message.data) and bool(decode_job(message.data).limits))


def _scan_all(transaction: Transaction, subject: str) -> Iterator[tuple[str, StoredMessage]]:
    position, page = 0, PAGE
    while page == PAGE:
        found = transaction.scan(subject, after=position, most=PAGE)
        page = len(found)
        for subject_and_message in found:
            position = subject_and_message[1].revision
            yield subject_and_message
