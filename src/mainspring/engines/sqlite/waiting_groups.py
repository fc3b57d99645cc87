"""Orders the jobs that wait for others: in sequences, and in groups of jobs with the same lane and limits.

Invariants, after every transaction
- Of each sequence at most one PENDING job does not wait (`wait` is not 1): the first by (turn, seq), and none
  while a job of the sequence runs.
- Of the jobs of a group that do not wait for their sequence, at most one can be claimed (`wait` is 0): the first
  by (due, seq), and none while the group is parked, that is, refused by one of its buckets. Suspects have a line
  of their own, because a worker takes one suspect at a time: they block no other job.
- So the index of claims holds one job for each line, however long the lines are.
- A job that was submitted into a group and has not moved since (`moved` is NULL) stays in the index `members`
  until it is deleted. The group knows up to which job its members have started, so a start changes no index of
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
from mainspring.engines.sqlite.database import Database
from mainspring.engines.sqlite.limits import Buckets, LimitTable, family_bounds
from mainspring.engines.sqlite.rows import (
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
from mainspring.jobs.limits import Refusal, family_of


class Row(Protocol):
    """A job, as it was read."""

    @property
    def grp(self) -> int | None:
        """The number of its group."""


class GroupNames:
    """Names by number, as far as they were asked for. A name never changes, so there is nothing to take back."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.names: dict[int, str] = {}
        """Of the groups that were learned, by number,"""
        self.limits: dict[int, tuple[str, ...]] = {}
        """and their limits,"""
        self.take_turns: dict[int, bool] = {}
        """and whether they take turns with others."""

    def enter(self, counts: Mapping[str, int]) -> None:
        """Note that so many jobs have come into groups; those that leave are counted by triggers."""
        self._database.write(
            sql.ENTER_GROUPS, (to_json([(number_of(name), name, count) for name, count in counts.items()]),)
        )

    def enter_since(self, last: int, names: Iterable[str]) -> None:
        """Note that the jobs behind a row have come into groups, which are among these."""
        by_number = {number_of(name): name for name in names}
        counts = pairs_of_integers(self._database.write(sql.GROUPS_SINCE, (last,)))
        self.enter({by_number[number]: count for number, count in counts})

    def enter_like(self, job_id: str) -> None:
        """Note that one more job has come into the group of a job, if it has any."""
        self._database.write(sql.ENTER_GROUP_OF, (job_id,))

    def learn(self, rows: Iterable[Row]) -> list[int]:
        """Return the groups of rows, in their order, and know them; inside of a unit."""
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
    """Where some jobs stand: the sequences and groups that a change of them may concern."""

    def __init__(self, lines: Iterable[tuple[str | None, str | None]] = ()) -> None:
        self.sequences: set[str] = set()
        self.groups: set[str] = set()
        self.add(lines)

    def add(self, lines: Iterable[tuple[str | None, str | None]]) -> None:
        """Add the sequence and group of each of some jobs."""
        for sequence, group in lines:
            if sequence is not None:
                self.sequences.add(sequence)
            if group is not None:
                self.groups.add(group)

    def __bool__(self) -> bool:
        return bool(self.sequences or self.groups)


