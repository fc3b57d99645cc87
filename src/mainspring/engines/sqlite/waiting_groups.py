"""Orders the jobs that wait for others: in sequences, and in groups of jobs with the same lane and limits.

Invariants, after every transaction
- Of each sequence at most one PENDING job does not wait (`wait` is not 1): the first by (turn, seq), and none
  while a job of the sequence runs.
- Of the jobs of a group that do not wait for their sequence, at most one can be claimed (`wait` is 0): the first
  by (due, seq), and none while the group is parked, that is, refused by one of its buckets. Suspects have a head
  of their own, because a worker takes one suspect at a time: they block no other job.
- So the index of claims holds one job for each sequence and group, however many jobs they have.
- A job that was submitted into a group and has not moved since (`moved` is NULL) stays in the index `members`
  until it is deleted. The group records up to which job its members have started, so a start changes no index of
  groups. Jobs that came back, were moved, have a sequence or are due before a started job are in the index
  `moved_members`, and only while they wait.
- A group is parked only while one of its jobs is due.
- When a job ends, as many groups are unparked for each of its buckets as jobs have ended there: those that have
  waited longest, that have a due job, and whose queue is not paused.
- For a rate, one time per bucket says when to check it again, however many groups wait for it.
- If no worker uses the capacity for which a group was unparked, the next claim with free slots or a sweep unparks
  another group.

Groups whose limits have a key take turns: a job that becomes the head of its group counts as ready from that
moment on, not from its due time, so it comes after the heads of other groups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol

import msgspec

from mainspring.engines.sqlite import waiting_statements as sql
from mainspring.engines.sqlite.codec import (
    CACHE_SIZE,
    LeaseRow,
    limits_of,
    number_of,
    numbers,
    pairs_by_number,
    pairs_of_integers,
    strings,
    takes_turns,
    to_json,
)
from mainspring.engines.sqlite.database import Database
from mainspring.engines.sqlite.limits import BucketCounts, LimitCache, family_bounds
from mainspring.jobs.limits import Refusal, family_of


class GroupedRow(Protocol):
    """A database row of a job that may belong to a group: jobs of a queue, type and priority with equal limits."""

    @property
    def grp(self) -> int | None:
        """The number of the group of jobs under the same limits; None if the job has no limits."""


class GroupCache:
    """The cache of groups, by number. A group has the jobs of one queue, type and priority under the same limits.

    The name of a group never changes, so a rollback does not invalidate the cache.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.names: dict[int, str] = {}
        """The names of the loaded groups, by number."""
        self.limits: dict[int, tuple[str, ...]] = {}
        """The buckets (limit and key) of the loaded groups, by group number."""
        self.take_turns: dict[int, bool] = {}
        """Whether the loaded groups take turns with other groups, by number."""

    def add_jobs(self, counts: Mapping[str, int]) -> None:
        """Add to the stored numbers of jobs of groups (jobs under the same limits), given by name.

        Store new groups. Triggers of the database subtract jobs that leave a group.
        """
        self._database.write(
            sql.ADD_GROUP_JOBS, (to_json([(number_of(name), name, count) for name, count in counts.items()]),)
        )

    def add_jobs_since(self, last: int, names: Iterable[str]) -> None:
        """Add the jobs that were inserted after the row `last` to the stored counts of the groups `names`.

        A group has jobs under the same limits.
        """
        by_number = {number_of(name): name for name in names}
        counts = pairs_of_integers(self._database.write(sql.GROUP_JOBS_SINCE, (last,)))
        self.add_jobs({by_number[number]: count for number, count in counts})

    def add_job_like(self, job_id: str) -> None:
        """Add 1 to the stored number of jobs under the same limits as the job `job_id`, if it has limits."""
        self._database.write(sql.ADD_GROUP_JOB_LIKE, (job_id,))

    def load(self, rows: Iterable[GroupedRow]) -> list[int]:
        """Return the numbers of the groups (jobs under the same limits) of rows, each once, in their order.

        Cache these groups. For use inside a unit (one transaction).
        """
        wanted = list(dict.fromkeys([number for row in rows if (number := row.grp) is not None]))
        unknown = [number for number in wanted if number not in self.names]
        if len(self.names) + len(unknown) > max(CACHE_SIZE, len(wanted)):
            self.names.clear()
            self.limits.clear()
            self.take_turns.clear()
            unknown = wanted
        if unknown:
            for number, name in pairs_by_number(self._database.write(sql.NAMES_OF_GROUPS, (to_json(unknown),))):
                self.names[number] = name
                self.limits[number] = limits_of(name)
                self.take_turns[number] = takes_turns(name)
        return wanted


