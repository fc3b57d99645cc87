"""What metrics cost: the processor time of scrapes, once a second, during a drain.

On a busy machine, processor time can still be compared when wall time cannot. So a second is one of processor time
of the worker, too: a drain that keeps one core busy is scraped as often as by Prometheus with an interval of one
second. Each round drains a new store in a new process for each candidate, and the parent scrapes it over HTTP.

Two figures: the processor time of the threads that answered scrapes, as a share of all; and the processor time per
job beside a drain without scrapes. The second one has everything in it, and varies by more than the bound.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median
from time import process_time, sleep, thread_time
from typing import Any, NamedTuple
from urllib.error import URLError
from urllib.request import urlopen

from benchmarks.jobs.process import ROOT, fresh_store
from benchmarks.measure import Line, Section
from mainspring import Mainspring

JOBS = 100_000
SCRAPE_SECONDS = 1.0
LOOK_SECONDS = 0.05
AT_MOST = 3.0
OFF, ON, STORE = CANDIDATES = ("not scraped", "process metrics", "process and store metrics")


class Drain(NamedTuple):
    """What a drain cost."""

    microseconds: float
    """Processor time per job."""
    share: float
    """The part of it that scrapes took, in per cent."""


def drain(candidate: str, store: Path) -> Drain:
    """Drain a new store in a process of its own, and scrape it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.jobs.metrics", candidate, str(store)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        if not address:
            raise RuntimeError(f"the worker of {candidate!r} ended")
        next_scrape = processor_seconds(process.pid) + SCRAPE_SECONDS / 2
        while process.poll() is None:
            if candidate in (ON, STORE) and processor_seconds(process.pid) >= next_scrape:
                next_scrape += SCRAPE_SECONDS
                with (
                    suppress(URLError, ConnectionError),
                    urlopen(address, timeout=600) as answer,
                ):  # it may end now
                    answer.read()
            sleep(LOOK_SECONDS)
        measured = json.loads(process.stdout.read())
    if candidate in (ON, STORE) and not measured["scrapes"]:
        raise RuntimeError(f"there was no scrape of {candidate!r}; drain more jobs")
    return Drain(measured["cpu"] / JOBS * 1e6, measured["scrapes"] / measured["cpu"] * 100)


def processor_seconds(pid: int) -> float:
    """Return the processor time that a process has used; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class ThreadTime:
    """Adds up the processor time of calls, on whichever threads they run."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def measured(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            began = thread_time()
            try:
                return function(*args)
            finally:
                self.seconds += thread_time() - began

        return call


def work_off(candidate: str, store: str) -> None:
    """Run the worker process: submit, then measure the drain, and print the processor time that it took."""
    app = Mainspring(f"sqlite:///{store}", durability="normal")
    work = app.job(name="work", queue="mail")(lambda: None)
    work.submit_many([()] * JOBS)
    scrapes = ThreadTime()
    address = _serve(app, scrapes, store=candidate == STORE) if candidate in (ON, STORE) else "none"
    print(address, flush=True)
    began = process_time()
    with app.running():
        while app.counts()["COMPLETED"] < JOBS:
            sleep(LOOK_SECONDS)
    print(json.dumps({"cpu": process_time() - began, "scrapes": scrapes.seconds}))
    app.close()


def _serve(app: Mainspring, scrapes: ThreadTime, *, store: bool) -> str:
    from prometheus_client import CollectorRegistry, start_http_server  # noqa: PLC0415 - not in every candidate

    from mainspring.monitoring import PrometheusCollector  # noqa: PLC0415

    registry = CollectorRegistry()
    registry.register(PrometheusCollector(app, store=store))
    server: Any = start_http_server(0, addr="127.0.0.1", registry=registry)[0]
    server.process_request_thread = scrapes.measured(server.process_request_thread)
    for name in ("statistics", "workers"):  # on other threads, while that of the request waits
        setattr(app, name, scrapes.measured(getattr(app, name)))
    return f"http://127.0.0.1:{server.server_port}/metrics"


def run(rounds: int = 7) -> Section:
    measured: dict[str, list[Drain]] = {candidate: [] for candidate in CANDIDATES}
    for number in range(rounds):
        for candidate in CANDIDATES if number % 2 else reversed(CANDIDATES):
            with fresh_store() as store:
                measured[candidate].append(drain(candidate, store))

    def scraped(candidate: str) -> Line:
        share = median(found.share for found in measured[candidate])
        what = f"{candidate}: share of the processor time that scrapes took"
        return Line(what=what, ours=f"{share:.2f} %", bound=f"≤ {AT_MOST:g} %", is_met=share <= AT_MOST)

    def beside(candidate: str, peer: str) -> Line:
        ours = [found.microseconds for found in measured[candidate]]
        theirs = [found.microseconds for found in measured[peer]]
        ratios = [ours_ / theirs_ for ours_, theirs_ in zip(ours, theirs, strict=True)]
        return Line(
            what=f"{candidate}: processor time per job",
            ours=f"{median(ours):.1f} µs",
            peer=f"{median(theirs):.1f} µs {peer}",
            ratio=f"{median(ratios):.3f} x ({min(ratios):.2f} to {max(ratios):.2f})",
        )

    return Section(
        title=f"Jobs: what metrics cost during a drain of {JOBS:,} jobs, median of {rounds} rounds",
        lines=[scraped(ON), scraped(STORE), beside(ON, OFF), beside(STORE, OFF)],
        text="A scrape for each second of processor time of the worker, over HTTP, from another process. "
        "A ratio is the median of the ratios within rounds, with the smallest and the largest.",
    )


if __name__ == "__main__":
    work_off(sys.argv[1], sys.argv[2])
