"""`app.workers()`: each worker is alive, silent or dead."""

from datetime import UTC, datetime, timedelta

import pytest

from mainspring import Liveness, Mainspring
from mainspring.jobs.engine import STALE
from mainspring.jobs.records import WorkerInfo, WorkerRecord
from mainspring.jobs.worker_status import to_worker_status
from mainspring.testing import time_travel

NOW = 10 * STALE
START = datetime(2026, 1, 5, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("heartbeat", "is_gone", "state"),
    [
        (NOW, False, Liveness.ALIVE),
        (NOW - STALE, False, Liveness.ALIVE),
        (NOW - STALE - 1, False, Liveness.SILENT),
        (NOW, True, Liveness.DEAD),
        (0, True, Liveness.DEAD),
    ],
)
def test_the_state_follows_from_the_last_heartbeat(heartbeat: int, is_gone: bool, state: Liveness) -> None:  # noqa: FBT001
    record = WorkerRecord(3, WorkerInfo("host:7", 7, ("ping",)), heartbeat, is_gone)
    status = to_worker_status(record, NOW)
    assert (status.number, status.name, status.process, status.types) == (3, "host:7", 7, ("ping",))
    assert status.state is state
    assert (status.heartbeat is None) == (heartbeat == 0)


def test_the_worker_of_a_job_is_found_among_the_workers() -> None:
    app = Mainspring("memory://")
    holders: list[int | None] = []

    @app.job(name="ping")
    def ping(job: str) -> None:
        holders.append(app.get(job).worker)

    with time_travel(app, start=START) as travel:
        ping.options(id="one").submit("one")
        travel.fast_forward(timedelta(seconds=1))
        (worker,) = app.workers()
    assert holders == [worker.number]
    assert worker.types == ("ping",)
