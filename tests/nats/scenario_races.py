"""Cancels and reschedules that race with the delivery of a delayed job, and with its start.

A delayed job has two critical moments: about a second before it is due the server hands it over, and when it is
due its worker starts it. The calls come around both.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random

from mainspring import JobInfo, JobStatus
from tests.nats.apps import mixed
from tests.nats.chaos_workers import ChaosWorkers, projection_in
from tests.nats.servers import Servers
from tests.processes.run_log import now_ns, work_for
from tests.processes.sandbox import Sandbox
from tests.support import PATIENCE

LEAD = 1.0  # seconds before its due time that a job is handed over
SPREAD = 0.15  # seconds around a critical moment
SAMPLE = 10  # submits that tell how long one takes
THREADS = 8
LATER = 1.5  # seconds by which jobs are put off


@dataclass(frozen=True)
class Call:
    """A call, with its job and its result."""

    job: str
    due: datetime
    """When the job was due before it."""
    answer: bool


@dataclass(frozen=True)
class Races:
    """The calls, the final state of the jobs, and when their handlers began."""

    calls: list[Call]
    jobs: dict[str, JobInfo]
    starts: dict[str, list[int]]
    """In nanoseconds on the monotonic clock of the run log."""
    offset: int
    """What to add to a time of the run log for the wall clock, in nanoseconds."""

    @property
    def share(self) -> float:
        """The share of calls that came in time."""
        return sum(call.answer for call in self.calls) / len(self.calls)

    def check_cancels(self) -> None:
        """True is never followed by a run, and False means that it ran."""
        for call in self.calls:
            job, starts = self.jobs[call.job], self.starts[call.job]
            expected = (JobStatus.CANCELED, 0) if call.answer else (JobStatus.COMPLETED, 1)
            assert (job.status, len(starts)) == expected, f"cancel said {call.answer}: {job}, {starts}"

    def check_reschedules(self) -> None:
        """True is never followed by a run at the old time, but by one at the new; none is lost or doubled.

        `job.started` is the report of the worker, in the time of the server as the worker has measured it. The run
        log is independent of that, but the two clocks differ by what a busy machine adds to the measurement. So it
        shows that a handler began at the new time and not at the old one, which are `LATER` apart.
        """
        for call in self.calls:
            job, starts = self.jobs[call.job], self.starts[call.job]
            assert (job.status, len(starts)) == (JobStatus.COMPLETED, 1), f"said {call.answer}: {job}, {starts}"
            assert job.due == call.due + timedelta(seconds=LATER if call.answer else 0), (
                f"said {call.answer}: {job}"
            )
            assert job.started is not None
            assert job.started >= job.due, f"said {call.answer}, and {job} began early"
            early = job.due.timestamp() - (starts[0] + self.offset) / 1e9
            assert early < LATER / 2, f"said {call.answer}, and the handler of {job} began {early} s early"


def race_cancels(
    site: Sandbox, servers: Servers, *, count: int, seconds: float, seed: int, spread: float = SPREAD
) -> Races:
    """Cancel jobs around their critical moments."""

    def cancel(job_id: str, _due: datetime) -> bool:
        return mixed.app.cancel(job_id)

    return _race(site, servers, cancel, count=count, seconds=seconds, seed=seed, spread=spread)


def race_reschedules(
    site: Sandbox, servers: Servers, *, count: int, seconds: float, seed: int, spread: float = SPREAD
) -> Races:
    """Reschedule jobs around their critical moments."""

    def put_off(job_id: str, due: datetime) -> bool:
        return mixed.app.reschedule(job_id, at=due + timedelta(seconds=LATER))

    return _race(site, servers, put_off, count=count, seconds=seconds, seed=seed, spread=spread)


Act = Callable[[str, datetime], bool]
Order = tuple[int, str, datetime]


def _race(
    site: Sandbox, servers: Servers, act: Act, *, count: int, seconds: float, seed: int, spread: float
) -> Races:
    options = f"lease=10&timeout=60&replicas={len(servers.nodes)}"
    app = mixed.app
    app.url = f"{servers.url}?{options}&{projection_in(site.folder)}"
    chance = Random(seed)
    offset = time.time_ns() - now_ns()  # noqa: TID251 - due times are on the wall clock
    with app:
        workers = ChaosWorkers(site, servers, options=options, workers=2, proxied=0, seed=seed)
        workers.start()
        begin = now_ns() + offset + round((2 * count * _time_a_submit() + 2 * LEAD) * 1e9)
        orders: list[Order] = []
        for number in range(count):
            due = begin + round(number / count * seconds * 1e9)
            instant = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=due // 1_000)
            critical = chance.choice((0.0, LEAD)) + chance.uniform(-spread, spread)
            handle = mixed.plain.at(instant).submit(f"race/{number}", 0.0)
            orders.append((due - offset - round(critical * 1e9), handle.id, instant))
        with ThreadPoolExecutor(THREADS) as others:
            shares = [sorted(orders)[place::THREADS] for place in range(THREADS)]
            answers = list(others.map(lambda share: _call_in_time(share, act), shares))
        calls = [call for share in answers for call in share]
        for call in calls:
            app.handle(call.job).wait(PATIENCE)
        workers.stop()
        jobs = {call.job: app.get(call.job) for call in calls}
    starts: dict[str, list[int]] = defaultdict(list)
    for entry in site.run_log():
        if entry.event == "start":
            starts[entry.job].append(entry.instant_ns)
    return Races(calls, jobs, starts, offset)


def _time_a_submit() -> float:
    """Return how many seconds a submit takes, as it is now."""
    begin = now_ns()
    for _ in range(SAMPLE):
        mixed.plain.after(3_600).submit("sample/0", 0.0)
    return (now_ns() - begin) / SAMPLE / 1e9


def _call_in_time(orders: Sequence[Order], act: Act) -> list[Call]:
    calls = []
    for instant, job_id, due in orders:
        work_for(max(0.0, (instant - now_ns()) / 1e9))
        answer = act(job_id, due)
        calls.append(Call(job_id, due, answer))
    return calls
