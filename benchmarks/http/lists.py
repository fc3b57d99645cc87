"""Pages of `GET /api/v1/jobs` in a store with a million jobs, over one keep-alive connection."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import perf_counter
from typing import NamedTuple
from urllib.parse import urlencode

from benchmarks.http.client import OURS, KeepAlive, encode_request, server
from benchmarks.http.served import RARE
from benchmarks.http.submits import token_for
from benchmarks.jobs.process import fresh_store
from benchmarks.jobs.systems.ours import Ours
from benchmarks.jobs.systems.system import batches
from benchmarks.jobs.workload import work
from benchmarks.measure import Line, Section, percentile

JOBS = 1_000_000
REQUESTS = 300
WARM_UP = 10
PAGE = 50
CANCELED = 500
P99_MS = 50.0
OK = 200


class Filled(NamedTuple):
    """A store with jobs."""

    seconds: float
    """How long it took to fill it."""
    middle: str
    """The cursor in the middle of all jobs."""
    rare_middle: str
    """The cursor in the middle of the jobs of the rare type."""


def fill(store: Path, count: int) -> Filled:
    """Submit jobs, a tenth of them of the rare type, and cancel some at the beginning and in the middle."""
    ours = Ours("full")
    ours.open(store)
    app, began, middle = ours.app, perf_counter(), None
    due = datetime.now(UTC) + timedelta(hours=1)
    rare, usual = app.job(name=RARE)(work).at(due), ours.job.at(due)
    with app:
        for values in batches(range(count)):
            if middle is None and values[0] >= count // 2:
                middle = datetime.now(UTC)
            first = len(values) // 10
            rare.submit_many([{"value": value} for value in values[:first]])
            usual.submit_many([{"value": value} for value in values[first:]])
        for since in (None, middle):
            for job in app.jobs(since=since, limit=CANCELED):
                app.cancel(job.id)
        found = app.jobs(since=middle, limit=1), app.jobs(since=middle, type=RARE, limit=1)
    assert found[0].next is not None
    assert found[1].next is not None
    return Filled(perf_counter() - began, found[0].next, found[1].next)


def measure(connection: KeepAlive, request: bytes, count: int) -> list[float]:
    """Send a request for a full page so many times; return the milliseconds of each."""
    samples = []
    for _ in range(WARM_UP + count):
        began = perf_counter()
        status, _ = connection.send(request)
        samples.append((perf_counter() - began) * 1_000)
        assert status == OK
    assert len(connection.expect(request, OK)["jobs"]) == PAGE
    return samples[WARM_UP:]


def line(what: str, samples: list[float]) -> Line:
    p50, p99 = percentile(samples, 0.5), percentile(samples, 0.99)
    return Line(
        what=what,
        ours=f"{p50:.1f} / {p99:.1f} ms",
        bound=f"p99 < {P99_MS:g} ms",
        is_met=p99 < P99_MS,
    )


def run(jobs: int = JOBS, requests: int = REQUESTS) -> Section:
    with fresh_store() as store:
        token = token_for(store)
        filled = fill(store, jobs)
        pages = {
            "the first page": {},
            "the newest jobs": {"newest_first": "true"},
            "by status, most jobs": {"status": "PENDING"},
            "by status, one job in a thousand": {"status": "CANCELED"},
            "by type, a tenth of the jobs": {"type": RARE},
            "by type and status": {"type": RARE, "status": "PENDING"},
            "from the middle on": {"after": filled.middle},
            "by type, from the middle on": {"type": RARE, "after": filled.rare_middle},
        }
        with server(OURS, store) as port:
            connection = KeepAlive(port)
            lines = [
                line(
                    what, measure(connection, encode_request("GET", f"/jobs?{urlencode(query)}", token), requests)
                )
                for what, query in pages.items()
            ]
            connection.close()
    return Section(
        title=f"HTTP: pages of {PAGE} jobs in a store with {jobs:,} jobs",
        lines=lines,
        text=f"p50 / p99 of {requests} requests over one keep-alive connection. The store was filled in "
        f"{filled.seconds:.0f} s.",
    )


if __name__ == "__main__":
    for found in run(20_000, 20).lines:
        print(found)
