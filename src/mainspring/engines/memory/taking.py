"""Taking: which jobs a worker gets, and how they are held, started, or found to be too late.

Jobs are started one after another, because each start may use up what a later one needs, and may let another job
of its group be claimed that comes before the rest.
"""

from __future__ import annotations

from itertools import islice
from math import inf

from msgspec import Struct

from mainspring.engines.memory.claims import Pick
from mainspring.engines.memory.jobs import Jobs
from mainspring.engines.memory.journal import Journal
from mainspring.jobs.engine import (
    HEAD_START,
    SUSPECT_CRASHES,
    Backlog,
    Demand,
    JobRecord,
    Lease,
)
from mainspring.jobs.fairness import FRESH, FreshShare
from mainspring.jobs.status import JobStatus
from mainspring.jobs.transitions import expired, held, lease_of, started, started_by_holder
from mainspring.jobs.waiting import MOST_COUNTED, First, Waiting, gather


class Search(Struct, gc=False):
    """Which jobs to start for a worker."""

    worker: int
    demand: Demand
    now: int
    after: float
    until: int
    suspects: bool
    """Whether one suspect may be among them."""


class Taking:
    """Gives jobs to workers."""

    def __init__(self, jobs: Jobs, journal: Journal) -> None:
        self._jobs = jobs
        self._claims = jobs.backlog.claims
        self._groups = jobs.backlog.groups
        self._parking = jobs.backlog.parking
        self._journal = journal
        self._fresh = FreshShare()

    def start_due(self, worker: int, demand: Demand, now: int, until: int) -> list[Lease]:
        """Start what is due: the oldest, and beside a backlog some that have just become due."""
        room = demand.starts
        if room <= 0:
            return []
        search = Search(worker, demand, now, -inf, until, demand.suspects)
        picks = self._pick(search, room)
        share = self._fresh.share(room, self._ready(picks[0]) if len(picks) == room else now, now)
        if not share:
            return self._start(search, picks, room)
        fresh_search = Search(worker, demand, now, now - FRESH, until, suspects=False)
        fresh = self._start(fresh_search, self._pick(fresh_search, share), share)
        room -= len(fresh)
        return sorted(self._start(search, self._pick(search, room), room) + fresh, key=_rank)

    def is_more(self, demand: Demand, now: int, until: int) -> bool:
        """Answer whether more could be started if there were room."""
        search = Search(0, demand, now, -inf, until, demand.suspects)
        self._groups.refresh(now)
        while picks := self._pick(search, 1):
            job = self._jobs.records[picks[0][-1]]
            refusal = self._jobs.buckets.look(job.limits, now) if job.limits else None
            if refusal is None:
                return True
            self._groups.park(job, refusal)
            self._groups.refresh(now)
        return False

    def hold_ahead(self, worker: int, demand: Demand, after: int, until: int) -> list[Lease]:
        """Hold what will be due soon."""
        if demand.ahead <= 0:
            return []
        picks = self._claims.pick_ahead(demand, demand.ahead, after, until)
        return [self._hold(self._jobs.records[pick[-1]], worker) for pick in picks]

    def start(self, job: JobRecord, now: int) -> None:
        """Start a job that its worker holds."""
        self._note_start(started_by_holder(job, now), now)

    def refresh(self, now: int) -> None:
        """Give up the jobs whose time has run out, and look again at the limits that may admit by now."""
        self._expire(now)
        self._groups.refresh(now)

    def _expire(self, now: int) -> None:
        """Give jobs up, except for those in a worker's hands, which are its own to start."""
        expiring = self._jobs.expiring
        while (first := expiring.first_until(now)) is not None:
            expiring.leave(first[1])
            job = self._jobs.records[first[1]]
            if job.owner is None:
                late = expired(job, now)
                self._jobs.put(late)
                self._journal.write_failed(late, now)

    def next_look(self) -> int | None:
        """Return when a limit admits again or a job expires."""
        first = self._jobs.expiring.first()
        instants = (None if first is None else first[0][0], self._parking.next_token())
        return min((instant for instant in instants if instant is not None), default=None)

    def waiting(self, now: int) -> tuple[Waiting, ...]:
        """Return the jobs that anybody who knows their handlers could start."""
        self._groups.refresh(now)
        firsts = []
        is_suspect_busy = any(_is_busy_suspect(job) for job in self._jobs.in_hands())
        for lane, entries in self._claims.due(now):
            if lane[3] and is_suspect_busy:
                continue  # of these, a worker takes one at a time
            startable = (entry for entry in entries if self._may_start(self._jobs.records[entry[-1]], now))
            found = list(islice(startable, MOST_COUNTED))
            if found:
                ready, job_id = found[0][0], found[0][-1]
                token = self._jobs.records[job_id].token
                firsts.append(First(lane[0], lane[1], lane[2], job_id, token, ready, len(found)))
        return gather(firsts)

    def backlog(self, now: int) -> list[Backlog]:
        """Return what anybody who knew the handlers could start, paused queues included."""
        self._groups.refresh(now)
        return self._claims.backlog(now, lambda job_id: self._may_start(self._jobs.records[job_id], now))

    def _may_start(self, job: JobRecord, now: int) -> bool:
        is_late = job.expires is not None and job.expires <= now
        return not is_late and (not job.limits or self._jobs.buckets.look(job.limits, now) is None)

    def _pick(self, search: Search, limit: int) -> list[Pick]:
        picks = self._claims.pick(search.demand, limit, search.after, search.until)
        if search.suspects:
            suspects = self._claims.pick(search.demand, 1, search.after, search.until, suspects=True)
            picks = sorted(picks + suspects)[:limit] if suspects else picks
        return picks

    def _ready(self, pick: Pick) -> int:
        rank, _, _, job_id = pick
        return rank + HEAD_START * self._jobs.records[job_id].priority

    def _start(self, search: Search, picks: list[Pick], room: int) -> list[Lease]:
        leases: list[Lease] = []
        while picks and room > 0:
            is_limited = False
            for pick in picks:
                job = self._jobs.records[pick[-1]]
                is_limited |= bool(job.limits)
                if not job.limits or self._is_admitted(job, search.now):
                    running = started(job, search.worker, search.now, is_held=False)
                    self._note_start(running, search.now)
                    leases.append(lease_of(running, self._jobs.places[job.id], is_started=True))
                    search.suspects &= job.crashes < SUSPECT_CRASHES  # one at most
                if job.limits and self._may_come_before(picks[-1], job):
                    break
            if not is_limited:
                break  # these were all
            self._groups.refresh(search.now)
            picks = self._pick(search, room - len(leases))
        return leases

    def _is_admitted(self, job: JobRecord, now: int) -> bool:
        refusal = self._jobs.buckets.admit(job.limits, now)
        if refusal is None:
            self._groups.note_start(job, now)
        else:
            self._groups.park(job, refusal)
        return refusal is None

    def _may_come_before(self, last: Pick, job: JobRecord) -> bool:
        """Answer whether others have come up that are to be looked at before the last one."""
        first = self._groups.first_after(job)
        return self._parking.is_marked or (first is not None and first < last)

    def _hold(self, job: JobRecord, worker: int) -> Lease:
        in_hand = held(job, worker)
        self._jobs.put(in_hand)
        return lease_of(in_hand, self._jobs.places[job.id], is_started=False)

    def _note_start(self, job: JobRecord, now: int) -> None:
        self._jobs.put(job)
        self._journal.note_start(job, now)


def _rank(lease: Lease) -> int:
    return lease.due - HEAD_START * lease.priority


def _is_busy_suspect(job: JobRecord) -> bool:
    return job.status is JobStatus.RUNNING and job.crashes >= SUSPECT_CRASHES
