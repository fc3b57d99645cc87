"""Every measurement measures what it says, in moments."""

from pathlib import Path

import pytest

from mainspring import Mainspring
from mainspring.bench import execution, submits
from mainspring.bench.budget import MeasurementBudget
from mainspring.bench.figures import Percentiles, RateFigure, Result, Size
from mainspring.bench.stores import StoreFactory, stores_of
from mainspring.bench.suite import MEASUREMENTS, run_measurements

pytestmark = pytest.mark.long

ON_DISK_ONLY = {"fsync", "size"}


def quick() -> MeasurementBudget:
    budget = MeasurementBudget(seconds=0.02, jobs=200)
    budget.begin()
    return budget


@pytest.fixture(params=["sqlite", "memory"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> StoreFactory:
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'shop.db'}"
    return stores_of(Mainspring(url, durability="normal"))


def test_each_has_a_figure_that_makes_sense(stores: StoreFactory) -> None:
    begun: list[str] = []
    figures = {what.name: result for what, result in run_measurements(stores, quick(), begun.append)}
    assert begun == [measurement.title for measurement in MEASUREMENTS]
    missing = {measurement.name for measurement in MEASUREMENTS} - set(figures)
    assert missing == (ON_DISK_ONLY if stores.folder is None else set())
    assert [name for name, result in figures.items() if not makes_sense(result)] == []


def makes_sense(result: Result) -> bool:
    match result:
        case RateFigure():
            return result.per_second > 0 and result.rounds > 0
        case Percentiles():
            return 0 <= result.p50 <= result.p99 <= result.longest and result.samples > 0
        case Size():
            return 50 < result.bytes_each < 5_000


def test_a_drain_ends_when_the_ends_of_all_jobs_are_stored(stores: StoreFactory) -> None:
    with stores.store() as store:
        execution.drain(store, quick())
        counts = store.app.counts()
        assert counts["COMPLETED"] >= 100
        assert sum(counts.values()) == counts["COMPLETED"]


def test_submits_leave_jobs_that_are_due_later(stores: StoreFactory) -> None:
    for measure in (submits.one_by_one, submits.from_threads, submits.in_bulk):
        with stores.store() as store:
            measure(store, quick())
            counts = store.app.counts()
            assert counts["PENDING"] == sum(counts.values()) > 1
