"""Orders the jobs that wait for others: in sequences, and in groups of jobs with the same lane and limits.

Invariants, after every transaction
- Of each sequence at most one PENDING job does not wait (`wait` is not 1): the first by (turn, seq), and none
  while a job of the sequence runs.
- Of the jobs of a group that do not wait for their sequence, at most one can be claimed (`wait` is 0): the first
  by (due, seq), and none while the group is parked, that is, refused by one of its buckets. Suspects have a line
  of their own, because a worker takes one suspect at a time: they block no other job.
- So the index of claims holds one job for each line, however long the lines are.
- A job that was submitted into a group and has not moved since (`moved` is NULL) stays in the index `members`
  until it is deleted. The group records up to which job its members have started, so a start changes no index of
  groups. Jobs that came back, were moved, have a sequence or are due before a started job are in the index
  `moved_members`, and only while they wait.
- A group is parked only while one of its jobs is due.
- A job that frees places in a bucket unparks as many groups as there are places: those that have waited longest,
  that have a due job, and whose queue is not paused.
- For a rate there is one time per bucket at which to look again, however many groups wait for it.
- A place that was offered to a worker that does not use it is found by the next claim with room, or by a sweep.

Groups with a key take turns: a job that becomes the head of its group is ready from that moment on, not from its
due time, so it stands behind the heads of other groups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol

import msgspec

from mainspring.engines.sqlite import line_statements as sql
from mainspring.engines.sqlite.codec import (
    REMEMBERED,
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
from mainspring.engines.sqlite.limits import Buckets, LimitTable, family_bounds
from mainspring.jobs.limits import Refusal, family_of


class Row(Protocol):
    """A row of a job."""

    @property
    def grp(self) -> int | None:
        """The number of its group."""


class GroupNames:
    """Cache of group names by number. A name never changes, so a rollback does not invalidate the cache."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.names: dict[int, str] = {}
        """The names of the groups that were learned, by number."""
        self.limits: dict[int, tuple[str, ...]] = {}
        """Their buckets, by number."""
        self.take_turns: dict[int, bool] = {}
        """Whether they take turns with other groups, by number."""

    def enter(self, counts: Mapping[str, int]) -> None:
        """Count jobs that have entered groups, by name; triggers count those that leave."""
        self._database.write(
            sql.ENTER_GROUPS, (to_json([(number_of(name), name, count) for name, count in counts.items()]),)
        )

    def enter_since(self, last: int, names: Iterable[str]) -> None:
        """Count the jobs behind the row `last` that have entered groups; `names` has the names of these groups."""
        by_number = {number_of(name): name for name in names}
        counts = pairs_of_integers(self._database.write(sql.GROUPS_SINCE, (last,)))
        self.enter({by_number[number]: count for number, count in counts})

    def enter_like(self, job_id: str) -> None:
        """Count one more job in the group of a job, if it has a group."""
        self._database.write(sql.ENTER_GROUP_OF, (job_id,))

    def learn(self, rows: Iterable[Row]) -> list[int]:
        """Return the group numbers of rows, in order, and cache the names; inside a unit (one transaction)."""
        wanted = list(dict.fromkeys([number for row in rows if (number := row.grp) is not None]))
        unknown = [number for number in wanted if number not in self.names]
        if len(self.names) + len(unknown) > max(REMEMBERED, len(wanted)):
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


_lines = msgspec.json.Decoder(list[tuple[str | None, str | None]]).decode
_heads = msgspec.json.Decoder(list[tuple[int | None, int | None]]).decode


class Places:
    """The sequences and groups of some jobs, whose order a change of these jobs may affect."""

    def __init__(self, lines: Iterable[tuple[str | None, str | None]] = ()) -> None:
        self.sequences: set[str] = set()
        self.groups: set[str] = set()
        self.add(lines)

    def add(self, lines: Iterable[tuple[str | None, str | None]]) -> None:
        """Add the sequences and groups of jobs."""
        for sequence, group in lines:
            if sequence is not None:
                self.sequences.add(sequence)
            if group is not None:
                self.groups.add(group)

    def __bool__(self) -> bool:
        return bool(self.sequences or self.groups)


