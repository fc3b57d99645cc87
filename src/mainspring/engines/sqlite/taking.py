"""Taking: what is due starts, what is due soon is held, what came too late expires.

A take costs a handful of statements, however many jobs there are: the claims hold one job for each line.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mainspring.engines.sqlite import statements as sql
from mainspring.engines.sqlite.admitting import Admitting
from mainspring.engines.sqlite.rows import (
    LeaseRow,
    first_dues,
    instants,
    lease_rows,
    pairs_by_number,
    strings,
    to_json,
    to_lease,
)
from mainspring.engines.sqlite.store import Store
from mainspring.jobs.engine import SUSPECT_CRASHES, Demand, Taken
from mainspring.jobs.events import EventKind
from mainspring.jobs.fairness import FRESH, FreshShare
from mainspring.jobs.records import Lease
from mainspring.jobs.waiting import HEAD_START

MAX_ROUNDS = 20  # of picking, when limits refuse what was picked


class Taking:
    """Leases jobs to workers, inside of units."""

    def __init__(self, store: Store) -> None:
        self._database = store.database
        self._lanes = store.lanes
        self._lines = store.lines
        self._journal = store.journal
        self._now = store.now
        self._parking = store.parking
        self._names = store.group_names
        self._admitting = Admitting(store)
        self._wake = store.wake
        self._fresh = FreshShare()
        self._has_parked = False  # in this take: then there may be another instant at which to look

    def take(self, worker: int, demands: Sequence[Demand], *, lead: int, start_lead: int) -> Taken:
        """Lease jobs to a worker."""
        write = self._database.write
        now = self._now()
        if not write(sql.IS_ENROLLED, (worker,)):
            return Taken([], None, is_more=False, stops=[], is_alive=False)
        self._has_parked = False
        next_look, next_firing = self._do_what_is_due(now)
        leases: list[Lease] = []
        dues: list[int] = []
        is_more = False
        for demand in demands:
            lanes, lanes_ahead = self._lanes.matching(demand.types, demand.queues)
            if not lanes:
                continue
            due = self._take_due(worker, demand, lanes, now, now + start_lead)
            is_more |= len(due) >= demand.starts and self._is_more(lanes, now + start_lead)
            leases += due
            next_due = write(sql.NEXT_DUE, (lanes, now + start_lead))
            if demand.ahead > 0 and next_due is not None and next_due <= now + lead:
                leases += self._take_ahead(worker, demand, lanes_ahead, now + start_lead, now + lead)
                next_due = write(sql.NEXT_DUE, (lanes, now + start_lead))
            if next_due is not None:
                dues.append(next_due)
        if self._has_parked:
            next_look = self._next_look()
        stops = strings(write(sql.STOPS, (worker,)))
        self._journal.expect_starts([lease.id for lease in leases if lease.is_started])
        return Taken(leases, min(dues, default=None), is_more, stops, next_look=next_look, next_firing=next_firing)

    def _do_what_is_due(self, now: int) -> tuple[int | None, int | None]:
        """Let jobs expire and limits admit again; return when to look next for that, and the next firing."""
        expiry, admission, firing = instants(self._database.write(sql.INSTANTS))
        if (expiry is not None and expiry <= now) or (admission is not None and admission <= now):
            self._expire(now)
            self._parking.admit_in_time(now)
            return self._next_look(), firing
        return min((at for at in (expiry, admission) if at is not None), default=None), firing

    def _next_look(self) -> int | None:
        expiry, admission, _ = instants(self._database.write(sql.INSTANTS))
        return min((at for at in (expiry, admission) if at is not None), default=None)

    def _expire(self, now: int) -> None:
        while expired := pairs_by_number(self._database.write(sql.EXPIRED, (now,))):
            seqs = [seq for seq, _ in expired]
            places = self._lines.of_rows(seqs)
            self._database.write(sql.EXPIRE, (to_json(seqs), now))
            self._parking.leave(places)
            self._journal.write_states([job_id for _, job_id in expired], EventKind.FAILED)

    # -- due

    def _take_due(self, worker: int, demand: Demand, lanes: str, now: int, until: int) -> list[Lease]:
        if demand.starts <= 0:
            return []
        taken: list[Lease] = []
        has_asked = False
        for _ in range(MAX_ROUNDS):
            room = demand.starts - len(taken)
            rows = self._pick(demand.suspects and not any(map(_is_suspect, taken)), room, lanes, now, until)
            if any(row.extras is not None and row.grp is not None for row in rows):
                started, has_parked = self._admitting.take(
                    rows, room, now, until, lambda started: self._mark_started(worker, started, now)
                )
                taken += self._leases(started, is_started=True)
                self._has_parked |= has_parked
            else:
                self._mark_started(worker, rows, now)
                taken += self._leases(rows, is_started=True)
                # Whoever was offered a free place may not be able to use it: paused, or unknown here.
                if len(rows) >= room or has_asked or not self._parking.admit_to_free_places():
                    break
                has_asked = True
            if len(taken) >= demand.starts:
                break
        else:
            self._wake()  # there is more to be found
        return taken

    def _leases(self, rows: list[LeaseRow], *, is_started: bool) -> list[Lease]:
        describe, limits = self._lanes.describe, self._names.limits
        return [to_lease(row, describe(row.lane), limits, is_started=is_started) for row in rows]

    def _is_more(self, lanes: str, until: int) -> bool:
        """Answer whether somebody waits for room here, or for a place for which others have not come."""
        return self._has_due(lanes, until) or (
            self._parking.admit_to_free_places() and self._has_due(lanes, until)
        )

    def _has_due(self, lanes: str, until: int) -> bool:
        firsts = first_dues(self._database.write(sql.FIRST_DUE, (lanes,)))
        return any(first is not None and first <= until for first in firsts)

    def _pick(self, suspects: bool, starts: int, lanes: str, now: int, until: int) -> list[LeaseRow]:  # noqa: FBT001
        first, first_suspect = first_dues(self._database.write(sql.FIRST_DUE, (lanes,)))
        rows = [] if first is None or first > until else self._pick_due(starts, lanes, now, until)
        if suspects and first_suspect is not None and first_suspect <= until:
            rows += lease_rows(self._database.write(sql.PICK_SUSPECTS, (lanes, 1, until)))
            rows = sorted(rows, key=self._rank)[:starts]
        return rows

    def _pick_due(self, starts: int, lanes: str, now: int, until: int) -> list[LeaseRow]:
        rows = lease_rows(self._database.write(sql.PICK_DUE, (lanes, starts, until)))
        share = self._fresh.share(starts, rows[0].ready if len(rows) == starts else now, now)
        if not share:
            return rows
        fresh = lease_rows(self._database.write(sql.PICK_BETWEEN, (lanes, share, now - FRESH, until)))
        chosen = {row.seq for row in fresh}
        old = [row for row in rows if row.seq not in chosen][: starts - len(fresh)]
        return sorted(old + fresh, key=self._rank)

    def _rank(self, row: LeaseRow) -> tuple[int, int]:
        return row.ready - HEAD_START * self._lanes.describe(row.lane).priority, row.seq

    def _mark_started(self, worker: int, rows: Collection[LeaseRow], now: int) -> None:
        if rows:
            self._database.write(sql.MARK_STARTED, (to_json([row.seq for row in rows]), worker, now))

    # -- ahead

    def _take_ahead(self, worker: int, demand: Demand, lanes: str, after: int, until: int) -> list[Lease]:
        rows = lease_rows(self._database.write(sql.PICK_BETWEEN, (lanes, demand.ahead, after, until)))
        if rows:
            self._database.write(sql.MARK_HELD, (to_json([row.seq for row in rows]), worker))
        return self._leases(rows, is_started=False)


def _is_suspect(lease: Lease) -> bool:
    return lease.crashes >= SUSPECT_CRASHES
