"""What a sweep on NATS tells of lanes when there are too many to look at each of them every time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring.engines.nats import reading
from tests.nats.rig import Rig, rigs
from tests.nats.servers import Servers

QUEUES = ("a", "b", "c")


@pytest.fixture
def rig(nats_server: Servers, nats_prefix: str, tmp_path: Path) -> Iterator[Rig]:
    with rigs(nats_server, nats_prefix, tmp_path) as make:
        yield make()


def test_what_was_not_looked_at_is_told_with_its_age(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_LOOKS", 1)
    for queue in QUEUES:
        rig.submit(queue, queue=queue)
    worker = rig.enroll()
    rig.look(worker, starts=0, ahead=0)
    ages: dict[str, int] = {}

    def are_all_told() -> bool:
        ages.update({found.queue: found.age for found in rig.engine.sweep(worker).waiting})
        return len(ages) == len(QUEUES)

    assert rig.eventually(are_all_told)
    for _ in range(4):
        rig.pass_time(0.05)
        before = dict(ages)
        assert are_all_told()
        assert sum(age < before[queue] + 50_000 for queue, age in ages.items()) == 1, (before, ages)
