"""What counting the activity costs, and what a follower of events costs: processor time, in alternating pairs.

Processor time is measured instead of the time of the clock, because the machines are shared. The threads of a
worker share one interpreter lock, so a drain takes about as long as the processor time of all of them.
"""

import gc
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from threading import Event, Thread
from time import process_time

from benchmarks.measure import Line, Section
from mainspring import Mainspring
from mainspring.jobs.activity import MAX_PAIRS

JOBS = 10_000
SINGLE = 5_000
PAIRS = 15
MOST_PERCENT = 3.0
SECONDS = 600.0


def drain(folder: Path, *, counts: bool = True, follows: bool = False) -> float:
    """Return the microseconds of processor time that each job of a backlog takes, from its claim to its end."""
    app = _application(folder, counts=counts)
    left = JOBS
    is_done = Event()

    @app.job
    def noop() -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            is_done.set()

    with app:
        noop.submit_many([()] * JOBS)
        stream = app.events() if follows else None
        reader = Thread(target=lambda: [None for _ in stream or ()])
        reader.start()
        gc.collect()
        began = process_time()
        with app.running():
            if not is_done.wait(SECONDS):
                raise RuntimeError(f"{left:,} of {JOBS:,} jobs have not run within {SECONDS:g} s")
            app.queue("default").drain(timeout=SECONDS)
            took = process_time() - began
        if stream is not None:
            stream.stop()
        reader.join()
    return took / JOBS * 1e6


def submit(folder: Path, *, counts: bool) -> float:
    """Return the microseconds of processor time of one submit, on the thread of its caller."""
    app = _application(folder, counts=counts)

    @app.job
    def noop() -> None: ...

    with app:
        noop.submit()
        gc.collect()
        began = process_time()
        for _ in range(SINGLE):
            noop.submit()
        return (process_time() - began) / SINGLE * 1e6


def _application(folder: Path, *, counts: bool) -> Mainspring:
    pairs = MAX_PAIRS if counts else 0
    return Mainspring(f"sqlite:///{folder}/jobs.db", durability="normal", activity_pairs=pairs)


def pairs(
    base: Callable[[Path], float], changed: Callable[[Path], float], number: int = PAIRS
) -> tuple[float, float, float]:
    """Measure two variants in turn; return the medians of both, and the median of the differences in percent."""
    measured: list[tuple[float, float]] = []
    for place in range(number):
        order = (base, changed) if place % 2 else (changed, base)
        times = {}
        for variant in order:
            with TemporaryDirectory() as folder:
                times[variant] = variant(Path(folder))
        measured.append((times[base], times[changed]))
    percent = median(100 * (after / before - 1) for before, after in measured)
    return median(before for before, _ in measured), median(after for _, after in measured), percent


def _line(what: str, result: tuple[float, float, float], beside: str, most: float | None) -> Line:
    before, after, percent = result
    return Line(
        what=what,
        ours=f"{after:.1f} µs",
        peer=f"{before:.1f} µs {beside}",
        ratio=f"{percent:+.1f} %",
        bound="" if most is None else f"≤ {most:g} %",
        is_met=None if most is None else percent <= most,
    )


def run(number: int = PAIRS) -> Section:
    drains = pairs(lambda f: drain(f, counts=False), lambda f: drain(f, counts=True), number)
    submits = pairs(lambda f: submit(f, counts=False), lambda f: submit(f, counts=True), number)
    followed = pairs(drain, lambda f: drain(f, follows=True), number)
    return Section(
        title=f"Jobs: what counting and following cost, processor time per job, medians of {number} pairs",
        lines=[
            _line("drain, counted", drains, "not counted", MOST_PERCENT),
            _line("one submit, counted", submits, "not counted", None),
            _line("drain with one follower of events", followed, "without", None),
        ],
        text="Counting means the activity of the process, with its history in the store. The ratio is the median "
        "of the differences between two runs in a row. Stores with durability NORMAL.",
    )


if __name__ == "__main__":
    for line in run(5).lines:
        print(line)
