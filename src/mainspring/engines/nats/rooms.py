"""Rooms: what a worker has asked for, and how much of it is left while it is being given."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from mainspring.engines.nats.lanes import Lane
from mainspring.jobs.engine import SUSPECT_CRASHES, Demand, JobRecord

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

    def shares(self, lanes: Sequence[Lane]) -> dict[Lane, int]:
        """Divide the room for starts among lanes that may have jobs, by priority.

        Each gets one at least, as far as there is room; which ones do, if there are more lanes, is left to chance.
        """
        total = sum(WEIGHTS[lane.priority] for lane in lanes)
        shares = {lane: self.starts * WEIGHTS[lane.priority] // total for lane in lanes}
        spare = self.starts - sum(shares.values())
        poor = sorted((lane for lane in lanes if not shares[lane]), key=_by_chance)
        for lane in poor[:spare]:
            shares[lane] = 1
        return {lane: share for lane, share in shares.items() if share}


def _by_chance(lane: Lane) -> float:
    """Draw lanes by their weights: the smallest comes first."""
    return random.expovariate(WEIGHTS[lane.priority])
