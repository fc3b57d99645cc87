"""What open dashboards cost a drain, how many bytes the first page has, and when a browser paints pages.

The worker and the server are one process, as with `mainspring run --http`, so that rendering takes its time from
the jobs. Another process holds ten open pages: it logs in, loads each page and reads its stream of updates. The
drain begins when each page has got its first update. Each
round drains a new store with and without them, and every second round in the reverse order. A ratio is that of the
two drains of a round, and the median of all rounds counts. The processor time of a job is that of the whole
process. It depends less than the throughput on what else the machine does.

A drain ends with the last handler. `Queue.drain` is not used: on NATS it would build a projection in the drain
without pages, too, which only open pages need.

The time of the first paint is that of a real browser with an empty cache, on a store with a million jobs.
"""

import gc
import http.client
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module  # `make check` runs without the browser's package
from itertools import count
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from threading import Event
from time import perf_counter, process_time

from benchmarks.http.client import OURS, server
from benchmarks.http.lists import fill
from benchmarks.http.submits import token_for
from benchmarks.jobs.process import ROOT, fresh_store
from benchmarks.measure import Line, Section, at_most, percentile
from mainspring import Mainspring
from mainspring.cli.nats_servers import NatsServers
from mainspring.web.addresses import HttpAddress, open_listener
from mainspring.web.server import HttpServer

FIRST_PAINT = """() => new Promise((done) => {
    const look = () => {
        const paint = performance.getEntriesByName("first-contentful-paint")[0]
        paint ? done(paint.startTime) : requestAnimationFrame(look)
    }
    look()
})"""
"""Waits for the first paint; `wait_for_function` does not work under the content security policy of the pages."""
JOBS = 100_000
NATS_JOBS = 40_000
SECONDS = 600.0
ROUNDS = 9
AT_MOST = 3.0  # per cent
MILLION = 1_000_000
LOADS = 15
FIRST_PAGE_KB = 150.0
PAINT_MS = 500.0
OPEN_PAGES = (
    "/",
    "/",
    "/",
    "/",
    "/jobs",
    "/jobs",
    "/jobs?status=PENDING",
    "/queues",
    "/queues/default",
    "/workers",
)
PAINTED_PAGES = ("/", "/jobs", "/jobs?status=PENDING", "/queues", "/dead-letters")
READER = """
import http.client, sys, threading
port, token, pages = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
def get(path, cookie=""):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request("GET", path, headers={"Accept": "text/html, text/event-stream", "Cookie": cookie})
    return connection.getresponse()
login = get(f"/?token={token}")
cookie = login.headers["Set-Cookie"].partition(";")[0]
def read(path):
    page = get(path, cookie)
    assert page.status == 200, (path, page.status)
    page.read()
    stream = get("/live" + path, cookie)
    assert stream.status == 200, (path, stream.status)
    while not stream.readline().startswith(b"event: blocks"):
        pass
    print(path, flush=True)
    while stream.readline():
        pass
for path in pages:
    threading.Thread(target=read, args=[path]).start()
"""


@dataclass(frozen=True, slots=True)
class Drain:
    """How fast a worker ran all jobs, and what it took."""

    rate: float
    """Jobs per second."""
    cost: float
    """Processor time of the process for each job, in microseconds."""


def drain(url: str, jobs: int, *, has_readers: bool) -> Drain:
    """Let a worker run jobs that do nothing, from the first claim to the end of the last handler."""
    app = Mainspring(url, durability="normal") if url.startswith("sqlite") else Mainspring(url)

    @contextmanager
    def served() -> Iterator[None]:
        listener = open_listener(HttpAddress("127.0.0.1", 0))
        with HttpServer(app.asgi(auth="tokens"), listener):
            if not has_readers:
                yield
                return
            token = app.tokens.create("bench", scopes=["admin"]).secret
            with open_dashboards(listener.address.port, str(token)):
                yield

    ended, is_done = count(1), Event()

    @app.job
    def noop() -> None:
        if next(ended) >= jobs:
            is_done.set()

    with app:
        noop.submit_many([()] * jobs)
        with served():
            gc.collect()
            began, used = perf_counter(), process_time()
            with app.running():
                if not is_done.wait(SECONDS):
                    raise RuntimeError(f"{next(ended) - 1:,} of {jobs:,} jobs have run within {SECONDS:g} s")
                return Drain(jobs / (perf_counter() - began), (process_time() - used) / jobs * 1e6)


@contextmanager
def open_dashboards(port: int, token: str) -> Iterator[None]:
    """Let another process hold pages open during the block."""
    command = [sys.executable, "-c", READER, str(port), token, *OPEN_PAGES]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        try:
            for _ in OPEN_PAGES:
                if not reader.stdout.readline():
                    raise RuntimeError("the pages cannot be opened")
            yield
            if reader.poll() is not None:
                raise RuntimeError("the pages were closed during the drain")
        finally:
            reader.kill()


def drain_sqlite(jobs: int, *, has_readers: bool) -> Drain:
    with TemporaryDirectory() as folder:
        return drain(f"sqlite:///{folder}/jobs.db", jobs, has_readers=has_readers)


def drain_nats(jobs: int, *, has_readers: bool) -> Drain:
    with TemporaryDirectory() as folder, NatsServers(store=Path(folder) / "nats") as servers:
        return drain(servers.url, jobs, has_readers=has_readers)


