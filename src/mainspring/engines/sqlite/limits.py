"""Reads limits, and stores their counts: the running jobs of each bucket, and the tokens of each rate.

Invariants
- A transaction counts in memory and writes each changed bucket once, before it commits. Between transactions the
  counts in the file are current; inside a transaction, only the counts in memory are.
- Limits and counts are cached from one transaction to the next until another process changes the file. They are
  read again after a rollback and after a change of limits.
- Running jobs are counted only for buckets with a limit on concurrency. `recount` counts them anew when a limit
  changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import apsw
import msgspec

from mainspring.engines.sqlite import waiting_statements as sql
from mainspring.engines.sqlite.codec import CACHE_SIZE, to_json
from mainspring.engines.sqlite.database import Database
from mainspring.engines.sqlite.settings_row import SettingsRow
from mainspring.jobs.commands import PutLimit
from mainspring.jobs.limits import SEPARATOR, Admission, BucketState, CombinedLimit, Limit

_rows = msgspec.json.Decoder(list[tuple[str, int, int | None, list[str]]]).decode


def read_limits(connection: apsw.Connection) -> list[PutLimit]:
    """List the stored limits and quotas, on a read-only connection."""
    rows = _rows(connection.execute(sql.LIMITS).get)
    return [PutLimit(family, most, per, tuple(by)) for family, most, per, by in rows]


class LimitCache:
    """The cache of all stored limits, by their names (families). For use inside a unit (one transaction)."""

    def __init__(self, database: Database, settings: SettingsRow) -> None:
        self._database = database
        self._settings = settings
        self._version: int | None = None  # `SettingsRow.arrangements` at which the limits were read
        self._limits: dict[str, Limit] = {}

    def all(self) -> dict[str, Limit]:
        """Return all limits by their names. After a change, this is a new mapping."""
        version = self._settings.arrangements
        if version != self._version:
            rows = _rows(self._database.write(sql.LIMITS))
            self._limits = {family: Limit(most, per) for family, most, per, _ in rows}
            self._version = version
        return self._limits

    def forget(self) -> None:
        """Clear the cache, because limits were changed, or a rollback may have undone a change."""
        self._version = None


_states = msgspec.json.Decoder(list[tuple[str, int, int]]).decode


class _CachedBucket(BucketState, gc=False):
    """The counts of a bucket (the part of a limit for one key) in memory, and as last written to the file."""

    written_running: int = 0
    written_full_at: int = 0


class BucketCounts:
    """Counts the running jobs and the tokens of each bucket: the part of a limit for one key.

    For use inside a unit (one transaction).
    """

    def __init__(self, database: Database, limits: LimitCache, now: Callable[[], int]) -> None:
        self._database = database
        self._limits = limits
        self._now = now
        self._version: int | None = None  # `Database.version` for which the states were read
        self._states: dict[str, _CachedBucket] = {}
        self._gates: dict[int, CombinedLimit] = {}  # by group number
        self._admission = Admission({}, {}, 0)
        # whether this unit counts jobs, so that it must write the counts before it commits
        self._is_counting = False

    # -- counting

    def begin(
        self, groups: Iterable[int], limits: Mapping[int, tuple[str, ...]]
    ) -> tuple[Admission, dict[int, CombinedLimit]]:
        """Begin to admit jobs of some groups; return the `Admission`, and the combined limit of each group.

        A group has jobs under the same limits. `groups` has the numbers of the groups, and `limits` their buckets
        (limit and key). The unit writes the counts of admitted jobs before it commits.
        """
        self._write_before_commit()
        self._refresh()
        admission, gates = self._admission, self._gates
        unknown = [number for number in groups if number not in gates]
        if unknown:
            self._read(bucket for number in unknown for bucket in limits[number])
            gates.update((number, admission.limit_for(limits[number])) for number in unknown)
        admission.begin(self._now())
        return admission, gates

    def admission_of(self, buckets: Collection[str]) -> Admission:
        """Return an `Admission`, which decides whether these buckets (limit and key) admit a job, and counts it.

        The counts are written before the commit.
        """
        self._write_before_commit()
        self._read(buckets)
        self._admission.begin(self._now())
        return self._admission

    def dry_run(self, buckets: Collection[str]) -> Admission:
        """Return an `Admission` for copies of these buckets (limit and key): jobs that it admits do not count."""
        self._read(buckets)
        states = self._states
        copies = {bucket: BucketState(states[bucket].running, states[bucket].full_at) for bucket in buckets}
        return Admission(self._limits.all(), copies, self._now())

    def release(self, jobs: Mapping[tuple[str, ...], int]) -> None:
        """Subtract jobs that no longer run from the counts of their limits.

        `jobs` has the number of jobs for each set of buckets (limit and key).
        """
        self._write_before_commit()
        self._read(bucket for limits in jobs for bucket in limits)
        gates = self._admission.limit_for
        for limits, count in jobs.items():
            gates(limits).vacate(count)

    def _write_before_commit(self) -> None:
        if not self._is_counting:
            self._is_counting = True
            self._database.before_commit(self.write)

    def _refresh(self) -> None:
        """Clear the cached counts if another process has changed the file."""
        if self._version != self._database.version:
            self.forget()
            self._version = self._database.version
            self._admission = Admission(self._limits.all(), {}, 0)

    def _read(self, buckets: Iterable[str]) -> None:
        """Read the counts of those buckets (limit and key) that are not cached yet."""
        self._refresh()
        known = self._states
        unknown = {bucket for bucket in buckets if bucket not in known}
        if unknown:
            rows = _states(self._database.write(sql.STATES, (to_json(list(unknown)),)))
            read = {bucket: _CachedBucket(running, full_at, running, full_at) for bucket, running, full_at in rows}
            known.update(read)
            self._admission.learn(read)

    def write(self) -> None:
        """Write the changed counts to the file. A unit that counts jobs calls this method before it commits."""
        self._is_counting = False
        changed = self._admission.changed
        if not changed:
            return
        running: dict[str, int] = {}
        spent: dict[str, int] = {}
        for bucket in changed:
            state = self._states[bucket]
            if state.running != state.written_running:
                running[bucket] = state.written_running = state.running
            if state.full_at != state.written_full_at:
                spent[bucket] = state.written_full_at = state.full_at
        changed.clear()
        if running:
            self._database.write(sql.WRITE_RUNNING, (to_json(running),))
        if spent:
            self._database.write(sql.WRITE_RATES, (to_json(spent),))
        if len(self._admission) + len(self._gates) > CACHE_SIZE:
            self.forget()

    def forget(self) -> None:
        """Clear the cached counts, which may be wrong or too many. The next use reads them from the file."""
        self._is_counting = False
        self._version = None
        self._states = {}
        self._gates = {}
        self._admission = Admission({}, {}, 0)

    def _flush(self) -> None:
        """Write the counts to the file and clear the cache, because the caller will change them in the file."""
        self.write()
        self.forget()

    # -- when limits change

    def recount(self, family: str) -> None:
        """Count the running jobs under a limit again for each of its keys, because the limit has changed.

        `family` is the name of the limit. If the limit is no concurrency now, only delete the counts.
        """
        self._flush()
        bounds = family_bounds(family)
        self._database.write(sql.DELETE_COUNTS, bounds)
        limit = self._limits.all().get(family)
        if limit is not None and limit.per is None:
            self._database.write(sql.RECOUNT, bounds)

    def change_rate(self, family: str, before: Limit, after: Limit) -> None:
        """Refill the missing tokens of a rate, for each of its keys, at the new speed from now on.

        The number of missing tokens stays the same.
        """
        self._flush()
        bounds = family_bounds(family)
        self._database.write(sql.CHANGE_RATE, (*bounds, self._now(), before.interval, after.interval))

    def delete_rates(self, family: str) -> None:
        """Delete the token counts of a limit that was deleted, for all of its keys."""
        self._flush()
        self._database.write(sql.DELETE_RATES, family_bounds(family))

    def cap_missing_tokens(self, now: int) -> None:
        """For each rate and key, reduce missing tokens that are more than twice the capacity to the capacity.

        After the clock was set back, the bucket would otherwise take too long to fill up.
        """
        self._flush()
        self._database.write(sql.CAP_MISSING_TOKENS, (now,))


def family_bounds(family: str) -> tuple[str, str]:
    """Return the lower and the upper bound of the bucket names of a limit. The upper bound is excluded.

    A bucket is the part of a limit for one key, and `family` is the name of the limit.
    """
    return f"{family}{SEPARATOR}", f"{family}{chr(ord(SEPARATOR) + 1)}"
