"""Reports that handlers begin: those of one transaction are one operation, without handlers that have ended."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from mainspring.jobs.layers import Layers
from mainspring.jobs.worker.lease_table import LeasedJob
from mainspring.jobs.worker.reporting import ProgressWriter
from mainspring.runners.idle_condition import IdleCondition
from mainspring.testing import ManualClock
from mainspring.timing.timer import Timer
from tests.unit.jobs.leases import make_lease, make_leased_job


class Bench:
    """A writer whose operations are kept, and carried out when a test says so."""

    def __init__(self, *, is_followed: bool = True) -> None:
        self.operations: list[Any] = []
        clock = ManualClock()
        engine = SimpleNamespace(is_followed=is_followed, now=lambda: 0)
        io = SimpleNamespace(dispatch=self.operations.append)
        layers = cast(Layers, SimpleNamespace(engine=engine, io=io, clock=clock))
        self.writer = ProgressWriter(layers, cast(Timer, None), IdleCondition(clock), lambda: 7)

    def begin(self, number: int) -> LeasedJob:
        job = make_leased_job(lambda: None, replace(make_lease(), ref=number))
        assert job.claim_start()
        self.writer.begin(job)
        return job

    def carry_out(self) -> list[object]:
        """Carry out the only operation; return the numbers of the reported jobs."""
        (operation,) = self.operations
        self.operations.clear()
        operation.load()
        assert (operation.worker, operation.durable) == (7, False)
        assert all(report.progress is None for report in operation.items)
        operation.reply.resolve([True] * len(operation.items))
        return [report.lease.ref for report in operation.items]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_handlers_that_begin_before_the_transaction_are_reported_together(bench: Bench) -> None:
    for number in (1, 2, 3):
        bench.begin(number)
    assert bench.writer.is_busy
    assert bench.carry_out() == [1, 2, 3]
    assert not bench.writer.is_busy


def test_a_handler_that_begins_during_the_transaction_is_reported_in_the_next(bench: Bench) -> None:
    bench.begin(1)
    (operation,) = bench.operations
    operation.load()
    bench.begin(2)
    assert [report.lease.ref for report in operation.items] == [1]
    bench.operations.remove(operation)
    assert bench.carry_out() == [2]


def test_a_handler_that_has_ended_is_left_to_its_outcome(bench: Bench) -> None:
    ended = bench.begin(1)
    bench.begin(2)
    assert ended.claim_end()
    assert bench.carry_out() == [2]


def test_nothing_is_reported_while_no_client_follows_events() -> None:
    bench = Bench(is_followed=False)
    bench.begin(1)
    assert bench.operations == []