class Lines:
    """Keeps sequences and groups in order, inside a unit. Calls `wake` when more jobs may be claimable."""

    def __init__(self, database: Database, now: Callable[[], int], wake: Callable[[], None]) -> None:
        self._database = database
        self._now = now
        self._wake = wake

    # -- reading

    def of_ids(self, ids: Collection[str]) -> Places:
        """Return the sequences and groups of jobs."""
        return Places(_lines(self._database.write(sql.LINES_OF_IDS, (to_json(list(ids)),))))

    def of_rows(self, seqs: Collection[int]) -> Places:
        """Return the sequences and groups of jobs."""
        return Places(_lines(self._database.write(sql.LINES_OF, (to_json(list(seqs)),))))

    def of_owners(self, workers: Collection[int]) -> Places:
        """Return the sequences and groups of the jobs of workers."""
        return Places(_lines(self._database.write(sql.LINES_OF_OWNERS, (to_json(list(workers)),))))

    # -- putting in order

    def put_in_order(self, places: Places) -> None:
        """Choose the heads of lines again, after jobs were added to them, moved in them or removed from them."""
        groups = set(places.groups)
        if places.sequences:
            moved = self._order_sequences(places.sequences)
            if moved:  # their due jobs may wait for a sequence now; a group without due jobs is not parked
                self._database.write(
                    sql.UNPARK_IDLE, (to_json([number_of(group) for group in moved]), self._now())
                )
            groups |= moved
        if groups:
            self.order_groups(groups)
        if places:
            self._wake()

    def _order_sequences(self, sequences: Collection[str]) -> set[str]:
        """Choose the heads of sequences again; return the groups in which jobs moved."""
        before, after = self._moves(sql.SEQUENCE_HEADS, sequences)
        if before:
            self._database.write(sql.LEAVE_SEQUENCE_HEAD, (to_json(before),))
        if after:
            self._database.write(sql.BECOME_SEQUENCE_HEAD, (to_json(after),))
        return self.of_rows(before + after).groups if before or after else set()

    def advance(self, last: Mapping[int, LeaseRow]) -> None:
        """Record the last started job of each group, so that searches begin behind it."""
        if last:
            batch = [(number, row.due, row.seq) for number, row in last.items()]
            self._database.write(sql.ADVANCE, (to_json(batch),))

    def follow(self, numbers: Collection[int], ready: int) -> None:
        """Make the next job of each group its head, in a claim: the old head has started, and none is parked."""
        if numbers:
            self._database.write(sql.NEXT_GROUP_HEADS, (to_json(numbers), ready))

    def order_groups(self, groups: Collection[str], now: int | None = None) -> None:
        """Make the first job of each group its head, unless the group is parked.

        A claim passes its own `now`: with a later time, the new heads would look as if they were not due yet.
        """
        fair = [number_of(group) for group in groups if takes_turns(group)]
        plain = [number_of(group) for group in groups if not takes_turns(group)]
        for members, ready in ((fair, self._now() if now is None else now), (plain, 0)):
            before, after = self._moves(sql.GROUP_HEADS, members) if members else ([], [])
            if before:
                self._database.write(sql.LEAVE_GROUP_HEAD, (to_json(before),))
            if after:
                self._database.write(sql.BECOME_GROUP_HEAD, (to_json(after), ready))

    def _moves(self, statement: str, keys: Collection[object]) -> tuple[list[int], list[int]]:
        heads = _heads(self._database.write(statement, (to_json(list(keys)),)))
        before = [old for old, new in heads if old is not None and old != new]
        after = [new for old, new in heads if new is not None and old != new]
        return before, after


MAX_TOKENS = 1_000  # that are handed out at once, for each bucket
MIN_PAUSE = 1_000  # microseconds until a rate is checked again, if its tokens are not all used,
LONG_PAUSE = 1_000_000  # or if no parked group can use them

_parked = msgspec.json.Decoder(list[tuple[str, str]]).decode


