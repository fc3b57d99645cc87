"""Several engines on one file: they see each other's jobs, wake each other, and notice each other's death."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import pytest

from mainspring.engines.sqlite import SqliteEngine, worker_files
from mainspring.jobs.records import OutcomeKind, WorkerInfo
from mainspring.jobs.status import JobStatus
from mainspring.testing import ManualClock
from mainspring.testing.conformance.bench import Bench
from tests.support import PATIENCE
from tests.unit.engines.crash_points import opened


def worker_files_of(path: Path) -> list[str]:
    folder = Path(f"{path}-workers")
    return sorted(file.name for file in folder.iterdir()) if folder.exists() else []


class Interruption(BaseException):
    pass


def interrupted(bench: Bench, call: Callable[[], object]) -> None:
    """Make a call in a unit that fails afterwards."""
    try:
        with bench.engine.unit(durable=True):
            call()
            raise Interruption
    except Interruption:
        return


def test_two_engines_see_the_jobs_of_each_other(bench: Bench, path: Path, clock: ManualClock) -> None:
    with opened(path, clock) as other:
        bench.submit("a", type="new to the other")
        other.submit("b", type="new to the first")
        assert bench.find_ids() == other.find_ids() == ["a", "b"]
        assert other.take_ids(other.enroll(), "new to the other") == ["a"]
        assert bench.take_ids(bench.enroll(), "new to the first") == ["b"]


def test_a_worker_whose_process_died_is_known_to_be_gone(bench: Bench, path: Path, clock: ManualClock) -> None:
    with opened(path, clock) as other:
        dead = other.enroll()
        assert [(worker.number, worker.is_gone) for worker in bench.engine.workers()] == [(dead, False)]
    assert [(worker.number, worker.is_gone) for worker in bench.engine.workers()] == [(dead, True)]


def test_a_unit_that_fails_keeps_nothing(bench: Bench) -> None:
    interrupted(bench, lambda: bench.submit("job", type="new", queue="new"))
    assert bench.find_ids() == []
    bench.submit("job", type="newer", queue="newer")  # the lane of the first one must not be remembered
    assert bench.record().type == "newer"


def test_an_enroll_whose_unit_fails_later_leaves_no_trace_and_can_be_repeated(bench: Bench, path: Path) -> None:
    interrupted(bench, lambda: bench.engine.enroll(WorkerInfo("first", 1, ("ping",))))
    assert worker_files_of(path) == []
    worker = bench.engine.enroll(WorkerInfo("second", 1, ("ping",)))
    assert worker_files_of(path) == [f"{worker}.lock", f"{worker}.wake"]


def test_the_files_of_a_dead_worker_stay_until_its_rescue_is_committed(
    bench: Bench, path: Path, clock: ManualClock
) -> None:
    with opened(path, clock) as other:
        dead = other.enroll()
    survivor = bench.enroll()
    interrupted(bench, lambda: bench.engine.sweep(survivor))
    assert f"{dead}.lock" in worker_files_of(path)
    bench.engine.sweep(survivor)
    assert f"{dead}.lock" not in worker_files_of(path)


@contextmanager
def listening(path: Path, clock: ManualClock) -> Iterator[tuple[int, Event]]:
    """Lend a worker of another engine, and an event that is set when it is woken."""
    woken = Event()
    engine = SqliteEngine(path, clock=clock)
    engine.open(woken.set)
    worker = engine.enroll(WorkerInfo("other", 1, ("ping",)))
    try:
        yield worker, woken
    finally:
        engine.leave(worker)
        engine.close()


def test_a_submit_wakes_the_workers_of_other_engines(
    bench: Bench, path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_files, "POLL_SECONDS", 3_600)
    with listening(path, clock) as (_, woken):
        bench.submit("job")
        assert woken.wait(PATIENCE)


def test_a_worker_that_cannot_be_woken_finds_out_by_itself(
    bench: Bench, path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_files, "POLL_SECONDS", 0.01)
    with listening(path, clock) as (worker, woken):
        Path(f"{path}-workers", f"{worker}.wake").unlink()
        assert woken.wait(PATIENCE)  # its first look
        woken.clear()
        bench.submit("job")
        assert woken.wait(PATIENCE)


def test_the_files_of_a_worker_appear_and_vanish_with_it(bench: Bench, path: Path) -> None:
    assert worker_files_of(path) == []
    first, second = bench.enroll(), bench.enroll()
    assert worker_files_of(path) == sorted(
        f"{worker}.{kind}" for worker in (first, second) for kind in ("lock", "wake")
    )
    bench.engine.leave(first)
    assert worker_files_of(path) == [f"{second}.lock", f"{second}.wake"]
    bench.engine.leave(second)
    assert not Path(f"{path}-workers").exists()


def test_a_process_for_itself_leaves_no_files(path: Path, clock: ManualClock) -> None:
    engine = SqliteEngine(path, clock=clock, is_shared=False)
    bench = Bench(engine, clock)
    bench.enroll()
    assert worker_files_of(path) == []
    engine.close()


def test_the_jobs_of_a_dead_process_are_rescued_at_once(bench: Bench, path: Path, clock: ManualClock) -> None:
    with opened(path, clock) as other:
        dead, lease = other.begin()
        assert bench.engine.sweep(bench.enroll()).rescued == []
    survivor = bench.enroll()
    assert bench.engine.sweep(survivor).rescued == ["job"]
    assert not bench.settle(dead, lease, OutcomeKind.COMPLETED)
    assert not any(name.startswith(f"{dead}.") for name in worker_files_of(path))


def test_a_live_process_keeps_its_jobs_while_its_lock_is_held(
    bench: Bench, path: Path, clock: ManualClock
) -> None:
    with opened(path, clock) as other:
        worker, lease = other.begin()
        for _ in range(3):
            assert bench.engine.sweep(bench.enroll()).rescued == []
        assert other.settle(worker, lease, OutcomeKind.COMPLETED)
    assert bench.status() is JobStatus.COMPLETED
