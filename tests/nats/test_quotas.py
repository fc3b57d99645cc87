"""Quotas of queues on NATS: their precision with several submitters, and what they cost."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from mainspring import LimitExceeded, NatsSettings
from mainspring.engines.nats.engine import NatsEngine
from mainspring.engines.sqlite import SqliteProjection
from mainspring.jobs.commands import PutLimit
from mainspring.jobs.quotas import depth_family
from mainspring.jobs.status import JobStatus
from mainspring.testing import ManualClock
from mainspring.testing.conformance.bench import Bench
from tests.nats.servers import Servers
from tests.support import at_once, eventually

SUBMITTERS = 3
BATCH = 5
DEPTH = 60


@pytest.fixture
def benches(nats_server: Servers, nats_prefix: str, tmp_path: Path) -> Iterator[list[Bench]]:
    """Several engines on one store, as in several processes."""
    files = (tmp_path / f"projection-{number}.db" for number in count())
    settings = NatsSettings(prefix=nats_prefix, projection="projection")
    engines = [
        NatsEngine(nats_server.url, settings=settings, make_projection=lambda _: SqliteProjection(next(files)))
        for _ in range(SUBMITTERS)
    ]
    benches = [Bench(engine, ManualClock()) for engine in engines]
    yield benches
    for engine in engines:
        engine.close()


def set_depth(benches: list[Bench], most: int) -> None:
    benches[0].arrange(PutLimit(depth_family("default"), most, None))
    assert eventually(lambda: all(bench.engine.limits() for bench in benches))


def counts_of(bench: Bench) -> list[str]:
    """Record from now on which queues the engine counts."""
    engine = bench.engine
    assert isinstance(engine, NatsEngine)
    counted: list[str] = []
    count_pending = engine.components.quotas._count

    def note(queue: str) -> int:
        counted.append(queue)
        return count_pending(queue)

    engine.components.quotas._count = note  # type: ignore[method-assign]
    return counted


def test_submitters_at_the_same_time_fill_the_queue_and_each_of_them_is_refused_beyond_its_depth(
    benches: list[Bench],
) -> None:
    set_depth(benches, DEPTH)

    def submit(number: int) -> int:
        stored = 0
        for turn in range(2 * DEPTH // BATCH):
            ids = [f"{number}-{turn}-{place}" for place in range(BATCH)]
            try:
                benches[number].submit(*ids, after=3_600)
            except LimitExceeded:
                continue
            stored += BATCH
        return stored

    stored = sum(at_once(*(lambda number=number: submit(number) for number in range(SUBMITTERS))))
    assert DEPTH <= stored <= SUBMITTERS * DEPTH  # the announcements of others may come late
    assert benches[0].engine.counts(queue="default")[JobStatus.PENDING] == stored


def test_a_process_counts_once_and_then_adds_up_the_submits_of_all(benches: list[Bench]) -> None:
    one, other, _ = benches
    set_depth(benches, DEPTH)
    counted = counts_of(one)
    for number in range(20):
        one.submit(f"one {number}", after=3_600)
        other.submit(f"other {number}", after=3_600)
    assert counted == ["default"]
    engine = one.engine
    assert isinstance(engine, NatsEngine)
    assert eventually(lambda: engine.components.quotas._bounds["default"] >= 40)  # all announcements have come
    with pytest.raises(LimitExceeded, match="has 40 pending jobs and takes at most 60"):
        one.submit(*(f"many {number}" for number in range(21)))
    assert counted == ["default", "default"]


def test_a_process_hears_of_submits_after_its_count(benches: list[Bench]) -> None:
    one, other, _ = benches
    set_depth(benches, DEPTH)
    one.submit("first", after=3_600)
    other.submit(*(f"other {number}" for number in range(50)), after=3_600)
    engine = one.engine
    assert isinstance(engine, NatsEngine)
    assert eventually(lambda: engine.components.quotas._bounds == {"default": 51})


def test_a_store_without_quotas_is_never_counted(benches: list[Bench]) -> None:
    counted = counts_of(benches[0])
    benches[0].submit("a", "b")
    assert counted == []


def test_a_new_connection_counts_again(benches: list[Bench]) -> None:
    set_depth(benches, 2)
    one = benches[0]
    one.submit("a", after=3_600)
    counted = counts_of(one)
    engine = one.engine
    assert isinstance(engine, NatsEngine)
    engine._on_connection(True)  # notifications may have been missed meanwhile
    one.submit("b", after=3_600)
    assert counted == ["default"]
