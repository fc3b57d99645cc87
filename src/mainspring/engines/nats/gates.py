"""Sequences and limits: a job passes all its gates before it stands in its lane.

A job asks for its sequence first, which it holds until it is over, and then for its limits, all at once. If one of
them has no room, the job waits in the line before that gate, and the job that makes room lets the next one pass in
the same transaction. Lines before one gate take turns; so do jobs in the lanes, where only a few of a key stand at
once. What limits mean is decided in `jobs.limits`; `gate_records` has the records. When a rate is changed, as many
tokens are missing as before.

The jobs that wait before a gate are messages in the order of their arrival. A message is stored together with the
records of its job and of the gate, which counts it. It is deleted afterwards; if that is lost, the message is
stale, because the record of the job says whether and where it waits. The first job of a line is the one with the
smallest (turn, place). In most lines that is the oldest message; where a job came late, the order is exact among
the first `MIXED_PAGE`.

Invariant: if a job waits before a gate, then a job inside will leave it, or a wake-up is on its way, or jobs of
the same group are ready and will start. A job that joins a line writes the record of the gate, so it is not
overlooked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple

from mainspring.engines.nats.drafts import Entry
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
from mainspring.jobs.instants import MICROSECONDS
from mainspring.jobs.limits import SEPARATOR, Admission, Bucket, BucketState, Refusal, family_of


def make_ready(workspace: Workspace, job: StoredJob) -> None:
    """Put a job into its lane. What is written there of it may be outdated when it is read."""
    ready = workspace.names.ready_of(job.queue, job.type, job.priority, job.id)
    workspace.announce(ready, job)


LINE_PAGE = 4
MIXED_PAGE = 64


class _Place(NamedTuple):
    turn: int
    place: int
    job_id: str
    gates: tuple[str, ...]


class _Line:
    """What a workspace has seen of a line."""

    def __init__(self) -> None:
        self.read: dict[str, _Place] = {}
        self.appended: dict[str, _Place] = {}
        """Who came in this workspace."""
        self.position = 0
        """Up to which message it was read."""
        self.is_at_end = False

    def __len__(self) -> int:
        return len(self.read) + len(self.appended)

    def first(self) -> _Place:
        """Return the smallest of those that were seen."""
        return min((*self.read.values(), *self.appended.values()))

    def forget(self, job_id: str) -> None:
        """Remove a job from the line."""
        self.read.pop(job_id, None)
        self.appended.pop(job_id, None)


def gates_of(job: StoredJob) -> tuple[str, ...]:
    """Name all gates of a job, in the order in which it passes them."""
    first = () if job.sequence is None else (sequence_gate(job.sequence),)
    return (*first, *dict.fromkeys(job.limits))


class Lines:
    """The lines of one workspace; what is appended here is in line at once."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._names = workspace.names
        self._lines: dict[tuple[str, str], _Line] = {}

    def append(self, gate: Gate, group: Group, job: StoredJob) -> None:
        """Let a job wait behind the others. The caller writes the record of both."""
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
        self._line(gate, group).appended[job.id] = _Place(*order, job.id, gates)

    def remove(self, gate: Gate, group: Group, job_id: str) -> None:
        """Let a job wait no more."""
        group.waiting -= 1
        self._line(gate, group).forget(job_id)
        self._workspace.draft.purge(self._names.waiting(gate.name, group.name, job_id))

    def first(self, gate: Gate, group: Group) -> StoredJob | None:
        """Return the next job; None: the line is empty, or a server that lags behind does not know the job yet."""
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

    def _look_up(self, place: _Place) -> StoredJob | None:
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
            if entry.data and job_id not in line.appended:  # else this is what it replaces
                waiter = decode(entry.data, Waiter)
                line.read[job_id] = _Place(waiter.turn, waiter.place, job_id, waiter.gates)
            line.position = max(line.position, entry.revision)
        line.is_at_end = len(found) < page


MOST_READY = 4
"""How many jobs of a group that takes turns stand in the lanes at once: others come between them."""
LEAD = 1 * MICROSECONDS
"""How long before its time a reminder is delivered: a worker keeps it, and is more exact than the server."""
OVERDUE = 5 * MICROSECONDS
"""After which a poke that did not come is not waited for."""


