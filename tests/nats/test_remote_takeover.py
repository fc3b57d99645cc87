"""Remote workers on NATS: messages that come again, and a server that dies between a claim and its record."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring.engines.nats.engine import NatsEngine
from mainspring.errors import EngineUnavailable
from mainspring.jobs.records import OutcomeKind
from mainspring.testing.conformance.remote_workers import claim, enroll_remote
from tests.nats.fault_bench import FaultBench, MakeBench, fault_benches
from tests.nats.servers import Servers

LEASE_SECONDS = 2.0


@pytest.fixture
def make_bench(nats_server: Servers, nats_prefix: str, tmp_path: Path) -> Iterator[MakeBench]:
    with fault_benches(nats_server, nats_prefix, tmp_path, lease=LEASE_SECONDS) as make:
        yield make


def engine_of(bench: FaultBench) -> NatsEngine:
    assert isinstance(bench.engine, NatsEngine)
    return bench.engine


def test_the_message_of_a_job_waits_on_the_server_and_any_process_acknowledges_it(
    bench: FaultBench, other: FaultBench
) -> None:
    worker, rival = enroll_remote(bench), enroll_remote(other)
    bench.submit("job")
    (lease,) = claim(bench, worker)
    assert bench.leases.all() == [], "the process that has claimed the job keeps nothing"
    assert other.take(rival) == []
    assert other.has_message(other.ready())
    assert other.settle(worker, lease, OutcomeKind.COMPLETED)
    assert other.eventually(lambda: not other.has_message(other.ready()))


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), EngineUnavailable(engine="NATS", reason="away", remedy="wait")]
)
def test_a_job_whose_lease_was_not_stored_is_handed_back(
    bench: FaultBench, other: FaultBench, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    worker, rival = enroll_remote(bench), enroll_remote(other)
    bench.submit("job")
    registry = engine_of(bench)._remote

    def fail(*_arguments: object) -> bool:
        raise error

    monkeypatch.setattr(registry, "_change", fail)
    with pytest.raises(type(error)):
        claim(bench, worker)
    assert bench.record().owner == worker
    assert bench.engine.leased(worker) == []
    (lease,) = claim(other, rival)
    record = other.record()
    assert (record.owner, record.token, record.starts, record.crashes) == (rival, lease.token, 1, 0)
