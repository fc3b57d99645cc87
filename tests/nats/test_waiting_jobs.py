"""What a sweep on NATS tells of lanes when there are too many to look at each of them every time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring.engines.nats import reading
from tests.nats.fault_bench import FaultBench, fault_benches
from tests.nats.servers import Servers

QUEUES = ("a", "b", "c")


@pytest.fixture
def bench(nats_server: Servers, nats_prefix: str, tmp_path: Path) -> Iterator[FaultBench]:
    with fault_benches(nats_server, nats_prefix, tmp_path) as make:
        yield make()


def test_what_was_not_looked_at_is_told_with_its_age(bench: FaultBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_LANES", 1)
    for queue in QUEUES:
        bench.submit(queue, queue=queue)
    worker = bench.enroll()
    bench.look(worker, starts=0, ahead=0)
    ages: dict[str, int] = {}

    def are_all_told() -> bool:
        ages.update({found.queue: found.age for found in bench.engine.sweep(worker).waiting})
        return len(ages) == len(QUEUES)

    assert bench.eventually(are_all_told)
    for _ in range(4):
        bench.pass_time(0.05)
        before = dict(ages)
        assert are_all_told()
        assert sum(age < before[queue] + 50_000 for queue, age in ages.items()) == 1, (before, ages)
