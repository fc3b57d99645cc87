"""Queues that are paused, resumed and drained from another process than those that work on them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mainspring import JobStatus
from tests.processes.apps.gated import app, elsewhere, sell, wrap
from tests.processes.pipe_gates import make_gate, opened
from tests.processes.run_log import now_ns
from tests.processes.sandbox import Sandbox
from tests.processes.worker_processes import WorkerProcesses
from tests.support import PATIENCE, Background

MANY = 400  # several times what the workers fetch at once: their windows stay small while a job takes 30 ms
WORKERS = 3


@pytest.fixture
def workers(sandbox: Sandbox) -> Iterator[WorkerProcesses]:
    make_gate("gate")
    with app:
        workers = WorkerProcesses(sandbox, "gated", workers=WORKERS)
        workers.start()
        yield workers


def sales_after(sandbox: Sandbox, instant_ns: int) -> int:
    """Count what was begun after an instant."""
    return sum(
        entry.event == "start" and entry.argument.startswith("sell") and entry.instant_ns > instant_ns
        for entry in sandbox.run_log()
    )


def show_that_workers_work(seconds: float = 0.0) -> None:
    for handle in [elsewhere.after(seconds).submit(number) for number in range(2 * WORKERS)]:
        assert handle.wait(PATIENCE) is JobStatus.COMPLETED


@pytest.mark.stress
def test_a_pause_stops_starts_at_once_and_a_resume_goes_on_with_all_of_them(
    sandbox: Sandbox, workers: WorkerProcesses
) -> None:
    ids = sell.submit_many([(number,) for number in range(MANY)])
    workers.wait_for_lines(100)
    shop = app.queue("shop")
    assert shop.pause()
    fetched = shop.statistics().running  # workers fetch some jobs more than they have threads
    paused = now_ns()
    app.manager().wait_until(lambda: shop.statistics().running == 0, PATIENCE, "fetched jobs have not ended")
    begun = sales_after(sandbox, paused)
    assert begun <= fetched < MANY / 2
    show_that_workers_work()
    assert sales_after(sandbox, paused) == begun
    statistics = shop.statistics()
    assert statistics.is_paused
    assert 0 < statistics.pending == MANY - statistics.completed

    assert shop.resume()
    shop.drain(PATIENCE)
    assert app.counts(queue="shop")["COMPLETED"] == MANY
    figures = workers.finish(app, ids).figures()
    assert (figures.lost, figures.doubled, figures.reruns) == (0, 0, 0)


def test_a_pause_stops_jobs_that_workers_hold_for_their_time(sandbox: Sandbox, workers: WorkerProcesses) -> None:
    held = sell.after(1.0).submit_many([(number,) for number in range(20)])
    show_that_workers_work()
    assert app.queue("shop").pause()
    show_that_workers_work(1.2)  # after their time
    assert sales_after(sandbox, 0) == 0
    assert {app.get(job_id).status for job_id in held} == {JobStatus.PENDING}
    app.queue("shop").resume()
    for job_id in held:
        assert app.handle(job_id).wait(PATIENCE) is JobStatus.COMPLETED
    assert sales_after(sandbox, 0) == len(held)


def test_a_drain_waits_for_what_runs_elsewhere(sandbox: Sandbox, workers: WorkerProcesses) -> None:
    handle = wrap.submit(1)
    workers.wait_for_lines(1)

    def drain() -> JobStatus:
        app.queue("shop").drain(PATIENCE)
        return handle.status()

    draining = Background(drain)
    assert not draining.is_done
    with opened("gate"):
        assert draining.result() is JobStatus.COMPLETED
    assert [entry.event for entry in sandbox.run_log()] == ["start", "end"]
