"""The judge of chaos: by the ledger of the handlers, which jobs were lost, which started again, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from mainspring import JobInfo
from tests.nats.crew import KILLED, STOPPED, Fault
from tests.processes.run_history import Run, by_job, find_lost

BEATS_PER_LEASE = 4  # a lease may be a beat old when something happens
RECOVERY = 1_000_000_000  # nanoseconds after a fault until its worker may have noticed that it is over


@dataclass(frozen=True)
class Verdict:
    """What came of a scenario, by the ledger."""

    submitted: int
    completed: int
    lost: list[str]
    again: Counter[str]
    """Second starts, by their reason."""
    unexplained: list[str]
    """Second starts without one."""
    late: list[str]
    """Runs that began after those that took their place, though their worker was able to know."""
    rounds: int = 0
    faults: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        again = ", ".join(f"{number} times {reason}" for reason, number in sorted(self.again.items())) or "none"
        faults = ", ".join(f"{number} times {kind}" for kind, number in sorted(self.faults.items()))
        return (
            f"{self.rounds} rounds ({faults}): {self.submitted} submitted, {self.completed} completed, "
            f"{len(self.lost)} lost, {sum(self.again.values())} started again ({again}), "
            f"{len(self.unexplained)} unexplained, {len(self.late)} begun after their lease was over"
        )


@dataclass(frozen=True)
class Judge:
    """Knows what was done to whom."""

    faults: Sequence[Fault]
    lease: float

    def judge(self, submitted: Iterable[str], runs: Sequence[Run], jobs: Mapping[str, JobInfo]) -> Verdict:
        """Look at everything that was submitted."""
        submitted = set(submitted)
        again: Counter[str] = Counter()
        unexplained, late = [], []
        for job_id, own in by_job(runs).items():
            own.sort(key=lambda run: run.token)
            late += [f"{before}" for before, after in pairwise(own) if self._is_late(before, after)]
            reasons = [self._explain(before, after) for before, after in pairwise(own)]
            again.update(reason for reason in reasons if reason is not None)
            if None in reasons or not _is_told(own, jobs[job_id]):
                unexplained.append(f"{jobs[job_id]} ran like this: {own}")
        return Verdict(
            submitted=len(submitted),
            completed=len({run.job for run in runs if run.how == "end"}),
            lost=find_lost(submitted, runs, jobs),
            again=again,
            unexplained=unexplained,
            late=late,
            faults=Counter(fault.kind for fault in self.faults),
        )

    def without_zombies(self, runs: Sequence[Run]) -> list[Run]:
        """Return the runs as they count: one whose worker was declared dead holds no place from then on.

        When that was is not in the ledger: after most of a lease at the earliest, and before the job ran again.
        """
        counted: list[Run] = []
        for own in by_job(runs).values():
            own.sort(key=lambda run: run.token)
            counted += [before._replace(end=self._count_until(before, after)) for before, after in pairwise(own)]
            counted.append(own[-1])
        return sorted(run for run in counted if run.begin <= run.end)

    def _count_until(self, before: Run, after: Run) -> int:
        fault = self._fault_between(before, after)
        ends = [before.end, after.begin]
        if before.how != "fail" and fault is not None:
            ends.append(max(before.begin, fault.begin + round(self._shortest * 1e9)))
        return min(ends)

    @property
    def _shortest(self) -> float:
        """Seconds without an answer after which a worker is declared dead, at least."""
        return self.lease * (1 - 2 / BEATS_PER_LEASE)

    def _explain(self, before: Run, after: Run) -> str | None:
        """Return why a job started again after a run; None if there was no reason."""
        if before.how == "fail":
            return "failed"
        fault = self._fault_between(before, after)
        return None if fault is None else fault.kind

    def _fault_between(self, before: Run, after: Run) -> Fault | None:
        """Return what made another worker run a job again."""
        faults = (
            fault
            for fault in reversed(self.faults)
            if before.process in fault.processes
            and before.begin < fault.end + RECOVERY
            and fault.begin < after.begin
            and (fault.kind == KILLED or fault.seconds > self._shortest)
        )
        return next(faults, None)

    def _is_late(self, before: Run, after: Run) -> bool:
        """Answer whether a run began too late; one who stands still cannot know that its time is over."""
        stopped = {process for fault in self.faults if fault.kind == STOPPED for process in fault.processes}
        return before.begin > after.begin and before.process not in stopped


def _is_told(runs: list[Run], job: JobInfo) -> bool:
    """Answer whether each run has a token of its own, later ones a higher one, and the record knows of all."""
    tokens = [run.token for run in runs]
    return tokens == sorted(set(tokens)) and len(runs) <= job.starts == 1 + job.crashes + job.failures
