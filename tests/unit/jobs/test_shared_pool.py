"""Handlers that use their manager while they occupy every worker of the pool that its layers share."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Barrier, Event, Thread
from typing import Any

import pytest

from mainspring import JobStatus, Mainspring, ThreadPool, current_job
from mainspring.jobs import JobManager
from mainspring.jobs.layers import SLICE, ControlLayer
from tests.support import PATIENCE, Gate
from tests.unit.jobs.scripted_engines import ENGINES, make_engine, manager_on_one_pool

WORKERS = 4

Use = Callable[[JobManager, str], object]


def _result(manager: JobManager, job_id: str) -> object:
    """Wait for a job that runs on an event loop, which occupies no worker of the pool."""
    return manager.wait(manager.submit("coroutine"), PATIENCE)


USES: dict[str, Use] = {
    "submit": lambda manager, _: manager.submit("leaf"),
    "submit_delayed": lambda manager, _: manager.submit_delayed("leaf", delay=3600),
    "cancel": lambda manager, later: manager.cancel(later),
    "get": lambda manager, later: manager.get(later).id,
    "reschedule": lambda manager, later: manager.reschedule(later, delay=60),
    "result": _result,
}


async def _coroutine() -> None:
    return None


@pytest.fixture
def pool() -> Iterator[ThreadPool]:
    pool = ThreadPool(WORKERS)
    yield pool
    pool.shutdown(timeout=0)


def _run(manager: JobManager, use: Use, times: int) -> list[JobStatus]:
    """Let so many handlers, all of them at work at once, use the manager."""
    all_at_work = Barrier(times)
    later = manager.submit("leaf", delay=3600)

    def handler() -> None:
        all_at_work.wait(PATIENCE)
        use(manager, later)

    manager.register("busy", handler)
    ids = [manager.submit("busy") for _ in range(times)]
    return [manager.wait(job_id, PATIENCE) for job_id in ids]


def _prepare(manager: JobManager) -> None:
    manager.register("leaf", lambda: None)
    manager.register("coroutine", _coroutine)
    manager.start()


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("kind", ENGINES)
def test_handlers_on_all_workers_of_the_pool_use_the_manager(
    pool: ThreadPool, tmp_path: Path, kind: str, use: str
) -> None:
    manager = JobManager(
        control=pool.sequenced(),
        io=pool.sequenced(),
        execution=pool.parallel(WORKERS),
        engine=make_engine(kind, tmp_path),
    )
    _prepare(manager)
    assert _run(manager, USES[use], WORKERS) == [JobStatus.COMPLETED] * WORKERS
    assert manager.shutdown().is_clean
    manager.close()


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("kind", ENGINES)
def test_a_handler_on_the_only_worker_of_three_sequences_uses_the_manager(
    tmp_path: Path, kind: str, use: str
) -> None:
    pool = ThreadPool(1)
    try:
        manager = manager_on_one_pool(pool, make_engine(kind, tmp_path))
        _prepare(manager)
        assert _run(manager, USES[use], 1) == [JobStatus.COMPLETED]
        assert manager.shutdown().is_clean
        manager.close()
    finally:
        pool.shutdown(timeout=0)


class _Calls(deque[Any]):
    """The calls of a control sequence, which tell when so many wait."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number
        self.are_there = Event()

    def append(self, call: Any) -> None:
        super().append(call)
        if len(self) == self._number:
            self.are_there.set()


def test_a_task_that_waits_for_control_lets_control_run_on_its_pool() -> None:
    """The holder of the turn makes `SLICE` calls and leaves the rest to the runner, whose worker waits."""
    pool = ThreadPool(1)
    try:
        control = ControlLayer(pool.sequenced())
        control._calls = calls = _Calls(SLICE + 1)
        turn, order = Gate(), list[int]()
        holder = Thread(target=control.post, args=(turn.__call__,))
        holder.start()
        turn.wait_until_entered()
        for number in range(SLICE):  # behind the call of the holder: the last ones are for the runner
            control.post(order.append, number)
        answer = pool.submit(lambda: control.run(lambda: len(order)))
        assert calls.are_there.wait(PATIENCE)
        turn.open()
        assert answer.result(PATIENCE) == SLICE
        holder.join(PATIENCE)
    finally:
        pool.shutdown(timeout=0)


def test_a_handler_that_waits_for_its_manager_leaves_no_more_room_for_others(tmp_path: Path) -> None:
    """A pool grows while handlers wait, the number of handlers at once does not."""
    app = Mainspring("memory://", threads=2)
    running: list[str] = []
    most: list[int] = []

    @app.job
    def leaf() -> None: ...

    @app.job
    def busy() -> None:
        running.append(current_job().id)
        most.append(len(running))
        leaf.after(3600).submit()
        running.remove(current_job().id)

    with app, app.running():
        ids = busy.submit_many([()] * 50)
        assert {app.handle(job_id).wait(PATIENCE) for job_id in ids} == {JobStatus.COMPLETED}
    assert max(most) <= 2


def test_a_pool_that_runs_no_layer_does_not_grow_while_its_tasks_wait(tmp_path: Path) -> None:
    app = Mainspring("memory://")
    tasks = 50

    @app.job
    def leaf() -> None: ...

    with app, ThreadPool(2) as pool:
        submitted = [pool.submit(leaf.after(3600).submit) for _ in range(tasks)]
        assert len({task.result(PATIENCE).id for task in submitted}) == tasks
        assert pool.statistics().workers == 2
