"""Run the tests on every supported Python of this machine, except the one that runs this script.

Each gets an environment of its own, such as .venv-3.12. A Python that is not here is reported, not missed.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

SUPPORTED = ["3.11", "3.12", "3.13"]
ROOT = Path(__file__).parents[1]

# Asks for ensurepip too: without it no environment can be made.
PROBE = "import ensurepip, sys; print('{}.{}'.format(*sys.version_info))"


def candidates(version: str) -> Iterator[Path]:
    """Where a Python of this version may be."""
    for folder in [*os.get_exec_path(), "/usr/bin", "/usr/local/bin"]:
        yield Path(folder, f"python{version}")
    yield from Path.home().glob(f".pyenv/versions/{version}.*/bin/python")


def find(version: str) -> Path | None:
    """The first candidate that really runs: a pyenv shim of an inactive version exists, but fails."""
    for python in candidates(version):
        if python.exists():
            answer = subprocess.run([python, "-c", PROBE], capture_output=True, text=True, check=False)
            if answer.stdout.strip() == version:
                return python
    return None


def tests_pass(version: str, python: Path) -> bool:
    """Bring the environment of this version up to date and run the tests in it."""
    venv = f".venv-{version}"
    setup = ["make", "--no-print-directory", "setup", f"VENV={venv}", "EXTRA=test", f"PYTHON={python}"]
    # One interpreter is enough for mypy, which checks for all versions.
    pytest = [f"{venv}/bin/python", "-m", "pytest"]
    # The long scenarios with crashes and processes test the storage more than the interpreter: once is enough.
    tests = [*pytest, "-m", "not stress", "--ignore=tests/typing"]
    stress = [*pytest, "tests/stress"]
    commands = (setup, tests, stress)
    return all(subprocess.run(command, cwd=ROOT, check=False).returncode == 0 for command in commands)


def main() -> int:
    """Run them all, then report; the number of versions that failed."""
    reports = {}
    for version in SUPPORTED:
        if version == "{}.{}".format(*sys.version_info):
            continue
        if python := find(version):
            print(f"\nPython {version}: {python}", flush=True)
            reports[version] = "passed" if tests_pass(version, python) else "FAILED"
        else:
            reports[version] = "not on this machine"
    for version, report in reports.items():
        print(f"Python {version}: {report}")
    return list(reports.values()).count("FAILED")


if __name__ == "__main__":
    sys.exit(main())
