"""Rooms: what a worker has asked for, and how much of it is left while it is being given."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from math import floor

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
        """Divide the room for starts among lanes that may have jobs, by priority; exactly so in the mean.

        Each gets its part, rounded up or down by chance; so with little room nobody is left out for long.
        """
        total = sum(WEIGHTS[lane.priority] for lane in lanes)
        shares = {}
        exact, point, given = 0.0, random.random(), 0
        for lane in random.sample(lanes, len(lanes)):
            exact += self.starts * WEIGHTS[lane.priority] / total
            share = min(floor(exact + point) - given, self.starts - given)
            given += share
            if share:
                shares[lane] = share
        return shares
