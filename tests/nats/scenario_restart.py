"""A server that is killed while many jobs wait for a far future, and comes back."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from mainspring import JobStatus
from mainspring.clock import SystemClock
from tests.nats.apps import mixed
from tests.nats.chaos_workers import ChaosWorkers, projection_in
from tests.nats.servers import Servers
from tests.processes.run_history import runs_from_log
from tests.processes.run_log import now_ns
from tests.processes.sandbox import Sandbox
from tests.support import PATIENCE

CHUNK = 10_000
LEASE = 3.0


@dataclass(frozen=True)
class Restart:
    """The result of a restart."""

    pending: int
    """How many waited afterwards."""
    seconds: float
    """From the kill until the server was ready."""
    submitted_per_second: float
    late: float
    """Seconds after it was due, and the server was there, that a job started."""
    starts: int
    """How often it started."""


def restart_with_schedules(site: Sandbox, servers: Servers, *, count: int) -> Restart:
    """Let `count` jobs wait; kill the server while another job is about to be due, and wait until that has run."""
    app = mixed.app
    options = f"lease={LEASE}&timeout=60"
    app.url = f"{servers.url}?{options}&{projection_in(site.folder)}"
    far = SystemClock().now() + timedelta(days=400)
    with app:
        begin = now_ns()
        for place in range(0, count, CHUNK):
            mixed.plain.at(far + timedelta(seconds=place)).submit_many(
                [("far/0", 0.0)] * min(CHUNK, count - place)
            )
        seconds = (now_ns() - begin) / 1e9
        workers = ChaosWorkers(site, servers, options=options, workers=1, proxied=0)
        workers.start()
        soon = mixed.plain.after(2).submit("soon/0", 0.0)
        due = now_ns() + 2_000_000_000
        workers.restart_the_server()
        assert soon.wait(PATIENCE) is JobStatus.COMPLETED
        pending = app.counts()["PENDING"]
        starts = soon.info().starts
        workers.stop()
    (run,) = runs_from_log(site.run_log(), {})
    outage = workers.faults[0]
    return Restart(
        pending=pending,
        seconds=outage.seconds,
        submitted_per_second=count / seconds,
        late=(run.begin - max(due, outage.end)) / 1e9,
        starts=starts,
    )
