"""Contention: many processes submit and two work, all of them as fast as they can, on one file."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from signal import SIGTERM

from mainspring import JobStatus
from tests.processes.apps import jobs
from tests.processes.sandbox import Sandbox


@dataclass
class Contention:
    """What was submitted, and what became of it."""

    submitted: list[str]
    timer: str
    """The job that ended it."""
    sandbox: Sandbox

    def check(self) -> None:
        """Find jobs that were lost, that ran twice, or whose updates were lost."""
        assert len(set(self.submitted)) == len(self.submitted)
        found = {job.id: job for job in self.sandbox.app.jobs(type="work", limit=len(self.submitted) + 1)}
        assert found.keys() == set(self.submitted)
        good = (JobStatus.COMPLETED, 1, 0)
        odd = [job for job in found.values() if (job.status, job.starts, job.crashes) != good]
        assert odd == []
        runs = Counter((entry.event, entry.job) for entry in self.sandbox.run_log() if entry.job != self.timer)
        once = {(event, job_id): 1 for event in ("start", "end") for job_id in self.submitted}
        assert runs == once


def contend(sandbox: Sandbox, *, seconds: float, submitters: int = 8, workers: int = 2) -> Contention:
    """Let them run for so long; none may report trouble."""
    working = [sandbox.start_worker() for _ in range(workers)]
    submitting = [sandbox.start_app("contending") for _ in range(submitters)]
    for child in submitting:
        child.expect("submitted")
    timer = jobs.speak.after(seconds).submit(0)
    assert timer.wait(seconds + 30) is JobStatus.COMPLETED

    submitted = []
    for child in submitting:
        child.close_stdin()
    for child in submitting:
        for line in child.expect_end_of_output():
            assert line.startswith("submitted "), f"a submitter said: {line}"
            submitted.append(line.removeprefix("submitted "))
        assert child.wait() == 0
    for job_id in submitted:
        sandbox.wait(job_id)
    for child in working:
        child.signal(SIGTERM)
        assert child.wait() == 0
        trouble = [line for line in child.expect_end_of_output() if "ERROR" in line or "WARNING" in line]
        assert trouble == []
    return Contention(submitted, timer.id, sandbox)
