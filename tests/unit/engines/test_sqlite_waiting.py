"""What waits in many lanes of a SQLite file is found by a look at few jobs: no process can write meanwhile."""

from __future__ import annotations

import pytest

from mainspring.engines.sqlite import explain
from mainspring.jobs.limits import bucket_of
from mainspring.testing.conformance.bench import Bench

QUEUES = ("orders", "mails", "reports")
TENANTS = ("a", "b", "c", "d", "e")


@pytest.mark.parametrize(("most", "told"), [(2_000, 5), (9, 3), (1, explain.FEWEST_HEADS)])
def test_all_lanes_together_have_so_many_heads_looked_at(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, most: int, told: int
) -> None:
    monkeypatch.setattr(explain, "MOST_HEADS", most)
    bench.limit("at once", 1)
    for queue in QUEUES:
        for tenant in TENANTS:
            bench.submit(f"{queue} {tenant}", queue=queue, limits=(bucket_of("at once", f"{queue} {tenant}"),))
    found = bench.engine.sweep(bench.enroll()).waiting
    assert {each.queue: (each.oldest, each.count) for each in found} == {
        queue: (f"{queue} a", told) for queue in QUEUES
    }
