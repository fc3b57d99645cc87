"""What stands in the lanes and waits for a worker, for those who look and take nothing. From any thread."""

from __future__ import annotations

from mainspring.engines.nats.lanes import Lane, read_lane
from mainspring.engines.nats.naming import from_token
from mainspring.engines.nats.streams import Streams
from mainspring.engines.nats.workspace import Workshop
from mainspring.jobs.crew import Backlog
from mainspring.jobs.status import JobStatus

MOST_READ = 100  # messages of a lane whose jobs are looked at; of the others it is believed that they wait


class Backlogs:
    """Counts what the consumers have not delivered."""

    def __init__(self, workshop: Workshop, streams: Streams) -> None:
        self._workshop = workshop
        self._streams = streams
        self._names = workshop.names

    def lanes(self) -> dict[Lane, str]:
        """Return all lanes that there have ever been, with the subject of each."""
        found: dict[Lane, str] = {}
        position = 0
        while page := self._workshop.link.scan(f"{self._names.lanes}>", after=position):
            for subject, entry in page:
                lane, ready = read_lane(self._names, subject)
                found[lane] = ready
                position = max(position, entry.revision)
        return found

    def read(self) -> list[Backlog]:
        """Count what waits, by queue and handler."""
        found: dict[tuple[str, str], Backlog] = {}
        for lane, subject in self.lanes().items():
            waiting = self._look_at(lane, subject)
            if waiting is not None:
                key = (lane.queue, lane.type)
                found[key] = _sum(found.get(key), waiting)
        return [found[key] for key in sorted(found)]

    def _look_at(self, lane: Lane, subject: str) -> Backlog | None:
        info = self._streams.look_at_consumer(subject)
        delivered = 0 if info is None else int(info["delivered"]["stream_seq"])
        messages = self._workshop.link.scan(subject, after=delivered, most=MOST_READ)
        ids = [from_token(name.rpartition(".")[2]) for name, _ in messages]
        workspace = self._workshop.open()
        workspace.prefetch_jobs(ids)
        jobs = filter(None, map(workspace.job, ids))
        due = [job.due for job in jobs if job.status is JobStatus.PENDING and job.owner is None]
        due = [instant for instant in due if instant <= workspace.now]  # they come a little ahead
        if not due:
            return None
        unread = 0 if info is None else max(0, int(info["num_pending"]) - len(messages))
        return Backlog(lane.queue, lane.type, len(due) + unread, min(due))


def _sum(one: Backlog | None, other: Backlog) -> Backlog:
    if one is None:
        return other
    return Backlog(one.queue, one.type, one.count + other.count, min(one.oldest, other.oldest))
