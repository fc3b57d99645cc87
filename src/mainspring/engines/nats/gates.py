"""Sequences and limits: admits jobs to their lanes, and makes the others wait in line.

A gate is a sequence, a bucket of a limit, or a queue that can be paused. A job passes all its gates before it is
put into its lane. It requests its sequence first, which it holds until it is over, and then all its limits at
once. If one of them has no room, the job waits in the line at that gate. The job that makes room admits the next
one in the same transaction (a `Workspace`). The lines at one gate take turns, and only a few jobs of a key are in
the lanes at once, so that keys take turns there, too. `jobs.limits` decides about limits, `gate_records` has the
records. When a rate is changed, as many tokens are missing as before.

The jobs that wait at a gate are messages in the order of their arrival. A message is stored together with the
records of its job and of the gate, which counts it. It is deleted later; if the deletion is lost, the message is
stale, because the record of the job says whether and where it waits. The first job of a line is the one with the
smallest (turn, place). In most lines that is the oldest message; if a job came late, the order is exact among the
first `MIXED_PAGE`.

Invariant: if a job waits at a gate, then a job inside will leave it, or a wake-up is scheduled, or jobs of the
same group are ready and will start. A job that joins a line writes the record of the gate, so a transaction that
makes room at the same time cannot miss it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple

from mainspring.engines.nats.drafts import StreamEntry
from mainspring.engines.nats.gate_records import (
    AWAY,
    HELD,
    QUEUE,
    READY,
    SEQUENCE,
    STARTED,
    WAITS,
    Gate,
    Group,
    Standing,
    Waiter,
    buckets_in,
    group_of,
    is_untouched,
    placed,
    queue_gate,
    sequence_gate,
    standing_of,
)
from mainspring.engines.nats.naming import digest, from_token, to_token
from mainspring.engines.nats.settings_book import SettingsBook
from mainspring.engines.nats.stored import StoredJob, decode, decode_job, encode
from mainspring.engines.nats.workspace import Workshop, Workspace
from mainspring.jobs.limits import SEPARATOR, Admission, Bucket, BucketState, Refusal, family_of
from mainspring.jobs.timestamps import MICROSECONDS


def make_ready(workspace: Workspace, job: StoredJob) -> None:
    """Put a job into its lane. The record in that message may be outdated when a worker reads it."""
    ready = workspace.names.ready_of(job.queue, job.type, job.priority, job.id)
    workspace.announce(ready, job)


LINE_PAGE = 4
MIXED_PAGE = 64


class _LinePlace(NamedTuple):
    turn: int
    place: int
    job_id: str
    gates: tuple[str, ...]


class _Line:
    """The part of a line that a transaction has read or added."""

    def __init__(self) -> None:
        self.read: dict[str, _LinePlace] = {}
        self.appended: dict[str, _LinePlace] = {}
        """The jobs that joined in this transaction."""
        self.position = 0
        """The revision up to which the line was read."""
        self.is_at_end = False

    def __len__(self) -> int:
        return len(self.read) + len(self.appended)

    def first(self) -> _LinePlace:
        """Return the job with the smallest position among those that were read or added."""
        return min((*self.read.values(), *self.appended.values()))

    def forget(self, job_id: str) -> None:
        """Remove a job from the line."""
        self.read.pop(job_id, None)
        self.appended.pop(job_id, None)


def gates_of(job: StoredJob) -> tuple[str, ...]:
    """Return the names of all gates of a job, in the order in which it passes them."""
    first = () if job.sequence is None else (sequence_gate(job.sequence),)
    return (*first, *dict.fromkeys(job.limits))


class GateLines:
    """The lines of one transaction; it sees the jobs that it appends at once."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._names = workspace.names
        self._lines: dict[tuple[str, str], _Line] = {}

    def append(self, gate: Gate, group: Group, job: StoredJob) -> None:
        """Add a job at the end of a line. The caller writes the records of the job and the gate."""
        order = (job.turn, job.place)
        if group.waiting and order < (group.turn, group.place):
            group.is_mixed = True
        else:
            group.turn, group.place = order
            group.is_mixed = group.is_mixed and group.waiting > 0
        group.waiting += 1
        gates = gates_of(job)
        subject = self._names.waiting(gate.name, group.name, job.id)
        self._workspace.draft.put(subject, encode(Waiter(*order, gates)))
        self._line(gate, group).appended[job.id] = _LinePlace(*order, job.id, gates)

    def remove(self, gate: Gate, group: Group, job_id: str) -> None:
        """Remove a job from a line. The caller writes the records of the job and the gate."""
        group.waiting -= 1
        self._line(gate, group).forget(job_id)
        self._workspace.draft.purge(self._names.waiting(gate.name, group.name, job_id))

    def first(self, gate: Gate, group: Group) -> StoredJob | None:
        """Return the next job; None: the line is empty, or a replica that lags behind does not have it yet."""
        if not group.waiting:
            return None
        line = self._line(gate, group)
        while True:
            while not line.read and not line.is_at_end:
                self._read_on(gate, group, line)
            if not line or (group.is_mixed and line.is_at_end and len(line) < group.waiting):
                return None
            place = line.first()
            job = self._look_up(place)
            if job is not None and standing_of(job)[2:4] == (gate.name, group.name):
                return job
            line.forget(place.job_id)
            self._workspace.draft.purge(self._names.waiting(gate.name, group.name, place.job_id))

    def _line(self, gate: Gate, group: Group) -> _Line:
        return self._lines.setdefault((gate.name, group.name), _Line())

    def _look_up(self, place: _LinePlace) -> StoredJob | None:
        names = self._names
        gates = [names.gate(family_of(gate), gate) for gate in place.gates]
        self._workspace.prefetch([names.job(place.job_id), *gates])
        return self._workspace.job(place.job_id)

    def _read_on(self, gate: Gate, group: Group, line: _Line) -> None:
        page = MIXED_PAGE if group.is_mixed else LINE_PAGE
        subject = self._names.line(gate.name, group.name)
        found = self._workspace.scan(subject, after=line.position, most=page)
        for name, entry in found:
            job_id = from_token(name.rpartition(".")[2])
            if entry.data and job_id not in line.appended:  # else the appended one replaces this
                waiter = decode(entry.data, Waiter)
                line.read[job_id] = _LinePlace(waiter.turn, waiter.place, job_id, waiter.gates)
            line.position = max(line.position, entry.revision)
        line.is_at_end = len(found) < page


