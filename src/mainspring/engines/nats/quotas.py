"""Checks the submit quotas of queues before jobs are stored.

Depth. Before each submit, a process asks the leader of the stream for its last sequence number. It knows how many
jobs were pending at an earlier number, by a count in its projection. Each job that became pending since then has a
record with a later number. So at most this many jobs are pending: the count, and one for each number since then.
If the submit would exceed the quota by this bound, the process reads the changes, and counts again. Only a count
refuses a submit.

Invariants
- At the moment of the leader's reply, the queue has room for the submit. All pending jobs count,
  also those that no quota applies to: retries, follow-up jobs, and the jobs that processes of version 0.1 submit.
- After a check, a process stores only the submit that was checked. So processes that submit at the same time
  exceed a quota by one batch each at most.
- A count remains valid for its sequence number. It is dropped only if the stream was created again.

Rate. The tokens are in the record of a limiter. A submit reads and replaces this record before it stores its jobs,
which takes two requests. Tokens of a submit that then fails are used up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from mainspring.engines.nats import unique_keys
from mainspring.engines.nats.limiters import CURRENT, Limiter, convert_tokens
from mainspring.engines.nats.projector import Projector
from mainspring.engines.nats.settings_cache import SettingsCache
from mainspring.engines.nats.streams import Streams
from mainspring.engines.nats.transaction import Transaction, TransactionManager
from mainspring.jobs.limits import Admission, BucketState, Limit
from mainspring.jobs.quotas import (
    depth_exceeded,
    rate_exceeded,
    submit_rate_bucket,
    submit_rate_family,
)
from mainspring.jobs.records import NewJob


class _Count(NamedTuple):
    """The number of pending jobs of a queue, and the last sequence number of the stream when they were counted."""

    pending: int
    sequence: int


class NatsQuotas:
    """Checks submits against the quotas of their queues.

    Any thread may call `clear`. One thread at a time calls `check`.
    """

    def __init__(
        self,
        transactions: TransactionManager,
        settings_cache: SettingsCache,
        streams: Streams,
        projector: Projector,
    ) -> None:
        self._transactions = transactions
        self._settings_cache = settings_cache
        self._streams = streams
        self._projector = projector
        self._counts: dict[str, _Count] = {}  # the last count of each queue

    def check(self, jobs: Sequence[NewJob]) -> None:
        """Raise `LimitExceeded` if jobs that are about to be stored exceed a quota of their queues.

        Jobs that would not be stored, because they conflict with stored jobs, are no reason for a refusal. If no
        depth is exceeded, use up the tokens of the submit rates, queue by queue until a rate refuses.
        """
        quotas = self._settings_cache.current_quotas()
        if not quotas:  # nearly always
            return
        submitted = Counter(job.queue for job in jobs if job.queue in quotas)
        depths = {queue: depth for queue in submitted if (depth := quotas[queue].max_depth) is not None}
        if depths:
            last = self._streams.last_sequence()
            for queue, max_depth in depths.items():
                self._require_depth(queue, submitted[queue], max_depth, jobs, last)
        for queue, new in submitted.items():
            rate = quotas[queue].submit_rate
            if rate is not None:
                self._require_tokens(queue, new, rate, jobs)

    # -- depth

    def _require_depth(self, queue: str, new: int, max_depth: int, jobs: Sequence[NewJob], last: int) -> None:
        """Raise `LimitExceeded` if a queue had no room for `new` jobs when the stream had the last number
        `last`.
        """
        counts = self._counts
        count = counts.get(queue)
        if count is not None and 0 <= last - count.sequence <= max_depth - new - count.pending:
            return
        if count is None or count.sequence != last:
            count = counts[queue] = _Count(self._projector.count_pending(queue, last), last)
        if count.pending + new > max_depth:
            new = self._count_new(queue, jobs)
            if new and count.pending + new > max_depth:
                raise depth_exceeded(queue, pending=count.pending, new=new, max_depth=max_depth)

    def _count_new(self, queue: str, jobs: Sequence[NewJob]) -> int:
        """Count the jobs of a submit that conflict with no stored job, so that they would be stored."""
        own = [job for job in jobs if job.queue == queue]
        transaction = self._transactions.begin()
        names = transaction.names
        subjects = [names.job(job.id) for job in own]
        subjects += [names.key(job.unique.key) for job in own if job.unique is not None]
        transaction.prefetch(subjects)
        return sum(
            transaction.job(job.id) is None
            and (job.unique is None or unique_keys.find_conflict(transaction, job) is None)
            for job in own
        )

    def clear(self) -> None:
        """Drop all counts, because the stream was created again."""
        self._counts = {}  # a new dict: a check on another thread may still write to the old one

    # -- rate

    def _require_tokens(self, queue: str, new: int, rate: Limit, jobs: Sequence[NewJob]) -> None:
        refusal = self._take_tokens(queue, new, rate)
        if refusal is not None:  # jobs that conflict with stored ones need no tokens
            new = self._count_new(queue, jobs)
            refusal = self._take_tokens(queue, new, rate) if new else None
        if refusal is not None:
            raise rate_exceeded(queue, rate=rate, new=new, wait=refusal.wait)

    def _take_tokens(self, queue: str, new: int, rate: Limit) -> _TooFewTokens | None:
        return self._transactions.run(lambda transaction: _take_tokens(transaction, queue, new, rate))


class _TooFewTokens(NamedTuple):
    """A rate has too few tokens for a submit, for `wait` microseconds; `wait` is None if it never has as many."""

    wait: int | None


def _take_tokens(transaction: Transaction, queue: str, new: int, rate: Limit) -> _TooFewTokens | None:
    """Use up a token for each job of a submit; if there are too few tokens, use up none and return the refusal."""
    family, bucket = submit_rate_family(queue), submit_rate_bucket(queue)
    subject = transaction.names.limiter(family, bucket)
    limiter = transaction.get_struct(subject, Limiter) or Limiter(bucket)
    convert_tokens(limiter, rate.interval, transaction.now)
    state = BucketState(full_at=limiter.full_at)
    admission = Admission({family: rate}, {bucket: state}, transaction.now)
    if admission.room((bucket,), new) < new:
        instant = admission.room_at(bucket, new)
        return _TooFewTokens(None if instant is None else max(0, instant - transaction.now))
    admission.admit_many((bucket,), new)
    limiter.full_at, limiter.version = state.full_at, CURRENT
    transaction.put_struct(subject, limiter)
    return None
