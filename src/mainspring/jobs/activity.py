"""The activity of a process: what it submitted, how its attempts ended, how late jobs began, how long they took.

`ActivityRecorder` counts. `Activity` is a snapshot of all counts since the process started, for metrics. The
recorder also keeps the counts of each minute until they are stored: see `activity_writer.py`.

Invariants
- Only what the store has confirmed is counted: stored jobs, and accepted outcomes.
- Threads only append notes to deques and take no lock, because a signal may interrupt a caller at any instruction.
  A note is short: it keeps no arguments and no results. Notes are added to the counts now and then, under a lock.
- The number of pairs of queue and type is bounded. Further pairs are counted together as `other`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter, itemgetter
from threading import RLock
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from mainspring.jobs.histogram import COMMIT_BOUNDS, SIZE_BOUNDS, Histogram
from mainspring.jobs.interruptible_lock import call_with
from mainspring.jobs.records import (
    COMPLETED,
    IMMEDIATE,
    AttemptOutcome,
    Conflict,
    Lease,
    NewJob,
    Outcome,
    OutcomeKind,
)
from mainspring.jobs.recurrence.schedule_records import Fired, Firing
from mainspring.jobs.timestamps import MICROSECONDS

OTHER = "other"
"""The queue and type of all jobs beyond the largest number of pairs of queue and type."""
MAX_PAIRS = 200
"""How many pairs of queue and type a process counts separately by default."""
MINUTE = 60 * MICROSECONDS
MAX_NOTES = 256  # so many notes are added to the counts at once

Pair: TypeAlias = tuple[str, str]
"""A queue and a job type, in this order: the key of counts."""
_pair_of = attrgetter("queue", "type")
_minute_and_pair = itemgetter(0, 1, 2)


class EngineNote(Struct, frozen=True, gc=False):
    """Something that a call of the engine did, but did not return: it counts jobs of one queue and type.

    "submitted": the engine stored jobs by itself, for a dead-letter handler or a replay. "crashed": the worker of
    running jobs died. "interrupted": their remote worker was removed. "expired": jobs had not started when they
    expired.
    """

    what: Literal["submitted", "crashed", "interrupted", "expired"]
    queue: str
    type: str
    count: int = 1


class Activity(Struct, frozen=True, kw_only=True):
    """What a process did since it started. The histograms of lateness and duration are in microseconds."""

    submitted: Mapping[Pair, int]
    """Stored jobs by queue and type, with follow-up jobs and the jobs of schedules and dead-letter handlers."""
    attempts: Mapping[tuple[str, str, str], int]
    """Ended attempts by queue, type and outcome: see `records.AttemptOutcome`."""
    retries: Mapping[Pair, int]
    """Attempts after which the job waits for a retry, by queue and type."""
    lateness: Mapping[tuple[str, str, str], Histogram]
    """How long after its due time the handler of a job began, by queue, type and kind: see `records.KINDS`."""
    duration: Mapping[tuple[str, str, str], Histogram]
    """How long handlers ran, from begin to end, by queue, type and kind."""
    commit_seconds: Histogram
    """How long each commit of the store took, in microseconds."""
    commit_operations: Histogram
    """How many jobs, outcomes and other operations each commit contained."""


class Tally(Struct):
    """Submits, attempts, retries, lateness and duration of one minute, or of the whole life of a process."""

    submitted: dict[Pair, int] = {}
    attempts: dict[tuple[str, str, str], int] = {}
    retries: dict[Pair, int] = {}
    lateness: dict[tuple[str, str, str], Histogram] = {}
    duration: dict[tuple[str, str, str], Histogram] = {}

    def add(self, other: Tally) -> None:
        """Add the counts of another tally."""
        _add_counts(self.submitted, other.submitted)
        _add_counts(self.attempts, other.attempts)
        _add_counts(self.retries, other.retries)
        _add_histograms(self.lateness, other.lateness)
        _add_histograms(self.duration, other.duration)


def _add_counts(to: dict[Any, int], counts: Mapping[Any, int]) -> None:
    for key, count in counts.items():
        to[key] = to.get(key, 0) + count


def _add_histograms(to: dict[Any, Histogram], histograms: Mapping[Any, Histogram]) -> None:
    for key, histogram in histograms.items():
        if key in to:
            to[key].add(histogram)
        else:
            to[key] = histogram.copy()


class _Attempts:
    """The ended attempts of one batch that have the same queue, type, kind and outcome."""

    __slots__ = ("count", "durations", "is_retry", "kind", "latenesses", "outcome", "pair")

    def __init__(self, pair: Pair, kind: str, outcome: AttemptOutcome) -> None:
        self.pair = pair
        self.kind = kind
        self.outcome = outcome
        self.count = 0
        self.is_retry = False
        self.latenesses: list[int] = []
        self.durations: list[int] = []


class ActivityRecorder:
    """Counts the submits, attempts and commits of this process. Any thread may call any method."""

    def __init__(self, now: Callable[[], int], *, max_pairs: int = MAX_PAIRS, keeps_minutes: bool = False) -> None:
        self._now = now  # the time by the engine's clock, in microseconds
        self._max_pairs = max_pairs
        self._keeps_minutes = keeps_minutes  # whether `take_minutes` will be called
        # notes that are not counted yet: (minute, queue, type, count), (minute, attempts), (nanoseconds, size)
        self._submits: deque[tuple[int, str, str, int]] = deque()
        self._single_submits: deque[tuple[int, str, str, int]] = deque()  # with nanoseconds instead of the count
        self._attempts: deque[tuple[int, Iterable[_Attempts]]] = deque()
        self._commits: deque[tuple[int, int]] = deque()
        self._lock = RLock()  # guards the following attributes
        self._is_folding = False
        self._pairs: dict[Pair, Pair] = {}
        self._total = Tally()
        self._minutes: dict[int, Tally] = {}
        self._commit_seconds = Histogram(bounds=COMMIT_BOUNDS)
        self._commit_operations = Histogram(bounds=SIZE_BOUNDS)

    # -- counting, on any thread

    def count_submits(self, jobs: Sequence[NewJob], conflicts: Sequence[Conflict | None]) -> None:
        """Count the jobs of a submit that were stored: those without a conflict."""
        if any(conflicts):
            jobs = [job for job, conflict in zip(jobs, conflicts, strict=True) if conflict is None]
        if not jobs:
            return
        queue, type_ = jobs[0].queue, jobs[0].type
        if all(job.type is type_ and job.queue is queue for job in jobs):  # as in most bulk submits
            self._count_pairs({(queue, type_): len(jobs)})
        else:
            self._count_pairs(Counter(map(_pair_of, jobs)))

    def count_single_submit(self, job: NewJob, nanoseconds: int) -> None:
        """Count a job that was stored alone, and the time of its commit.

        This method does the same as `count_submits` and `count_commit`, in half the time.
        """
        notes = self._single_submits
        notes.append((self._now() // MINUTE, job.queue, job.type, nanoseconds))
        if len(notes) >= MAX_NOTES:
            self.fold()

    def count_outcomes(self, outcomes: Sequence[Outcome], answers: Sequence[bool]) -> None:
        """Count the attempts whose outcomes the store accepted, and their follow-up jobs.

        Jobs handed back do not count.
        """
        accepted: Sequence[Outcome] = outcomes
        if not all(answers):
            accepted = [outcome for outcome, is_accepted in zip(outcomes, answers, strict=True) if is_accepted]
        groups: dict[Any, _Attempts] = {}
        for outcome in accepted:
            lease = outcome.lease
            key: Any = (lease.queue, lease.type, lease.kind)
            if outcome.kind is not COMPLETED:
                if outcome.kind is OutcomeKind.HANDED_BACK:
                    continue
                key = (*key, outcome.kind, outcome.cause)
            group = groups.get(key)
            if group is None:
                group = groups[key] = _attempts_like(outcome, lease)
            group.count += 1
            if outcome.began is not None:
                group.latenesses.append(outcome.began - lease.due)
                group.durations.append(outcome.took or 0)
        if groups:
            self._attempts.append((self._now() // MINUTE, groups.values()))
            if len(self._attempts) >= MAX_NOTES:
                self.fold()
        follow_ups = [o.follow_up for o in accepted if o.follow_up is not None]
        if follow_ups:  # only completed jobs have one
            self._count_pairs(Counter(map(_pair_of, follow_ups)))

    def count_firings(self, firings: Sequence[Firing], answers: Sequence[Fired]) -> None:
        """Count the jobs of schedules that the store has stored, as its answers to the firings say."""
        pairs: list[Pair] = []
        for firing, fired in zip(firings, answers, strict=True):
            if fired.submitted:
                stored = set(fired.submitted)
                pairs += [_pair_of(job) for job in firing.jobs if job.id in stored]
        self._count_pairs(Counter(pairs))

    def count_notes(self, notes: Iterable[EngineNote]) -> None:
        """Count what an engine did, but did not return: jobs that it stored or let expire, crashed attempts."""
        minute = self._now() // MINUTE
        for note in notes:
            if note.what == "submitted":
                self._submits.append((minute, note.queue, note.type, note.count))
            else:
                ended = _Attempts((note.queue, note.type), IMMEDIATE, note.what)
                ended.count = note.count
                self._attempts.append((minute, (ended,)))

    def count_commit(self, nanoseconds: int, operations: int) -> None:
        """Count a commit of the store, how long it took, and how many operations it contained."""
        self._commits.append((nanoseconds, operations))
        if len(self._commits) >= MAX_NOTES:
            self.fold()

    def _count_pairs(self, counts: Mapping[Pair, int]) -> None:
        minute = self._now() // MINUTE
        for (queue, type_), count in counts.items():
            self._submits.append((minute, queue, type_, count))
        if len(self._submits) >= MAX_NOTES:
            self.fold()

    # -- adding notes to the counts

    @property
    def has_news(self) -> bool:
        """Whether submits or attempts were counted that `take_minutes` has not returned yet."""
        return bool(self._single_submits or self._submits or self._attempts or self._minutes)

    def fold(self) -> None:
        """Add to the counts what threads have noted since the last call."""
        call_with(self._lock, self._fold)

    def take_minutes(self) -> dict[int, Tally]:
        """Take the counts of each minute since the last call. The key is the number of minutes since 1970.

        `snapshot` still includes them. The dict is empty if the recorder does not keep minutes.
        """
        return call_with(self._lock, self._take_minutes)

    def snapshot(self) -> Activity:
        """Return the counts of submits, attempts and commits since this process started, with their histograms."""
        return call_with(self._lock, self._snapshot)

    def commits(self) -> tuple[Histogram, Histogram]:
        """Return two histograms of the commits: how many microseconds each took, and how many operations it
        contained.
        """
        return call_with(self._lock, self._copy_commits)

    def _copy_commits(self) -> tuple[Histogram, Histogram]:
        self._fold()
        return self._commit_seconds.copy(), self._commit_operations.copy()

    def _fold(self) -> None:
        if self._is_folding:  # a signal handler has interrupted this thread here, and its notes can wait
            return
        self._is_folding = True
        try:
            self._add_notes()
        finally:
            self._is_folding = False

    def _add_notes(self) -> None:
        while self._submits:
            minute, queue, type_, count = self._submits.popleft()
            self._add_submits(minute, (queue, type_), count)
        while self._attempts:
            minute, groups = self._attempts.popleft()
            tally = self._tally(minute)
            for group in groups:
                self._add_attempts(tally, group)
        # Only this thread takes notes away, so that there are at least as many as `len` says.
        commits = [self._commits.popleft() for _ in range(len(self._commits))]
        singles = [self._single_submits.popleft() for _ in range(len(self._single_submits))]
        for (minute, queue, type_), count in Counter(map(_minute_and_pair, singles)).items():
            self._add_submits(minute, (queue, type_), count)
        commits += [(note[3], 1) for note in singles]
        self._commit_seconds.observe_all([nanoseconds // 1_000 for nanoseconds, _ in commits])
        self._commit_operations.observe_all([size for _, size in commits])

    def _add_submits(self, minute: int, pair: Pair, count: int) -> None:
        submitted = self._tally(minute).submitted
        pair = self._bounded(pair)
        submitted[pair] = submitted.get(pair, 0) + count

    def _tally(self, minute: int) -> Tally:
        if not self._keeps_minutes:
            return self._total
        tally = self._minutes.get(minute)
        if tally is None:
            tally = self._minutes[minute] = Tally()
        return tally

    def _add_attempts(self, tally: Tally, group: _Attempts) -> None:
        pair = self._bounded(group.pair)
        ended = (*pair, group.outcome)
        tally.attempts[ended] = tally.attempts.get(ended, 0) + group.count
        if group.is_retry:
            tally.retries[pair] = tally.retries.get(pair, 0) + group.count
        kind = (*pair, group.kind)
        for histograms, values in (tally.lateness, group.latenesses), (tally.duration, group.durations):
            if values:
                histogram = histograms.get(kind)
                if histogram is None:
                    histogram = histograms[kind] = Histogram()
                histogram.observe_all(values)

    def _bounded(self, pair: Pair) -> Pair:
        """Return the pair of queue and type itself; (`OTHER`, `OTHER`) if it is new and there are too many
        pairs.
        """
        known = self._pairs.get(pair)
        if known is None:
            if len(self._pairs) >= self._max_pairs:
                return OTHER, OTHER
            known = self._pairs[pair] = pair
        return known

    def _take_minutes(self) -> dict[int, Tally]:
        self._fold()
        minutes, self._minutes = self._minutes, {}
        for tally in minutes.values():
            self._total.add(tally)
        return minutes

    def _snapshot(self) -> Activity:
        self._fold()
        tally = Tally()
        for part in (self._total, *self._minutes.values()):
            tally.add(part)
        return Activity(
            submitted=tally.submitted,
            attempts=tally.attempts,
            retries=tally.retries,
            lateness=tally.lateness,
            duration=tally.duration,
            commit_seconds=self._commit_seconds.copy(),
            commit_operations=self._commit_operations.copy(),
        )


CountCall: TypeAlias = Callable[[ActivityRecorder, Sequence[Any], Sequence[Any]], None]
"""Counts what a call of the engine did, from its items and its results: a method of `ActivityRecorder`."""


def _attempts_like(outcome: Outcome, lease: Lease) -> _Attempts:
    attempts = _Attempts((lease.queue, lease.type), lease.kind, outcome.name)
    attempts.is_retry = outcome.kind is OutcomeKind.RETRY
    return attempts
