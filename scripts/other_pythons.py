"""Run the tests that depend on the interpreter on the other supported Pythons of this machine: about a minute.

Each Python gets an environment of its own, such as .venv-3.12. One that is not on this machine is reported, and
does not fail the run. `make pythons` runs all tests on all versions.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryFile

ROOT = Path(__file__).parents[1]
SUPPORTED = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())

# Asks for ensurepip too: without it no environment can be made.
PROBE = "import ensurepip, sys; print('{}.{}'.format(*sys.version_info))"

JOBS = (
    "argument_types arguments context control_layer decorators handle handlers ids invoker io_layer "
    "job_template manager off_loop processes retry serializers stall_detector timestamps worker worker_errors"
)
NATS = "client free_slots transaction write_batch"
# What a Python may do differently: threads and their end, asyncio, time, signatures and types, pickling, the start
# of processes, signals, files. Of each engine a little: the rest tests the storage more than the interpreter.
PART = [
    "tests/unit/runners",
    "tests/unit/timing",
    *(f"tests/unit/jobs/test_{name}.py" for name in JOBS.split()),
    *(f"tests/unit/test_{name}.py" for name in ("app", "clock", "errors", "foreground", "logs", "stop_signals")),
    *(f"tests/unit/engines/test_sqlite_{name}.py" for name in ("backup", "files", "migration", "worker_files")),
    *(f"tests/unit/engines/test_nats_{name}.py" for name in NATS.split()),
    "tests/web/test_server.py",
    "tests/web/test_event_streams.py",
    "tests/conformance/test_runners.py",
    "tests/conformance/test_flush_and_starting_tasks.py",
    "tests/stress/test_nothing_is_lost.py::test_canceled_tasks_leave_the_queues_of_all_kinds_of_runners",
    "tests/stress/test_wakeups.py::test_sequences_play_ping_pong",
    "tests/stress/test_wakeups.py::test_wait_idle_never_misses_the_end",
]
# Of the folders above: what takes long, and computes, walks through combinations or measures memory.
LEFT_OUT = [
    "tests/unit/runners/test_memory.py",
    "tests/unit/runners/test_shutdown_matrix.py",
    "tests/unit/runners/test_task_queue.py",
    "tests/unit/timing/test_wheel.py",
    "tests/unit/timing/test_wheel_against_a_list.py",
    "tests/unit/timing/test_wheel_memory.py",
]


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


def setup_command(version: str, python: Path) -> list[str]:
    """Return the command that brings the environment of a version up to date, without the tools of a developer."""
    return ["make", "--no-print-directory", "setup", f"VENV=.venv-{version}", "EXTRA=test", f"PYTHON={python}"]


def run_tests(version: str, python: Path) -> str:
    """Bring the environment of this version up to date and run the tests in it; return how that went."""
    # Two must not share a cache. The versions run side by side, and beside all tests on the main version: more
    # processes would only take processor time from them.
    pytest = [f".venv-{version}/bin/python", "-m", "pytest", "-p", "no:cacheprovider"]
    commands = (setup_command(version, python), [*pytest, *PART, *(f"--ignore={path}" for path in LEFT_OUT)])
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
    reports = {version: results.get(version, "not on this machine (see make pythons)") for version in others}
    for version, report in reports.items():
        print(f"Python {version}: {report}")
    return list(reports.values()).count("FAILED")


if __name__ == "__main__":
    sys.exit(main())
