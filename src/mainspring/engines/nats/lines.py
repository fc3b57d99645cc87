"""Lines: the jobs that wait before a gate, as messages in the order in which they came.

A message is stored together with the record of its job and that of the gate, which counts it; so nobody who lets
the next one pass can overlook it. It is taken away afterwards, and if that is lost, it is stale: the record of
the job says whether it waits, and where.

The first is the one with the smallest (turn, place). In most lines that is the oldest message; where somebody
came late, it is exact among the first `MIXED_PAGE`.
"""

from __future__ import annotations

from typing import NamedTuple

from mainspring.engines.nats.gate_records import Gate, Group, Waiter, sequence_gate, standing_of
from mainspring.engines.nats.naming import from_token
from mainspring.engines.nats.stored import StoredJob, decode, encode
from mainspring.engines.nats.workspace import Workspace
from mainspring.jobs.limits import family_of

PAGE = 4
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
        """Let somebody not be in line."""
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
        """Return who is next; None: nobody, or a server that lags behind does not know him yet."""
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
        page = MIXED_PAGE if group.is_mixed else PAGE
        subject = self._names.line(gate.name, group.name)
        found = self._workspace.scan(subject, after=line.position, most=page)
        for name, entry in found:
            job_id = from_token(name.rpartition(".")[2])
            if entry.data and job_id not in line.appended:  # else this is what it replaces
                waiter = decode(entry.data, Waiter)
                line.read[job_id] = _Place(waiter.turn, waiter.place, job_id, waiter.gates)
            line.position = max(line.position, entry.revision)
        line.is_at_end = len(found) < page
