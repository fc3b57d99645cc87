"""Parking: groups that a limit has refused wait apart from the claims, until a place or a token is there for them.

Invariants
- A group is parked only while a job of it is due. What is not due yet is not parked: it is tried when it is due.
- Whoever frees places in a bucket lets as many groups go as there are places, those that have waited longest, and
  only such as can use them: with a job that is due, in a queue that is not paused.
- For a rate there is one instant per bucket at which to look again, however many groups wait for it.
- A place that was offered to somebody who does not come for it is found by the next take with room, or sweep.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec

from mainspring.engines.sqlite import line_statements as sql
from mainspring.engines.sqlite.buckets import Buckets, family_bounds
from mainspring.engines.sqlite.database import Database
from mainspring.engines.sqlite.groups import limits_of, number_of
from mainspring.engines.sqlite.limit_table import LimitTable
from mainspring.engines.sqlite.lines import Lines, Places
from mainspring.engines.sqlite.rows import numbers, strings, to_json
from mainspring.jobs.limits import Refusal, family_of

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
