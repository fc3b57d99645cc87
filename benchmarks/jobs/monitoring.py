"""What monitoring costs a drain: jobs per second with and without counts, scrapes and a follower, in pairs.

`jobs.activity` and `jobs.metrics` measure processor time, which can be compared on a busy machine. This section
measures throughput, which needs a quiet one. Each round drains a new store for each candidate, and every second
round in the reverse order. A ratio is that of two drains of the same round, and the median of all rounds counts.

Another process scrapes, once a second, so that the client of the scrape takes nothing of the worker's time.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

from benchmarks.jobs.timed_drain import timed_drain
from benchmarks.measure import Line, Section
from mainspring import Mainspring
from mainspring.jobs.activity import MAX_PAIRS

JOBS = 40_000
ROUNDS = 9
AT_MOST = 3.0  # per cent
PLAIN, COUNTED, SCRAPED, STORE, FOLLOWED = CANDIDATES = (
    "not counted",
    "counted",
    "counted and scraped",
    "counted and scraped with the store",
    "counted, with one follower of events",
)
SCRAPER = """
import sys, time, urllib.request
while True:
    urllib.request.urlopen(sys.argv[1], timeout=600).read()
    print(flush=True)
    time.sleep(1)
"""


def drain(candidate: str, jobs: int, folder: Path) -> float:
    """Return how many jobs a second a worker runs, from the first claim to the end of the last job."""
    pairs = 0 if candidate == PLAIN else MAX_PAIRS
    app = Mainspring(f"sqlite:///{folder}/jobs.db", durability="normal", activity_pairs=pairs)

    def beside() -> AbstractContextManager[Any]:
        if candidate == FOLLOWED:
            return followed(app)
        return scraped(app, store=candidate == STORE) if candidate in (SCRAPED, STORE) else nullcontext()

    return timed_drain(app, jobs, beside)


@contextmanager
def scraped(app: Mainspring, *, store: bool) -> Iterator[None]:
    """Let another process scrape the application at once and then every second, during a `with` block."""
    from prometheus_client import CollectorRegistry, start_http_server  # noqa: PLC0415 - not in every candidate

    from mainspring.monitoring import PrometheusCollector  # noqa: PLC0415

    registry = CollectorRegistry()
    registry.register(PrometheusCollector(app, store=store))
    server, thread = start_http_server(0, addr="127.0.0.1", registry=registry)
    command = [sys.executable, "-c", SCRAPER, f"http://127.0.0.1:{server.server_port}/metrics"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as scraper:
        assert scraper.stdout is not None
        try:
            if not scraper.stdout.readline():  # the first scrape, before the drain
                raise RuntimeError("the metrics cannot be scraped")
            yield
        finally:
            scraper.kill()
            server.shutdown()
            server.server_close()
            thread.join()


@contextmanager
def followed(app: Mainspring) -> Iterator[None]:
    """Let a thread of this process read all events during a `with` block."""
    stream = app.events()
    reader = Thread(target=lambda: [None for _ in stream])
    reader.start()
    try:
        yield
    finally:
        stream.stop()
        reader.join()


def measure(jobs: int = JOBS, rounds: int = ROUNDS) -> dict[str, list[float]]:
    """Return the jobs per second of each candidate, by round."""
    measured: dict[str, list[float]] = {candidate: [] for candidate in CANDIDATES}
    for number in range(rounds):
        for candidate in reversed(CANDIDATES) if number % 2 else CANDIDATES:
            with TemporaryDirectory() as folder:
                measured[candidate].append(drain(candidate, jobs, Path(folder)))
    return measured


def _line(measured: dict[str, list[float]], candidate: str, base: str, most: float | None) -> Line:
    ours, theirs = measured[candidate], measured[base]
    losses = [100 * (1 - with_it / without) for with_it, without in zip(ours, theirs, strict=True)]
    loss = median(losses)
    return Line(
        what=f"drain, {candidate}",
        ours=f"{median(ours):,.0f}/s",
        peer=f"{median(theirs):,.0f}/s {base}",
        ratio=f"{-loss:+.1f} % ({-max(losses):+.0f} to {-min(losses):+.0f})",
        bound="" if most is None else f"≥ {-most:g} %",
        is_met=None if most is None else loss <= most,
    )


def run(rounds: int = ROUNDS, jobs: int = JOBS) -> Section:
    line = partial(_line, measure(jobs, rounds))
    return Section(
        title=f"Jobs: what monitoring costs the throughput of a drain of {jobs:,} jobs, medians of {rounds} pairs",
        lines=[
            line(COUNTED, PLAIN, AT_MOST),
            line(SCRAPED, COUNTED, AT_MOST),
            line(STORE, COUNTED, AT_MOST),
            line(FOLLOWED, COUNTED, None),
        ],
        text="Counted means the activity of the process, with its history in the store. A scrape a second, over "
        "HTTP, from another process. The ratio is the median of the differences within rounds, with the smallest "
        "and the largest. Stores with durability NORMAL. Only a quiet machine shows differences this small.",
    )


if __name__ == "__main__":
    for found in run(2, 2_000).lines:
        print(found)