class Parking:
    """Parks groups that a bucket refuses, and unparks them when it may admit again. For use inside a unit."""

    def __init__(
        self,
        database: Database,
        lines: Lines,
        table: LimitTable,
        buckets: Buckets,
        *,
        now: Callable[[], int],
        wake: Callable[[], None],
    ) -> None:
        self._database = database
        self._lines = lines
        self._table = table
        self._buckets = buckets
        self._now = now
        self._wake = wake

    # -- counting

    def vacate(self, limits: Iterable[tuple[str, ...]]) -> None:
        """Subtract jobs that no longer run from their buckets, and unpark groups that waited for their places."""
        left = Counter(limits)
        del left[()]
        if left:
            self._buckets.vacate(left)
            if self._is_any_group_parked():
                self._admit_others(_by_bucket(left))

    def vacate_for_dead(self, workers: Collection[int]) -> None:
        """Vacate the buckets of the jobs of dead workers."""
        groups = strings(self._database.write(sql.GROUPS_OF_OWNERS, (to_json(list(workers)),)))
        self.vacate(limits_of(group) for group in groups)

    # -- parking

    def park(self, refusals: dict[str, Refusal]) -> None:
        """Park groups until the buckets that refused them admit again."""
        now = self._now()
        batch = [(number_of(group), group, refusal.bucket) for group, refusal in refusals.items()]
        self._database.write(sql.PARK, (to_json(batch), now))
        times = {refusal.bucket: refusal.until for refusal in refusals.values() if refusal.until is not None}
        if times:
            self._database.write(sql.WAIT_UNTIL, (to_json(times),))

    def with_due_jobs(self, refusals: dict[str, Refusal], until: int) -> dict[str, Refusal]:
        """Return the refusals of groups that have a due job: the other groups need not be parked."""
        if not refusals:
            return {}
        due = set(numbers(self._database.write(sql.GROUPS_WITH_DUE_JOBS, (_numbers(refusals), until))))
        return {group: refusal for group, refusal in refusals.items() if number_of(group) in due}

    # -- unparking

    def admit_others(self, places: Mapping[str, int]) -> None:
        """Unpark groups that wait for these buckets, as many as there may be places in each.

        Rates are left out: the end of a job brings no token back.
        """
        if places and self._is_any_group_parked():
            self._admit_others(places)

    def _admit_others(self, places: Mapping[str, int]) -> None:
        table = self._table.limits()
        groups: set[str] = set()
        for bucket, count in places.items():
            limit = table.get(family_of(bucket))
            if limit is None or limit.per is None:
                groups.update(self._longest_waiting(bucket, count))
        self._unpark(groups)

    def _is_any_group_parked(self) -> bool:
        return bool(self._database.write(sql.IS_PARKED))

    def leave(self, places: Places) -> None:
        """Reorder lines that jobs have left or moved in, and unpark groups for the places that became free."""
        if places:
            self._lines.put_in_order(places)
            self.admit_others_than(places.groups)

    def admit_others_than(self, groups: Collection[str]) -> None:
        """Unpark the idle ones of these groups, and groups that wait for the same buckets.

        Jobs of these groups have gone or moved without a run.
        """
        if groups and self._is_any_group_parked():
            idle = strings(self._database.write(sql.IDLE_GROUPS, (_numbers(groups), self._now())))
            self._unpark(set(idle))
            self._admit_others(Counter(bucket for group in groups for bucket in limits_of(group)))

    def _longest_waiting(self, bucket: str, count: int) -> list[str]:
        return strings(self._database.write(sql.PARKED_FOR, (bucket, count, self._now())))

    def admit_in_time(self, now: int) -> None:
        """Unpark groups that wait for a rate that should have a token by now."""
        buckets = strings(self._database.write(sql.WAITED_UNTIL, (now,)))
        if not buckets:
            return
        admission = self._buckets.trial(buckets)
        groups: set[str] = set()
        again: dict[str, int | None] = {}
        for bucket in buckets:
            let_go = self._longest_waiting(bucket, admission.room((bucket,), MAX_TOKENS))
            groups.update(let_go)
            # The unparked groups will use these tokens: the time of the next token is computed without them.
            admission.admit_many((bucket,), len(let_go))
            refusal = admission.refusal((bucket,))
            limit = self._table.limits().get(family_of(bucket))
            # If no group was unparked, the parked ones cannot use the tokens: their queue is paused.
            pause = max(MIN_PAUSE if let_go else LONG_PAUSE, 0 if limit is None else limit.interval)
            again[bucket] = now + pause if refusal is None or refusal.until is None else refusal.until
        self._unpark(groups)
        self._database.write(sql.WAIT_UNTIL, (to_json(again),))
        self._database.write(sql.WAIT_NO_MORE, (to_json(buckets),))

    def admit_family(self, family: str) -> None:
        """Unpark all groups that wait for a bucket of a family: its limit has changed."""
        self._unpark(set(strings(self._database.write(sql.PARKED_FOR_FAMILY, family_bounds(family)))))

    def admit_queue(self, queue: str) -> None:
        """Unpark all groups of a queue that was paused until now."""
        self._unpark(set(strings(self._database.write(sql.PARKED_IN_QUEUE, (queue,)))))

    def admit_to_free_places(self) -> bool:
        """Unpark groups that wait for a bucket with room that other groups did not use; return whether any do."""
        parked = _parked(self._database.write(sql.LEAST_LOOKED_AT))
        if not parked:
            return False
        admission = self._buckets.trial({bucket for _, bucket in parked})
        free = {group for group, bucket in parked if admission.room((bucket,), 1)}
        full = [group for group, _ in parked if group not in free]
        if full:  # so that the next call checks others
            self._database.write(sql.LOOKED_AT, (_numbers(full), self._now()))
        return self._unpark(free)

    def _unpark(self, groups: set[str]) -> bool:
        if not groups:
            return False
        self._database.write(sql.UNPARK, (_numbers(groups),))
        self._lines.order_groups(groups)
        self._wake()
        return True


def _by_bucket(jobs: Mapping[tuple[str, ...], int]) -> dict[str, int]:
    """Count jobs in each of their buckets."""
    counts: dict[str, int] = {}
    for limits, count in jobs.items():
        for bucket in limits:
            counts[bucket] = counts.get(bucket, 0) + count
    return counts


def _numbers(groups: Collection[str]) -> str:
    return to_json([number_of(group) for group in groups])
