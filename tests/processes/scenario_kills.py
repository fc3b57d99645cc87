"""kill -9 in a loop: submitters and workers on one file die at random moments and are started again at once."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from random import Random
from signal import SIGTERM

from mainspring import JobInfo, JobStatus
from tests.processes.run_log import Entry
from tests.processes.sandbox import READY, Child, Sandbox

MAX_LINES = 60  # submits, at most, between a worker's start and the next kill
VICTIMS = (("worker 1",), ("worker 2",), ("worker 1", "worker 2"), ("submitter 1", "worker 2"), ("submitter 2",))


@dataclass
class Killing:
    """What happened."""

    submitted: set[str] = field(default_factory=set)
    """Jobs whose submit has returned."""
    killed: set[int] = field(default_factory=set)
    """Processes that were killed, the submitters included."""
    kills: int = 0
    jobs: dict[str, JobInfo] = field(default_factory=dict)
    run_log: list[Entry] = field(default_factory=list)

    def check(self) -> None:
        """Find jobs that were lost, ran twice without need, or whose record does not tell."""
        assert self.submitted <= self.jobs.keys(), "a job whose submit returned is not there"
        unfinished = [job for job in self.jobs.values() if job.status is not JobStatus.COMPLETED]
        assert unfinished == []
        starts, ends = self._runs("start"), self._runs("end")
        for job_id, job in self.jobs.items():
            self._check_job(job, starts[job_id], ends[job_id])
        assert sum(job.crashes for job in self.jobs.values()) > 0, "no kill found a job in flight"

    def _runs(self, event: str) -> dict[str, list[Entry]]:
        runs: dict[str, list[Entry]] = defaultdict(list)
        for entry in self.run_log:
            if entry.event == event:
                runs[entry.job].append(entry)
        return runs

    def _check_job(self, job: JobInfo, starts: list[Entry], ends: list[Entry]) -> None:
        assert ends, f"{job} is COMPLETED and its handler never came to its end"
        assert ends[-1].token == job.fencing_token, f"{job} was completed by a run that is not its last: {ends}"
        tokens = [entry.token for entry in starts]
        assert tokens == sorted(set(tokens)), f"two runs of {job} have one token: {starts}"
        for entry in starts[:-1]:
            assert entry.process in self.killed, f"{job} ran again, and its first worker lives: {starts}"
        # a start that was committed and did not come to the handler before the kill is a crash as well
        assert job.starts == 1 + job.crashes, f"{job} has starts that nothing explains"
        assert len(starts) <= job.starts, f"{job} ran more often than its record says: {starts}"
        assert Counter(attempt.cause for attempt in job.history) == Counter(
            {"crash": job.crashes} if job.crashes else {}
        )
        assert (job.failures, job.timeouts, job.interruptions) == (0, 0, 0)


class KillLoop:
    """Two submitters and two workers, and a process that kills them."""

    def __init__(self, sandbox: Sandbox, *, seed: int) -> None:
        self._sandbox = sandbox
        self._random = Random(seed)
        self._running: dict[str, Child] = {}
        self._starting: set[str] = set()
        self._report = Killing()

    def run(self, rounds: int) -> Killing:
        """Kill so many times, let the workers finish what is left, and report."""
        for name in ("worker 1", "worker 2", "submitter 1", "submitter 2"):
            self._start(name)
        for _ in range(rounds):
            self._kill_and_restart(self._random.choice(VICTIMS))
        for name in ("submitter 1", "submitter 2"):
            self._kill(name)
        return self._finish()

    def _start(self, name: str) -> None:
        role = "work" if name.startswith("worker") else "submit"
        self._running[name] = self._sandbox.start_app("crashing", role)
        self._starting.add(name)

    def _kill_and_restart(self, victims: tuple[str, ...]) -> None:
        witness = next(name for name in ("submitter 1", "submitter 2") if name not in victims)
        for name in {*victims, witness} & self._starting:
            self._running[name].expect(READY if name.startswith("worker") else "submitted")
            self._starting.remove(name)
        self._running[witness].skip()
        self._running[witness].expect_lines(self._random.randrange(1, MAX_LINES))  # the moment, at random
        for name in victims:
            self._kill(name)
        for name in victims:
            self._start(name)

    def _kill(self, name: str) -> None:
        child = self._running.pop(name)
        child.kill()
        self._report.killed.add(child.pid)
        self._report.kills += 1
        if name.startswith("submitter"):
            self._collect(child)

    def _collect(self, submitter: Child) -> None:
        for line in submitter.expect_end_of_output():
            word, _, job_id = line.partition(" ")
            assert word == "submitted", f"a submitter said {line!r}"
            self._report.submitted.add(job_id)

    def _finish(self) -> Killing:
        app, report = self._sandbox.app, self._report
        page = app.jobs(limit=1_000_000)
        for job in page:
            self._sandbox.wait(job.id)
        for worker in self._running.values():
            worker.expect_all(READY)  # before that, a signal ends it as any other program
            worker.signal(SIGTERM)
        codes = [worker.wait() for worker in self._running.values()]
        assert codes == [0, 0], f"the workers ended with {codes}"
        report.jobs = {job.id: job for job in app.jobs(limit=1_000_000)}
        report.run_log = self._sandbox.run_log()
        return report
