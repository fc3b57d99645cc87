"""The keeper of the gates of one workspace: who passes, who waits, and who comes next.

A job asks for its sequence first, which it then holds until it is over, and for its limits afterwards, all at
once. If one of them has no room, it waits in that line, and whoever makes room lets the next one pass in the
same draft. Lines before one gate take turns; so do jobs in the lanes, where only a few of a key stand at once.

Invariant: before a gate where somebody waits, somebody is inside who will leave it, or a poke is on its way, or
some of his group are ready and will start. Whoever joins a line writes the record of the gate, so nobody
overlooks him.
"""

from __future__ import annotations

from collections.abc import Iterable

from mainspring.engines.nats.gate_records import (
    AWAY,
    HELD,
    READY,
    SEQUENCE,
    WAITS,
    Gate,
    Standing,
    group_of,
    is_untouched,
    placed,
    queue_gate,
    sequence_gate,
    standing_of,
)
from mainspring.engines.nats.settings_book import SettingsBook
from mainspring.engines.nats.stored import StoredJob, encode
from mainspring.engines.nats.visits import MOST_READY, Visit, fair_bucket
from mainspring.engines.nats.workspace import Workspace
from mainspring.jobs.instants import MICROSECONDS

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
