"""Cancels around the due instant: two workers, and a canceller in another process."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import timedelta

from mainspring import JobInfo, JobStatus
from mainspring.clock import SystemClock
from tests.processes.apps import jobs
from tests.processes.run_log import Entry
from tests.processes.sandbox import Sandbox

GROUP = 20  # jobs with one due instant
PREPARATION = timedelta(seconds=4)  # for submitting all of them and starting the canceller


@dataclass
class Cancels:
    """The answers of all cancels, and what became of the jobs."""

    answers: dict[str, bool]
    jobs: dict[str, JobInfo]
    run_log: list[Entry]
    offsets: list[float]
    """When cancels were called, in seconds after the due instant of their job, sorted."""

    def check(self) -> None:
        """Find cancels that were answered wrongly."""
        runs: dict[str, list[str]] = defaultdict(list)
        for entry in self.run_log:
            runs[entry.job].append(entry.event)
        for job_id, answer in self.answers.items():
            job = self.jobs[job_id]
            if answer:
                assert runs[job_id] == [], f"{job} was canceled, and ran"
                assert (job.status, job.starts) == (JobStatus.CANCELED, 0)
            elif job.status is JobStatus.CANCELED:
                # A worker had claimed it and handed it back, for lack of a slot, with the request to stop.
                assert (runs[job_id], job.starts) == ([], 0), f"{job} was not canceled, and did not run to its end"
            else:
                assert runs[job_id] == ["start", "end"], f"{job} was not canceled, and did not run"
                assert (job.status, job.starts) == (JobStatus.COMPLETED, 1)

    @property
    def share_canceled(self) -> float:
        """How many of the cancels came in time."""
        return sum(self.answers.values()) / len(self.answers)

    @property
    def share_near_due(self) -> float:
        """How many were called within 25 ms of the due instant: the machine may be late itself."""
        return sum(abs(offset) < 0.025 for offset in self.offsets) / len(self.offsets)


def cancel_around_due(sandbox: Sandbox, *, count: int, seconds: float, seed: int) -> Cancels:
    """Submit jobs that are due over so many seconds, and cancel each around its instant."""
    for _ in range(2):
        sandbox.start_worker()
    canceller = sandbox.start_app("cancelling", str(seed))
    begin = SystemClock().now() + PREPARATION
    for place in range(0, count, GROUP):
        due = begin + timedelta(seconds=place / count * seconds)
        for job_id in jobs.work.at(due).submit_many([(number,) for number in range(place, place + GROUP)]):
            canceller.send_line(f"{job_id} {due.timestamp()}")
    canceller.close_stdin()
    assert canceller.wait(seconds + 60) == 0
    lines = canceller.expect_end_of_output()
    assert [line for line in lines if not line.startswith(("True ", "False "))] == []
    words = [line.split() for line in lines]
    answers = {job_id: answer == "True" for answer, job_id, _ in words}
    assert len(answers) == count
    found = {job_id: sandbox.wait(job_id) for job_id in answers}
    offsets = sorted(float(instant) - found[job_id].due.timestamp() for _, job_id, instant in words)
    return Cancels(answers, found, sandbox.run_log(), offsets)
