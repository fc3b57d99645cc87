"""A visit: what one workspace reads of gates, decides about them and writes.

What limits mean is decided in `jobs.limits`; here is where their state is kept. A rate that was changed lets as
many tokens be missing as were before.
"""

from __future__ import annotations

from collections.abc import Iterable

from mainspring.engines.nats.gate_records import QUEUE, READY, Gate, Standing, buckets_in, group_of, placed
from mainspring.engines.nats.lines import Lines, gates_of
from mainspring.engines.nats.naming import digest
from mainspring.engines.nats.ready import make_ready
from mainspring.engines.nats.settings_book import SettingsBook
from mainspring.engines.nats.stored import StoredJob, encode
from mainspring.engines.nats.workspace import Workspace
from mainspring.jobs.instants import MICROSECONDS
from mainspring.jobs.limits import SEPARATOR, Admission, Bucket, BucketState, Refusal, family_of

MOST_READY = 4
"""How many jobs of a group that takes turns stand in the lanes at once: others come between them."""
LEAD = 1 * MICROSECONDS
"""How long before its time a poke is handed over: whoever gets it keeps it, and is more exact than the server."""
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
