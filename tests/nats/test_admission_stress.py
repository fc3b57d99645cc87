"""Many processes request admission at once, against an oracle: no limit is exceeded, and no job is forgotten."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Condition, Lock

import pytest

from mainspring.clock import SystemClock
from mainspring.engines.nats.job_records import StoredJob
from mainspring.engines.nats.limiters import sequence_limiter
from mainspring.jobs.limits import bucket_of
from mainspring.jobs.status import JobStatus
from tests.nats.admission_driver import MICROSECONDS, AdmissionDriver
from tests.nats.servers import Servers
from tests.support import PATIENCE, amount

pytestmark = [pytest.mark.stress, pytest.mark.long]

THREADS = 8
JOBS = amount(8, thorough=15)  # of each thread
SEQUENCES = [f"sequence {number}" for number in range(5)]
FEW, MANY = bucket_of("few"), bucket_of("many")
TENANTS = [bucket_of("by tenant", key) for key in "abc"]
RATE = bucket_of("rate")
AT_ONCE = {FEW: 2, MANY: 5, **dict.fromkeys(TENANTS, 2)}
RATE_MOST, RATE_INTERVAL = 4, MICROSECONDS // 50
SLACK = MICROSECONDS // 10  # the clocks of different links do not agree better
PAUSE = 0.03  # seconds until a look at the clock when nothing is ready and no other thread has changed anything
SEEDS = amount([2], thorough=[2, 3])


class Oracle:
    """Sees who is between his start and his end, a little less than that, and so never cries wolf."""

    def __init__(self) -> None:
        self._lock = Lock()  # guards everything below
        self._inside: Counter[str] = Counter()
        self.first_starts: list[StoredJob] = []
        self.starts: list[int] = []
        self.over: set[str] = set()

    def begin(self, job: StoredJob) -> None:
        with self._lock:
            for limiter in limiters_of(job):
                self._inside[limiter] += 1
                assert self._inside[limiter] <= AT_ONCE.get(limiter, 1_000 if limiter == RATE else 1), (
                    f"{limiter!r} is full"
                )
            if job.starts == 1:
                self.first_starts.append(job)
            if RATE in job.limits:
                assert job.started is not None
                self.starts.append(job.started)

    def end(self, job: StoredJob, *, is_over: bool) -> None:
        with self._lock:
            self._inside.subtract(limiters_of(job))
            if is_over:
                self.over.add(job.id)


def limiters_of(job: StoredJob) -> tuple[str, ...]:
    return (*(() if job.sequence is None else (sequence_limiter(job.sequence),)), *job.limits)


class StressedProcesses:
    """Threads with a jetstream each, which submit jobs and run whatever is ready."""

    def __init__(self, drivers: list[AdmissionDriver], seed: int) -> None:
        self.drivers = drivers
        self.oracle = Oracle()
        self.seed = seed
        self.number = len(drivers) * JOBS
        self.changed = Condition()  # tells that a job has ended or is to run again

    def submit(self, number: int) -> None:
        choice = random.Random(f"{self.seed} {number}")
        for job in range(JOBS):
            self.submit_one(number, job, choice)

    def submit_one(self, number: int, job: int, choice: random.Random) -> None:
        limits = tuple(choice.sample([FEW, MANY, RATE, choice.choice(TENANTS)], choice.randrange(4)))
        sequence = choice.choice(SEQUENCES) if choice.random() < 0.7 or not limits else None
        age = choice.choice([0, 0, 0, choice.random()])
        self.drivers[number].submit(f"{number}-{job}", sequence=sequence, limits=limits, after=-age)

    def run(self, number: int) -> None:
        choice = random.Random(f"{self.seed} run {number}")
        driver, looks = self.drivers[number], 0
        while len(self.oracle.over) < self.number:
            ready = driver.ready()
            looks = 0 if ready else looks + 1
            assert looks < PATIENCE / PAUSE, (
                f"no job is ready, and {self.number - len(self.oracle.over)} have not run"
            )
            if ready:
                self.run_one(driver, choice.choice(ready), choice)
            else:
                self.wait_for_a_change()
            driver.wake_all()

    def wait_for_a_change(self) -> None:
        """Wait until another thread has changed something, or a limit by time may admit a job."""
        with self.changed:
            self.changed.wait(PAUSE)

    def run_one(self, driver: AdmissionDriver, job_id: str, choice: random.Random) -> None:
        if not driver.start(job_id):
            return  # another one was quicker
        job = driver.job(job_id)
        self.oracle.begin(job)
        is_over = choice.random() < 0.8
        self.oracle.end(job, is_over=is_over)
        if is_over:
            driver.end(job_id)
        else:
            driver.retry(job_id)
        with self.changed:
            self.changed.notify_all()

    def submit_and_run(self, number: int) -> None:
        choice = random.Random(f"{self.seed} {number}")
        for job in range(JOBS):
            self.submit_one(number, job, choice)
            ready = self.drivers[number].ready()
            if ready:
                self.run_one(self.drivers[number], choice.choice(ready), choice)
        self.run(number)


@pytest.fixture
def drivers(nats_server: Servers, nats_prefix: str) -> Iterator[list[AdmissionDriver]]:
    with ExitStack() as stack:
        drivers = []
        for _ in range(THREADS):
            drivers.append(AdmissionDriver(nats_server.url, nats_prefix, SystemClock()))
            stack.callback(drivers[-1].close)
        for family, most in (("few", 2), ("many", 5), ("by tenant", 2)):
            drivers[0].limit(family, most)
        drivers[0].limit("rate", RATE_MOST, per=RATE_MOST * RATE_INTERVAL / MICROSECONDS)
        yield drivers


def assert_all_is_well(processes: StressedProcesses) -> None:
    """All jobs have run, no limiter counts a job, and the rate was kept."""
    driver = processes.drivers[0]
    for number in range(THREADS):
        for job in range(JOBS):
            assert driver.job(f"{number}-{job}").status is JobStatus.COMPLETED
    for limiter in (*AT_ONCE, RATE, *map(sequence_limiter, SEQUENCES)):
        record = driver.limiter(limiter)
        assert record is None or (record.is_idle() and not record.reserved), record
    starts = sorted(processes.oracle.starts)
    for first, began in enumerate(starts):
        for last in range(first, len(starts)):
            most = RATE_MOST + (starts[last] - began + SLACK) // RATE_INTERVAL
            assert last - first + 1 <= most


def test_all_jobs_that_waited_for_a_sequence_pass_in_order(drivers: list[AdmissionDriver]) -> None:
    processes = StressedProcesses(drivers, seed=1)
    for sequence in SEQUENCES:
        drivers[0].submit(f"blocker of {sequence}", sequence=sequence, after=-3600)
        assert drivers[0].start(f"blocker of {sequence}")
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(processes.submit, range(THREADS)))
        for sequence in SEQUENCES:
            drivers[0].end(f"blocker of {sequence}")
        list(pool.map(processes.run, range(THREADS)))
    assert_all_is_well(processes)
    for sequence in SEQUENCES:
        started = [
            (job.turn, job.place, job.id) for job in processes.oracle.first_starts if job.sequence == sequence
        ]
        assert started == sorted(started)
        assert len(started) > JOBS * 2 // 3


@pytest.mark.parametrize("seed", SEEDS)
def test_jobs_that_come_and_go_at_once_are_neither_too_many_nor_forgotten(
    drivers: list[AdmissionDriver], seed: int
) -> None:
    processes = StressedProcesses(drivers, seed=seed)
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(processes.submit_and_run, range(THREADS)))
    assert_all_is_well(processes)
