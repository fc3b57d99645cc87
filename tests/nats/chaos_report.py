"""The report of a chaos scenario, from the run log: lost jobs, and the reasons of second starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from mainspring import JobInfo
from mainspring.engines.nats.presence import ABSENCE_SECONDS
from tests.nats.chaos_workers import KILLED, STOPPED, Fault
from tests.processes.run_history import Run, by_job, find_lost

BEATS_PER_LEASE = 4  # the last heartbeat may be this part of a lease old when a fault begins
RECOVERY = 1_000_000_000  # nanoseconds after a fault until its worker may have reconnected


@dataclass(frozen=True)
class ChaosReport:
    """The counts and violations of a scenario."""

    submitted: int
    completed: int
    lost: list[str]
    again: Counter[str]
    """Second starts, by their reason."""
    unexplained: list[str]
    """Second starts without one."""
    late: list[str]
    """Runs that began after the run that replaced them, although their worker was not suspended."""
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
class RunAnalysis:
    """Explains second starts by the faults that hit the workers."""

    faults: Sequence[Fault]
    lease: float

    def report(self, submitted: Iterable[str], runs: Sequence[Run], jobs: Mapping[str, JobInfo]) -> ChaosReport:
        """Compare the submitted jobs with their runs and records."""
        submitted = set(submitted)
        again: Counter[str] = Counter()
        unexplained, late = [], []
        for job_id, own in by_job(runs).items():
            own.sort(key=lambda run: run.token)
            late += [f"{before}" for before, after in pairwise(own) if self._is_late(before, after)]
            reasons = [self._explain(before, after) for before, after in pairwise(own)]
            again.update(reason for reason in reasons if reason is not None)
            if None in reasons or not _is_recorded(own, jobs[job_id]):
                unexplained.append(f"{jobs[job_id]} ran like this: {own}")
        return ChaosReport(
            submitted=len(submitted),
            completed=len({run.job for run in runs if run.how == "end"}),
            lost=find_lost(submitted, runs, jobs),
            again=again,
            unexplained=unexplained,
            late=late,
            faults=Counter(fault.kind for fault in self.faults),
        )

    def without_zombies(self, runs: Sequence[Run]) -> list[Run]:
        """Return the runs with their ends as other workers see them: a dead worker holds no limits.

        The run log does not say when a worker was declared dead: after most of a lease at the earliest, and before
        the job ran again.
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
        return min(ABSENCE_SECONDS, self.lease * (1 - 2 / BEATS_PER_LEASE))

    def _explain(self, before: Run, after: Run) -> str | None:
        """Return why a job started again after a run; None if there was no reason."""
        if before.how == "fail":
            return "failed"
        fault = self._fault_between(before, after)
        return None if fault is None else fault.kind

    def _fault_between(self, before: Run, after: Run) -> Fault | None:
        """Return the fault that made another worker run a job again."""
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
        """Return whether a run began after its replacement, and its worker was not suspended."""
        stopped = {process for fault in self.faults if fault.kind == STOPPED for process in fault.processes}
        return before.begin > after.begin and before.process not in stopped


def _is_recorded(runs: list[Run], job: JobInfo) -> bool:
    """Return whether later runs have higher tokens, and the record counts all runs."""
    tokens = [run.token for run in runs]
    return tokens == sorted(set(tokens)) and len(runs) <= job.starts == 1 + job.crashes + job.failures
