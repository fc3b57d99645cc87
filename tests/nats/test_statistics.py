"""Statistics on NATS: their number of requests, their freshness, and what limits on the server make of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mainspring import NatsSettings
from mainspring.engines.nats.engine import NatsEngine
from mainspring.engines.sqlite import SqliteProjection
from mainspring.jobs.limits import bucket_of
from mainspring.testing import ManualClock
from mainspring.testing.conformance.bench import Bench
from mainspring.testing.conformance.statistics import count_naively
from tests.nats.servers import Servers

TENANTS = 20


@pytest.fixture
def engine(nats_server: Servers, nats_prefix: str, tmp_path: Path) -> NatsEngine:
    settings = NatsSettings(prefix=nats_prefix, projection="projection")
    return NatsEngine(
        nats_server.url, settings=settings, make_projection=lambda _: SqliteProjection(tmp_path / "copy.db")
    )


@pytest.fixture
def bench(engine: NatsEngine) -> Iterator[Bench]:
    bench = Bench(engine, ManualClock())
    yield bench
    bench.engine.close()


def count_requests(engine: NatsEngine, call: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> int:
    jetstream = engine.components.transactions.jetstream
    made: list[object] = []
    run = jetstream.run_on_loop

    def counting(work: Any) -> Any:
        made.append(work)
        return run(work)

    with monkeypatch.context() as patch:
        patch.setattr(jetstream, "run_on_loop", counting)
        call()
    return len(made)


def submit_for_tenants(bench: Bench, name: str) -> None:
    jobs = [
        bench.job(f"{name}-{number}-{tenant}", limits=(bucket_of("by tenant", f"{tenant}"),))
        for tenant in range(TENANTS)
        for number in range(3)
    ]
    assert bench.engine.submit(jobs) == [None] * len(jobs)


def test_the_number_of_requests_does_not_grow_with_the_jobs(
    bench: Bench, engine: NatsEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.limit("by tenant", 1)
    counts = []
    for name in ("few", "more"):
        submit_for_tenants(bench, name)
        engine.statistics()  # the projection applies the changes
        counts.append(count_requests(engine, engine.statistics, monkeypatch))
    assert counts[1] <= counts[0] <= 4


def test_places_that_a_limit_has_reserved_are_due_and_the_others_are_blocked(bench: Bench) -> None:
    bench.limit("by tenant", 1)
    submit_for_tenants(bench, "job")
    found = bench.engine.statistics()
    (group,) = found.groups
    assert (group.due, group.blocked) == (TENANTS, 2 * TENANTS)
    assert found.groups == count_naively(bench.engine, found.at)


def test_a_limit_that_got_room_blocks_no_more(bench: Bench) -> None:
    bench.limit("by tenant", 1)
    submit_for_tenants(bench, "job")
    bench.limit("by tenant", 100)
    found = bench.engine.statistics()
    (group,) = found.groups
    assert (group.due, group.blocked) == (3 * TENANTS, 0)
    assert found.groups == count_naively(bench.engine, found.at)


def test_changes_of_another_process_are_counted_at_once(
    bench: Bench, nats_server: Servers, nats_prefix: str, tmp_path: Path
) -> None:
    settings = NatsSettings(prefix=nats_prefix, projection="projection")
    other = NatsEngine(
        nats_server.url, settings=settings, make_projection=lambda _: SqliteProjection(tmp_path / "other.db")
    )
    second = Bench(other, ManualClock())
    try:
        assert second.engine.statistics().groups == ()
        bench.submit("a", "b", queue="quiet")
        bench.pause("quiet")
        (group,) = second.engine.statistics().groups
        assert (group.due, group.blocked) == (0, 2)
    finally:
        other.close()
