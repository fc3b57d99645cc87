"""Checks the submit quotas of queues before jobs are stored.

Depth. Counting pending jobs for every submit would be slow, so a process knows an upper bound: the number of
pending jobs at its last count, plus all jobs that were submitted since then. Each process notifies the others of
its submits to queues with a depth quota, before it stores the jobs; a notification is neither answered nor stored.
If the bound would exceed the quota, the process counts again, in its projection, and only this count refuses a
submit.

Processes may not have heard of each other's submits yet: together they may exceed the quota by the jobs that they
submit until they hear of them. The next count finds a submit whose notification was lost, and jobs of exempt kinds
(retries, follow-up jobs, jobs of schedules).

Rate. The tokens are in the record of a limiter. A submit reads and replaces this record before it stores its jobs,
which takes two requests. Tokens of a submit that then fails are used up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from secrets import token_hex
from threading import Lock
from typing import NamedTuple

import msgspec

from mainspring.engines.nats import unique_keys
from mainspring.engines.nats.job_records import encode
from mainspring.engines.nats.limiters import CURRENT, Limiter, convert_tokens
from mainspring.engines.nats.projector import Projector
from mainspring.engines.nats.settings_cache import SettingsCache
from mainspring.engines.nats.transaction import Transaction, TransactionManager
from mainspring.jobs.limits import Admission, BucketState, Limit
from mainspring.jobs.quotas import (
    Quota,
    depth_exceeded,
    rate_exceeded,
    submit_rate_bucket,
    submit_rate_family,
)
from mainspring.jobs.records import NewJob
from mainspring.jobs.status import JobStatus

_decode_notification = msgspec.msgpack.Decoder(tuple[str, str, int]).decode


class NatsQuotas:
    """Checks submits against the quotas of the store.

    Any thread may call `add_submitted` and `clear`. One thread at a time calls `check`.
    """

    def __init__(
        self, transactions: TransactionManager, settings_cache: SettingsCache, projector: Projector
    ) -> None:
        self._transactions = transactions
        self._settings_cache = settings_cache
        self._projector = projector
        self._process = token_hex(8)
        self._known: dict[str, Quota] = {}  # the quotas at the last submit
        self._lock = Lock()  # guards the bounds
        self._bounds: dict[str, int] = {}  # by queue: at most this many jobs are pending

    def check(self, jobs: Sequence[NewJob]) -> None:
        """Raise `LimitExceeded` if jobs exceed a quota of their queues. Nothing is stored then."""
        quotas = self._settings_cache.current_quotas()
        if (
            quotas is not self._known
        ):  # the settings have changed: submits to queues without a quota are not counted
            self._known = quotas
            self.clear()
        if not quotas:  # nearly always
            return
        for queue, new in Counter(job.queue for job in jobs if job.queue in quotas).items():
            quota = quotas[queue]
            if quota.max_depth is not None:
                self._require_depth(queue, new, quota.max_depth, jobs)
            if quota.submit_rate is not None:
                self._require_tokens(queue, new, quota.submit_rate, jobs)

    # -- depth

    def _require_depth(self, queue: str, new: int, max_depth: int, jobs: Sequence[NewJob]) -> None:
        with self._lock:
            bound = self._bounds.get(queue)
        if bound is None or bound + new > max_depth:
            depth = self._count(queue)
            if depth + new > max_depth:
                new = self._count_new(queue, jobs)
                if new and depth + new > max_depth:
                    raise depth_exceeded(queue, pending=depth, new=new, max_depth=max_depth)
        with self._lock:
            self._bounds[queue] += new
        notification = encode([self._process, queue, new])
        names = self._transactions.names
        self._transactions.jetstream.send([(f"{names.notifications}submitted", notification)])

    def _count(self, queue: str) -> int:
        """Count the pending jobs of a queue, and set the bound to it."""
        with self._lock:
            self._bounds[queue] = 0  # submits of others during the count are added; some of them twice
        depth = self._projector.catch_up().counts(queue=queue)[JobStatus.PENDING]
        with self._lock:
            self._bounds[queue] += depth
        return depth

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

    def add_submitted(self, notification: bytes) -> None:
        """Add the jobs that another process submits to the bound of their queue."""
        process, queue, new = _decode_notification(notification)
        if process != self._process:
            with self._lock:
                if queue in self._bounds:
                    self._bounds[queue] += new

    def clear(self) -> None:
        """Forget all bounds, because quotas have changed or notifications may be lost. The next submit counts."""
        with self._lock:
            self._bounds.clear()

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
