"""Rooms: what a worker has asked for is divided among lanes by priority, and nobody is left out for good."""

from __future__ import annotations

from collections import Counter

import pytest

from mainspring.engines.nats.lanes import Lane
from mainspring.engines.nats.rooms import WEIGHTS, Room
from mainspring.jobs.engine import Demand

LANES = [Lane("default", "ping", priority) for priority in WEIGHTS]
TAKES = 4_000


def room(starts: int, *, ahead: int = 0, queues: tuple[str, ...] | None = None) -> Room:
    lanes = [*LANES, Lane("mail", "ping", 1), Lane("default", "pong", 1)]
    return Room(Demand(("ping",), starts, ahead, queues), lanes)


@pytest.mark.parametrize("starts", range(1, 25))
def test_no_more_is_asked_for_than_there_is_room_for(starts: int) -> None:
    for _ in range(20):
        shares = room(starts).shares(LANES)
        assert 0 < sum(shares.values()) <= starts
        assert 0 not in shares.values()


@pytest.mark.parametrize("starts", [1, 2, 3, 4, 10])
def test_urgent_lanes_get_the_most_and_the_least_urgent_a_tenth(starts: int) -> None:
    given: Counter[int] = Counter()
    for _ in range(TAKES):
        given.update({lane.priority: share for lane, share in room(starts).shares(LANES).items()})
    least, middle, most = (given[priority] / given.total() for priority in sorted(WEIGHTS))
    assert most >= middle >= least >= 0.085, f"with room for {starts}: {given}"
    assert most > 0.4


def test_a_lane_that_is_alone_gets_all_the_room() -> None:
    for lane in LANES:
        assert room(7).shares([lane]) == {lane: 7}


def test_a_room_has_the_lanes_of_its_handlers_and_queues_only() -> None:
    assert room(1).lanes == [*LANES, Lane("mail", "ping", 1)]
    assert room(1, queues=("mail", "unknown")).lanes == [Lane("mail", "ping", 1)]
