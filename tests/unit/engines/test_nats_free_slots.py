"""Rooms: what a worker has asked for is divided among lanes by priority, and no lane is left out for good."""

from __future__ import annotations

from collections import Counter

import pytest

from mainspring.engines.nats.claiming import FreeSlots
from mainspring.engines.nats.fetching import WEIGHTS, LaneShares
from mainspring.engines.nats.queueing import NatsLane
from mainspring.jobs.engine import Demand

LANES = [NatsLane("default", "ping", priority) for priority in WEIGHTS]
TAKES = 4_000


def free_slots(starts: int, *, ahead: int = 0, queues: tuple[str, ...] | None = None) -> FreeSlots:
    lanes = [*LANES, NatsLane("mail", "ping", 1), NatsLane("default", "pong", 1)]
    return FreeSlots(Demand(("ping",), starts, ahead, queues), lanes)


@pytest.mark.parametrize("starts", range(1, 25))
def test_no_more_is_asked_for_than_there_is_room_for(starts: int) -> None:
    shares = LaneShares()
    for _ in range(20):
        given = shares.divide(starts, LANES)
        assert sum(given.values()) == starts
        assert 0 not in given.values()


@pytest.mark.parametrize("starts", [1, 2, 3, 4, 10])
def test_urgent_lanes_get_the_most_and_the_least_urgent_a_tenth(starts: int) -> None:
    shares = LaneShares()
    given: Counter[int] = Counter()
    for take in range(1, TAKES + 1):
        given.update({lane.priority: share for lane, share in shares.divide(starts, LANES).items()})
        for priority, weight in WEIGHTS.items():
            assert abs(given[priority] - take * starts * weight / 10) <= 1, f"with slots for {starts}: {given}"


def test_who_was_not_asked_for_a_while_neither_gains_nor_loses() -> None:
    shares = LaneShares()
    shares.divide(1, LANES)
    before = shares.divide(9, LANES)
    for _ in range(100):
        shares.divide(3, LANES[1:])
    assert sum(before.values()) == 9
    given = Counter[NatsLane]()
    for _ in range(10):
        given.update(shares.divide(1, LANES))
    assert given[LANES[0]] in (1, 2)


def test_a_lane_that_is_alone_gets_all_the_room() -> None:
    for lane in LANES:
        assert LaneShares().divide(7, [lane]) == {lane: 7}


def test_a_room_has_the_lanes_of_its_handlers_and_queues_only() -> None:
    assert free_slots(1).lanes == [*LANES, NatsLane("mail", "ping", 1)]
    assert free_slots(1, queues=("mail", "unknown")).lanes == [NatsLane("mail", "ping", 1)]