MOST_READY = 4
"""How many jobs of a group that takes turns are in the lanes at once, so that other groups get their turns."""
LEAD = 1 * MICROSECONDS
"""How long before it is due a reminder is delivered: a worker keeps it, and is more exact than the server."""
OVERDUE = 5 * MICROSECONDS
"""A wake-up that is this late is presumed lost."""


def fair_bucket(buckets: Iterable[Bucket]) -> Bucket | None:
    """Return the bucket that counts the ready jobs of a group; None: the group takes no turns with others."""
    return next((bucket for bucket in buckets if not bucket.endswith(SEPARATOR)), None)


class Visit:
    """Reads and writes gates within one transaction."""

    def __init__(self, workspace: Workspace, book: SettingsBook) -> None:
        self.workspace = workspace
        self.now = workspace.now
        self.lines = GateLines(workspace)
        self._book = book
        self._gates: dict[str, Gate] = {}

    # -- records

    def prefetch(self, jobs: Iterable[StoredJob]) -> None:
        """Read all gates of jobs, and the settings, at once."""
        self.prefetch_gates(gate for job in jobs for gate in gates_of(job))

    def prefetch_gates(self, gates: Iterable[str]) -> None:
        """Read gates, and the settings, at once."""
        self.workspace.prefetch([self.workspace.names.settings, *map(self._subject, gates)])

    def is_paused(self, queue: str) -> bool:
        """Return whether a queue is paused."""
        return queue in self._book.read(self.workspace).paused

    def gate(self, name: str) -> Gate:
        """Return a gate; a caller that changes it must save it."""
        gate = self._gates.get(name)
        if gate is None:
            subject = self._subject(name)
            gate = self._gates[name] = self.workspace.get_struct(subject, Gate) or Gate(name)
        return gate

    def save(self, gate: Gate) -> None:
        """Write a gate; the record of an idle gate is deleted, or expires when its rate has all tokens again."""
        workspace, subject = self.workspace, self._subject(gate.name)
        purges = workspace.draft.purges
        if not gate.is_idle():
            workspace.put(subject, encode(gate))
        elif gate.full_at > self.now:
            seconds = (gate.full_at - self.now) // MICROSECONDS + 1
            workspace.put(subject, encode(gate), {"Nats-TTL": f"{seconds}s"})
        else:
            workspace.put(subject, b"")
            if subject not in purges:
                purges.append(subject)
            return
        if subject in purges:
            purges.remove(subject)

    def _subject(self, name: str) -> str:
        return self.workspace.names.gate(family_of(name), name)

    # -- limits

    def refusal(self, buckets: tuple[Bucket, ...]) -> Refusal | None:
        """Return the refusal of the bucket that does not admit a job; None: all admit it."""
        return self._admission(buckets).refusal(buckets)

    def refusal_at(self, gate: Gate) -> Refusal | None:
        """Return the refusal of this gate alone; None: it admits a job."""
        if gate.name.startswith(QUEUE):
            is_open = not self.is_paused(gate.name.removeprefix(QUEUE))
            return None if is_open else Refusal(gate.name, None)
        return self.refusal((gate.name,))

    def is_its_turn(self, buckets: tuple[Bucket, ...]) -> bool:
        """Return whether the group of these buckets has few enough ready jobs for another one."""
        fair = fair_bucket(buckets)
        group = None if fair is None else self.gate(fair).find(group_of(buckets))
        return group is None or group.ready < MOST_READY

    def _admission(self, buckets: tuple[Bucket, ...]) -> Admission:
        limits = self._book.read(self.workspace).limits
        states = {}
        for bucket in buckets:
            gate = self.gate(bucket)
            limit = limits.get(family_of(bucket))
            full_at = 0
            if limit is not None and limit.per is not None:
                self._convert(gate, limit.interval)
                full_at = max(gate.full_at, self.now) + gate.reserved * limit.interval
            states[bucket] = BucketState(gate.inside, full_at)
        return Admission(limits, states, self.now)

    def _convert(self, gate: Gate, interval: int) -> None:
        if gate.interval not in (0, interval):
            missing = -(-max(0, gate.full_at - self.now) // gate.interval)
            gate.full_at = self.now + missing * interval
        gate.interval = interval

    def admit(self, job: StoredJob, inside: tuple[str, ...]) -> None:
        """Admit a job to all its limits, which do not refuse it, and make it ready."""
        buckets = tuple(dict.fromkeys(job.limits))
        reserved = tuple(bucket for bucket in buckets if self._interval(bucket))
        for bucket in buckets:
            gate = self.gate(bucket)
            gate.let_in(job)
            gate.reserved += bucket in reserved
        fair = fair_bucket(buckets)
        if fair is not None:
            self.gate(fair).count_ready(group_of(buckets))
        for bucket in buckets:
            self.save(self.gate(bucket))
        job = placed(job, Standing(READY, (*inside, *buckets), reserved=reserved))
        self.workspace.put_job(job)
        make_ready(self.workspace, job)

    def unready(self, standing: Standing, *, is_started: bool) -> list[str]:
        """Count a job as no longer ready; a start uses up its tokens. Return the gates that may admit others."""
        buckets = buckets_in(standing)
        fair = fair_bucket(buckets)
        counted = list(dict.fromkeys(standing.reserved if fair is None else (*standing.reserved, fair)))
        if counted:
            self.prefetch_gates(counted)
        for bucket in standing.reserved:
            gate = self.gate(bucket)
            gate.reserved -= 1
            interval = self._interval(bucket) if is_started else 0
            if interval:
                self._convert(gate, interval)
                gate.full_at = max(gate.full_at, self.now) + interval
            self.save(gate)
        group = None if fair is None else self.gate(fair).find(group_of(buckets))
        if fair is not None and group is not None and group.ready:
            group.ready -= 1
            self.gate(fair).drop(group)
            self.save(self.gate(fair))
        return counted

    def use_up(self, bucket: Bucket, full_at: int) -> None:
        """Use up tokens of a rate, so that all are available again at `full_at`; nothing if there is no rate."""
        interval = self._interval(bucket)
        if interval and full_at > self.now:
            gate = self.gate(bucket)
            self._convert(gate, interval)
            gate.full_at = max(gate.full_at, full_at)
            self.save(gate)

    def _interval(self, bucket: Bucket) -> int:
        """Return how many microseconds a token of a rate takes; 0 if there is no rate."""
        limit = self._book.read(self.workspace).limits.get(family_of(bucket))
        return 0 if limit is None or limit.per is None else limit.interval

    # -- wake-ups

    def wait_for(self, gate: Gate, refusal: Refusal) -> None:
        """Schedule a wake-up for when a rate has a token; if all are reserved, the next start admits others."""
        if refusal.until is not None and gate.full_at > self.now:
            self.poke(gate, refusal.until)

    def poke(self, gate: Gate, instant: int) -> None:
        """Schedule a wake-up of a gate at an instant."""
        if gate.poke is not None and self.now - OVERDUE < gate.poke <= instant + 1_000:
            return  # a wake-up is scheduled already
        gate.poke = instant
        self.save(gate)
        names, draft = self.workspace.names, self.workspace.draft
        key, data = digest(gate.name), encode([family_of(gate.name), gate.name, instant])
        if instant - self.now <= LEAD:
            draft.put(names.chore("poke", key), data)
        else:
            draft.schedule(names.at("poke", key), names.chore("poke", key), instant - LEAD, data)


MOST_PASSES = 50
"""How many jobs one gate admits in one transaction; an immediate wake-up admits the others."""
LAG = MICROSECONDS // 2
"""How long to wait for a replica that lags behind."""


class Keeper:
    """Admits jobs to gates or makes them wait, within one transaction."""

    def __init__(self, workspace: Workspace, book: SettingsBook) -> None:
        self._workspace = workspace
        self.visit = Visit(workspace, book)

    # -- entering

    def enter_sequence(self, job: StoredJob) -> bool:
        """Return whether a job gets its sequence; if not, it waits in line."""
        assert job.sequence is not None
        gate = self.visit.gate(sequence_gate(job.sequence))
        if gate.is_idle():
            self._hold(gate, job)
            return True
        if gate.inside and (job.turn, job.place) < (gate.turn, gate.place):
            holder = self._workspace.job(gate.holders[0])
            if holder is not None and is_untouched(holder):
                self._step_back(gate, holder)
                self._hold(gate, job)
                return True
        self._wait(gate, job)
        self._fill_sequence(gate)
        return False

    def _hold(self, gate: Gate, job: StoredJob) -> None:
        gate.let_in(job)
        gate.turn, gate.place = job.turn, job.place
        self.visit.save(gate)

    def _step_back(self, gate: Gate, holder: StoredJob) -> None:
        """Put the holder of a sequence, which has no owner, back in line: a job with an earlier turn has come."""
        self._take_from_lane(holder)
        holder, freed = self.take_out(holder, keeps_sequence=False)
        self._wait(gate, holder)
        self.fill_all([name for name in freed if name != gate.name])

    def step_back_from_limits(self, job: StoredJob) -> None:
        """Take a ready job out of its limits, and request them again: its queue is paused."""
        self._take_from_lane(job)
        job, freed = self.take_out(job, keeps_sequence=True)
        self._try(job)
        self.fill_all(freed)

    def _take_from_lane(self, job: StoredJob) -> None:
        self._workspace.withdraw(self._workspace.names.ready_of(job.queue, job.type, job.priority, job.id))

    def ask_limits(self, job: StoredJob) -> None:
        """Admit a job to its limits, after the waiting jobs of its group and all others that there is room for."""
        for bucket in dict.fromkeys(job.limits):
            gate = self.visit.gate(bucket)
            self._fill(gate)
            group = gate.find(group_of(job.limits))
            if group is not None and group.waiting:
                self._wait(gate, job)
                return
        self._try(job)

    def _try(self, job: StoredJob) -> bool:
        """Admit a job to its limits, or make it wait at the first that refuses; return whether it was admitted."""
        buckets = tuple(dict.fromkeys(job.limits))
        inside = () if job.sequence is None else (sequence_gate(job.sequence),)
        if buckets and self.visit.is_paused(job.queue):
            self._wait(self.visit.gate(queue_gate(job.queue)), job)
            return False
        refusal = self.visit.refusal(buckets)
        fair = fair_bucket(buckets)
        if refusal is not None:
            gate = self.visit.gate(refusal.bucket)
            self._wait(gate, job)
            self.visit.wait_for(gate, refusal)
        elif fair is not None and not self.visit.is_its_turn(buckets):
            self._wait(self.visit.gate(fair), job)
        else:
            self.visit.admit(job, inside)
            return True
        return False

    def _wait(self, gate: Gate, job: StoredJob) -> None:
        is_sequence = gate.name.startswith(SEQUENCE)
        group = gate.group("" if is_sequence else group_of(job.limits))
        self.visit.lines.append(gate, group, job)
        self.visit.save(gate)
        inside = () if is_sequence or job.sequence is None else (sequence_gate(job.sequence),)
        self._workspace.put_job(placed(job, Standing(WAITS, inside, gate.name, group.name)))

    # -- leaving

    def give_way(self, job: StoredJob) -> StoredJob:
        """Put a job that waits for its retry back in line, if a job with an earlier turn has come meanwhile."""
        gate = self.visit.gate(standing_of(job).inside[0])
        group = gate.find("")
        first = None if group is None else self.visit.lines.first(gate, group)
        if first is None or (first.turn, first.place) > (job.turn, job.place):
            return job
        gate.let_out(job)
        self._wait(gate, job)
        self._fill_sequence(gate)
        return placed(job, Standing(WAITS, (), gate.name, ""))

    def take_out(self, job: StoredJob, *, keeps_sequence: bool) -> tuple[StoredJob, list[str]]:
        """Take a job out of its line and gates; return it and the gates that have room now."""
        standing = standing_of(job)
        if standing.state == WAITS:
            gate = self.visit.gate(standing.gate)
            group = gate.group(standing.group)
            self.visit.lines.remove(gate, group, job.id)
            gate.drop(group)
            self.visit.save(gate)
        kept = tuple(name for name in standing.inside if keeps_sequence and name.startswith(SEQUENCE))
        freed = [name for name in standing.inside if name not in kept]
        for name in freed:
            self.visit.gate(name).let_out(job)
            self.visit.save(self.visit.gate(name))
        if standing.state == READY:
            self.visit.unready(standing, is_started=False)
        job = placed(job, Standing(HELD if kept else AWAY, kept))
        self._workspace.put_job(job)  # until the caller writes it, no lookup finds it at its old position
        return job, freed

    # -- admitting

    def fill_all(self, names: Iterable[str]) -> None:
        """Admit waiting jobs at several gates."""
        for name in names:
            self.fill(self.visit.gate(name))

    def fill(self, gate: Gate) -> None:
        """Admit waiting jobs, as far as there is room."""
        if gate.name.startswith(SEQUENCE):
            self._fill_sequence(gate)
        else:
            self._fill(gate)

    def _fill_sequence(self, gate: Gate) -> None:
        group = gate.find("")
        if gate.inside or group is None:
            return
        job = self.visit.lines.first(gate, group)
        if job is None:
            self.visit.poke(gate, self.visit.now + LAG)
            return
        self.visit.lines.remove(gate, group, job.id)
        gate.drop(group)
        self._hold(gate, job)
        if job.due <= self.visit.now:
            self.ask_limits(job)
            return
        self._workspace.put_job(placed(job, Standing(HELD, (gate.name,))))
        names, draft = self._workspace.names, self._workspace.draft
        draft.schedule(names.at("job", job.id), names.chore("enter", job.id), job.due, encode([job.due]))

    def _fill(self, gate: Gate) -> None:
        held_up: set[str] = set()
        for _ in range(MOST_PASSES):
            groups = (group for group in gate.groups if group.waiting and group.name not in held_up)
            group = next(groups, None)
            if group is None:
                return
            refusal = self.visit.refusal_at(gate)
            if refusal is not None:
                self.visit.wait_for(gate, refusal)
                return
            job = None if group.ready >= MOST_READY else self.visit.lines.first(gate, group)
            if job is not None:
                self.visit.lines.remove(gate, group, job.id)
                gate.rotate(group)
                self.visit.save(gate)
                if self._try(job):
                    continue
            elif group.ready < MOST_READY:
                self.visit.poke(gate, self.visit.now + LAG)
            held_up.add(group.name)
        if gate.is_waited_for:
            self.visit.poke(gate, self.visit.now)


FILLED_AT_ONCE = 16
MOST_POKES = 300
"""How many gates are checked at once when a limit changes; a later wake-up checks the others."""
TAKEN_BACK_AT_ONCE = 100
"""How many jobs leave their limits in one transaction when their queue is paused."""
PAGE = 500
AFTERTHOUGHT = 5 * MICROSECONDS
"""How long after a change of settings gates are checked again: transactions may have read the old ones."""


class Gates:
    """Admits jobs to sequences and limits. Any thread may call `refusal_of` and `behind`, the writer the rest."""

    def __init__(self, book: SettingsBook) -> None:
        self._book = book

    def _keeper(self, workspace: Workspace) -> Keeper:
        keeper = workspace.keeper
        if not isinstance(keeper, Keeper):
            keeper = workspace.keeper = Keeper(workspace, self._book)
        return keeper

    def prefetch(self, workspace: Workspace, jobs: Iterable[StoredJob]) -> None:
        """Read the gates of many jobs at once."""
        gated = list(jobs)
        if gated:
            self._keeper(workspace).visit.prefetch(gated)

    # -- jobs

    def enter(self, workspace: Workspace, job: StoredJob) -> None:
        """Make a due job ready, or make it wait at a gate; one that waits or is ready already stays as it is."""
        state = standing_of(job).state
        if state not in (AWAY, HELD):
            return
        keeper = self._keeper(workspace)
        keeper.visit.prefetch([job])
        if job.sequence is None or state == HELD or keeper.enter_sequence(job):
            keeper.ask_limits(job)

    def started(self, workspace: Workspace, job: StoredJob) -> StoredJob:
        """Record the start of a ready job, and admit the next one of its key. The caller writes the job."""
        standing = standing_of(job)
        if standing.state != READY:
            return job
        keeper = self._keeper(workspace)
        keeper.fill_all(keeper.visit.unready(standing, is_started=True))
        return placed(job, standing._replace(state=STARTED))

    def leave(self, workspace: Workspace, job: StoredJob, *, keeps_sequence: bool) -> StoredJob:
        """Take a job that runs no more out of its gates, and admit others.

        The caller writes the job, and calls `enter` if it is due again. The job may keep its sequence, if it is
        not over and no job with an earlier turn has come meanwhile.
        """
        keeper = self._keeper(workspace)
        keeper.visit.prefetch([job])
        job, freed = keeper.take_out(job, keeps_sequence=keeps_sequence and not job.is_over)
        keeper.fill_all(freed)
        return keeper.give_way(job) if standing_of(job).state == HELD else job

    def withdraw(self, workspace: Workspace, job: StoredJob) -> StoredJob:
        """Take a job that has not started out of its line and gates, and admit others; the caller writes it."""
        return self.leave(workspace, job, keeps_sequence=False)

    def hold_sequence(self, workspace: Workspace, job: StoredJob) -> StoredJob:
        """Give its sequence, or a place in line, to a job whose turn has come but which is due later."""
        keeper = self._keeper(workspace)
        keeper.visit.prefetch([job])
        gate = sequence_gate(job.sequence or "")
        if keeper.enter_sequence(job):
            return placed(job, Standing(HELD, (gate,)))
        return placed(job, Standing(WAITS, (), gate, ""))

    # -- gates

    def prefetch_named(self, workspace: Workspace, names: Iterable[str]) -> None:
        """Read gates by name, at once."""
        self._keeper(workspace).visit.prefetch_gates(names)

    def use_up(self, workspace: Workspace, bucket: str, full_at: int) -> None:
        """Use up tokens of a rate, so that all are available again at `full_at`."""
        self._keeper(workspace).visit.use_up(bucket, full_at)

    def poke(self, workspace: Workspace, family: str, gate: str) -> None:
        """Handle a wake-up: check a gate, or without a name all gates of a family."""
        keeper = self._keeper(workspace)
        if not gate:
            self._fill_family(workspace, family)
            return
        keeper.visit.prefetch_gates([gate])
        record = keeper.visit.gate(gate)
        if record.poke is not None:
            record.poke = None
            keeper.visit.save(record)
        if gate.startswith(QUEUE):
            self._take_back_paused(workspace, gate.removeprefix(QUEUE))
        keeper.fill(record)

    def limits_changed(self, workshop: Workshop, families: Iterable[str]) -> None:
        """Admit jobs that waited for limits that have changed."""
        for family in families:
            workshop.carry_through(partial(self._change_family, family=family))

    def _change_family(self, workspace: Workspace, family: str) -> None:
        self._fill_family(workspace, family)
        self._look_again(workspace, family, "")

    def _look_again(self, workspace: Workspace, family: str, gate: str) -> None:
        names, key = workspace.names, digest(family, gate, "again")
        instant = workspace.now + AFTERTHOUGHT
        data = encode([family, gate, instant])
        workspace.draft.schedule(names.at("poke", key), names.chore("poke", key), instant, data)

    def _fill_family(self, workspace: Workspace, family: str) -> None:
        visit = self._keeper(workspace).visit
        found = _pages(workspace, workspace.names.gates_of(family))
        waited_for = [
            gate for _, entry in found if entry.data and (gate := decode(entry.data, Gate)).is_waited_for
        ]
        names = [gate.name for gate in waited_for]
        visit.prefetch_gates(names[:FILLED_AT_ONCE])
        self._keeper(workspace).fill_all(names[:FILLED_AT_ONCE])
        for name in names[FILLED_AT_ONCE:MOST_POKES]:
            data = encode([family, name, 0])
            workspace.draft.put(workspace.names.chore("poke", digest(name)), data)
        if len(names) > MOST_POKES:  # by then no job waits at these any more
            self._look_again(workspace, family, "")

    # -- queues

    def queue_changed(self, workshop: Workshop, queue: str) -> None:
        """Take jobs under limits out of them if their queue was paused, or admit them again if it was resumed."""
        workshop.carry_through(partial(self._change_queue, queue=queue))

    def _change_queue(self, workspace: Workspace, queue: str) -> None:
        gate = queue_gate(queue)
        self.poke(workspace, family_of(gate), gate)
        self._look_again(workspace, family_of(gate), gate)

    def _take_back_paused(self, workspace: Workspace, queue: str) -> None:
        """Take jobs of a paused queue back from its lanes, if they occupy limits that other queues share."""
        keeper = self._keeper(workspace)
        if not keeper.visit.is_paused(queue):
            return
        ids: list[str] = []
        for _, entry in _pages(workspace, f"{workspace.names.ready}{to_token(queue)}.>"):
            # A message that a schedule has published is empty, and its job is not gated.
            job = decode_job(entry.data) if entry.data else None
            if job is not None and job.limits and len(ids) < TAKEN_BACK_AT_ONCE:
                ids.append(job.id)
        workspace.prefetch_jobs(ids)
        for job_id in ids:
            found = workspace.job(job_id)
            if found is not None and standing_of(found).state == READY:
                keeper.step_back_from_limits(found)
        if len(ids) == TAKEN_BACK_AT_ONCE:
            gate = queue_gate(queue)
            data = encode([family_of(gate), gate, 0])
            workspace.draft.put(workspace.names.chore("poke", digest(gate)), data)

    # -- readers

    def refusal_of(self, workspace: Workspace, job: StoredJob) -> tuple[Refusal | None, tuple[str, ...]]:
        """Return the limit that would refuse a job now, and some of the jobs inside it."""
        visit = Keeper(workspace, self._book).visit
        if standing_of(job).state in (READY, STARTED):
            return None, ()
        visit.prefetch([job])
        refusal = visit.refusal(tuple(dict.fromkeys(job.limits)))
        if refusal is None or refusal.until is not None:
            return refusal, ()
        return refusal, tuple(visit.gate(refusal.bucket).holders)

    def behind(self, workspace: Workspace, job: StoredJob) -> str | None:
        """Return the job that a job waits for in its sequence; None if there is none."""
        if job.sequence is None:
            return None
        visit = Keeper(workspace, self._book).visit
        gate = visit.gate(sequence_gate(job.sequence))
        group = gate.find("")
        if gate.inside:
            front: str | None = gate.holders[0]
        else:
            first = None if group is None else visit.lines.first(gate, group)
            front = None if first is None else first.id
        return None if front == job.id else front


def _pages(workspace: Workspace, subject: str) -> Iterator[tuple[str, StreamEntry]]:
    position, page = 0, PAGE
    while page == PAGE:
        found = workspace.scan(subject, after=position, most=PAGE)
        page = len(found)
        for subject_and_entry in found:
            position = subject_and_entry[1].revision
            yield subject_and_entry
