"""A worker in the foreground: what it says and when, and what does not stop it."""

import os
import signal
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

import pytest

from mainspring import Concurrency, EngineUnavailable, Mainspring
from mainspring.foreground.foreground import Foreground
from mainspring.foreground.health_files import choose_folder, read_health_files
from mainspring.foreground.run_output import Banner, NextFiring, PlainRunOutput


class Brief(PlainRunOutput):
    """Says everything, notes it, and lets the worker stop as soon as it is ready."""

    def __init__(self) -> None:
        self.banner: Banner | None = None
        self.schedules: Sequence[NextFiring] = ()

    def show_banner(self, banner: Banner) -> None:
        super().show_banner(banner)
        self.banner = banner

    def show_ready(self, threads: int, schedules: Sequence[NextFiring]) -> None:
        super().show_ready(threads, schedules)
        self.schedules = schedules
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture
def app() -> Mainspring:
    app = Mainspring("memory://", threads=2, queues=["orders"], grace=0)

    @app.job(name="ping", queue="orders")
    def ping() -> None: ...

    @app.cron("30 2 * * *", name="nightly")
    def nightly() -> None: ...

    return app


def run(app: Mainspring, folder: Path) -> Brief:
    output = Brief()
    Foreground(app, environment={}, health_dir=str(folder), output=output).run()
    return output


def test_it_says_what_it_is_and_takes_its_sign_of_life_along(
    app: Mainspring, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = run(app, tmp_path)
    assert output.banner is not None
    assert ("ping", "orders") in output.banner.handlers
    assert [schedule.name for schedule in output.schedules] == ["nightly"]
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "Mainspring runs jobs from memory of this process (jobs are lost when it ends)"
    assert f"pid {os.getpid()}, 2 threads, 100 coroutines" in said[1]
    assert said[2].startswith("  handlers: ping (orders), ")
    assert said[3] == "  queues: orders"
    assert said[4].startswith("  schedule: nightly, next 20")
    assert said[-2:] == [
        "stopping: no more jobs start; running jobs may finish (stop once more to hand them back at once)",
        "stopped",
    ]
    assert read_health_files(choose_folder(str(tmp_path), {})) == []


def test_schedules_that_cannot_be_listed_stop_no_worker(
    app: Mainspring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> NoReturn:
        raise EngineUnavailable(engine="memory", reason="it is away", remedy="wait")

    monkeypatch.setattr(app.schedules, "list", fail)
    assert run(app, tmp_path).schedules == []
    assert "schedules cannot be listed: memory: it is away; wait" in caplog.text


def test_no_handlers_are_worth_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(Mainspring("memory://", grace=0), tmp_path)
    assert "the application has no handlers, so no jobs will run: import the modules with handlers" in caplog.text


def test_many_schedules_are_not_all_listed(capsys: pytest.CaptureFixture[str]) -> None:
    due = datetime(2027, 1, 1, 2, 30, tzinfo=UTC)
    schedules = [NextFiring(f"s{number}", due if number else None) for number in range(30)]
    PlainRunOutput().show_ready(8, schedules)
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "  schedule: s0, next never (paused or over)"
    assert said[1] == "  schedule: s1, next 2027-01-01 02:30:00 UTC"
    assert said[20:] == ["  and 10 more schedules", "  8 threads at work; stop with Ctrl+C or SIGTERM"]


def test_a_mistyped_queue_is_answered_with_the_queue_that_was_meant(
    app: Mainspring, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app.queue("slow", concurrency=Concurrency(1))
    app.queues = ("orders", "slow", "default", "ordes", "reports")
    run(app, tmp_path)
    told = "this worker serves queue 'reports', but no handler uses that queue"
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
        "this worker serves queue 'ordes', but no handler uses that queue; did you mean 'orders'?",
        f"{told}; handlers use 'default', 'orders', 'slow'; a submit can name others: options(queue='reports')",
    ]
