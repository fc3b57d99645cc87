"""Runs of handlers, put together from the ledger: when each began, when and how it ended.

A run that was killed has no last entry; it ended at the kill, and the scenario knows the instant.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from mainspring import JobInfo, JobStatus
from tests.processes.ledger import Entry

ENDS = ("end", "fail")


class Run(NamedTuple):
    """One run of one handler."""

    begin: int
    """Nanoseconds on the monotonic clock, like its end."""
    end: int
    how: str
    """`end`, `fail` (the handler raised), or `kill`."""
    job: str
    argument: str
    token: int
    process: int

    @property
    def group(self) -> str:
        """What stands before the slash of its argument."""
        return self.argument.partition("/")[0]


def put_together(ledger: Iterable[Entry], killed: Mapping[int, int]) -> list[Run]:
    """Return all runs by their begin; `killed` has the instant at which each dead process was killed."""
    starts: list[Entry] = []
    ends: dict[tuple[str, int], Entry] = {}
    for entry in ledger:
        if entry.event in ENDS:
            assert (entry.job, entry.token) not in ends, f"one run came to its end twice: {entry}"
            ends[entry.job, entry.token] = entry
        else:
            starts.append(entry)
    return sorted(_run(entry, ends.get((entry.job, entry.token)), killed) for entry in starts)


def _run(start: Entry, end: Entry | None, killed: Mapping[int, int]) -> Run:
    if end is None:
        assert start.process in killed, f"a run neither came to its end nor was killed: {start}"
        # A handler may write its first entry between the instant that was noted and its death.
        instant, how = max(killed[start.process], start.instant_ns), "kill"
    else:
        instant, how = end.instant_ns, end.event
    return Run(start.instant_ns, instant, how, start.job, start.argument, start.token, start.process)


def by_group(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Sort runs by what stands before the slash of their arguments."""
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        groups[run.group].append(run)
    return dict(groups)


def by_job(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Sort runs by their jobs."""
    jobs: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        jobs[run.job].append(run)
    return dict(jobs)


def most_at_once(runs: Iterable[Run]) -> int:
    """Return how many of these were under way at one instant, at most."""
    steps: list[tuple[int, int]] = []
    for run in runs:
        steps += [(run.begin, 1), (run.end, -1)]
    most = level = 0
    for _, step in sorted(steps):  # at one and the same instant, ends come first
        level += step
        most = max(most, level)
    return most


def find_doubled(runs: Iterable[Run], jobs: Mapping[str, JobInfo], killed: Mapping[int, int]) -> list[str]:
    """Return what ran again without need: a run is followed by another only if it failed or its process died."""
    doubled = []
    for job_id, own in by_job(runs).items():
        tokens = [run.token for run in own]
        needless = [run for run in own[:-1] if run.how != "fail" and run.process not in killed]
        job = jobs[job_id]
        is_explained = len(own) <= job.starts == 1 + job.crashes + job.failures
        if needless or tokens != sorted(set(tokens)) or not is_explained:
            doubled.append(job_id)
    return doubled


def find_lost(job_ids: Iterable[str], runs: Iterable[Run], jobs: Mapping[str, JobInfo]) -> list[str]:
    """Return jobs that have not COMPLETED, or whose handler did not come to its end under the last token."""
    ended = {(run.job, run.token) for run in runs if run.how == "end"}
    return [
        job_id
        for job_id in job_ids
        if job_id not in jobs
        or jobs[job_id].status is not JobStatus.COMPLETED
        or (job_id, jobs[job_id].fencing_token) not in ended
    ]


def is_one_after_another(runs: Sequence[Run]) -> bool:
    """Answer whether none of these began before the one before it had ended."""
    return all(before.end <= after.begin for before, after in pairwise(runs))
