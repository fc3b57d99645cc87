"""The cache of lanes, which are rows with a queue, a job type and a priority.

A job has the row number of its lane instead of these three, so that claims need no join.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from mainspring.engines.sqlite import statements as sql
from mainspring.engines.sqlite import waiting_statements
from mainspring.engines.sqlite.codec import strings, to_json
from mainspring.engines.sqlite.database import Database
from mainspring.jobs.backlog import HEAD_START
from mainspring.jobs.records import NewJob

_lane_rows = msgspec.json.Decoder(list[tuple[int, str, str, int, int, str]]).decode


class Lane(NamedTuple):
    """What the jobs of a lane share: queue, job type, priority, whether they need admission, search parameters."""

    queue: str
    type: str
    priority: int
    exact: int
    """1 if the jobs have a sequence or limits. No worker holds such jobs before their due time."""
    search: str = ""
    """The parameters by which its jobs are in the search index, such as `,order_id,customer,`; empty for none."""


def lane_of(job: NewJob) -> Lane:
    """Return the lane of a new job: its queue, type and priority, and the other properties in `Lane`."""
    is_exact = job.sequence is not None or bool(job.limits)
    return Lane(job.queue, job.type, job.priority, int(is_exact), indexed_parameters(job.search))


def indexed_parameters(search: tuple[str, ...]) -> str:
    """Return the parameter names of search keys (texts `name=value`), in the form of `Lane.search`."""
    return f",{','.join(key.partition('=')[0] for key in search)}," if search else ""


def paused_queues(database: Database) -> frozenset[str]:
    """Return the paused queues, whose jobs do not start. For use inside a unit (one transaction)."""
    return frozenset(strings(database.write(waiting_statements.PAUSED_QUEUES)))


class LaneCache:
    """The cache of the lanes of one store; a lane is a row with the queue, type and priority of jobs.

    Lanes are never deleted, so a cached lane stays valid.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._numbers: dict[Lane, int] = {}
        self.plain: dict[tuple[str, str, int], int] = {}
        """The row number of the lane of plain jobs, by queue, type and priority. `JobInserter` fills it."""
        self._lanes: dict[int, Lane] = {}
        self._batches: dict[tuple[tuple[str, ...], tuple[str, ...] | None], tuple[str, str]] = {}
        self._version: str | None = None
        self._paused: frozenset[str] = frozenset()

    def numbers(self, wanted: Iterable[Lane]) -> dict[Lane, int]:
        """Create those lanes of `wanted` that do not exist; return the row numbers of all cached lanes, by lane.

        A lane has the queue, type and priority of jobs.
        """
        missing = [lane for lane in wanted if lane not in self._numbers]
        if missing:
            for lane in missing:
                self._database.write(sql.ADD_LANE, lane)
            self._read()
        return self._numbers

    def number(self, lane: Lane) -> int:
        """Return the row number of a lane (a queue, type and priority); create the lane if it does not exist."""
        found = self._numbers.get(lane)
        return self.numbers([lane])[lane] if found is None else found

    def lane_under(self, job_id: str, limits: tuple[str, ...], search: tuple[str, ...] | None = None) -> int:
        """Return the row number of the lane to which a stored job would belong with these limits and search keys.

        A lane has the jobs of one queue, type and priority, either all or none of them under limits or in
        sequences.

        Create the lane if it does not exist. Without `search`, the job keeps its search keys.
        """
        queue, kind, priority, parameters, sequence = self._database.write(sql.KIND_OF, (job_id,))
        if search is not None:
            parameters = indexed_parameters(search)
        return self.number(Lane(queue, kind, priority, int(sequence is not None or bool(limits)), parameters))

    def limited(self, queue: str, kind: str, priority: int) -> list[int]:
        """Return the row numbers of the lanes of a queue, type and priority whose jobs have a sequence or limits.

        These lanes differ in the parameters by which their jobs are in the search index. The lane without such
        parameters is created if it does not exist.
        """
        self.number(Lane(queue, kind, priority, 1))
        return [number for lane, number in self._numbers.items() if lane[:4] == (queue, kind, priority, 1)]

    def matching(self, types: tuple[str, ...], queues: tuple[str, ...] | None) -> tuple[str, str]:
        """Return two batches of lanes for a claim: all, and those whose jobs may be leased before they are due.

        A lane is a queue, type and priority. The lanes are those of the given types and queues, without paused
        queues, each with the head start of its priority. A batch is JSON text. The first is an empty text if there
        are no lanes.
        """
        version = self._database.write(sql.LANES_VERSION)
        if version != self._version:
            self._read()
            self._paused = paused_queues(self._database)
            self._version = version
        key = (types, queues)
        batch = self._batches.get(key)
        if batch is None:
            lanes = [
                (number, HEAD_START * lane.priority, lane.exact)
                for number, lane in self._lanes.items()
                if lane.type in types and (queues is None or lane.queue in queues)
                if lane.queue not in self._paused
            ]
            ahead = [lane for lane in lanes if not lane[2]]
            batch = self._batches[key] = (to_json(lanes) if lanes else "", to_json(ahead))
        return batch

    def describe(self, number: int) -> Lane:
        """Return the lane (queue, type and priority) with a row number, which must be in the cache."""
        return self._lanes[number]

    def queue_and_type(self, number: int) -> tuple[str, str]:
        """Return the queue and the job type of the row of `lanes` with this number, in the cache or not."""
        if number not in self._lanes:
            self._read()
        lane = self._lanes[number]
        return lane.queue, lane.type

    def forget(self) -> None:
        """Clear the cache, after a rollback, which may have removed lanes (rows with a queue, type and priority),
        or when the store is closed.
        """
        self._numbers.clear()
        self.plain.clear()
        self._lanes.clear()
        self._batches.clear()
        self._version = None

    def _read(self) -> None:
        self._batches.clear()
        self._lanes = {row[0]: Lane(*row[1:]) for row in _lane_rows(self._database.write(sql.LANES).encode())}
        self._numbers = {lane: number for number, lane in self._lanes.items()}
