"""The demonstration tells the truth: its figures add up, its exit code says so, and it leaves nothing behind."""

import json
import os
import re
import signal
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mainspring.cli.exit_codes import ExitCode
from mainspring.demo.audit import OrderAudit, WorkerOutage
from mainspring.demo.journal import JournalEntry, OrderEvent
from mainspring.demo.orders import app
from tests.programs import Program, program, read_line
from tests.support import PATIENCE

COMMAND = ("demo", "--quick")


class Finished(NamedTuple):
    """A demonstration that has come to its end."""

    exit_code: int
    told: str
    figures: dict[str, Any]
    left_behind: list[Path]


# A shell in the background ignores Ctrl+C, and so do its children: begin as in the foreground.
LISTEN = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
)


def started(temporary: Path, *options: str) -> AbstractContextManager[Program]:
    temporary.mkdir(exist_ok=True)
    command = ("-c", LISTEN, sys.executable, "-W", "error", "-m", "mainspring", *COMMAND, *options)
    environment = {**os.environ, "TMPDIR": str(temporary), "COLUMNS": "80"}
    return program(*command, folder=temporary.parent, environment=environment)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("demo")
    temporary = folder / "tmp"
    with started(temporary, "--json") as process:
        output, told = process.communicate(timeout=2 * PATIENCE)
    assert output, told
    return Finished(process.returncode, told, json.loads(output), list(temporary.iterdir()))


def test_it_succeeds_without_a_complaint(finished: Finished) -> None:
    assert (finished.exit_code, finished.figures["complaints"]) == (0, []), finished.told
    assert "Nothing was lost" in finished.told


def test_every_order_was_paid_or_canceled_and_none_both(finished: Finished) -> None:
    figures = finished.figures
    assert figures["submitted"] == 600
    assert figures["paid"] + figures["paid_late_and_kept"] + figures["cancelled"] == figures["submitted"]
    assert (figures["lost"], figures["cancelled_though_paid"]) == (0, 0)


def test_the_order_service_failed_and_its_dead_letters_were_replayed(finished: Finished) -> None:
    figures = finished.figures
    assert figures["failed_attempts"] > figures["retried"] > figures["dead"] > 0
    assert figures["replayed"] == figures["dead"]


def test_the_parcels_of_each_customer_were_charged_packed_and_mailed_in_order(finished: Finished) -> None:
    figures = finished.figures
    assert figures["parcels"] > figures["parcels_held_up"] > 0
    assert (figures["parcels_unfinished"], figures["steps_out_of_order"]) == (0, 0)


def test_every_night_had_its_report_and_the_story_tells_it(finished: Finished) -> None:
    assert finished.figures["nights"] > 0
    assert finished.figures["nights_without_report"] == 0
    told = re.findall(r"nightly report (\d+): [\d,]+ unpaid", finished.told)
    assert told == [str(number + 1) for number in range(finished.figures["nights"])]


def test_the_kill_held_jobs_up_and_whatever_ran_twice_was_in_flight_then(finished: Finished) -> None:
    assert finished.figures["held_up_by_kill"] > 0
    assert finished.figures["run_twice_unexplained"] == 0


def test_no_time_out_started_early_and_lateness_is_in_order(finished: Finished) -> None:
    assert 0 <= finished.figures["lateness_p50_ms"] <= finished.figures["lateness_p99_ms"]


FIELDS = {"canceled": "cancelled"}  # rows of the table whose field in JSON has another name


def test_the_closing_table_shows_the_figures_and_fits_a_terminal(finished: Finished) -> None:
    table = dict(re.findall(r"│ ([a-z0-9 ]+?) +│ +([\d,.]+)(?: ms)? │", finished.told))
    names = (
        "submitted",
        "paid",
        "retried",
        "dead",
        "replayed",
        "lost",
        "run twice",
        "parcels",
        "nights",
    )
    assert {name: table[name] for name in names} == {
        name: f"{finished.figures[FIELDS.get(name, name.replace(' ', '_'))]:,}" for name in names
    }
    assert table["canceled"] == f"{finished.figures['cancelled']:,}"
    assert {"lateness p50", "lateness p99"} <= table.keys()
    assert max(len(line) for line in finished.told.splitlines()) <= 80


