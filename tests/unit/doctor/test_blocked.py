"""Jobs behind hung heads, from the store to the finding."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring.doctor.findings import Severity
from mainspring.doctor.jobs import check_lateness
from mainspring.doctor.snapshot import take_snapshot
from mainspring.engines.sqlite import SqliteEngine
from mainspring.engines.sqlite.memory import MemoryEngine
from mainspring.jobs.engine import Engine
from mainspring.jobs.limits import bucket_of
from mainspring.testing import ManualClock
from mainspring.testing.conformance.bench import Bench
from tests.unit.doctor.finding_assertions import findings_of


@pytest.fixture(params=["memory", "sqlite"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    clock = ManualClock()
    engine: Engine = MemoryEngine(clock=clock)
    if request.param == "sqlite":
        engine = SqliteEngine(tmp_path / "jobs.db", clock=clock, durability="normal", is_shared=False)
    yield Bench(engine, clock)
    engine.close()


def test_jobs_behind_hung_heads_are_reported_with_what_is_in_front(bench: Bench) -> None:
    bench.limit("mail", 1)
    bench.begin("head", sequence="customer-7")
    bench.begin("letter", limits=(bucket_of("mail"),))
    bench.submit(*(f"order-{number}" for number in range(29)), sequence="customer-7")
    bench.submit("stamp", "envelope", limits=(bucket_of("mail"),))
    bench.pass_time(61)
    findings = findings_of(check_lateness(take_snapshot(bench.engine, None, counts=True)))
    assert [(finding.severity, finding.commands[0]) for finding in findings] == [
        (Severity.WARNING, ("explain", "head")),
        (Severity.WARNING, ("explain", "letter")),
    ]
    assert "29 due jobs wait, the oldest (order-0) for 61 s" in findings[0].what
    assert "2 due jobs wait" in findings[1].what


def test_jobs_behind_one_that_runs_for_a_moment_are_in_time(bench: Bench) -> None:
    bench.begin("head", sequence="customer-7")
    bench.submit("next", sequence="customer-7")
    (finding,) = check_lateness(take_snapshot(bench.engine, None, counts=True))
    assert finding.severity is Severity.OK