def fair_bucket(buckets: Iterable[Bucket]) -> Bucket | None:
    """Return the bucket where the ready jobs of a group are counted; None: it takes no turns with others."""
    return next((bucket for bucket in buckets if not bucket.endswith(SEPARATOR)), None)


class Visit:
    """The gates of one workspace."""

    def __init__(self, workspace: Workspace, book: SettingsBook) -> None:
        self.workspace = workspace
        self.now = workspace.now
        self.lines = Lines(workspace)
        self._book = book
        self._gates: dict[str, Gate] = {}

    # -- records

    def prefetch(self, jobs: Iterable[StoredJob]) -> None:
        """Read all gates of jobs at once, and the settings with them."""
        self.prefetch_gates(gate for job in jobs for gate in gates_of(job))

    def prefetch_gates(self, gates: Iterable[str]) -> None:
        """Read gates at once, and the settings with them."""
        self.workspace.prefetch([self.workspace.names.settings, *map(self._subject, gates)])

    def is_paused(self, queue: str) -> bool:
        """Answer whether no jobs of a queue start."""
        return queue in self._book.read(self.workspace).paused

    def gate(self, name: str) -> Gate:
        """Return a gate; whoever changes it saves it."""
        gate = self._gates.get(name)
        if gate is None:
            subject = self._subject(name)
            gate = self._gates[name] = self.workspace.get_struct(subject, Gate) or Gate(name)
        return gate

    def save(self, gate: Gate) -> None:
        """Write a gate; one that is of no interest any more vanishes."""
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
        """Say which bucket would not let a job pass; None: all would."""
        return self._admission(buckets).refusal(buckets)

    def refusal_at(self, gate: Gate) -> Refusal | None:
        """Say whether this gate alone lets nobody pass."""
        if gate.name.startswith(QUEUE):
            is_open = not self.is_paused(gate.name.removeprefix(QUEUE))
            return None if is_open else Refusal(gate.name, None)
        return self.refusal((gate.name,))

    def is_its_turn(self, buckets: tuple[Bucket, ...]) -> bool:
        """Answer whether not too many of its group are ready already."""
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
        """Let a job pass all its limits, which do not refuse it: it is ready."""
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
        """Count a job as ready no more; a start uses up its tokens. Return where others may pass then."""
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
        """Let tokens of a rate be missing until an instant, if there is such a rate."""
        interval = self._interval(bucket)
        if interval and full_at > self.now:
            gate = self.gate(bucket)
            self._convert(gate, interval)
            gate.full_at = max(gate.full_at, full_at)
            self.save(gate)

    def _interval(self, bucket: Bucket) -> int:
        """Return how long a token of a rate takes; 0 if there is no rate."""
        limit = self._book.read(self.workspace).limits.get(family_of(bucket))
        return 0 if limit is None or limit.per is None else limit.interval

    # -- later

    def wait_for(self, gate: Gate, refusal: Refusal) -> None:
        """See to it that somebody comes when a rate lets others pass; if all is set aside, whoever starts will."""
        if refusal.until is not None and gate.full_at > self.now:
            self.poke(gate, refusal.until)

    def poke(self, gate: Gate, instant: int) -> None:
        """See to it that somebody comes to look at a gate at an instant."""
        if gate.poke is not None and self.now - OVERDUE < gate.poke <= instant + 1_000:
            return  # somebody will come already
        gate.poke = instant
        self.save(gate)
        names, draft = self.workspace.names, self.workspace.draft
        key, data = digest(gate.name), encode([family_of(gate.name), gate.name, instant])
        if instant - self.now <= LEAD:
            draft.put(names.chore("poke", key), data)
        else:
            draft.schedule(names.at("poke", key), names.chore("poke", key), instant - LEAD, data)


MOST_PASSES = 50
"""How many pass one gate in one draft; for the others somebody comes again at once."""
LAG = MICROSECONDS // 2
"""How long to wait for a server that lags behind."""


