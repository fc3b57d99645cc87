"""`mainspring bench` measures beside the user's store and leaves nothing behind, however it ends."""

import re
import signal
from pathlib import Path
from threading import Event

import pytest

from mainspring.bench.suite import MEASUREMENTS
from mainspring.cli.exit_codes import ExitCode
from tests.cli.shop_program import ShopProgram
from tests.support import PATIENCE

pytestmark = pytest.mark.long

QUICK = ("bench", "--seconds", "0.02", "--jobs", "200")
USAGE = 2
LOOK_SECONDS = 0.005


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()} | {
        file.name: b"a folder" for file in folder.iterdir() if file.is_dir()
    }


def test_all_figures_are_printed_and_the_store_of_the_user_stays_as_it_was(shop: ShopProgram) -> None:
    shop.submit({"order_id": 1})
    before = contents(shop.folder)
    done = shop.run_on_store(*QUICK, "--json")
    assert done.code == 0
    assert list(done.json["figures"]) == [measurement.name for measurement in MEASUREMENTS]
    assert done.json["figures"]["submit"]["per_second"] > 0
    assert done.json["engine"]["folder"] == str(shop.folder)
    assert done.json["complete"] is True
    assert "Other programs" in done.json["caveat"]
    assert contents(shop.folder) == before


def test_without_a_target_it_measures_in_the_working_directory_and_a_table_says_how(shop: ShopProgram) -> None:
    done = shop.run(*QUICK)
    assert (done.code, done.errors) == (0, "")
    head, where, _, titles, *rows = done.output.splitlines()
    assert head.startswith("mainspring 0.")
    assert f"durability full, folder {shop.folder}" in where
    assert titles.split() == ["WHAT", "FIGURE", "SAMPLES", "HOW"]
    assert len(rows) == len(MEASUREMENTS) + 2
    assert "best of" in done.output
    assert rows[-1].startswith("Other programs")
    assert list(contents(shop.folder)) == ["shop.py"]


def test_a_terminal_sees_what_is_being_measured_and_how_long_it_takes_still(shop: ShopProgram) -> None:
    code, shown = shop.run_on_terminal("bench", "--seconds", "0.3", "--in", str(shop.folder), columns=100)
    assert code == 0
    plain = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", shown)
    assert re.search(r"submits, one by one +[━╸╺ ]+ +[\d,]+/s left:", plain)
    table = plain[plain.index("WHAT") :].splitlines()[: len(MEASUREMENTS) + 1]
    assert max(map(len, table)) <= 100


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, ExitCode.INTERRUPTED), (signal.SIGTERM, 128 + signal.SIGTERM)]
)
def test_stopped_on_the_way_it_leaves_nothing_behind(shop: ShopProgram, number: signal.Signals, code: int) -> None:
    process = shop.start("bench", "--seconds", "1")
    try:
        wait_for_stores(shop, 2)  # the first was asked for its version, on the second is measured
        process.send_signal(number)
        output, errors = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == code
    assert "Traceback" not in errors
    assert "tasks in one process" in output  # it prints what it has
    assert "size of a job" not in output
    assert list(contents(shop.folder)) == ["shop.py"]


def wait_for_stores(shop: ShopProgram, count: int) -> None:
    """Wait until a program has made so many stores, one after the other."""
    seen: set[Path] = set()
    for _ in range(int(PATIENCE / LOOK_SECONDS)):
        seen.update(shop.folder.glob(".mainspring-bench-*/jobs.db"))
        if len(seen) == count:
            return
        Event().wait(LOOK_SECONDS)
    raise AssertionError(f"only {len(seen)} stores were made")


def test_a_place_that_makes_no_sense_is_refused(shop: ShopProgram) -> None:
    missing = shop.run("bench", "--in", "missing")
    assert missing.code == ExitCode.UNAVAILABLE
    assert (
        "missing: no temporary store can be made in this folder (No such file or directory); choose a folder"
        in missing.error_line
    )
    assert missing.error_line.endswith("--in FOLDER, without --app and --url")
    both = shop.run_on_store("bench", "--in", ".")
    assert both.code == USAGE
    assert "--in cannot be used with --app or --url" in both.error_line
