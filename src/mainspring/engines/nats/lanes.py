"""Lanes: the jobs of one queue, handler and priority, with a consumer that all workers share.

A worker pulls only from lanes whose handlers it knows, so it never gets what it cannot run. Lanes are records:
whoever stores the first job of one makes it known, and workers read what is new.
"""

from __future__ import annotations

from msgspec import Struct

from mainspring.engines.nats.drafts import Entry
from mainspring.engines.nats.naming import Names, from_token
from mainspring.engines.nats.stored import StoredJob, encode
from mainspring.engines.nats.workspace import Workspace


class Lane(Struct, frozen=True, gc=False):
    """Jobs that are alike for those who take them."""

    queue: str
    type: str
    priority: int


class Lanes:
    """The lanes that this process knows. `all` is read by the thread that takes; it alone calls `read_new`."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._announced: set[Lane] = set()
        self.all: dict[Lane, str] = {}
        """The subject of each, with a wildcard for its jobs."""
        self._position = 0
        self.must_read = True
        """Whether there may be new ones."""

    def forget(self) -> None:
        """Begin anew: the stream may be another one."""
        self._announced.clear()
        self.all.clear()
        self._position = 0
        self.must_read = True

    def announce(self, workspace: Workspace, job: StoredJob) -> None:
        """Make the lane of a job known, if this process has not done so before."""
        lane = Lane(job.queue, job.type, job.priority)
        subject = self._names.lane(lane.queue, lane.type, lane.priority)
        if lane not in self._announced and subject not in workspace.draft:
            workspace.draft.put(subject, encode(lane))
            workspace.draft.send(f"{self._names.notes}lane")
            workspace.draft.then(lambda: self._note(lane))

    def knows(self, job: StoredJob) -> bool:
        """Answer whether the lane of a job is known to all workers."""
        return Lane(job.queue, job.type, job.priority) in self._announced

    def _note(self, lane: Lane) -> None:
        self._announced.add(lane)
        self.must_read = True

    def read_new(self, workspace: Workspace) -> list[Lane]:
        """Read the lanes that were made since; return them."""
        self.must_read = False
        new: list[Lane] = []
        while found := workspace.scan(f"{self._names.lanes}>", after=self._position):
            new += self._add(found)
        return new

    def _add(self, found: list[tuple[str, Entry]]) -> list[Lane]:
        new = []
        for subject, entry in found:
            lane, ready = read_lane(self._names, subject)
            if lane not in self.all:
                self.all[lane] = ready
                new.append(lane)
            self._position = max(self._position, entry.revision)
        return new


def read_lane(names: Names, subject: str) -> tuple[Lane, str]:
    """Return the lane that a record is of, and the subject of its jobs, with a wildcard."""
    tokens = subject.removeprefix(names.lanes)
    queue, type_, priority = tokens.split(".")
    return Lane(from_token(queue), from_token(type_), int(priority)), f"{names.ready}{tokens}.*"