def cost(engine: str, jobs: int, rounds: int) -> list[Line]:
    """Drain with and without open dashboards, in pairs."""
    run = partial({"SQLite": drain_sqlite, "NATS": drain_nats}[engine], jobs)
    drains: dict[bool, list[Drain]] = {False: [], True: []}
    for number in range(rounds):
        for has_readers in (True, False) if number % 2 else (False, True):
            drains[has_readers].append(run(has_readers=has_readers))
    pairs = list(zip(drains[True], drains[False], strict=True))
    gains = [100 * (opened.rate / closed.rate - 1) for opened, closed in pairs]
    costs = [100 * (opened.cost / closed.cost - 1) for opened, closed in pairs]
    return [
        Line(
            what=f"drain of {jobs:,} jobs on {engine} beside ten open dashboards",
            ours=f"{median(each.rate for each in drains[True]):,.0f}/s",
            peer=f"{median(each.rate for each in drains[False]):,.0f}/s with none",
            ratio=_scatter(gains),
            bound=f"≥ {-AT_MOST:g} %",
            is_met=median(gains) >= -AT_MOST,
        ),
        Line(
            what=f"processor time of each of these jobs on {engine}",
            ours=f"{median(each.cost for each in drains[True]):.1f} µs",
            peer=f"{median(each.cost for each in drains[False]):.1f} µs with none",
            ratio=_scatter(costs),
            bound=f"≤ {AT_MOST:g} %",
            is_met=median(costs) <= AT_MOST,
        ),
    ]


def _scatter(percents: list[float]) -> str:
    return f"{median(percents):+.1f} % ({min(percents):+.0f} to {max(percents):+.0f})"


def transfer(port: int, token: str) -> float:
    """Return the kilobytes of the first page with its files, compressed, as a browser gets them."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)

    def get(path: str, cookie: str = "") -> tuple[bytes, int, http.client.HTTPMessage]:
        accepted = {"Accept": "text/html,*/*", "Accept-Encoding": "gzip, deflate, br", "Cookie": cookie}
        connection.request("GET", path, headers=accepted)
        answer = connection.getresponse()
        body = answer.read()
        return body, len(body) + len(str(answer.headers)), answer.headers

    cookie = get(f"/?token={token}")[2]["Set-Cookie"].partition(";")[0]
    _, size, _ = get("/", cookie)
    connection.request("GET", "/", headers={"Accept": "text/html", "Cookie": cookie})
    plain = connection.getresponse().read().decode()
    files = {part.partition('"')[0] for part in plain.replace("href=", "src=").split('src="')[1:]}
    files = {file for file in files if file.startswith("/static/")}
    assert len(files) >= 3, files
    return (size + sum(get(file, cookie)[1] for file in files)) / 1_000


def paints(port: int, token: str, loads: int) -> dict[str, list[float]]:
    """Return the milliseconds until a browser with an empty cache has painted the first content, by page."""
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    ensure = import_module("scripts.fetch_chromium").ensure
    found: dict[str, list[float]] = {page: [] for page in PAINTED_PAGES}
    with import_module("playwright.sync_api").sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(ensure()), args=["--no-sandbox"])
        for _ in range(loads):
            for path in PAINTED_PAGES:
                with browser.new_context() as context:
                    page = context.new_page()
                    page.set_default_timeout(120_000)
                    page.goto(f"http://127.0.0.1:{port}/?token={token}")
                    page.wait_for_selector(".sidebar")
                    page.context.new_cdp_session(page).send("Network.clearBrowserCache")
                    page.goto(f"http://127.0.0.1:{port}{path}")
                    found[path].append(page.evaluate(FIRST_PAINT))
        browser.close()
    return found


def painted_line(path: str, samples: list[float]) -> Line:
    p50, worst = percentile(samples, 0.5), max(samples)
    return Line(
        what=f"first paint of {path}",
        ours=f"{p50:.0f} ms ({worst:.0f} at most)",
        bound=f"p50 < {PAINT_MS:g} ms",
        is_met=p50 < PAINT_MS,
    )


def run(rounds: int = ROUNDS, jobs: int = JOBS, nats_jobs: int = NATS_JOBS, stored: int = MILLION) -> Section:
    lines = [*cost("SQLite", jobs, rounds), *cost("NATS", nats_jobs, rounds)]
    with fresh_store() as store:
        token = token_for(store)
        fill(store, stored)
        with server(OURS, store) as port:
            lines.append(
                at_most("bytes of the first page with its files", transfer(port, token), FIRST_PAGE_KB, "kB")
            )
            lines += [painted_line(path, samples) for path, samples in paints(port, token, LOADS).items()]
    return Section(
        title=f"HTTP: the dashboard, with {stored:,} jobs in the store",
        lines=lines,
        text=f"The worker and the server are one process; another one holds {len(OPEN_PAGES)} pages open. The "
        f"ratio is the median of {rounds} pairs, with the smallest and the largest. First paint: {LOADS} loads of "
        "each page in Chromium, with an empty cache, from a server without a worker.",
    )


if __name__ == "__main__":
    for found in run(2, 2_000, 1_000, 20_000).lines:
        print(found)
