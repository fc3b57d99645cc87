"""Rooms: what a worker has asked for, and how much of it is left while it is being given."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import floor

from mainspring.engines.nats.lanes import Lane
from mainspring.jobs.engine import SUSPECT_CRASHES, Demand
from mainspring.jobs.records import JobRecord

WEIGHTS = {0: 1, 1: 3, 2: 6}
"""Shares of the room, by priority: urgent jobs are preferred, and nobody waits for ever."""


class Room:
    """The room of one demand."""

    __slots__ = ("ahead", "demand", "lanes", "starts", "suspects")

    def __init__(self, demand: Demand, lanes: Iterable[Lane]) -> None:
        self.demand = demand
        self.starts = demand.starts
        self.ahead = demand.ahead
        self.suspects = int(demand.suspects)
        self.lanes = [
            lane
            for lane in lanes
            if lane.type in demand.types and (demand.queues is None or lane.queue in demand.queues)
        ]

    def left(self) -> tuple[int, int, int]:
        """Return how much room there is."""
        return self.starts, self.ahead, self.suspects

    def reset(self, left: tuple[int, int, int]) -> None:
        """Make it as much as before."""
        self.starts, self.ahead, self.suspects = left

    def take_back(self, job: JobRecord | None, *, is_start: bool, is_hold: bool) -> None:
        """Make room again for a job that was not taken after all."""
        self.starts += is_start
        self.ahead += is_hold
        if job is not None and (is_start or is_hold):
            self.suspects += job.crashes >= SUSPECT_CRASHES


class Shares:
    """Divides room among lanes by priority, over any number of takes: nobody is ever more than one start short."""

    def __init__(self) -> None:
        self._credit: dict[Lane, float] = {}  # what is left of the exact shares, less what was given

    def divide(self, starts: int, lanes: Sequence[Lane]) -> dict[Lane, int]:
        """Divide room for so many starts among lanes that may have jobs; those that get nothing are not named."""
        total = sum(WEIGHTS[lane.priority] for lane in lanes)
        credit = {lane: self._credit.get(lane, 0.0) + starts * WEIGHTS[lane.priority] / total for lane in lanes}
        shares = {lane: max(0, floor(credit[lane])) for lane in lanes}
        spare = starts - sum(shares.values())
        for lane in sorted(lanes, key=lambda lane: credit[lane] - shares[lane], reverse=True)[: max(0, spare)]:
            shares[lane] += 1
        self._credit |= {lane: credit[lane] - shares[lane] for lane in lanes}
        return {lane: share for lane, share in shares.items() if share}
