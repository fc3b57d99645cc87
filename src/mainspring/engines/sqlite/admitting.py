"""Taking under limits: the heads of groups that are admitted start, and further jobs of the same groups with them.

All groups that are admitted have an equal share of what a worker has room for, and start in turns. What is counted
is counted for each group at once, so a hundred jobs of one group cost hardly more than one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import zip_longest
from operator import attrgetter

from mainspring.engines.sqlite import line_statements as sql
from mainspring.engines.sqlite.groups import limits_of
from mainspring.engines.sqlite.rows import LeaseRow, lease_rows, numbers, to_json
from mainspring.engines.sqlite.store import Store
from mainspring.jobs.engine import SUSPECT_CRASHES
from mainspring.jobs.limits import Admission, Gates, Refusal

_due = attrgetter("due")
_seq = attrgetter("seq")


class Admitting:
    """Starts what limits admit and parks what they refuse, inside of units."""

    def __init__(self, store: Store) -> None:
        self._database = store.database
        self._lines = store.lines
        self._buckets = store.buckets
        self._parking = store.parking
        self._names = store.group_names

    def take(
        self,
        rows: list[LeaseRow],
        starts: int,
        now: int,
        until: int,
        mark_started: Callable[[list[LeaseRow]], None],
    ) -> tuple[list[LeaseRow], bool]:
        """Start what is admitted, and let the rest wait; return what started, and whether some wait."""
        groups = self._names.learn(rows)
        admission, gates = self._buckets.begin(groups, self._names.limits)
        count = _Count(gates, admission)
        started = count.heads(rows)
        started += count.members(self._pick_more(starts - len(started), count, until))
        mark_started(started)
        self._lines.advance(count.last)
        refusals = self._park(groups, count, until)
        # Nobody needs to be woken: each of these groups had a head before, too, for whoever looked.
        self._let_others_go(groups, count, refusals, now)
        if refusals:
            self._pass_on(refusals, admission)
        return started, bool(refusals)

    def _park(self, groups: list[int], count: _Count, until: int) -> dict[str, Refusal]:
        """Park the groups that were refused, and those that are full now: they need not be tried to find out."""
        names = self._names.names
        full = {names[number]: refusal for number, refusal in count.full(groups).items()}
        refusals = {names[number]: refusal for number, refusal in count.refusals.items()}
        refusals |= self._parking.with_due_jobs(full, until)
        if refusals:
            self._parking.park(refusals)
        return refusals

    def _let_others_go(self, groups: list[int], count: _Count, refusals: Collection[str], now: int) -> None:
        """Let the next of each group go, unless it is parked."""
        names, take_turns = self._names.names, self._names.take_turns
        headless = [number for number in count.headless() if not refusals or names[number] not in refusals]
        fair = [number for number in headless if take_turns[number]]
        self._lines.follow(fair, now)
        if len(fair) < len(headless):
            self._lines.follow([number for number in headless if not take_turns[number]], 0)
        if len(headless) < len(groups):
            self._lines.order_groups({names[number] for number in set(groups).difference(headless)}, now)

    def _pick_more(self, room: int, count: _Count, until: int) -> dict[int, list[LeaseRow]]:
        """Pick further jobs of groups whose heads start, as many of each as there is room for all."""
        wanted = count.with_room()[: max(0, room)]
        if not wanted:
            return {}
        share = -(-room // len(wanted))
        by_group = _by_group(self._pick(wanted, share, until))
        runs = {number: run for number in wanted if (run := by_group.get(number)) is not None}
        for run in runs.values():
            run.sort(key=_due)
            del run[share:]
        surplus = sum(map(len, runs.values())) - room
        for run in reversed(runs.values()):  # what is left over goes to those who come first
            if surplus <= 0:
                break
            if len(run) == share:
                run.pop()
                surplus -= 1
        return runs

    def _pick(self, groups: list[int], share: int, until: int) -> list[LeaseRow]:
        """Pick the first of each group, those of one group in the order of their submission."""
        write, batch = self._database.write, to_json(groups)
        rows = lease_rows(write(sql.PICK_OF_GROUPS, (batch, share, until)))
        moved = write(sql.GROUPS_WITH_MOVED, (batch,))
        if numbers(moved):  # they stand among the others
            rows += lease_rows(write(sql.PICK_MOVED_OF_GROUPS, (moved, share, until)))
            rows.sort(key=_seq)
        return rows

    def _pass_on(self, refusals: dict[str, Refusal], admission: Admission) -> None:
        """Let others try the buckets with room of those that another bucket has refused."""
        self._parking.admit_others(
            {
                bucket: 1
                for group, refusal in refusals.items()
                for bucket in limits_of(group)
                if bucket != refusal.bucket and admission.room((bucket,), 1)
            }
        )


class _Count:
    """What was admitted and refused in one take, by the numbers of groups."""

    def __init__(self, gates: dict[int, Gates], admission: Admission) -> None:
        self._gates = gates
        self._admission = admission
        self._with_suspects: set[int] = set()
        self.last: dict[int, LeaseRow] = {}
        """The last of each group that starts, suspects aside."""
        self.refusals: dict[int, Refusal] = {}
        """For each group that was refused, the bucket that did it."""

    def heads(self, rows: Iterable[LeaseRow]) -> list[LeaseRow]:
        """Return those of the heads of groups, and of jobs without limits, that may start."""
        started = []
        for row in rows:
            number = row.grp
            if number is not None:
                if not self._admit(number, 1):
                    continue
                if row.crashes < SUSPECT_CRASHES:
                    self.last[number] = row
                else:
                    self._with_suspects.add(number)
            started.append(row)
        return started

    def members(self, runs: Mapping[int, list[LeaseRow]]) -> list[LeaseRow]:
        """Return those of further jobs, by groups, that may start: one of each group in turn."""
        admitted = []
        for number, run in runs.items():
            count = self._admit(number, len(run))
            if count:
                del run[count:]
                admitted.append(run)
                self.last[number] = run[-1]
        return [row for turn in zip_longest(*admitted) for row in turn if row is not None]

    def with_room(self) -> list[int]:
        """Return the groups whose heads start and that would be admitted once more."""
        if not self._admission.is_tight:  # as nearly always
            return list(self.last)
        return [number for number in self.last if number not in self.refusals and self._gates[number].room(1)]

    def full(self, groups: Iterable[int]) -> dict[int, Refusal]:
        """Return those of the groups that nobody was refused of, and that would be refused now."""
        if not self._admission.is_tight:
            return {}
        refusals = {number: self._gates[number].refusal() for number in groups}
        return {
            number: refusal
            for number, refusal in refusals.items()
            if refusal is not None and number not in self.refusals
        }

    def headless(self) -> list[int]:
        """Return the groups whose heads have started, and of which no suspect needs to be looked at."""
        return [number for number in self.last if number not in self._with_suspects]

    def _admit(self, number: int, wanted: int) -> int:
        if number in self.refusals:
            return 0
        gates = self._gates[number]
        count = gates.admit(wanted)
        if count < wanted and (refusal := gates.refusal()) is not None:
            self.refusals[number] = refusal
        return count


def _by_group(rows: Iterable[LeaseRow]) -> dict[int | None, list[LeaseRow]]:
    """Part rows by their groups."""
    runs: dict[int | None, list[LeaseRow]] = {}
    for row in rows:
        extras = row.extras  # looked at here: there are many rows, and a property costs more than the rest
        number = extras if extras.__class__ is int else row.grp
        run = runs.get(number)
        if run is None:
            runs[number] = [row]
        else:
            run.append(row)
    return runs