_memberships = msgspec.json.Decoder(list[tuple[str | None, str | None]]).decode
_heads = msgspec.json.Decoder(list[tuple[int | None, int | None]]).decode


class Memberships:
    """The sequences of some jobs, and their groups (jobs under the same limits).

    If these jobs change, other jobs may become the first waiting ones there.
    """

    def __init__(self, pairs: Iterable[tuple[str | None, str | None]] = ()) -> None:
        self.sequences: set[str] = set()
        self.groups: set[str] = set()
        self.add(pairs)

    def add(self, pairs: Iterable[tuple[str | None, str | None]]) -> None:
        """Add pairs of sequence and group, each of them None if a job has none."""
        for sequence, group in pairs:
            if sequence is not None:
                self.sequences.add(sequence)
            if group is not None:
                self.groups.add(group)

    def __bool__(self) -> bool:
        return bool(self.sequences or self.groups)


class HeadSelector:
    """Selects the head of each sequence and group: its first waiting job, the only one that claims can find.

    A group has the jobs of one queue, type and priority under the same limits.

    For use inside a unit (one transaction). `select_heads` calls `wake`, because more jobs may be claimable.
    """

    def __init__(self, database: Database, now: Callable[[], int], wake: Callable[[], None]) -> None:
        self._database = database
        self._now = now
        self._wake = wake

    # -- reading

    def memberships_of_jobs(self, ids: Collection[str]) -> Memberships:
        """Return the sequences of jobs, given by id, and their groups (jobs under the same limits)."""
        return Memberships(_memberships(self._database.write(sql.MEMBERSHIPS_OF_JOBS, (to_json(list(ids)),))))

    def memberships_of_rows(self, seqs: Collection[int]) -> Memberships:
        """Return the sequences of jobs, given by seq, and their groups (jobs under the same limits)."""
        return Memberships(_memberships(self._database.write(sql.MEMBERSHIPS_OF_ROWS, (to_json(list(seqs)),))))

    def memberships_of_workers(self, workers: Collection[int]) -> Memberships:
        """Return the sequences and groups (jobs under the same limits) of the jobs that workers have leased."""
        return Memberships(
            _memberships(self._database.write(sql.MEMBERSHIPS_OF_WORKERS, (to_json(list(workers)),)))
        )

    # -- selecting heads

    def select_heads(self, memberships: Memberships) -> None:
        """Select the first waiting job (head) of sequences and groups again, and wake workers.

        Call it after jobs were added, moved or removed. Claims find only heads.
        """
        groups = set(memberships.groups)
        if memberships.sequences:
            moved = self._select_sequence_heads(memberships.sequences)
            if moved:  # due jobs of the group may wait for a sequence now; a group without due jobs is not parked
                self._database.write(
                    sql.UNPARK_IDLE, (to_json([number_of(group) for group in moved]), self._now())
                )
            groups |= moved
        if groups:
            self.select_group_heads(groups)
        if memberships:
            self._wake()

    def _select_sequence_heads(self, sequences: Collection[str]) -> set[str]:
        """Select the first waiting job of sequences again.

        Return the groups of first jobs, old and new, that have changed.
        """
        before, after = self._changed_heads(sql.SEQUENCE_HEADS, sequences)
        if before:
            self._database.write(sql.DEMOTE_SEQUENCE_HEADS, (to_json(before),))
        if after:
            self._database.write(sql.PROMOTE_SEQUENCE_HEADS, (to_json(after),))
        return self.memberships_of_rows(before + after).groups if before or after else set()

    def record_last_started(self, last: Mapping[int, LeaseRow]) -> None:
        """Store which job of each group (jobs under the same limits) was started last: searches begin after it."""
        if last:
            batch = [(number, row.due, row.seq) for number, row in last.items()]
            self._database.write(sql.RECORD_LAST_STARTED, (to_json(batch),))

    def promote_next(self, numbers: Collection[int], ready: int) -> None:
        """Make the next job of each group its head, which claims can find, after a claim has started the head.

        The caller leaves out parked groups, which a limit has refused. A new head counts as ready from its due
        time, or from `ready` if that is later.
        """
        if numbers:
            self._database.write(sql.PROMOTE_NEXT, (to_json(numbers), ready))

    def select_group_heads(self, groups: Collection[str], now: int | None = None) -> None:
        """Make the first waiting job of each group its head, which claims find; one that a limit refused has none.

        The new head of a group that takes turns with others (under a limit with a key) counts as ready from `now`
        on, or from its due time if that is later. `now` is the current time if it is not given. A claim passes the
        time at which it began, because it finds only heads that are ready by then.
        """
        fair = [number_of(group) for group in groups if takes_turns(group)]
        plain = [number_of(group) for group in groups if not takes_turns(group)]
        for members, ready in ((fair, self._now() if now is None else now), (plain, 0)):
            before, after = self._changed_heads(sql.GROUP_HEADS, members) if members else ([], [])
            if before:
                self._database.write(sql.DEMOTE_GROUP_HEADS, (to_json(before),))
            if after:
                self._database.write(sql.PROMOTE_GROUP_HEADS, (to_json(after), ready))

    def _changed_heads(self, statement: str, keys: Collection[object]) -> tuple[list[int], list[int]]:
        heads = _heads(self._database.write(statement, (to_json(list(keys)),)))
        before = [old for old, new in heads if old is not None and old != new]
        after = [new for old, new in heads if new is not None and old != new]
        return before, after


