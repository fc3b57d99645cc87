"""A child process that imports its program changes nothing in the store, so that one submit stays one job."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mainspring import JobStatus, Mainspring
from tests.fork_server import start_forked
from tests.programs import run_python
from tests.support import PATIENCE

SCRIPT = """
from mainspring import Mainspring, Retry

app = Mainspring("sqlite:///shop.db", durability="normal", threads=1)

@app.job(execution="process", retry=Retry(max_attempts=1))
def resize(image: int) -> int:
    return image

{deed}
with app.running():
    handle.wait(timeout={patience})
"""

MODULE = """
from contextlib import suppress
from multiprocessing import current_process

from mainspring import JobNotFound, Mainspring, Retry

app = Mainspring("sqlite:///shop.db", durability="normal", threads=1)

@app.job(execution="process", retry=Retry(max_attempts=1))
def resize(image: int) -> int:
    return image

@app.job
def report() -> None: ...

{deed}
"""

PROGRAM = """
from shop import app, resize

if __name__ == "__main__":
    handle = resize.submit(1)
    with app.running():
        handle.wait(timeout={patience})
"""

REFUSAL = "submits jobs or changes the store while a process of its worker imports it"
REMEDY = "under: if __name__ == '__main__':"


def run_script(folder: Path, name: str) -> str:
    done = run_python(name, folder=folder)
    assert done.returncode == 0, done.stderr
    return done.stderr


def jobs_in(folder: Path) -> dict[str, list[JobStatus]]:
    with Mainspring(f"sqlite:///{folder}/shop.db") as app:
        jobs = app.jobs(limit=100)
        return {type: [job.status for job in jobs if job.type == type] for type in {job.type for job in jobs}}


def test_a_script_without_the_guard_submits_its_job_once(tmp_path: Path) -> None:
    deed = "handle = resize.submit(1)"
    (tmp_path / "shop.py").write_text(SCRIPT.format(deed=deed, patience=PATIENCE))
    errors = run_script(tmp_path, "shop.py")
    assert REFUSAL in errors
    assert REMEDY in errors
    assert jobs_in(tmp_path) == {"shop.resize": [JobStatus.FAILED]}


@pytest.mark.parametrize(
    "deed",
    [
        "report.submit()",
        "report.submit_many([{}])",
        "with suppress(JobNotFound): app.cancel('nothing')",
        "app.schedules.put('night', report, f'0 {len(current_process().name) % 24} * * *')",
        "app.queue('other').pause()",
    ],
)
def test_a_module_that_changes_the_store_at_import_fails_in_children(tmp_path: Path, deed: str) -> None:
    (tmp_path / "shop.py").write_text(MODULE.format(deed=deed))
    (tmp_path / "main.py").write_text(PROGRAM.format(patience=PATIENCE))
    errors = run_script(tmp_path, "main.py")
    with Mainspring(f"sqlite:///{tmp_path}/shop.db") as app:
        (job,) = app.jobs(type="shop.resize")
        reports = app.jobs(type="shop.report")
    assert (job.status, REFUSAL in errors) == (JobStatus.FAILED, True), errors
    assert len(reports) == ("submit" in deed)  # that of the program itself


@pytest.mark.parametrize("deed", ["app.counts()", "app.schedules.put('night', report, '0 2 * * *')"])
def test_a_module_that_changes_nothing_at_import_is_no_problem(tmp_path: Path, deed: str) -> None:
    (tmp_path / "shop.py").write_text(MODULE.format(deed=deed))
    (tmp_path / "main.py").write_text(PROGRAM.format(patience=PATIENCE))
    run_script(tmp_path, "main.py")
    assert jobs_in(tmp_path) == {"shop.resize": [JobStatus.COMPLETED]}


def test_an_application_that_a_child_imports_by_its_name_is_refused_too(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(MODULE.format(deed="report.submit()"))
    worker = start_forked("mainspring", "run", "shop:app", folder=tmp_path, environment=os.environ)
    try:
        with Mainspring(f"sqlite:///{tmp_path}/shop.db") as app:
            handle = app.remote_job("shop.resize").submit(image=1)
            handle.wait(PATIENCE)
            info = handle.info()
    finally:
        worker.terminate()
        worker.communicate()
    assert (info.status, REFUSAL in (info.error or "")) == (JobStatus.FAILED, True), info.error
