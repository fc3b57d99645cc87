"""Child processes of a worker: they import its application first, use its store, and log through it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mainspring import Mainspring
from tests.processes.sandbox import READY, Sandbox
from tests.support import PATIENCE, eventually

pytestmark = pytest.mark.long

SHOP = """
import framework
framework.set_up()
from mainspring import Mainspring

app = Mainspring("sqlite:///shop.db", include=["handlers"])
"""
FRAMEWORK = """
is_ready = False

def set_up():
    global is_ready
    is_ready = True
"""
HANDLERS = """
import logging

import framework
if not framework.is_ready:
    raise RuntimeError("the framework is not set up")
from shop import app

@app.job
def follow(number: int) -> None: ...

@app.job(execution="process")
def lead(number: int) -> str:
    logging.getLogger("shop.lead").info("order %d", number)
    try:
        raise ValueError("too large")
    except ValueError:
        logging.getLogger("shop.lead").exception("order %d failed", number)
    return follow.options(id=f"follow-{number}").submit(number).id
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    for name, text in {"shop": SHOP, "framework": FRAMEWORK, "handlers": HANDLERS}.items():
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


def submit_lead(app: Mainspring) -> str:
    """Submit a job for the handler in the child process; return its id."""

    @app.job(name="handlers.lead")
    def lead(number: int) -> None: ...

    return lead.submit(7).id


def test_a_job_that_a_child_process_submits_is_in_the_store_of_its_worker(shop: Path, sandbox: Sandbox) -> None:
    url = f"sqlite:///{shop}/other.db"
    worker = sandbox.start("-m", "mainspring", "run", "shop:app", "--url", url)
    worker.expect(READY)
    with Mainspring(url) as app:
        job_id = submit_lead(app)
        assert app.handle(job_id).wait(PATIENCE).name == "COMPLETED"
        assert app.handle("follow-7").wait(PATIENCE).name == "COMPLETED"
    assert not (shop / "shop.db").exists()


def test_the_log_of_a_worker_has_the_records_of_its_child_processes(shop: Path, sandbox: Sandbox) -> None:
    worker = sandbox.start("-m", "mainspring", "run", "shop:app", "--log-format", "json")
    worker.expect('"event":"ready"')
    with Mainspring(f"sqlite:///{shop}/shop.db") as app:
        job_id = submit_lead(app)
        assert app.handle(job_id).wait(PATIENCE).name == "COMPLETED"
    eventually(lambda: any("order 7 failed" in line for line in worker.lines))
    records = [json.loads(line) for line in worker.lines if '"shop.lead"' in line]
    assert [(each["level"], each["message"]) for each in records] == [
        ("info", "order 7"),
        ("error", "order 7 failed"),
    ]
    for record in records:
        assert (record["job"], record["attempt"]) == (job_id, 1)
        assert (record["handler"], record["queue"]) == ("handlers.lead", "default")
    assert records[1]["exception"].endswith("ValueError: too large")


def test_an_application_that_a_child_cannot_import_is_the_error_of_the_job(shop: Path, sandbox: Sandbox) -> None:
    guard = "from multiprocessing import current_process\nif current_process().name != 'MainProcess':\n"
    (shop / "framework.py").write_text(guard + "    raise OSError('no settings')\n" + FRAMEWORK)
    worker = sandbox.start("-m", "mainspring", "run", "shop:app")
    worker.expect(READY)
    with Mainspring(f"sqlite:///{shop}/shop.db") as app:
        job_id = submit_lead(app)
        eventually(lambda: app.get(job_id).error is not None)
        error = app.get(job_id).error
    assert error is not None
    assert "cannot import 'shop', the module of the application: OSError: no settings" in error


def test_a_worker_that_creates_its_store_at_a_relative_path_says_where(shop: Path, sandbox: Sandbox) -> None:
    worker = sandbox.start("-m", "mainspring", "run", "shop:app")
    line = worker.expect("has created the store")
    assert f"has created the store {shop}/shop.db: the code names the relative path shop.db" in line
    again = sandbox.start("-m", "mainspring", "run", "shop:app")
    again.expect(READY)
    assert not any("has created the store" in each for each in again.lines)
