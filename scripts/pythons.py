"""Run the complete suite on every supported Python, one after the other: `make pythons`.

Pythons of this machine are used; the others come from Debian unstable (see scripts/debian_unstable.py), which
needs root. mypy is left out: it checks for the oldest version on every interpreter. The exit code is the number of
versions that failed or could not be tested.
"""

import argparse
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from scripts.debian_packages import PackageMissing
from scripts.debian_unstable import Chroot, Unavailable, debian_unstable
from scripts.fetch_prometheus import copy_programs
from scripts.other_pythons import ROOT, SUPPORTED, find, setup_command

WHOLE = ["-n", "6", "--dist", "worksteal", "--ignore=tests/typing"]
CPYTHON_TESTS = "tests/conformance/cpython_executors.py"
COPY = "/srv/mainspring"
PASSED = "passed"

Command = Sequence[str | Path]


def run_here(command: Command) -> int:
    """Run a command in the repository; return its exit code."""
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def run_suite(python: str, setup: Command, run: Callable[[Command], int], tests: list[str]) -> str:
    """Bring an environment up to date, and run the tests in it; return how that went."""
    if run(setup):
        return "FAILED: its environment could not be made"
    pytest = [python, "-m", "pytest", "-p", "no:cacheprovider"]  # versions must not share a cache
    if run([*pytest, *tests]):
        return "FAILED"
    if tests != WHOLE:
        return PASSED
    if run([python, "-m", "tests.conformance.cpython_suite"]):
        return f"{PASSED}, without CPython's own tests of executors, which this installation does not have"
    return "FAILED: CPython's own tests of executors" if run([*pytest, CPYTHON_TESTS]) else PASSED


def test_here(version: str, python: Path, tests: list[str]) -> str:
    """Run the suite with a Python of this machine."""
    print(f"\nPython {version}: {python}", flush=True)
    return run_suite(f".venv-{version}/bin/python", setup_command(version, python), run_here, tests)


def test_in(chroot: Chroot, version: str, tests: list[str]) -> str:
    """Run the suite with a Python of Debian unstable, on a copy of the repository."""
    print(f"\nPython {version}: Debian unstable in {chroot.root}", flush=True)
    python = chroot.install(version)
    if python is None:
        return "MISSING: neither on this machine nor in Debian unstable; install it, for instance with pyenv"
    venv = f"/srv/venv-{version}"
    setup: Command = [python, "scripts/make_venv.py", venv, "test"]
    return run_suite(f"{venv}/bin/python", setup, lambda command: chroot.run(command, cwd=COPY), tests)


def test_all(versions: Sequence[str], keep: Path | None, tests: list[str]) -> dict[str, str]:
    """Run the suite on all versions; return how it went on each."""
    found = {version: python for version in versions if (python := find(version))}
    missing = [version for version in versions if version not in found]
    results = {}
    if missing:  # first: what is wrong with it shows at once
        try:
            with debian_unstable(keep) as chroot:
                chroot.copy_in(ROOT, COPY)
                copy_programs(chroot.root / COPY.lstrip("/"))
                results = {version: test_in(chroot, version, tests) for version in missing}
        except (Unavailable, PackageMissing, subprocess.CalledProcessError) as problem:
            results = dict.fromkeys(missing, f"MISSING: {problem}")
    results |= {version: test_here(version, python, tests) for version, python in found.items()}
    return {version: results[version] for version in versions}


def main() -> int:
    """Read the command line, run the suite, then report; the number of versions that did not pass."""
    parser = argparse.ArgumentParser(prog="make pythons", description=__doc__, allow_abbrev=False)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep Debian unstable here for the next time")
    parser.add_argument("--only", nargs="+", default=SUPPORTED, choices=SUPPORTED, help="test these versions")
    parser.add_argument("--paths", nargs="+", metavar="PATH", help="run these tests instead of the complete suite")
    options = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))  # and clean up on the way out
    results = test_all(options.only, options.keep, options.paths or WHOLE)
    print()
    for version, result in results.items():
        print(f"Python {version}: {result}")
    return sum(not result.startswith(PASSED) for result in results.values())


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
