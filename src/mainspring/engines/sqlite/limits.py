"""Reads limits, and counts what they limit: the running jobs of each bucket, and the tokens of each rate.

Invariants
- A transaction counts in memory and writes each changed bucket once, before it commits. Between transactions the
  file is right; inside of one, this module is asked instead of the file.
- Limits and counts are remembered from one transaction to the next until another process changes the file. They
  are read again after a rollback and after a change of limits.
- Running jobs are counted only for buckets with a limit on concurrency. `recount` counts them anew when a limit
  changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import apsw
import msgspec

from mainspring.engines.sqlite import line_statements as sql
from mainspring.engines.sqlite.database import Database
from mainspring.engines.sqlite.rows import REMEMBERED, to_json
from mainspring.jobs.commands import PutLimit
from mainspring.jobs.limits import SEPARATOR, Admission, BucketState, Gates, Limit

_rows = msgspec.json.Decoder(list[tuple[str, int, int | None, list[str]]]).decode


def read_limits(connection: apsw.Connection) -> list[PutLimit]:
    """List the limits, on a connection that only reads."""
    rows = _rows(connection.execute(sql.LIMITS).get)
    return [PutLimit(family, most, per, tuple(by)) for family, most, per, by in rows]


class LimitTable:
    """The limits of all families, inside of units."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._content: int | None = None  # the version of the content that was looked at,
        self._version: int | None = None  # and that of the limits in it
        self._limits: dict[str, Limit] = {}

    def limits(self) -> dict[str, Limit]:
        """Return all limits: another mapping when they have changed."""
        if self._database.version != self._content:
            version = self._database.write(sql.ARRANGEMENTS)
            if version != self._version:
                rows = _rows(self._database.write(sql.LIMITS))
                self._limits = {family: Limit(most, per) for family, most, per, _ in rows}
                self._version = version
            self._content = self._database.version
        return self._limits

    def forget(self) -> None:
        """Read everything again: what was read may have been rolled back."""
        self._content = self._version = None


_states = msgspec.json.Decoder(list[tuple[str, int, int]]).decode


class _Counted(BucketState, gc=False):
    """A bucket, and what the file says of it."""

    written_running: int = 0
    written_full_at: int = 0


class Buckets:
    """Keeps count, inside of units."""

    def __init__(self, database: Database, table: LimitTable, now: Callable[[], int]) -> None:
        self._database = database
        self._table = table
        self._now = now
        self._version: int | None = None  # of the content that was read
        self._states: dict[str, _Counted] = {}
        self._gates: dict[int, Gates] = {}  # by the numbers of groups
        self._admission = Admission({}, {}, 0)

    # -- counting

    def begin(
        self, groups: Iterable[int], limits: Mapping[int, tuple[str, ...]]
    ) -> tuple[Admission, dict[int, Gates]]:
        """Return the count, and what jobs of these groups, which have these limits, pass when they start."""
        self._refresh()
        admission, gates = self._admission, self._gates
        unknown = [number for number in groups if number not in gates]
        if unknown:
            self._read(bucket for number in unknown for bucket in limits[number])
            gates.update((number, admission.gates(limits[number])) for number in unknown)
        admission.begin(self._now())
        return admission, gates

    def trial(self, buckets: Collection[str]) -> Admission:
        """Return a count of these buckets as they are now, of which nothing is kept."""
        self._read(buckets)
        states = self._states
        copies = {bucket: BucketState(states[bucket].running, states[bucket].full_at) for bucket in buckets}
        return Admission(self._table.limits(), copies, self._now())

    def vacate(self, jobs: Mapping[tuple[str, ...], int]) -> None:
        """Count jobs out that run no more, by their buckets."""
        self._read(bucket for limits in jobs for bucket in limits)
        gates = self._admission.gates
        for limits, count in jobs.items():
            gates(limits).vacate(count)

    def _refresh(self) -> None:
        """Begin anew if somebody else has changed something."""
        if self._version != self._database.version:
            self.forget()
            self._version = self._database.version
            self._admission = Admission(self._table.limits(), {}, 0)

    def _read(self, buckets: Iterable[str]) -> None:
        """Have the states of buckets ready."""
        self._refresh()
        known = self._states
        unknown = {bucket for bucket in buckets if bucket not in known}
        if unknown:
            rows = _states(self._database.write(sql.STATES, (to_json(list(unknown)),)))
            read = {bucket: _Counted(running, full_at, running, full_at) for bucket, running, full_at in rows}
            known.update(read)
            self._admission.learn(read)

    def write(self) -> None:
        """Write what has changed; at the end of a unit."""
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
            self._database.write(sql.OCCUPY, (to_json(running),))
        if spent:
            self._database.write(sql.SPEND, (to_json(spent),))
        if len(self._admission) + len(self._gates) > REMEMBERED:
            self.forget()

    def forget(self) -> None:
        """Read everything again: what was counted may have been rolled back."""
        self._version = None
        self._states = {}
        self._gates = {}
        self._admission = Admission({}, {}, 0)

    def _hand_over(self) -> None:
        """Let the file say what holds, because it is about to be changed there."""
        self.write()
        self.forget()

    # -- when limits change

    def recount(self, family: str) -> None:
        """Count anew who runs in the buckets of a family: its limit has changed, perhaps from another kind."""
        self._hand_over()
        bounds = family_bounds(family)
        self._database.write(sql.FORGET_COUNT, bounds)
        limit = self._table.limits().get(family)
        if limit is not None and limit.per is None:
            self._database.write(sql.RECOUNT, bounds)

    def change_pace(self, family: str, before: Limit, after: Limit) -> None:
        """Let as many tokens of a family be missing as before; they come at the new pace."""
        self._hand_over()
        bounds = family_bounds(family)
        self._database.write(sql.CHANGE_PACE, (*bounds, self._now(), before.interval, after.interval))

    def forget_pace(self, family: str) -> None:
        """Let no tokens of a family be missing: it has no limit any more."""
        self._hand_over()
        self._database.write(sql.FORGET_PACE, family_bounds(family))

    def fill_up(self, now: int) -> None:
        """Let no more tokens be missing than there are: the clock was set back."""
        self._hand_over()
        self._database.write(sql.FULL_AGAIN, (now,))


def family_bounds(family: str) -> tuple[str, str]:
    """Return the bounds between which the names of a family's buckets are."""
    return f"{family}{SEPARATOR}", f"{family}{chr(ord(SEPARATOR) + 1)}"
