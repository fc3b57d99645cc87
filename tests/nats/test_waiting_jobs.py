"""What a sweep on NATS tells of lanes when there are too many to look at each of them every time."""

from __future__ import annotations

import pytest

from mainspring.engines.nats import reading
from tests.nats.fault_bench import FaultBench

QUEUES = ("a", "b", "c")


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
