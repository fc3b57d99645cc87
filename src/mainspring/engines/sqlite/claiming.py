"""Claims jobs for workers: due jobs start, jobs that are due soon are held, jobs past their expiry fail.

A claim executes a few statements, however many jobs there are: of the jobs in sequences and groups, the index of
claims holds only the first one (the head) of each. A group is the jobs of one lane under the same limits. The
heads of admitted groups start, and further jobs of the same groups with them. All admitted groups have an equal
share of the worker's free slots and start in turns. Limits are counted once for each group, so a hundred jobs of
one group cost hardly more than one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import zip_longest
from operator import attrgetter

from mainspring.engines.sqlite import statements as sql
from mainspring.engines.sqlite import waiting_statements as waiting_sql
from mainspring.engines.sqlite.codec import (
    UNREADABLE,
    LeaseRow,
    due_lanes,
    expired_rows,
    limits_of,
    next_times,
    numbers,
    strings,
    to_json,
    to_lease,
)
from mainspring.engines.sqlite.dead_letters import DeadLetterNotifier
from mainspring.engines.sqlite.store import Store
from mainspring.engines.sqlite.unreadable_rows import RowReader
from mainspring.jobs.activity import EngineNote
from mainspring.jobs.backlog import FRESH, HEAD_START, FreshShare
from mainspring.jobs.engine import Demand, Taken
from mainspring.jobs.events import EventKind
from mainspring.jobs.limits import Admission, CombinedLimit, Refusal
from mainspring.jobs.records import Lease, is_suspect

_due = attrgetter("due")
_seq = attrgetter("seq")


class LimitedJobClaimer:
    """Claims jobs under limits: starts admitted jobs, and parks groups that a limit refused.

    A group has the jobs of one queue, type and priority under the same limits. Claims skip a parked group until
    its limit may have room again. For use inside a unit (one transaction).
    """

    def __init__(self, store: Store, rows: RowReader) -> None:
        self._database = store.database
        self._rows = rows
        self._heads = store.heads
        self._bucket_counts = store.bucket_counts
        self._parked_groups = store.parked_groups
        self._groups = store.groups

    def claim(
        self,
        rows: list[LeaseRow],
        starts: int,
        now: int,
        until: int,
        mark_started: Callable[[list[LeaseRow]], None],
    ) -> tuple[list[LeaseRow], bool]:
        """Start the jobs that their limits admit and return them; park the groups that a limit refused.

        `rows` are jobs without limits, and the first waiting jobs of groups (jobs of one queue, type and priority
        under the same limits). Claims skip a parked group until the limit may have room. At most `starts` jobs
        start; all are due by `until`. The second result says whether a group was parked.
        """
        groups = self._groups.load(rows)
        admission, gates = self._bucket_counts.begin(groups, self._groups.limits)
        admitted = _ClaimAdmission(gates, admission)
        started = admitted.admit_heads(rows)
        started += admitted.admit_members(self._pick_more(starts - len(started), admitted, until))
        mark_started(started)
        self._heads.record_last_started(admitted.last)
        refusals = self._park(groups, admitted, until)
        # No worker needs a wake-up: each of these groups had a head before, which any worker could claim.
        self._select_next_heads(groups, admitted, refusals, now)
        if refusals:
            self._unpark_others(refusals, admission)
        return started, bool(refusals)

    def _park(self, groups: list[int], admitted: _ClaimAdmission, until: int) -> dict[str, Refusal]:
        """Park the groups (jobs under the same limits) that a limit refuses.

        Claims skip them until the limit may have room.
        """
        names = self._groups.names
        full = {names[number]: refusal for number, refusal in admitted.full(groups).items()}
        refusals = {names[number]: refusal for number, refusal in admitted.refusals.items()}
        refusals |= self._parked_groups.only_with_due_jobs(full, until)
        if refusals:
            self._parked_groups.park(refusals)
        return refusals

    def _select_next_heads(
        self, groups: list[int], admitted: _ClaimAdmission, refusals: Collection[str], now: int
    ) -> None:
        """Let claims find the next job of each group, unless a limit refuses the group (it is parked)."""
        names, take_turns = self._groups.names, self._groups.take_turns
        headless = [number for number in admitted.headless() if not refusals or names[number] not in refusals]
        fair = [number for number in headless if take_turns[number]]
        self._heads.promote_next(fair, now)
        if len(fair) < len(headless):
            self._heads.promote_next([number for number in headless if not take_turns[number]], 0)
        if len(headless) < len(groups):
            self._heads.select_group_heads({names[number] for number in set(groups).difference(headless)}, now)

    def _pick_more(self, room: int, admitted: _ClaimAdmission, until: int) -> dict[int, list[LeaseRow]]:
        """Pick further jobs of the groups whose first jobs start, by group number, at most `room` in all.

        A group has the jobs of one queue, type and priority under the same limits. Each gets an equal share of the
        free slots.
        """
        wanted = admitted.with_room()[: max(0, room)]
        if not wanted:
            return {}
        share = -(-room // len(wanted))
        by_group = _by_group(self._pick(wanted, share, until))
        runs = {number: run for number in wanted if (run := by_group.get(number)) is not None}
        for run in runs.values():
            run.sort(key=_due)
            del run[share:]
        surplus = sum(map(len, runs.values())) - room
        for run in reversed(runs.values()):  # the first groups get the remainder
            if surplus <= 0:
                break
            if len(run) == share:
                run.pop()
                surplus -= 1
        return runs

    def _pick(self, groups: list[int], share: int, until: int) -> list[LeaseRow]:
        """Pick jobs due by `until` that wait behind the first job of each group; those of a group by submission.

        These are at most `share` jobs of each group, and as many again if the group has jobs that were rescheduled
        or came back for another reason. Jobs that cannot be read are left out, and become dead letters.
        """
        write, batch = self._database.write, to_json(groups)
        rows = self._rows.read(waiting_sql.PICK_OF_GROUPS, (batch, share, until))
        moved = write(waiting_sql.GROUPS_WITH_MOVED, (batch,))
        if numbers(moved):  # moved jobs come between the others, by seq
            rows += self._rows.read(waiting_sql.PICK_MOVED_OF_GROUPS, (moved, share, until))
            rows.sort(key=_seq)
        return self._rows.keep_readable(rows)

    def _unpark_others(self, refusals: dict[str, Refusal], admission: Admission) -> None:
        """For each bucket (limit and key) with room that a refused group cannot use, unpark another group.

        A refused group leaves the room in its other buckets to groups that wait for these.
        """
        self._parked_groups.unpark_for(
            {
                bucket: 1
                for group, refusal in refusals.items()
                for bucket in limits_of(group)
                if bucket != refusal.bucket and admission.room((bucket,), 1)
            }
        )


class _ClaimAdmission:
    """Decides which jobs of one claim their limits admit, and records the decisions by group number."""

    def __init__(self, gates: dict[int, CombinedLimit], admission: Admission) -> None:
        self._gates = gates
        self._admission = admission
        self._with_suspects: set[int] = set()
        self.last: dict[int, LeaseRow] = {}
        """For each group (jobs under the same limits), the last job that starts, without jobs with two crashes."""
        self.refusals: dict[int, Refusal] = {}
        """For each group with a job that a limit refused, this refusal: it names the limit and its key."""

    def admit_heads(self, rows: Iterable[LeaseRow]) -> list[LeaseRow]:
        """Admit and count the first waiting jobs of groups (jobs under the same limits), as far as these allow.

        Return the jobs that may start. Jobs without limits may always start.
        """
        started = []
        for row in rows:
            number = row.grp
            if number is not None:
                if not self._admit(number, 1):
                    continue
                if not is_suspect(row):
                    self.last[number] = row
                else:
                    self._with_suspects.add(number)
            started.append(row)
        return started

    def admit_members(self, runs: Mapping[int, list[LeaseRow]]) -> list[LeaseRow]:
        """Admit jobs behind the first ones of their groups as far as the limits allow, and count them.

        Return those that may start. The result has one job of each group in turn. Jobs that are not admitted are
        removed from `runs`.
        """
        admitted: list[list[LeaseRow]] = []
        for number, run in runs.items():
            count = self._admit(number, len(run))
            if count:
                del run[count:]
                admitted.append(run)
                self.last[number] = run[-1]
        return [row for turn in zip_longest(*admitted) for row in turn if row is not None]

    def with_room(self) -> list[int]:
        """Return the numbers of the groups (jobs under the same limits) whose limits would admit one more job.

        Only groups with a job that starts in this claim and has fewer than two crashes are returned.
        """
        if not self._admission.is_tight:  # the usual case
            return list(self.last)
        return [number for number in self.last if number not in self.refusals and self._gates[number].room(1)]

    def full(self, groups: Iterable[int]) -> dict[int, Refusal]:
        """Return the groups that have a full limit now, although this claim has not refused any of their jobs.

        Each group number is mapped to the `Refusal` that the next job of the group would get.
        """
        if not self._admission.is_tight:
            return {}
        refusals = {number: self._gates[number].refusal() for number in groups}
        return {
            number: refusal
            for number, refusal in refusals.items()
            if refusal is not None and number not in self.refusals
        }

    def headless(self) -> list[int]:
        """Return the numbers of the groups (jobs under the same limits) whose first waiting job starts, except
        groups that also start a job with two crashes.
        """
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
    """Return the rows of each group by its number; a group has the jobs of one queue, type and priority under the
    same limits.
    """
    runs: dict[int | None, list[LeaseRow]] = {}
    for row in rows:
        extras = row.extras  # inlined: for many rows, the property `grp` would cost more than the rest
        number = extras if extras.__class__ is int else row.grp
        run = runs.get(number)
        if run is None:
            runs[number] = [row]
        else:
            run.append(row)
    return runs


MAX_ROUNDS = 20  # how often one claim picks jobs at most, if limits refuse the picked ones


class JobClaimer:
    """Claims jobs for workers. For use inside a unit (one transaction)."""

    def __init__(self, store: Store, dead_letters: DeadLetterNotifier) -> None:
        self._database = store.database
        self._dead_letters = dead_letters
        self._lanes = store.lanes
        self._heads = store.heads
        self._events = store.events
        self._notes = store.notes
        self._now = store.now
        self._parked_groups = store.parked_groups
        self._groups = store.groups
        self._rows = RowReader(store, dead_letters)
        self._limited_claimer = LimitedJobClaimer(store, self._rows)
        self._wake = store.wake
        self._fresh = FreshShare()
        self._has_parked = False  # whether this claim parked a group, which may change the next time to fetch
        self._is_any_parked = 0  # whether groups were parked when this claim began
        self._is_any_spent = 0  # whether envelopes of deleted jobs were remembered when this claim began

    def take(self, worker: int, demands: Sequence[Demand], *, lead: int, start_lead: int) -> Taken:
        """Claim jobs for a worker; return their leases, and when the worker should fetch again.

        First expire jobs, and let jobs that a limit has refused be claimed again, if it is time. Jobs that cannot
        be read become dead letters. Return `is_alive=False` if the worker is not enrolled.
        """
        write = self._database.write
        now = self._now()
        if not write(sql.IS_ENROLLED, (worker,)):
            return Taken([], None, is_more=False, stops=[], is_alive=False)
        self._has_parked = False
        next_poll, next_firing = self._expire_and_unpark(now)
        leases: list[Lease] = []
        dues: list[int] = []
        is_more = False
        for demand in demands:
            lanes, lanes_ahead = self._lanes.matching(demand.types, demand.queues)
            if not lanes:
                continue
            suspects = demand.suspects and not any(map(is_suspect, leases))
            due = self._claim_due(worker, demand, lanes, now, now + start_lead, suspects=suspects)
            is_full = len(due) >= demand.starts or _is_full_of_single_attempts(demand, due)
            is_more |= is_full and self._has_more(lanes, now + start_lead)
            leases += due
            next_due = write(sql.NEXT_DUE, (lanes, now + start_lead))
            if demand.ahead > 0 and next_due is not None and next_due <= now + lead:
                leases += self._claim_ahead(worker, demand, lanes_ahead, now + start_lead, now + lead)
                next_due = write(sql.NEXT_DUE, (lanes, now + start_lead))
            if next_due is not None:
                dues.append(next_due)
        if self._has_parked:
            next_poll = self._next_poll()
        stops = strings(write(sql.STOP_REQUESTS, (worker,)))
        self._events.has_listener()  # so that workers know whether to report that handlers begin
        if any(lease.at_most_once and lease.is_started for lease in leases):
            self._database.require_sync()
        return Taken(
            leases,
            min(dues, default=None),
            is_more,
            stops,
            next_look=next_poll,
            next_firing=next_firing,
            may_be_spent=bool(self._is_any_spent),
        )

    def _expire_and_unpark(self, now: int) -> tuple[int | None, int | None]:
        """If it is time, expire jobs, and let claims try jobs again that wait for tokens of a rate.

        Return when to do so next, and the next occurrence of any schedule.
        """
        found = next_times(self._database.write(sql.NEXT_TIMES))
        expiry, admission, firing, self._is_any_parked, self._is_any_spent = found
        if (expiry is not None and expiry <= now) or (admission is not None and admission <= now):
            self._expire(now)
            self._parked_groups.unpark_for_rates(now)
            return self._next_poll(), firing
        return min((at for at in (expiry, admission) if at is not None), default=None), firing

    def _next_poll(self) -> int | None:
        expiry, admission, *_ = next_times(self._database.write(sql.NEXT_TIMES))
        return min((at for at in (expiry, admission) if at is not None), default=None)

    def _expire(self, now: int) -> None:
        self._database.write(sql.FORGET_EXPIRY, (now,))
        while expired := expired_rows(self._database.write(sql.EXPIRED, (now,))):
            seqs = [seq for seq, _, _ in expired]
            memberships = self._heads.memberships_of_rows(seqs)
            self._database.write(sql.EXPIRE, (to_json(seqs), now))
            self._parked_groups.update_after_leaving(memberships)
            for lane, jobs in Counter(lane for _, _, lane in expired).items():
                self._notes.add(EngineNote("expired", *self._lanes.queue_and_type(lane), jobs))
            ids = [job_id for _, job_id, _ in expired]
            self._events.write_states(ids, EventKind.FAILED)
            self._dead_letters.notify(ids)

    # -- due jobs

    def _claim_due(
        self, worker: int, demand: Demand, lanes: str, now: int, until: int, *, suspects: bool
    ) -> list[Lease]:
        if demand.starts <= 0:
            return []
        taken: list[Lease] = []
        has_unparked = False
        for _ in range(MAX_ROUNDS):
            room = demand.starts - len(taken)
            given_up = self._rows.given_up
            if demand.at_most_once and _is_full_of_single_attempts(demand, taken):
                lanes = self._lanes_of_others(demand)
                if not lanes:
                    break
            picked = self._pick(suspects and not any(map(is_suspect, taken)), room, lanes, now, until)
            rows = self._within_room(picked, demand, taken) if demand.at_most_once else picked
            if any(
                (extras := row.extras) is not None and extras.__class__ is not str and row.grp is not None
                for row in rows
            ):
                taken += self._claim_limited(worker, demand, rows, room, now=now, until=until)
            else:
                rows, leases = self._leases_of_readable(rows, demand, is_started=True)
                self._mark_started(worker, demand, rows, now)
                taken += leases
                # other jobs may be due behind those that were left or given up
                if len(rows) < len(picked) or self._rows.given_up > given_up:
                    continue
                # Unpark only once: this worker may be unable to claim the unparked groups, because their queue is
                # paused or their job types have no handler here.
                if len(rows) >= room or has_unparked or not self._unpark_for_free_capacity():
                    break
                has_unparked = True
            if len(taken) >= demand.starts:
                break
        else:
            self._wake()  # all rounds are used up, and more jobs may be due
        return taken

    def _claim_limited(
        self, worker: int, demand: Demand, rows: list[LeaseRow], room: int, *, now: int, until: int
    ) -> list[Lease]:
        """Start the jobs in `rows` that their limits admit, and further jobs under the same limits.

        Return the leases. At-most-once jobs are claimed by themselves, so that no more of them start than `rows`
        has.
        """
        rows = self._rows.keep_readable(rows)
        single: list[LeaseRow] = []
        others = rows
        if demand.at_most_once:
            single = [row for row in rows if self._is_single_attempt(row, demand)]
            others = [row for row in rows if not self._is_single_attempt(row, demand)]
        claimed: list[LeaseRow] = []
        for part, most in ((single, len(single)), (others, room - len(single))):
            if part:
                started, has_parked = self._limited_claimer.claim(
                    part, most, now, until, lambda jobs: self._mark_started(worker, demand, jobs, now)
                )
                claimed += started
                self._has_parked |= has_parked
        return self._leases(claimed, demand, is_started=True)

    # -- jobs that must not start a second time

    def _is_single_attempt(self, row: LeaseRow, demand: Demand) -> bool:
        return self._lanes.describe(row.lane).type in demand.at_most_once

    def _lanes_of_others(self, demand: Demand) -> str:
        """Return the lanes of a demand (each a queue, type and priority), without those of types in
        `Demand.at_most_once`.
        """
        types = tuple(name for name in demand.types if name not in demand.at_most_once)
        return self._lanes.matching(types, demand.queues)[0]

    def _within_room(self, rows: list[LeaseRow], demand: Demand, taken: Sequence[Lease]) -> list[LeaseRow]:
        """Return the rows, but only as many jobs that must not start a second time as may still start.

        `Demand.at_most_once_starts` is the largest number of such jobs, and `taken` has those that start already.
        """
        room = demand.at_most_once_starts - sum(lease.at_most_once for lease in taken)
        kept: list[LeaseRow] = []
        for row in rows:
            is_single = self._is_single_attempt(row, demand)
            if not is_single or room > 0:
                kept.append(row)
            room -= is_single
        return kept

    def _leases_of_readable(
        self, rows: list[LeaseRow], demand: Demand, *, is_started: bool
    ) -> tuple[list[LeaseRow], list[Lease]]:
        """Return the rows whose values can be decoded, and their leases; the other jobs become dead letters.

        Call it before the jobs are marked as leased.
        """
        try:
            return rows, self._leases(rows, demand, is_started=is_started)
        except UNREADABLE:
            kept = self._rows.keep_readable(rows)
            return kept, self._leases(kept, demand, is_started=is_started)

    def _leases(self, rows: list[LeaseRow], demand: Demand, *, is_started: bool) -> list[Lease]:
        describe, limits, once = self._lanes.describe, self._groups.limits, demand.at_most_once
        if not once:
            return [to_lease(row, describe(row.lane), limits, is_started=is_started) for row in rows]
        lanes = [(row, describe(row.lane)) for row in rows]
        return [
            to_lease(row, lane, limits, is_started=is_started, at_most_once=lane.type in once)
            for row, lane in lanes
        ]

    def _has_more(self, lanes: str, until: int) -> bool:
        """Return whether due jobs are left that could be claimed.

        If none is, let jobs be claimed that a limit has refused and that it would admit now, and look again.
        """
        return self._has_due(lanes, until) or (self._unpark_for_free_capacity() and self._has_due(lanes, until))

    def _unpark_for_free_capacity(self) -> bool:
        return bool(self._is_any_parked or self._has_parked) and self._parked_groups.unpark_for_free_capacity()

    def _has_due(self, lanes: str, until: int) -> bool:
        due, _, with_suspects = due_lanes(self._database.write(sql.DUE_LANES, (lanes, until)))
        return bool(due or with_suspects)

    def _pick(self, suspects: bool, starts: int, lanes: str, now: int, until: int) -> list[LeaseRow]:  # noqa: FBT001
        due, lane, with_suspects = due_lanes(self._database.write(sql.DUE_LANES, (lanes, until)))
        rows = self._pick_due(starts, lanes, now, until, only=lane if due == 1 else None) if due else []
        if suspects and with_suspects:
            rows += self._rows.read(sql.PICK_SUSPECTS, (lanes, 1, until))
            rows = sorted(rows, key=self._rank)[:starts]
        return rows

    def _pick_due(self, starts: int, lanes: str, now: int, until: int, *, only: int | None) -> list[LeaseRow]:
        """Pick due jobs of these lanes; `only` is the number of the lane that has them, if there is only one."""
        if only is None:
            rows = self._rows.read(sql.PICK_DUE, (lanes, starts, until))
        else:
            rows = self._rows.read(sql.PICK_DUE_OF_LANE, (only, starts, until))
        share = self._fresh.share(starts, rows[0].ready if len(rows) == starts else now, now)
        if not share:
            return rows
        fresh = self._rows.read(sql.PICK_BETWEEN, (lanes, share, now - FRESH, until))
        chosen = {row.seq for row in fresh}
        old = [row for row in rows if row.seq not in chosen][: starts - len(fresh)]
        return sorted(old + fresh, key=self._rank)

    def _rank(self, row: LeaseRow) -> tuple[int, int]:
        return row.ready - HEAD_START * self._lanes.describe(row.lane).priority, row.seq

    def _mark_started(self, worker: int, demand: Demand, rows: Collection[LeaseRow], now: int) -> None:
        if demand.at_most_once:
            single = [row.seq for row in rows if self._is_single_attempt(row, demand)]
            others = [row.seq for row in rows if not self._is_single_attempt(row, demand)]
        else:
            single, others = [], [row.seq for row in rows]
        if others:
            self._database.write(sql.MARK_STARTED, (to_json(others), worker, now, None))
        if single:
            self._database.write(sql.MARK_STARTED, (to_json(single), worker, now, 1))

    # -- jobs held before their due time

    def _claim_ahead(self, worker: int, demand: Demand, lanes: str, after: int, until: int) -> list[Lease]:
        picked = self._rows.read(sql.PICK_BETWEEN, (lanes, demand.ahead, after, until))
        rows, leases = self._leases_of_readable(picked, demand, is_started=False)
        if rows:
            self._database.write(sql.MARK_HELD, (to_json([row.seq for row in rows]), worker))
        return leases


def _is_full_of_single_attempts(demand: Demand, taken: Sequence[Lease]) -> bool:
    """Return whether no further job that runs at most once may start for this demand; False if it has no such
    types.
    """
    if not demand.at_most_once:
        return False
    return sum(lease.at_most_once for lease in taken) >= demand.at_most_once_starts
