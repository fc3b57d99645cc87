"""Load: jobs that are due at a given rate, on a given number of workers, and how late they start."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tests.nats.apps import timed
from tests.nats.chaos_workers import ChaosWorkers, projection_in
from tests.nats.servers import Servers
from tests.processes.run_history import by_job, runs_from_log
from tests.processes.run_log import now_ns, work_for
from tests.processes.sandbox import Sandbox
from tests.support import PATIENCE

INSTANTS = 25  # in a second: some jobs are due at each
AHEAD = 4.0  # seconds that a job is submitted before it is due, at least
STEP = 1.0


@dataclass(frozen=True)
class Load:
    """The result of a load test."""

    submitted: int
    completed: int
    lost: int
    twice: int
    early: float
    """Milliseconds by which a job started before its due instant, at most: clocks of two processes differ."""
    ahead: float
    """Seconds before its due instant that a job was submitted, at least."""
    median: float
    """Milliseconds from the due instant to the first line of the handler."""
    p99: float
    longest: float

    def __str__(self) -> str:
        return (
            f"{self.submitted} submitted, {self.completed} completed, {self.lost} lost, {self.twice} twice, "
            f"{self.early:.1f} ms early at most; submitted {self.ahead:.1f} s ahead at least; start minus due "
            f"p50 {self.median:.1f}, p99 {self.p99:.1f}, max {self.longest:.1f} ms"
        )


def run_load(site: Sandbox, servers: Servers, *, workers: int, per_second: int, seconds: float) -> Load:
    """Submit a second's jobs at a time, some seconds ahead; then read the run log of the handlers."""
    options = f"lease=10&timeout=60&replicas={len(servers.nodes)}"
    app = timed.app
    app.url = f"{servers.url}?{options}&{projection_in(site.folder)}"
    each = max(1, per_second // INSTANTS)
    dues: dict[str, int] = {}
    with app:
        app.manager()
        processes = ChaosWorkers(site, servers, options=options, module="timed", workers=workers, proxied=0)
        processes.start()
        begin = time.time_ns() + round(AHEAD * 1e9)  # noqa: TID251 - due times are on the wall clock
        offset = time.time_ns() - now_ns()  # noqa: TID251 - the run log is on the monotonic clock
        ahead = AHEAD
        for number in range(round(INSTANTS * seconds)):
            due = begin + round(number / INSTANTS * 1e9)
            work_for(max(0.0, (due - time.time_ns()) / 1e9 - AHEAD - STEP))  # noqa: TID251 - as above
            instant = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=due // 1_000)
            for job_id in timed.punctual.at(instant).submit_many([(f"due/{number}",)] * each):
                dues[job_id] = due // 1_000 * 1_000
            ahead = min(ahead, (due - time.time_ns()) / 1e9)  # noqa: TID251 - as above
        for job_id in dues:
            app.handle(job_id).wait(PATIENCE)
        processes.stop()
        unfinished = len(dues) - app.counts(type=timed.punctual.name)["COMPLETED"]
    runs = by_job(run for run in runs_from_log(site.run_log(), {}) if run.job in dues)
    lateness = sorted((own[0].begin + offset - dues[job_id]) / 1e6 for job_id, own in runs.items())
    return Load(
        submitted=len(dues),
        completed=len(dues) - unfinished,
        lost=len(dues) - len(runs),
        twice=sum(len(own) > 1 for own in runs.values()),
        early=max(0.0, -lateness[0]),
        ahead=ahead,
        median=lateness[len(lateness) // 2],
        p99=lateness[len(lateness) * 99 // 100],
        longest=lateness[-1],
    )
