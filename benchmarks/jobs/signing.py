"""What signatures cost: processor time of a drain and of submits on SQLite, and the time of a drain on NATS.

On SQLite processor time is measured, in alternating pairs, because the machines are shared: see `activity`. The
server of NATS works as well, so the time of the clock is measured there.
"""

import gc
from pathlib import Path
from threading import Event
from time import perf_counter, process_time

from benchmarks.jobs.activity import pairs
from benchmarks.measure import Line, Section
from benchmarks.nats.brokers import nats_server
from mainspring import KeyRing, Mainspring

JOBS = 10_000
MANY = 40_000
SINGLE = 3_000
PAIRS = 15
MOST_PERCENT = 10.0
SECONDS = 600.0
HMAC = KeyRing({"bench": KeyRing.generate("hmac-sha256")}, sign_with="bench")
ED25519 = KeyRing({"bench": KeyRing.generate("ed25519")}, sign_with="bench")


def drain(folder: Path, ring: KeyRing | None, url: str | None = None, jobs: int = JOBS) -> tuple[float, float]:
    """Return how many microseconds each job of a backlog takes: of processor time, and by the clock."""
    app = Mainspring(url or f"sqlite:///{folder}/jobs.db", durability="normal", signing=ring)
    left = jobs
    is_done = Event()

    @app.job
    def noop(number: int) -> None:  # noqa: ARG001
        nonlocal left
        left -= 1
        if left <= 0:
            is_done.set()

    with app:
        noop.submit_many([(number,) for number in range(jobs)])
        gc.collect()
        began, began_by_clock = process_time(), perf_counter()
        with app.running():
            if not is_done.wait(SECONDS):
                raise RuntimeError(f"{left:,} of {jobs:,} jobs have not run within {SECONDS:g} s")
            app.queue("default").drain(timeout=SECONDS)
            took = process_time() - began, perf_counter() - began_by_clock
        if app.counts()["FAILED"]:
            raise RuntimeError("jobs were refused")
    return took[0] / jobs * 1e6, took[1] / jobs * 1e6


def drain_nats(folder: Path, ring: KeyRing | None) -> float:
    """Return how many microseconds each job of a backlog takes by the clock, on a NATS server of its own."""
    with nats_server(folder / "store"):
        url = (folder / "store").read_text()
        return drain(folder, ring, f"{url}?projection={folder}/projection.db")[1]


def submit(folder: Path, ring: KeyRing | None) -> float:
    """Return the microseconds of processor time of one submit."""
    app = Mainspring(f"sqlite:///{folder}/jobs.db", durability="normal", signing=ring)

    @app.job
    def noop(number: int) -> None: ...

    with app:
        noop.submit(0)
        gc.collect()
        began = process_time()
        for number in range(SINGLE):
            noop.submit(number)
        return (process_time() - began) / SINGLE * 1e6


def submit_many(folder: Path, ring: KeyRing | None) -> float:
    """Return the microseconds of processor time of each job of a bulk submit."""
    app = Mainspring(f"sqlite:///{folder}/jobs.db", durability="normal", signing=ring)

    @app.job
    def noop(number: int) -> None: ...

    with app:
        noop.submit(0)
        gc.collect()
        began = process_time()
        noop.submit_many([(number,) for number in range(JOBS)])
        return (process_time() - began) / JOBS * 1e6


def _line(what: str, result: tuple[float, float, float], most: float | None = None) -> Line:
    before, after, percent = result
    return Line(
        what=what,
        ours=f"{after:.1f} µs",
        peer=f"{before:.1f} µs not signed",
        ratio=f"{percent:+.1f} %",
        bound="" if most is None else f"≤ {most:g} %",
        is_met=None if most is None else percent <= most,
    )


def run(number: int = PAIRS) -> Section:
    def cpu(ring: KeyRing | None, folder: Path) -> float:
        return drain(folder, ring)[0]

    def clock(ring: KeyRing | None, folder: Path) -> float:
        return drain(folder, ring, jobs=MANY)[1]

    return Section(
        title=f"Jobs: what signatures cost per job, medians of {number} pairs",
        lines=[
            _line(
                "drain on SQLite, HMAC",
                pairs(lambda f: cpu(None, f), lambda f: cpu(HMAC, f), number),
                MOST_PERCENT,
            ),
            _line(
                f"drain of {MANY:,} jobs on SQLite, HMAC, by the clock",
                pairs(lambda f: clock(None, f), lambda f: clock(HMAC, f), number),
                MOST_PERCENT,
            ),
            _line(
                "drain on NATS, HMAC, by the clock",
                pairs(lambda f: drain_nats(f, None), lambda f: drain_nats(f, HMAC), number),
                MOST_PERCENT,
            ),
            _line("drain on SQLite, ed25519", pairs(lambda f: cpu(None, f), lambda f: cpu(ED25519, f), number)),
            _line("one submit, HMAC", pairs(lambda f: submit(f, None), lambda f: submit(f, HMAC), number)),
            _line(
                "bulk submit, HMAC", pairs(lambda f: submit_many(f, None), lambda f: submit_many(f, HMAC), number)
            ),
        ],
        text="The ratio is the median of the differences between two runs in a row. Processor time, unless a line "
        "says otherwise. Stores with durability NORMAL. Most of the cost of a submit is that of a header, which "
        "makes the row of a job longer.",
    )


if __name__ == "__main__":
    for line in run(5).lines:
        print(line)
