"""The first example of the README, killed in the middle of the wait."""

import re
from collections.abc import Iterator
from pathlib import Path
from signal import SIGTERM

import pytest

from mainspring import JobStatus, Mainspring
from tests.processes.sandbox import READY, ROOT, Sandbox
from tests.support import PATIENCE


@pytest.fixture
def records(sandbox: Sandbox) -> Iterator[Mainspring]:
    """The jobs of the shop, word for word as the README has it; it keeps them where `Mainspring()` does."""
    found = re.search(
        r"^```python\n(# shop\.py.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE
    )
    assert found is not None
    (sandbox.folder / "shop.py").write_text(found[1])
    with Mainspring(f"sqlite:///{sandbox.folder / 'mainspring.db'}") as records:
        yield records


def test_a_job_survives_kill_9_in_the_middle_of_its_wait(sandbox: Sandbox, records: Mainspring) -> None:
    first_start = sandbox.start("shop.py")
    first_start.expect(READY)
    first_start.kill()
    (job,) = records.jobs()
    assert (job.status, job.arguments) == (JobStatus.PENDING, {"order_id": 42})

    second_start = sandbox.start("shop.py")
    second_start.expect("order 42 was not paid in time")
    records.manager().wait(job.id, PATIENCE)
    job, another = records.jobs()  # each start submits one more
    assert (job.status, job.starts, job.crashes) == (JobStatus.COMPLETED, 1, 0)
    assert job.started is not None
    assert job.started >= job.due
    assert another.id != job.id


def test_a_worker_says_at_its_start_where_its_jobs_are(sandbox: Sandbox, records: Mainspring) -> None:
    worker = sandbox.start("shop.py")
    worker.expect(f"Mainspring runs jobs from SQLite file {sandbox.folder / 'mainspring.db'}")
    worker.expect("handlers: shop.cancel_order")


def test_a_handler_of_main_is_found_by_mainspring_run(sandbox: Sandbox, records: Mainspring) -> None:
    submitter = sandbox.start("shop.py")
    submitter.expect(READY)
    submitter.kill()
    worker = sandbox.start("-m", "mainspring", "run", "shop:app")
    worker.expect("order 42 was not paid in time")
    (job,) = records.jobs()
    assert records.manager().wait(job.id, PATIENCE) is JobStatus.COMPLETED
    assert job.type == "shop.cancel_order"


def test_a_clean_stop_leaves_no_log_and_no_trace_of_the_worker(sandbox: Sandbox, records: Mainspring) -> None:
    worker = sandbox.start("shop.py")
    worker.expect(READY)
    assert left_behind(sandbox.folder) == {"mainspring.db-wal", "mainspring.db-shm", "mainspring.db-workers"}
    worker.signal(SIGTERM)
    assert worker.wait() == 0
    assert left_behind(sandbox.folder) == set()


def left_behind(folder: Path) -> set[str]:
    """What lies beside the file of jobs; `-turn`, the lock file of those who write, always stays."""
    return {path.name for path in folder.glob("mainspring.db-*")} - {"mainspring.db-turn"}
