"""Callbacks: requests in flight in one process, their rate, and what bad receivers cost the others."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from threading import Event, Thread
from time import perf_counter, process_time, time
from urllib.request import urlopen

from benchmarks.http.receiver import PORTS, STORMS, TOGETHER
from benchmarks.jobs.process import ROOT, fresh_store
from benchmarks.measure import Line, Section, percentile
from mainspring import CallbackPolicy, Mainspring

RATED = 5_000
TIMED = 200
AT_MOST = 1.5
AT_MOST_BESIDE_STORMS = 2.0
STORM_SECONDS = 1.0  # how often each of the storms gets a request
PATIENCE = 120


@contextmanager
def receiver() -> Iterator[list[int]]:
    """Run a receiver during the block, and lend its ports."""
    path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT)])
    command = [sys.executable, "-m", "benchmarks.http.receiver"]
    environment = os.environ | {"PYTHONPATH": path}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield [int(port) for port in process.stdout.readline().split()]
        finally:
            process.terminate()
            process.wait()


@contextmanager
def application(ports: list[int], store: Path) -> Iterator[Mainspring]:
    """Make an application that may call the receiver."""
    allow = [f"http://localhost:{port}/*" for port in ports]
    policy = CallbackPolicy(allow=allow, allow_http=True, allow_private=True, timeout=PATIENCE)
    with Mainspring(f"sqlite:///{store}", callbacks=policy, grace=0) as app:
        yield app


def submit(app: Mainspring, ports: list[int], path: str, count: int) -> list[str]:
    """Submit requests to all ports in turn."""
    share = count // len(ports)
    ids = []
    for port in ports:
        job = app.http_job(f"{path}-{port}", url=f"http://localhost:{port}/{path}")
        ids += job.submit_many([{"body": {"number": number}} for number in range(share)])
    return ids


def in_flight(ports: list[int]) -> Line:
    """Send requests that are answered when all of them are in flight."""
    ten = ports[:10]
    with fresh_store() as store, application(ten, store) as app:
        ids = submit(app, ten, "gather", TOGETHER)
        began = perf_counter()
        with app.running():
            for job_id in ids:
                app.handle(job_id).wait(timeout=PATIENCE)
            took = perf_counter() - began
    with urlopen(f"http://127.0.0.1:{ports[0]}/most") as answer:
        most = json.loads(answer.read())
    return Line(
        what="requests in flight at once in one process, 10 hosts",
        ours=f"{most:,}, all answered after {took:.1f} s",
        bound=f"≥ {TOGETHER:,}",
        is_met=most >= TOGETHER,
    )


def rate(ports: list[int], count: int) -> Line:
    """Send requests that are answered at once."""
    ten = ports[:10]
    with fresh_store() as store, application(ten, store) as app:
        ids = submit(app, ten, "quick", count)
        began, used = perf_counter(), process_time()
        with app.running():
            for job_id in ids:
                app.handle(job_id).wait(timeout=PATIENCE)
            took, used = perf_counter() - began, process_time() - used
    return Line(
        what=f"{count:,} requests, answered at once, 10 hosts",
        ours=f"{count / took:,.0f}/s, each with {1e6 * used / count:,.0f} µs of processor time",
    )


def latencies(ports: list[int], count: int, *, with_slow: bool) -> list[float]:
    """Submit requests to a quick host one after another, perhaps beside a host that does not answer."""
    found = []
    with fresh_store() as store, application(ports, store) as app:
        quick = app.http_job("quick", url=f"http://localhost:{ports[0]}/quick")
        slow = app.http_job("slow", url=f"http://localhost:{ports[1]}/slow")
        with app.running():
            if with_slow:
                slow.submit_many([{"body": number} for number in range(TOGETHER)])
            for number in range(count + 10):  # the first ones are not counted
                began = perf_counter()
                quick.submit(body=number).wait(timeout=PATIENCE)
                found.append(perf_counter() - began)
    return found[10:]


def isolation(ports: list[int], count: int, rounds: int) -> list[Line]:
    """Compare the times of a quick receiver with and without a slow one, in turn."""
    alone: list[float] = []
    beside: list[float] = []
    for _ in range(rounds):
        alone += latencies(ports, count, with_slow=False)
        beside += latencies(ports, count, with_slow=True)
    ratio = median(beside) / median(alone)
    shown = [
        f"{1e3 * median(times):.1f} ms, p99 {1e3 * percentile(times, 0.99):.1f} ms" for times in (beside, alone)
    ]
    return [
        Line(
            what=f"from submit to answer, beside a host with {TOGETHER:,} requests that it does not answer",
            ours=shown[0],
            peer=f"{shown[1]} without that host",
            ratio=f"{ratio:.2f} x",
            bound=f"≤ {AT_MOST:g} x",
            is_met=ratio <= AT_MOST,
        )
    ]


def beside_storms(ports: list[int], count: int, *, with_storms: bool) -> list[float]:
    """Submit requests to a quick host one after another, perhaps beside hosts whose answers have no end."""
    found: list[float] = []
    with fresh_store() as store, application(ports, store) as app:
        quick = app.http_job("quick", url=f"http://localhost:{ports[0]}/quick")
        storms = [app.http_job(f"storm-{port}", url=f"http://localhost:{port}/") for port in ports[PORTS:]]
        is_over = Event()

        def storm() -> None:
            while not is_over.is_set():
                for job in storms:
                    job.submit()
                is_over.wait(STORM_SECONDS)

        thread = Thread(target=storm)
        with app.running():
            if with_storms:
                thread.start()
            try:
                ends = perf_counter() + count * STORM_SECONDS / 50  # so that each measurement meets several storms
                while perf_counter() < ends:
                    began = perf_counter()
                    quick.submit(body=len(found)).wait(timeout=PATIENCE)
                    found.append(perf_counter() - began)
            finally:
                is_over.set()
                if with_storms:
                    thread.join()
    return found[10:]


def storms(ports: list[int], count: int, rounds: int) -> Line:
    """Compare the times of a quick receiver with and without storms, in turn."""
    alone: list[float] = []
    beside: list[float] = []
    for _ in range(rounds):
        alone += beside_storms(ports, count, with_storms=False)
        beside += beside_storms(ports, count, with_storms=True)
    ratio = median(beside) / median(alone)
    shown = [
        f"{1e3 * median(times):.1f} ms, p99 {1e3 * percentile(times, 0.99):.1f} ms" for times in (beside, alone)
    ]
    return Line(
        what=f"from submit to answer, beside {STORMS} hosts that get a request a second and answer without end",
        ours=shown[0],
        peer=f"{shown[1]} without these hosts",
        ratio=f"{ratio:.2f} x",
        bound=f"≤ {AT_MOST_BESIDE_STORMS:g} x",
        is_met=ratio <= AT_MOST_BESIDE_STORMS,
    )


def run(rated: int = RATED, timed: int = TIMED, rounds: int = 3) -> Section:
    began = time()
    with receiver() as ports:
        lines = [
            in_flight(ports),
            rate(ports, rated),
            *isolation(ports, timed, rounds),
            storms(ports, timed, rounds),
        ]
    return Section(
        title="HTTP: callbacks",
        lines=lines,
        text="The receiver is a process of its own on the same machine. Jobs are fsynced (FULL), and at most 100 "
        f"requests are in flight to one host (`per_host`). The hosts that answer without end send informational "
        "answers, headers, extensions of a chunk, or chunks of one byte, until the connection is closed. "
        f"Measured in {time() - began:.0f} s.",
    )


if __name__ == "__main__":
    for found in run(1_000, 50, 1).lines:
        print(found)
