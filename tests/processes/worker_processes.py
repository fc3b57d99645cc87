"""Worker processes on one store, which are killed with `kill -9` at random moments and started again at once.

The moment of a kill is a number of lines that the handlers of all workers have printed. So kills hit workers in
the middle of jobs, however fast or slow the machine is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from signal import SIGTERM
from threading import Condition

from mainspring import JobInfo, Mainspring
from tests.processes.run_history import Run, find_doubled, find_lost, runs_from_log
from tests.processes.run_log import now_ns
from tests.processes.sandbox import APPS, READY, Child, Sandbox
from tests.support import PATIENCE, amount

WORKERS = amount(2, thorough=3)
HANDLER_LINES = ("start ", "end ", "fail ")


@dataclass(frozen=True)
class Figures:
    """The counts of a scenario, from the run log."""

    submitted: int
    completed: int
    lost: int
    doubled: int
    """Jobs that ran again without a failure or a kill before."""
    kills: int
    reruns: int
    """Runs that a kill interrupted."""

    def __str__(self) -> str:
        return (
            f"{self.submitted} jobs, {self.completed} completed, {self.lost} lost, {self.doubled} doubled, "
            f"{self.kills} kills, {self.reruns} runs cut short"
        )


class WorkerProcesses:
    """Workers of one application: a module of the folder `apps` with an `app`, run by `mainspring run`."""

    apps = APPS

    def __init__(self, sandbox: Sandbox, module: str, *, seed: int = 0, workers: int = WORKERS) -> None:
        self._sandbox = sandbox
        self._module = module
        self._random = Random(seed)
        self.workers: list[Child] = []
        """The workers that `stop` stops."""
        self._size = workers
        self._changed = Condition()  # guards what follows
        self._lines = 0
        self.killed: dict[int, int] = {}
        """The time of the kill, by process id."""

    def start(self) -> None:
        """Start all workers, and wait until they claim jobs."""
        self.workers = [self.start_at(place) for place in range(self._size)]
        for worker in self.workers:
            worker.expect_all(READY)

    def start_together(self, app: Mainspring, *queues: str) -> None:
        """Start all workers; none claims jobs of these queues before all are ready."""
        for queue in queues:
            assert app.queue(queue).pause()
        self.start()
        for queue in queues:
            assert app.queue(queue).resume()

    def start_at(self, place: int) -> Child:
        """Start the worker for a place, without waiting for it. Subclasses may treat places differently."""
        return self.start_one()

    def start_one(self, *arguments: str, **environment: str) -> Child:
        """Start one more worker without waiting for it; the caller stops it."""
        reference = f"{self.apps}.{self._module}:app"
        return self._sandbox.start(
            "-m", "mainspring", "run", reference, *arguments, on_line=self._count_line, **environment
        )

    def _count_line(self, line: str) -> None:
        if line.startswith(HANDLER_LINES):
            with self._changed:
                self._lines += 1
                self._changed.notify_all()

    @property
    def lines(self) -> int:
        """The number of lines that handlers have printed."""
        with self._changed:
            return self._lines

    def wait_for_lines(self, total: int) -> None:
        """Wait until handlers have printed this many lines in all."""
        with self._changed:
            is_there = self._changed.wait_for(lambda: self._lines >= total, PATIENCE)
        said = "\n  ".join(line for worker in self.workers for line in worker.lines[-10:])
        assert is_there, f"handlers have printed {self._lines} lines, expected {total}; the workers:\n  {said}"

    def kill_at_random(self, kills: int, *, until: int) -> None:
        """Kill workers this often before handlers have printed `until` lines: one, sometimes two or all."""
        for moment in sorted(self._random.randrange(1, until) for _ in range(kills)):
            self.wait_for_lines(moment)
            self.kill_and_restart(self._random.choice((1, 1, 1, 2, self._size)))

    def kill_and_restart(self, count: int) -> None:
        """Kill this many workers, chosen at random, and start as many."""
        places = self._random.sample(range(self._size), count)
        for place in places:
            self.kill(self.workers[place])
        for place in places:
            self.workers[place] = self.start_at(place)

    def kill(self, worker: Child) -> None:
        """Kill a worker, and record the time."""
        self.killed[worker.pid] = now_ns()
        worker.kill()

    def stop(self) -> None:
        """Stop all workers with SIGTERM; each must exit with 0."""
        for worker in self.workers:
            worker.expect_all(READY)
            worker.signal(SIGTERM)
        codes = [worker.wait() for worker in self.workers]
        said = "\n".join(line for worker in self.workers for line in worker.lines)
        assert codes == [0] * len(self.workers), said

    def finish(self, app: Mainspring, job_ids: Iterable[str]) -> ScenarioResult:
        """Wait until these jobs have ended, stop the workers, and return the result."""
        job_ids = list(job_ids)
        for job_id in job_ids:
            app.handle(job_id).wait(PATIENCE)
        self.stop()
        jobs = {job.id: job for job in app.jobs(limit=1_000_000)}
        return ScenarioResult(job_ids, jobs, runs_from_log(self._sandbox.run_log(), self.killed), self.killed)


@dataclass(frozen=True)
class ScenarioResult:
    """Jobs and runs after all workers have stopped."""

    submitted: list[str]
    jobs: dict[str, JobInfo]
    runs: list[Run]
    killed: dict[int, int]

    def figures(self) -> Figures:
        """Count lost jobs, needless repetitions and kills."""
        return Figures(
            submitted=len(set(self.submitted)),
            completed=len({run.job for run in self.runs if run.how == "end"}),
            lost=len(find_lost(self.submitted, self.runs, self.jobs)),
            doubled=len(find_doubled(self.runs, self.jobs, self.killed)),
            kills=len(self.killed),
            reruns=sum(run.how == "kill" for run in self.runs),
        )
