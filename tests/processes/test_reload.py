"""`mainspring run --reload`: a developer edits the application while its worker runs."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring import JobHandle, JobStatus, Mainspring
from tests.processes.sandbox import READY, Child
from tests.support import PATIENCE, eventually

MODULE = """
from pathlib import Path
from threading import Event
from mainspring import Mainspring

app = Mainspring("sqlite:///shop.db", durability="normal")


@app.job
def answer() -> int:
    return NUMBER


@app.job
def wait_for(path: str) -> int:
    while not Path(path).exists():
        Event().wait(0.01)
    return NUMBER
"""


class Development:
    """A worker with `--reload`, and the application that a developer edits."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.edit(1)
        options = ("dev:app", "--reload", "--grace", "60s")
        environment = {"MAINSPRING_HEALTH_DIR": str(folder)}
        self.worker = Child(
            "-m", "mainspring", "run", *options, folder=folder, environment=environment, is_new=True
        )
        self._app = Mainspring(f"sqlite:///{folder / 'shop.db'}", durability="normal", grace=0)
        for name in ("answer", "wait_for"):
            self._app.job(name=f"dev.{name}")(accept_anything)

    def edit(self, number: int) -> None:
        """Save the module so that its handlers return another number."""
        (self._folder / "dev.py").write_text(MODULE.replace("NUMBER", str(number)))

    def make_mistake(self) -> None:
        """Save the module in the middle of a line."""
        (self._folder / "dev.py").write_text(f"{MODULE}\ndef (")

    def submit(self, name: str, **arguments: str) -> JobHandle[int]:
        return self._app.handle(self._app.manager().submit(f"dev.{name}", arguments))

    def close(self) -> None:
        self.worker.close()
        self._app.close()


def accept_anything(path: str = "") -> int:
    return 0


@pytest.fixture
def development(tmp_path: Path) -> Iterator[Development]:
    development = Development(tmp_path)
    development.worker.expect(READY)
    yield development
    development.close()


def test_a_worker_runs_each_version_that_is_saved(development: Development) -> None:
    worker = development.worker
    assert development.submit("answer").result(PATIENCE) == 1

    development.make_mistake()
    worker.expect("dev.py has changed: the worker restarts")
    worker.expect("the worker cannot start: 'dev:app' cannot be imported: SyntaxError")
    worker.expect("waiting for a change of a source file in")
    waiting = development.submit("answer")
    development.edit(2)
    worker.expect(READY)
    assert waiting.result(PATIENCE) == 2

    worker.signal(signal.SIGINT)
    assert worker.wait() == 0


def test_a_running_job_gets_the_grace(development: Development, tmp_path: Path) -> None:
    job = development.submit("wait_for", path=str(tmp_path / "end"))
    assert eventually(lambda: job.status() is JobStatus.RUNNING)
    development.edit(2)
    development.worker.expect("stopping: no more jobs start")
    (tmp_path / "end").touch()
    assert job.result(PATIENCE) == 1  # it ran to its end in the old worker
    assert job.info().interruptions == 0
    development.worker.expect(READY)
    assert development.submit("answer").result(PATIENCE) == 2


def test_a_signal_ends_a_worker_that_waits_for_a_correction(development: Development) -> None:
    development.make_mistake()
    development.worker.expect("waiting for a change")
    development.worker.signal(signal.SIGTERM)
    assert development.worker.wait() == 0


def test_a_signal_during_a_restart_ends_the_worker(development: Development, tmp_path: Path) -> None:
    job = development.submit("wait_for", path=str(tmp_path / "end"))
    assert eventually(lambda: job.status() is JobStatus.RUNNING)
    development.edit(2)
    development.worker.expect("stopping: no more jobs start")
    development.worker.signal(signal.SIGINT)
    assert development.worker.wait() == 0
    assert job.status() is JobStatus.PENDING  # it was handed back


def test_wrong_usage_is_refused_at_the_first_start(tmp_path: Path) -> None:
    child = Child("-m", "mainspring", "run", "nothing:app", "--reload", folder=tmp_path, is_new=True)
    try:
        child.expect("there is no module 'nothing'")
        assert child.wait() == 2
    finally:
        child.close()
