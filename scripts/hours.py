"""The run of `make hours`: the tests that read the date, as if at instants at which dates are hard.

python -m scripts.hours                                        tests that read the date, at all of these instants
python -m scripts.hours --at 2026-10-25T00:59:55Z tests/unit   any tests, at one instant
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

INSTANTS = {
    "2026-03-29T00:59:55Z": "clocks go forward in Berlin",
    "2026-10-25T00:59:55Z": "clocks go back in Berlin",
    "2026-03-08T06:59:55Z": "clocks go forward in New York",
    "2026-11-01T05:59:55Z": "clocks go back in New York",
    "2028-02-29T23:59:55Z": "29 February ends",
    "2026-12-31T23:59:55Z": "the year ends",
    "2026-06-15T17:40:00Z": "01:40 in Taipei: the nightly job of the manual is due in 20 minutes",
    "2026-06-15T17:59:55Z": "01:59 in Taipei: it is due in five seconds",
}
"""Instants at which every test begins."""

READ_THE_DATE = [
    "tests/acceptance/test_examples.py",
    "tests/cli/test_schedules.py",
    "tests/cli/test_submit.py",
    "tests/unit/doctor",
    "tests/unit/jobs/test_cron_datetimes.py",
    "tests/unit/test_cli_run.py",
    "tests/unit/test_testing_document.py",
]
"""Tests that show or compute with the real date, or run schedules by it."""

COMPARES_WITH_REAL_TIME = "tests/unit/test_clock.py::test_the_system_clock_is_a_clock_and_counts_forwards"


def run(instant: str, tests: list[str]) -> bool:
    """Run tests as if at an instant; True if all pass."""
    print(f"\n{instant}: {INSTANTS.get(instant, '')}", flush=True)
    pytest = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "tests.hours.plugin", "--hour", instant]
    return (
        subprocess.run([*pytest, "--deselect", COMPARES_WITH_REAL_TIME, *tests], cwd=ROOT, check=False).returncode
        == 0
    )


def main() -> int:
    """Run the tests at every instant; the number of instants at which some failed."""
    parser = argparse.ArgumentParser(description="Run tests as if at instants at which dates are hard.")
    parser.add_argument("--at", action="append", metavar="INSTANT", help="only at this instant (ISO 8601)")
    parser.add_argument("tests", nargs="*", default=READ_THE_DATE, help="folders, files or tests")
    arguments = parser.parse_args()
    failed = [instant for instant in arguments.at or INSTANTS if not run(instant, arguments.tests)]
    print(f"failed at {', '.join(failed)}" if failed else "passed at all instants")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
