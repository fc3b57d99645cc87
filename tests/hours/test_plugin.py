"""The plugin that lets tests begin at a chosen instant, in their own process and in those that they start."""

import os
from pathlib import Path

import pytest

from tests.programs import run_python
from tests.support import PATIENCE

ROOT = Path(__file__).parents[2]

TESTS = """
import os, subprocess, sys
from datetime import UTC, datetime, timedelta
from mainspring.clock import SystemClock

HOUR = datetime(2028, 2, 29, 23, 59, 55, tzinfo=UTC)
ENVIRONMENT = dict(os.environ)  # as some modules of tests keep it
ASK = "from mainspring.clock import SystemClock; print(SystemClock().now().isoformat())"

def test_here():
    assert HOUR <= SystemClock().now() < HOUR + timedelta(seconds=30)

def test_in_a_child():
    done = subprocess.run([sys.executable, "-c", ASK], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert HOUR <= datetime.fromisoformat(done.stdout.strip()) < HOUR + timedelta(seconds=60)
"""


ALONE = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # the other plugins take longer than these tests


@pytest.mark.parametrize("options", [[], ["-p", "xdist", "-n", "1"]], ids=["alone", "in a worker"])
def test_tests_and_their_child_processes_begin_at_the_hour(tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "test_hour.py").write_text(TESTS)
    pytest_options = ["-p", "tests.hours.plugin", "--hour", "2028-02-29T23:59:55Z", "-c", "/dev/null", *options]
    environment = ALONE | {"TMPDIR": str(tmp_path)}
    done = run_python(
        "-m", "pytest", *pytest_options, str(tmp_path), folder=ROOT, environment=environment, patience=2 * PATIENCE
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr
    assert list(tmp_path.glob("mainspring-hour-*")) == []


def test_an_hour_without_a_time_zone_is_refused(tmp_path: Path) -> None:
    pytest_options = ["-p", "tests.hours.plugin", "--hour", "2028-02-29T23:59:55"]
    done = run_python(
        "-m", "pytest", *pytest_options, str(tmp_path), folder=ROOT, environment=ALONE, patience=2 * PATIENCE
    )
    assert "has no time zone; add Z for UTC" in done.stderr
