"""Gates: a job under a sequence or limits passes them all before it stands in its lane.

Each call is part of what a workspace does: who leaves, who passes then and who waits is stored in one draft. See
`keeper` for the rules, `gate_records` for what is kept, `lines` for those who wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from mainspring.engines.nats.drafts import Entry
from mainspring.engines.nats.gate_records import (
    AWAY,
    HELD,
    QUEUE,
    READY,
    STARTED,
    WAITS,
    Gate,
    Standing,
    placed,
    queue_gate,
    sequence_gate,
    standing_of,
)
from mainspring.engines.nats.keeper import Keeper
from mainspring.engines.nats.naming import digest, to_token
from mainspring.engines.nats.settings_book import SettingsBook
from mainspring.engines.nats.stored import StoredJob, decode, decode_job, encode
from mainspring.engines.nats.workspace import Workshop, Workspace
from mainspring.jobs.instants import MICROSECONDS
from mainspring.jobs.limits import Refusal, family_of

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
