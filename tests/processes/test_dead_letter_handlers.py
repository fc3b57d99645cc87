"""Dead-letter handlers and `kill -9`: no dead letter is missed, at whatever moment a worker dies."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring import JobStatus, Mainspring
from tests.processes.apps import alerted
from tests.processes.sandbox import READY, Sandbox
from tests.support import PATIENCE, eventually

KILLS = 4
JOBS = 60


@pytest.fixture
def app(sandbox: Sandbox) -> Iterator[Mainspring]:
    with alerted.app as app:
        yield app


def told() -> list[str]:
    """The ids of the dead letters that the handler was called for."""
    path = Path(alerted.ALERTS)
    return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []


def test_a_job_whose_worker_was_killed_reaches_the_handler_of_another_worker(
    sandbox: Sandbox, app: Mainspring
) -> None:
    worker = sandbox.start_worker("alerted")
    handle = alerted.charge.submit(1, 1_000)
    worker.expect("start 1")
    worker.kill()
    sandbox.start_worker("alerted")
    assert handle.wait(PATIENCE) is JobStatus.FAILED
    assert eventually(lambda: told() == [handle.id])
    assert "at most once" in Path(alerted.ALERTS).read_text()


@pytest.mark.stress
def test_no_kill_makes_the_handler_miss_a_dead_letter(sandbox: Sandbox, app: Mainspring) -> None:
    ids = []
    for kill in range(KILLS):
        worker = sandbox.start_app("alerted")
        worker.expect_all(READY)
        ids += alerted.fail.submit_many([(number,) for number in range(JOBS)])
        for _ in range(7 * (kill + 1)):
            worker.expect("fails")
        worker.kill()
    sandbox.start_worker("alerted")
    for job_id in ids:
        assert app.handle(job_id).wait(PATIENCE) is JobStatus.FAILED
    assert eventually(lambda: set(told()) >= set(ids))
    alerts = app.jobs(type=alerted.alert.name, limit=10_000)
    letters = [job.arguments["letter"]["id"] for job in alerts]
    assert sorted(letters) == sorted(ids), "one job for each dead letter"