MAX_TOKENS = 1_000  # how many groups are unparked at once for each bucket
MIN_PAUSE = 1_000  # microseconds until a rate is checked again if some of its tokens are unused,
LONG_PAUSE = 1_000_000  # or if no parked group can use its tokens

_parked = msgspec.json.Decoder(list[tuple[str, str]]).decode


class ParkedGroups:
    """Parks groups of jobs that a limit refuses, and unparks them when the limit may admit jobs.

    A group has the jobs of one queue, type and priority under the same limits. Claims skip parked groups. For use
    inside a unit (one transaction).
    """

    def __init__(
        self,
        database: Database,
        heads: HeadSelector,
        limits: LimitCache,
        bucket_counts: BucketCounts,
        *,
        now: Callable[[], int],
        wake: Callable[[], None],
    ) -> None:
        self._database = database
        self._heads = heads
        self._limits = limits
        self._bucket_counts = bucket_counts
        self._now = now
        self._wake = wake

    # -- ended jobs

    def release_limits(self, limits: Iterable[tuple[str, ...]]) -> None:
        """Subtract jobs that no longer run from the counts of their limits.

        Let claims find jobs again that waited for these limits.
        """
        ended = Counter(limits)
        del ended[()]
        if ended:
            self._bucket_counts.release(ended)
            if self._is_any_group_parked():
                self._unpark_for(_by_bucket(ended))

    def release_limits_of_dead(self, workers: Collection[int]) -> None:
        """Subtract the running jobs of dead workers from the counts of their limits.

        Let claims find jobs again that waited for these limits.
        """
        groups = strings(self._database.write(sql.GROUPS_OF_OWNERS, (to_json(list(workers)),)))
        self.release_limits(limits_of(group) for group in groups)

    # -- parking

    def park(self, refusals: dict[str, Refusal]) -> None:
        """Make claims skip groups (jobs under the same limits) until the limits that refused them have room."""
        now = self._now()
        batch = [(number_of(group), group, refusal.bucket) for group, refusal in refusals.items()]
        self._database.write(sql.PARK, (to_json(batch), now))
        times = {refusal.bucket: refusal.until for refusal in refusals.values() if refusal.until is not None}
        if times:
            self._database.write(sql.WRITE_RATE_WAITS, (to_json(times),))

    def only_with_due_jobs(self, refusals: dict[str, Refusal], until: int) -> dict[str, Refusal]:
        """Return the refusals of those groups (jobs under the same limits) that have a job due by `until`.

        Claims need not skip the other groups.
        """
        if not refusals:
            return {}
        due = set(numbers(self._database.write(sql.GROUPS_WITH_DUE_JOBS, (_numbers(refusals), until))))
        return {group: refusal for group, refusal in refusals.items() if number_of(group) in due}

    # -- unparking

    def unpark_for(self, freed: Mapping[str, int]) -> None:
        """Let claims find the groups (jobs under the same limits) that have waited longest for these buckets
        (limit and key).

        For each bucket, these are at most as many groups as `freed` says.

        Rates are left out, because the end of a job brings no token back; so are groups of paused queues, and
        groups without a due job.
        """
        if freed and self._is_any_group_parked():
            self._unpark_for(freed)

    def _unpark_for(self, freed: Mapping[str, int]) -> None:
        limits = self._limits.all()
        groups: set[str] = set()
        for bucket, count in freed.items():
            limit = limits.get(family_of(bucket))
            if limit is None or limit.per is None:
                groups.update(self._longest_waiting(bucket, count))
        self._unpark(groups)

    def _is_any_group_parked(self) -> bool:
        return bool(self._database.write(sql.IS_ANY_GROUP_PARKED))

    def update_after_leaving(self, memberships: Memberships) -> None:
        """Select the first waiting jobs of sequences and groups again, after jobs have left these or were moved.

        Claims find only these first jobs. Also unpark groups that wait for a bucket (limit and key) of the jobs
        that left or were moved, so that claims try them again.
        """
        if memberships:
            self._heads.select_heads(memberships)
            self.unpark_sharing_buckets(memberships.groups)

    def unpark_sharing_buckets(self, groups: Collection[str]) -> None:
        """Let claims find groups of jobs again after jobs of `groups` were removed or moved without a run.

        These are the groups in `groups` that have no due job, and groups that wait for the same buckets (limit and
        key): for each bucket as many as `groups` has groups with this bucket.
        """
        if groups and self._is_any_group_parked():
            idle = strings(self._database.write(sql.IDLE_GROUPS, (_numbers(groups), self._now())))
            self._unpark(set(idle))
            self._unpark_for(Counter(bucket for group in groups for bucket in limits_of(group)))

    def _longest_waiting(self, bucket: str, count: int) -> list[str]:
        return strings(self._database.write(sql.PARKED_FOR, (bucket, count, self._now())))

    def unpark_for_rates(self, now: int) -> None:
        """Let claims find groups of jobs whose rate should have tokens by now, as many groups as there are tokens.

        Store for each of these rates when to check it again.
        """
        buckets = strings(self._database.write(sql.DUE_RATE_WAITS, (now,)))
        if not buckets:
            return
        admission = self._bucket_counts.dry_run(buckets)
        groups: set[str] = set()
        again: dict[str, int | None] = {}
        for bucket in buckets:
            unparked = self._longest_waiting(bucket, admission.room((bucket,), MAX_TOKENS))
            groups.update(unparked)
            # The unparked groups will use these tokens: the time of the next token is computed without them.
            admission.admit_many((bucket,), len(unparked))
            refusal = admission.refusal((bucket,))
            limit = self._limits.all().get(family_of(bucket))
            # If no group was unparked, the parked ones cannot use the tokens now, because their queue is paused.
            pause = max(MIN_PAUSE if unparked else LONG_PAUSE, 0 if limit is None else limit.interval)
            again[bucket] = now + pause if refusal is None or refusal.until is None else refusal.until
        self._unpark(groups)
        self._database.write(sql.WRITE_RATE_WAITS, (to_json(again),))
        self._database.write(sql.DELETE_UNUSED_RATE_WAITS, (to_json(buckets),))

    def unpark_family(self, family: str) -> None:
        """Let claims find all groups of jobs that wait for a limit, with any key, because the limit has changed.

        `family` is the name of the limit.
        """
        self._unpark(set(strings(self._database.write(sql.PARKED_FOR_FAMILY, family_bounds(family)))))

    def unpark_queue(self, queue: str) -> None:
        """Let claims find the jobs of a queue that wait for limits, because the queue is no longer paused."""
        self._unpark(set(strings(self._database.write(sql.PARKED_IN_QUEUE, (queue,)))))

    def unpark_for_free_capacity(self) -> bool:
        """Let claims find groups of jobs whose limits have unused capacity; return whether there were any.

        This call checks only some groups, those that were checked longest ago.
        """
        parked = _parked(self._database.write(sql.LEAST_RECENTLY_CHECKED))
        if not parked:
            return False
        admission = self._bucket_counts.dry_run({bucket for _, bucket in parked})
        free = {group for group, bucket in parked if admission.room((bucket,), 1)}
        full = [group for group, _ in parked if group not in free]
        if full:  # so that the next call checks other groups
            self._database.write(sql.MARK_CHECKED, (_numbers(full), self._now()))
        return self._unpark(free)

    def _unpark(self, groups: set[str]) -> bool:
        if not groups:
            return False
        self._database.write(sql.UNPARK, (_numbers(groups),))
        self._heads.select_group_heads(groups)
        self._wake()
        return True


def _by_bucket(jobs: Mapping[tuple[str, ...], int]) -> dict[str, int]:
    """Return the number of jobs for each bucket (limit and key), given that for each combination of buckets."""
    counts: dict[str, int] = {}
    for limits, count in jobs.items():
        for bucket in limits:
            counts[bucket] = counts.get(bucket, 0) + count
    return counts


def _numbers(groups: Collection[str]) -> str:
    return to_json([number_of(group) for group in groups])