class Lines:
    """Keeps the lines in order, inside of units. `wake` is called when somebody may go who could not before."""

    def __init__(self, database: Database, now: Callable[[], int], wake: Callable[[], None]) -> None:
        self._database = database
        self._now = now
        self._wake = wake

    # -- finding out

    def of_ids(self, ids: Collection[str]) -> Places:
        """Return where jobs stand."""
        return Places(_lines(self._database.write(sql.LINES_OF_IDS, (to_json(list(ids)),))))

    def of_rows(self, seqs: Collection[int]) -> Places:
        """Return where jobs stand."""
        return Places(_lines(self._database.write(sql.LINES_OF, (to_json(list(seqs)),))))

    def of_owners(self, workers: Collection[int]) -> Places:
        """Return where the jobs of workers stand."""
        return Places(_lines(self._database.write(sql.LINES_OF_OWNERS, (to_json(list(workers)),))))

    # -- putting in order

    def put_in_order(self, places: Places) -> None:
        """Let the right ones go: something was added to these lines, moved in them or taken out of them."""
        groups = set(places.groups)
        if places.sequences:
            moved = self._order_sequences(places.sequences)
            if moved:  # whoever was due in them may have gone behind, and nobody else needs to be parked
                self._database.write(
                    sql.UNPARK_IDLE, (to_json([number_of(group) for group in moved]), self._now())
                )
            groups |= moved
        if groups:
            self.order_groups(groups)
        if places:
            self._wake()

    def _order_sequences(self, sequences: Collection[str]) -> set[str]:
        """Return the groups in which something moved."""
        before, after = self._moves(sql.SEQUENCE_HEADS, sequences)
        if before:
            self._database.write(sql.LEAVE_SEQUENCE_HEAD, (to_json(before),))
        if after:
            self._database.write(sql.BECOME_SEQUENCE_HEAD, (to_json(after),))
        return self.of_rows(before + after).groups if before or after else set()

    def advance(self, last: Mapping[int, LeaseRow]) -> None:
        """Note up to where jobs of groups have started: nobody needs to look there any more."""
        if last:
            batch = [(number, row.due, row.seq) for number, row in last.items()]
            self._database.write(sql.ADVANCE, (to_json(batch),))

    def follow(self, numbers: Collection[int], ready: int) -> None:
        """Let the next of each group go, in a take: its head has started, and it is not parked."""
        if numbers:
            self._database.write(sql.NEXT_GROUP_HEADS, (to_json(numbers), ready))

    def order_groups(self, groups: Collection[str], now: int | None = None) -> None:
        """Let the first of each group go, unless the group is parked.

        A take says what is now for it: what it makes ready would else look as if it were due later.
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


MAX_TOKENS = 1_000  # that are handed out at one instant
MIN_PAUSE = 1_000  # microseconds until a rate is looked at again, if nobody came for its token,
LONG_PAUSE = 1_000_000  # or nobody can

_parked = msgspec.json.Decoder(list[tuple[str, str]]).decode


class Parking:
    """Keeps those who wait for buckets, and lets them go. Inside of units."""

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
        """Count jobs out that do not run any more, and let those go who waited for them."""
        left = Counter(limits)
        del left[()]
        if left:
            self._buckets.vacate(left)
            if self._is_anybody_parked():
                self._admit_others(_by_bucket(left))

    def vacate_for_dead(self, workers: Collection[int]) -> None:
        """Count the jobs of dead workers out."""
        groups = strings(self._database.write(sql.GROUPS_OF_OWNERS, (to_json(list(workers)),)))
        self.vacate(limits_of(group) for group in groups)

    # -- parking

    def park(self, refusals: dict[str, Refusal]) -> None:
        """Let groups wait until their buckets admit again."""
        now = self._now()
        batch = [(number_of(group), group, refusal.bucket) for group, refusal in refusals.items()]
        self._database.write(sql.PARK, (to_json(batch), now))
        times = {refusal.bucket: refusal.until for refusal in refusals.values() if refusal.until is not None}
        if times:
            self._database.write(sql.WAIT_UNTIL, (to_json(times),))

    def with_due_jobs(self, refusals: dict[str, Refusal], until: int) -> dict[str, Refusal]:
        """Return those of groups in which somebody is due: the others need not be parked."""
        if not refusals:
            return {}
        due = set(numbers(self._database.write(sql.GROUPS_WITH_DUE_JOBS, (_numbers(refusals), until))))
        return {group: refusal for group, refusal in refusals.items() if number_of(group) in due}

    # -- letting go

    def admit_others(self, places: Mapping[str, int]) -> None:
        """Let groups try again that wait for these buckets, as many as there may be places in each.

        Rates are left out: no end of a job brings a token back.
        """
        if places and self._is_anybody_parked():
            self._admit_others(places)

    def _admit_others(self, places: Mapping[str, int]) -> None:
        table = self._table.limits()
        groups: set[str] = set()
        for bucket, count in places.items():
            limit = table.get(family_of(bucket))
            if limit is None or limit.per is None:
                groups.update(self._longest_waiting(bucket, count))
        self._unpark(groups)

    def _is_anybody_parked(self) -> bool:
        return bool(self._database.write(sql.IS_PARKED))

    def leave(self, places: Places) -> None:
        """Put lines in order that jobs have left, or in which they have moved, and let others use what is free."""
        if places:
            self._lines.put_in_order(places)
            self.admit_others_than(places.groups)

    def admit_others_than(self, groups: Collection[str]) -> None:
        """Let others try what jobs of these groups, which have gone or moved without a run, have left."""
        if groups and self._is_anybody_parked():
            idle = strings(self._database.write(sql.IDLE_GROUPS, (_numbers(groups), self._now())))
            self._unpark(set(idle))
            self._admit_others(Counter(bucket for group in groups for bucket in limits_of(group)))

    def _longest_waiting(self, bucket: str, count: int) -> list[str]:
        return strings(self._database.write(sql.PARKED_FOR, (bucket, count, self._now())))

    def admit_in_time(self, now: int) -> None:
        """Let groups try again for whom a token should be there by now."""
        buckets = strings(self._database.write(sql.WAITED_UNTIL, (now,)))
        if not buckets:
            return
        admission = self._buckets.trial(buckets)
        groups: set[str] = set()
        again: dict[str, int | None] = {}
        for bucket in buckets:
            let_go = self._longest_waiting(bucket, admission.room((bucket,), MAX_TOKENS))
            groups.update(let_go)
            # They come for their tokens: the next one is there as soon as if nobody had been late.
            admission.admit_many((bucket,), len(let_go))
            refusal = admission.refusal((bucket,))
            limit = self._table.limits().get(family_of(bucket))
            # Those who wait cannot use what is there now, or there would be some: their queue is paused.
            pause = max(MIN_PAUSE if let_go else LONG_PAUSE, 0 if limit is None else limit.interval)
            again[bucket] = now + pause if refusal is None or refusal.until is None else refusal.until
        self._unpark(groups)
        self._database.write(sql.WAIT_UNTIL, (to_json(again),))
        self._database.write(sql.WAIT_NO_MORE, (to_json(buckets),))

    def admit_family(self, family: str) -> None:
        """Let all groups try again that wait for a bucket of a family: its limit has changed."""
        self._unpark(set(strings(self._database.write(sql.PARKED_FOR_FAMILY, family_bounds(family)))))

    def admit_queue(self, queue: str) -> None:
        """Let all groups of a queue try again: it was paused."""
        self._unpark(set(strings(self._database.write(sql.PARKED_IN_QUEUE, (queue,)))))

    def admit_to_free_places(self) -> bool:
        """Let groups try again that wait for a bucket which has room: whoever was to use it does not."""
        parked = _parked(self._database.write(sql.LEAST_LOOKED_AT))
        if not parked:
            return False
        admission = self._buckets.trial({bucket for _, bucket in parked})
        free = {group for group, bucket in parked if admission.room((bucket,), 1)}
        full = [group for group, _ in parked if group not in free]
        if full:  # the next time others are looked at
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