def test_it_leaves_no_file_and_no_process_behind(finished: Finished) -> None:
    assert finished.left_behind == []
    workers = worker_ids(finished.told)
    assert len(workers) == 2
    assert not any(map(is_alive, workers))


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopped_on_the_way_it_leaves_no_file_and_no_process_behind(
    tmp_path: Path, number: signal.Signals, exit_code: int
) -> None:
    temporary = tmp_path / "tmp"
    with started(temporary) as process:
        said = [read_line(process) for _ in range(3)]  # the shop is open, and something has happened in it
        process.send_signal(number)
        rest, errors = process.communicate(timeout=2 * PATIENCE)
    assert (process.returncode, errors) == (exit_code, ""), rest
    assert list(temporary.iterdir()) == []
    workers = worker_ids("".join(said))
    assert len(workers) == 1
    assert not any(map(is_alive, workers))


STOP_WITHIN_A_STEP = """
import os, runpy, signal, sys
from pathlib import Path
from mainspring.demo.journal import OrderJournal
complete = Path(sys.argv.pop(1))
read = OrderJournal.read_new
def read_and_stop(journal):
    os.kill(os.getpid(), signal.SIGTERM)
    complete.touch()
    return read(journal)
OrderJournal.read_new = read_and_stop
runpy.run_module("mainspring", run_name="__main__", alter_sys=True)
"""


def test_a_signal_does_not_interrupt_a_step(tmp_path: Path) -> None:
    temporary, complete = tmp_path / "tmp", tmp_path / "complete"
    temporary.mkdir()
    command = ("-W", "error", "-c", STOP_WITHIN_A_STEP, str(complete), *COMMAND)
    environment = {**os.environ, "TMPDIR": str(temporary), "COLUMNS": "80"}
    with program(*command, folder=tmp_path, environment=environment) as process:
        output, errors = process.communicate(timeout=2 * PATIENCE)
    assert (process.returncode, errors) == (143, ""), output
    assert complete.exists()
    assert list(temporary.iterdir()) == []
    assert not any(map(is_alive, worker_ids(output)))


def test_it_ends_when_its_output_is_not_read(tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    with started(temporary) as process:
        assert "a shop" in read_line(process)
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
        assert process.wait(2 * PATIENCE) == ExitCode.OUTPUT_CLOSED
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("events", "complaints"),
    [
        ("1 placed paid", []),
        ("1 placed", ["lost orders: 1"]),
        (
            "1 placed paid started cancelled",
            ["orders canceled although they were paid in time: 1"],
        ),
        ("20 placed paid parcel charged packed mailed reported night", []),
        (
            "20 placed paid parcel charged packed",
            ["parcels that were not charged, packed and mailed: 1", "steps of parcels out of order: 1"],
        ),
        ("20 placed paid parcel packed charged mailed", ["steps of parcels out of order: 2"]),
        ("1 placed paid night", ["nights without a report: 1"]),
    ],
)
def test_the_audit_reports_violated_guarantees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: str, complaints: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    order, *happened = events.split()
    audit = OrderAudit()
    audit.add(
        [
            JournalEntry(OrderEvent(event), int(order), "order-1", 0.0, 0.0)
            for event in happened
            if event != "night"
        ]
    )
    with app:
        figures = audit.close(replayed=0, outage=WorkerOutage(begin=1, end=2), nights=happened.count("night"))
    assert figures.complaints == complaints


SABOTAGE = """
import sys
from mainspring.cli import main
from mainspring.demo import scenario
from mainspring.demo.audit import OrderAudit, WorkerOutage
from mainspring.demo.journal import JournalEntry, OrderEvent
class DemoScenario:
    def __init__(self, *parts): pass
    def run(self):
        day = OrderAudit()
        day.add([JournalEntry(OrderEvent.PLACED, 1, "order-1", 0.0, 0.0)])
        return day.close(replayed=0, outage=WorkerOutage(begin=1, end=2), nights=0)
scenario.DemoScenario = DemoScenario
main()
"""


def test_the_exit_code_says_that_the_audit_failed(tmp_path: Path) -> None:
    with program("-c", SABOTAGE, *COMMAND, environment={**os.environ, "TMPDIR": str(tmp_path)}) as process:
        output, errors = process.communicate(timeout=2 * PATIENCE)
    assert (process.returncode, errors) == (1, "")
    assert "lost orders: 1" in output


def worker_ids(output: str) -> list[int]:
    return [int(found) for found in re.findall(r"worker (\d+) is ready", output)]


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