class Keeper:
    """Lets jobs pass."""

    def __init__(self, workspace: Workspace, book: SettingsBook) -> None:
        self._workspace = workspace
        self.visit = Visit(workspace, book)

    # -- coming

    def enter_sequence(self, job: StoredJob) -> bool:
        """Answer whether it is the turn of a job in its sequence; if not, it waits."""
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
        """One has come whose turn is before that of the holder, with which nobody has begun."""
        self._take_from_lane(holder)
        holder, freed = self.take_out(holder, keeps_sequence=False)
        self._wait(gate, holder)
        self.fill_all([name for name in freed if name != gate.name])

    def step_back_from_limits(self, job: StoredJob) -> None:
        """A job that is ready is to ask for its limits anew: its queue is paused."""
        self._take_from_lane(job)
        job, freed = self.take_out(job, keeps_sequence=True)
        self._try(job)
        self.fill_all(freed)

    def _take_from_lane(self, job: StoredJob) -> None:
        self._workspace.withdraw(self._workspace.names.ready_of(job.queue, job.type, job.priority, job.id))

    def ask_limits(self, job: StoredJob) -> None:
        """Let a job pass its limits, behind those of its group who wait, and behind all for whom there is room."""
        for bucket in dict.fromkeys(job.limits):
            gate = self.visit.gate(bucket)
            self._fill(gate)
            group = gate.find(group_of(job.limits))
            if group is not None and group.waiting:
                self._wait(gate, job)
                return
        self._try(job)

    def _try(self, job: StoredJob) -> bool:
        """Let a job pass its limits, or wait before the first that refuses it; answer whether it passed."""
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

    # -- going

    def give_way(self, job: StoredJob) -> StoredJob:
        """Let a job that waits for its next attempt wait in line, if one came meanwhile whose turn is earlier."""
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
        """Take a job out of where it stands; return it and the gates that have room now."""
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
        self._workspace.put_job(job)  # so that nobody meets it where it was, until the caller writes it
        return job, freed

    # -- room

    def fill_all(self, names: Iterable[str]) -> None:
        """Let pass who waits before several gates."""
        for name in names:
            self.fill(self.visit.gate(name))

    def fill(self, gate: Gate) -> None:
        """Let pass who waits, as far as there is room."""
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
"""How many gates are looked after when a limit changes; the others by whoever has time."""
TAKEN_BACK_AT_ONCE = 100
"""How many jobs give up their places in one draft when their queue is paused."""
PAGE = 500
AFTERTHOUGHT = 5 * MICROSECONDS
"""When a change of settings is looked after again: for those who read the old ones at the same moment."""


