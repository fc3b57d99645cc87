"""Lanes: a number for each kind of job, remembered here so that rows need not be joined."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from mainspring.engines.sqlite import statements as sql
from mainspring.engines.sqlite.database import Database
from mainspring.engines.sqlite.rows import to_json
from mainspring.engines.sqlite.settings import paused_queues
from mainspring.jobs.records import Lease, NewJob
from mainspring.jobs.waiting import HEAD_START

_lane_rows = msgspec.json.Decoder(list[tuple[int, str, str, int, int]]).decode


class Lane(NamedTuple):
    """Where jobs of one kind wait."""

    queue: str
    type: str
    priority: int
    exact: int
    """1: its jobs, those with a sequence or limits, are not taken ahead of their time."""


def lane_of(job: NewJob | Lease) -> Lane:
    """Return the lane of a job."""
    return Lane(job.queue, job.type, job.priority, int(job.sequence is not None or bool(job.limits)))


class Lanes:
    """The lanes of one store. Lanes are never removed, so what was read stays true."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._numbers: dict[Lane, int] = {}
        self._lanes: dict[int, Lane] = {}
        self._batches: dict[tuple[tuple[str, ...], tuple[str, ...] | None], tuple[str, str]] = {}
        self._version: str | None = None
        self._paused: frozenset[str] = frozenset()

    def numbers(self, wanted: Iterable[Lane]) -> dict[Lane, int]:
        """Return the numbers of these lanes, made if need be, inside of the current unit."""
        missing = [lane for lane in wanted if lane not in self._numbers]
        if missing:
            for lane in missing:
                self._database.write(sql.ADD_LANE, lane)
            self._read()
        return self._numbers

    def number(self, lane: Lane) -> int:
        """Return the number of a lane, made if need be, inside of the current unit."""
        found = self._numbers.get(lane)
        return self.numbers([lane])[lane] if found is None else found

    def lane_under(self, job_id: str, limits: tuple[str, ...]) -> int:
        """Return the lane of a stored job if it were under other limits."""
        queue, kind, priority, sequence = self._database.write(sql.KIND_OF, (job_id,))
        return self.number(Lane(queue, kind, priority, int(sequence is not None or bool(limits))))

    def matching(self, types: tuple[str, ...], queues: tuple[str, ...] | None) -> tuple[str, str]:
        """Return the lanes, with their head starts, that serve these handlers: all, and those to take ahead from.

        Each is a batch, empty if there is none. Lanes of paused queues are not among them.
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
        """Return a lane by its number."""
        return self._lanes[number]

    def forget(self) -> None:
        """Read everything again: what was read may have been rolled back."""
        self._numbers.clear()
        self._lanes.clear()
        self._batches.clear()
        self._version = None

    def _read(self) -> None:
        self._batches.clear()
        self._lanes = {row[0]: Lane(*row[1:]) for row in _lane_rows(self._database.write(sql.LANES).encode())}
        self._numbers = {lane: number for number, lane in self._lanes.items()}
