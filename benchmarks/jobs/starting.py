"""How long short commands take: the processor time of `mainspring jobs list`, imports included."""

import os
import resource
import subprocess
import sys
from pathlib import Path

from benchmarks.jobs.process import fresh_store, submitter
from benchmarks.jobs.systems.ours import Ours
from benchmarks.measure import Line, Section

LISTED = 100
ROUNDS = 15
LIMIT = 150.0  # milliseconds


def cpu_milliseconds(arguments: list[str]) -> float:
    """Return the processor time of an interpreter, with byte code as an installed package has it."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1e3 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def least_of(store: Path) -> dict[str, float]:
    """Measure each command in turn, and return the least time of each."""
    commands = {
        "list": ["-m", "mainspring", "jobs", "list", "--url", f"sqlite:///{store}"],
        "bare": ["-c", "pass"],
    }
    rounds = [
        {name: cpu_milliseconds(arguments) for name, arguments in commands.items()} for _ in range(1 + ROUNDS)
    ]
    return {name: min(one[name] for one in rounds[1:]) for name in commands}  # the first round may compile


def run() -> Section:
    ours = Ours("full")
    with fresh_store() as store:
        with submitter(ours, store):
            ours.submit_many(range(LISTED))
        found = least_of(store)
    return Section(
        title=f"Jobs: a command that lists {LISTED} jobs, best of {ROUNDS} rounds",
        lines=[
            Line(
                what="`mainspring jobs list` into a pipe, CPU",
                ours=f"{found['list']:.0f} ms",
                peer=f"{found['bare']:.0f} ms an interpreter that does nothing",
                bound=f"≤ {LIMIT:g} ms",
                is_met=found["list"] <= LIMIT,
            )
        ],
    )
