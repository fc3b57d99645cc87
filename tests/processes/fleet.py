"""Workers on one file, which are killed with `kill -9` at random moments and started again at once.

A moment is given as a number of lines: as much as handlers have said, on all workers together. So a kill comes in
the middle of work, however fast or slow the machine is, and the work decides how long a scenario lasts.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from signal import SIGTERM
from threading import Condition

from mainspring import JobInfo, Mainspring
from tests.processes.harness import APPS, GREETING, Child, Site
from tests.processes.runs import Run, find_doubled, find_lost, put_together
from tests.support import PATIENCE, amount

WORKERS = amount(2, thorough=3)
HANDLER_LINES = ("start ", "end ", "fail ")


@dataclass(frozen=True)
class Figures:
    """What came of a scenario, by the ledger."""

    submitted: int
    completed: int
    lost: int
    doubled: int
    """Jobs that ran again, and neither a failure nor a kill explains it."""
    kills: int
    reruns: int
    """Runs that a kill has cut short."""

    def __str__(self) -> str:
        return (
            f"{self.submitted} jobs, {self.completed} completed, {self.lost} lost, {self.doubled} doubled, "
            f"{self.kills} kills, {self.reruns} runs cut short"
        )


class Fleet:
    """Workers of one application: a module of the folder `apps` with an `app`, run by `mainspring run`."""

    def __init__(self, site: Site, module: str, *, seed: int = 0, workers: int = WORKERS) -> None:
        self._site = site
        self._module = module
        self._random = Random(seed)
        self.workers: list[Child] = []
        """Those that `stop` will stop."""
        self._size = workers
        self._said = Condition()  # guards what follows
        self._lines = 0
        self.killed: dict[int, int] = {}
        """The processes that were killed, and when."""

    def start(self) -> None:
        """Start all of them, and wait until they take jobs."""
        self.workers = [self.start_one() for _ in range(self._size)]
        for worker in self.workers:
            worker.expect_all(GREETING)

    def start_together(self, app: Mainspring, *queues: str) -> None:
        """Start all of them, and let none take jobs of these queues before all can."""
        for queue in queues:
            assert app.queue(queue).pause()
        self.start()
        for queue in queues:
            assert app.queue(queue).resume()

    def start_one(self, *arguments: str, **environment: str) -> Child:
        """Start one more worker, without waiting for it; it is the caller's."""
        reference = f"{APPS}.{self._module}:app"
        return self._site.start(
            "-m", "mainspring", "run", reference, *arguments, on_line=self._hear, **environment
        )

    def _hear(self, line: str) -> None:
        if line.startswith(HANDLER_LINES):
            with self._said:
                self._lines += 1
                self._said.notify_all()

    @property
    def lines(self) -> int:
        """How much handlers have said."""
        with self._said:
            return self._lines

    def wait_for_lines(self, total: int) -> None:
        """Wait until handlers have said so many lines in all."""
        with self._said:
            is_there = self._said.wait_for(lambda: self._lines >= total, PATIENCE)
        said = "\n  ".join(line for worker in self.workers for line in worker.lines[-10:])
        assert is_there, f"handlers have said {self._lines} lines and not {total}; the workers:\n  {said}"

    def kill_at_random(self, kills: int, *, until: int) -> None:
        """Kill so many times, before handlers have said so many lines in all; mostly one, at times two or all."""
        for moment in sorted(self._random.randrange(1, until) for _ in range(kills)):
            self.wait_for_lines(moment)
            self._kill_and_restart(self._random.choice((1, 1, 1, 2, self._size)))

    def _kill_and_restart(self, count: int) -> None:
        places = self._random.sample(range(self._size), count)
        for place in places:
            self.kill(self.workers[place])
        for place in places:
            self.workers[place] = self.start_one()

    def kill(self, worker: Child) -> None:
        """Kill one, and remember when."""
        self.killed[worker.pid] = time.monotonic_ns()  # noqa: TID251 - compared with the ledger
        worker.kill()

    def stop(self) -> None:
        """Stop all workers in order; none may fail at it."""
        for worker in self.workers:
            worker.expect_all(GREETING)
            worker.signal(SIGTERM)
        assert [worker.wait() for worker in self.workers] == [0] * len(self.workers)

    def finish(self, app: Mainspring, job_ids: Iterable[str]) -> Aftermath:
        """Wait until these jobs have ended, stop the workers, and look at what is left."""
        job_ids = list(job_ids)
        for job_id in job_ids:
            app.handle(job_id).wait(PATIENCE)
        self.stop()
        jobs = {job.id: job for job in app.jobs(limit=1_000_000)}
        return Aftermath(job_ids, jobs, put_together(self._site.ledger(), self.killed), self.killed)


@dataclass(frozen=True)
class Aftermath:
    """What is left when all workers have stopped."""

    submitted: list[str]
    jobs: dict[str, JobInfo]
    runs: list[Run]
    killed: dict[int, int]

    def figures(self) -> Figures:
        """Judge it by the ledger."""
        return Figures(
            submitted=len(set(self.submitted)),
            completed=len({run.job for run in self.runs if run.how == "end"}),
            lost=len(find_lost(self.submitted, self.runs, self.jobs)),
            doubled=len(find_doubled(self.runs, self.jobs, self.killed)),
            kills=len(self.killed),
            reruns=sum(run.how == "kill" for run in self.runs),
        )
