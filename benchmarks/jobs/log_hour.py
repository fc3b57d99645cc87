"""Commits over a long time, with and without steps of the log: `python -m benchmarks.jobs.log_hour [minutes]`.

Two processes submit jobs one by one at the same pace, each to a store of its own, with a worker that runs them and
the checkpointer that copies the log. One extends its log in steps (decision 032). The other one leaves the growth
to SQLite. It takes an hour, so `make bench` does not run it.
The stores lie in the folder for temporary files, which must be on a disk.
"""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, perf_counter, sleep

from benchmarks.measure import machine, percentile
from mainspring import Mainspring
from mainspring.engines.sqlite import log_file

PAUSE = 0.025  # seconds between two submits
PARTS = 6
NEVER = 1 << 60  # pages


def submit_for(minutes: float, store: Path, *, steps: bool) -> None:
    """Print a cell of the table for each part of the time."""
    if not steps:
        log_file.SHORT = NEVER
    app = Mainspring(f"sqlite:///{store}", durability="full")

    @app.job(name="nothing")
    def nothing(number: int) -> None: ...

    with app.running():
        for _ in range(PARTS):
            end = monotonic() + minutes * 60 / PARTS
            seconds: list[float] = []
            while monotonic() < end:
                began = perf_counter()
                nothing.submit(len(seconds))
                seconds.append(perf_counter() - began)
                sleep(PAUSE)
            print(describe(seconds, Path(f"{store}-wal").stat().st_size), flush=True)


def describe(seconds: list[float], log_size: int) -> str:
    p10, p50, p99 = (percentile(seconds, share) * 1e6 for share in (0.1, 0.5, 0.99))
    return f"{p10:,.0f} / {p50:,.0f} / {p99:,.0f} µs | {log_size / 1e6:.1f} MB | {len(seconds):,}"


def main(minutes: float) -> None:
    with TemporaryDirectory() as folder:
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.jobs.log_hour", str(minutes), f"{folder}/{name}.db", name],
                stdout=subprocess.PIPE,
                text=True,
            )
            for name in ("steps", "plain")
        ]
        outputs = [process.communicate()[0].splitlines() for process in processes]
    print(machine())
    print("| minutes | in steps: p10 / p50 / p99 | log | submits | by SQLite: p10 / p50 / p99 | log | submits |")
    print("|--:|--:|--:|--:|--:|--:|--:|")
    for number, (steps, plain) in enumerate(zip(*outputs, strict=True), 1):
        print(f"| {number * minutes / PARTS:g} | {steps} | {plain} |")


if __name__ == "__main__":
    if len(sys.argv) > 3:
        submit_for(float(sys.argv[1]), Path(sys.argv[2]), steps=sys.argv[3] == "steps")
    else:
        main(float(sys.argv[1]) if len(sys.argv) > 1 else 60)