class Gates:
    """Lets jobs pass. `refusal_of` and `behind` may be called on any thread, the rest by the one that writes."""

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
        """Let a job that is due become ready, or wait where it has to; one that does already goes on doing so."""
        state = standing_of(job).state
        if state not in (AWAY, HELD):
            return
        keeper = self._keeper(workspace)
        keeper.visit.prefetch([job])
        if job.sequence is None or state == HELD or keeper.enter_sequence(job):
            keeper.ask_limits(job)

    def started(self, workspace: Workspace, job: StoredJob) -> StoredJob:
        """A job that is ready is started: the next one of its key may become ready. The caller writes the job."""
        standing = standing_of(job)
        if standing.state != READY:
            return job
        keeper = self._keeper(workspace)
        keeper.fill_all(keeper.visit.unready(standing, is_started=True))
        return placed(job, standing._replace(state=STARTED))

    def leave(self, workspace: Workspace, job: StoredJob, *, keeps_sequence: bool) -> StoredJob:
        """A job runs no more, and others pass; the caller writes it, and lets it `enter` if it is due again.

        It may keep its sequence, as long as it is not over and nobody came meanwhile whose turn is earlier.
        """
        keeper = self._keeper(workspace)
        keeper.visit.prefetch([job])
        job, freed = keeper.take_out(job, keeps_sequence=keeps_sequence and not job.is_over)
        keeper.fill_all(freed)
        return keeper.give_way(job) if standing_of(job).state == HELD else job

    def withdraw(self, workspace: Workspace, job: StoredJob) -> StoredJob:
        """A job that has not started is taken out of its line and gates, and others pass; the caller writes it."""
        return self.leave(workspace, job, keeps_sequence=False)

    def hold_sequence(self, workspace: Workspace, job: StoredJob) -> StoredJob:
        """Let a job whose turn came before, and which is due later, have its sequence, or wait in line for it."""
        keeper = self._keeper(workspace)
        keeper.visit.prefetch([job])
        gate = sequence_gate(job.sequence or "")
        if keeper.enter_sequence(job):
            return placed(job, Standing(HELD, (gate,)))
        return placed(job, Standing(WAITS, (), gate, ""))

    # -- gates

    def prefetch_named(self, workspace: Workspace, names: Iterable[str]) -> None:
        """Read gates at once."""
        self._keeper(workspace).visit.prefetch_gates(names)

    def use_up(self, workspace: Workspace, bucket: str, full_at: int) -> None:
        """Let tokens of a rate be missing: they are all there again at an instant."""
        self._keeper(workspace).visit.use_up(bucket, full_at)

    def poke(self, workspace: Workspace, family: str, gate: str) -> None:
        """Look after a gate whose time has come; without a name, after all of a family."""
        keeper = self._keeper(workspace)
        if not gate:
            self._look_after(workspace, family)
            return
        keeper.visit.prefetch_gates([gate])
        record = keeper.visit.gate(gate)
        if record.poke is not None:
            record.poke = None
            keeper.visit.save(record)
        if gate.startswith(QUEUE):
            self._look_after_queue(workspace, gate.removeprefix(QUEUE))
        keeper.fill(record)

    def limits_changed(self, workshop: Workshop, families: Iterable[str]) -> None:
        """Let pass who waited for a limit that is another one now."""
        for family in families:
            workshop.carry_through(partial(self._change_family, family=family))

    def _change_family(self, workspace: Workspace, family: str) -> None:
        self._look_after(workspace, family)
        self._look_again(workspace, family, "")

    def _look_again(self, workspace: Workspace, family: str, gate: str) -> None:
        names, key = workspace.names, digest(family, gate, "again")
        instant = workspace.now + AFTERTHOUGHT
        data = encode([family, gate, instant])
        workspace.draft.schedule(names.at("poke", key), names.chore("poke", key), instant, data)

    def _look_after(self, workspace: Workspace, family: str) -> None:
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
        if len(names) > MOST_POKES:  # by then these are not waited for any more
            self._look_again(workspace, family, "")

    # -- queues

    def queue_changed(self, workshop: Workshop, queue: str) -> None:
        """Let jobs under limits give up their places while their queue is paused, and pass when it is not."""
        workshop.carry_through(partial(self._change_queue, queue=queue))

    def _change_queue(self, workspace: Workspace, queue: str) -> None:
        gate = queue_gate(queue)
        self.poke(workspace, family_of(gate), gate)
        self._look_again(workspace, family_of(gate), gate)

    def _look_after_queue(self, workspace: Workspace, queue: str) -> None:
        """Take jobs of a paused queue back from its lanes, if they are in the way of others."""
        keeper = self._keeper(workspace)
        if not keeper.visit.is_paused(queue):
            return
        ids: list[str] = []
        for _, entry in _pages(workspace, f"{workspace.names.ready}{to_token(queue)}.>"):
            job = (
                decode_job(entry.data) if entry.data else None
            )  # what a schedule has fired is empty, and not gated
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
        """Say which limit would not let a job pass now, and some of those who are inside."""
        visit = Keeper(workspace, self._book).visit
        if standing_of(job).state in (READY, STARTED):
            return None, ()
        visit.prefetch([job])
        refusal = visit.refusal(tuple(dict.fromkeys(job.limits)))
        if refusal is None or refusal.until is not None:
            return refusal, ()
        return refusal, tuple(visit.gate(refusal.bucket).holders)

    def behind(self, workspace: Workspace, job: StoredJob) -> str | None:
        """Return the job that is in the way of another in its sequence."""
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


def _pages(workspace: Workspace, subject: str) -> Iterator[tuple[str, Entry]]:
    position, page = 0, PAGE
    while page == PAGE:
        found = workspace.scan(subject, after=position, most=PAGE)
        page = len(found)
        for subject_and_entry in found:
            position = subject_and_entry[1].revision
            yield subject_and_entry
