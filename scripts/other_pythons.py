"""Run the tests on every supported Python of this machine, except the one that runs this script.

Each gets an environment of its own, such as .venv-3.12. A Python that is not here is reported, not missed.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryFile

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


def run_tests(version: str, python: Path) -> str:
    """Bring the environment of this version up to date and run the tests in it; return how that went."""
    venv = f".venv-{version}"
    setup = ["make", "--no-print-directory", "setup", f"VENV={venv}", "EXTRA=test", f"PYTHON={python}"]
    # One interpreter is enough for mypy, which checks for all versions; and for what takes long: applications,
    # crashes, processes, programs and servers test the storage more than the interpreter. Two must not share a
    # cache. The versions run side by side, each in two processes: half of the time is waiting.
    pytest = [f"{venv}/bin/python", "-m", "pytest", "-p", "no:cacheprovider"]
    left_out = [f"--ignore=tests/{folder}" for folder in ("typing", "processes", "nats", "cli", "deploy")]
    usual = [*pytest, "-n", "2", "-m", "not stress and not long", *left_out]
    commands = (setup, usual, [*pytest, "tests/stress"])
    with TemporaryFile("w+") as output:
        passed = all(
            subprocess.run(command, cwd=ROOT, check=False, stdout=output, stderr=subprocess.STDOUT).returncode == 0
            for command in commands
        )
        output.seek(0)
        print(f"\nPython {version}: {python}\n{output.read()}", flush=True)
    return "passed" if passed else "FAILED"


def main() -> int:
    """Run them all, side by side, then report; the number of versions that failed."""
    others = [version for version in SUPPORTED if version != "{}.{}".format(*sys.version_info)]
    found = {version: python for version in others if (python := find(version))}
    print(f"\nrunning the tests on Python {', '.join(found) or '(none other)'}", flush=True)
    with ThreadPoolExecutor(max_workers=len(others)) as executor:
        results = dict(zip(found, executor.map(run_tests, found, found.values()), strict=True))
    reports = {version: results.get(version, "not on this machine") for version in others}
    for version, report in reports.items():
        print(f"Python {version}: {report}")
    return list(reports.values()).count("FAILED")


if __name__ == "__main__":
    sys.exit(main())
