"""Runs of handlers, computed from the run log: when each began, when and how it ended.

A run that was killed has no last entry; it ended at the kill, whose time the scenario has recorded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from mainspring import JobInfo, JobStatus
from tests.processes.run_log import Entry

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
        """The part of its argument before the slash."""
        return self.argument.partition("/")[0]


def runs_from_log(run_log: Iterable[Entry], killed: Mapping[int, int]) -> list[Run]:
    """Return all runs by their begin; `killed` has the instant at which each dead process was killed."""
    starts: list[Entry] = []
    ends: dict[tuple[str, int], Entry] = {}
    for entry in run_log:
        if entry.event in ENDS:
            assert (entry.job, entry.token) not in ends, f"one run ended twice: {entry}"
            ends[entry.job, entry.token] = entry
        else:
            starts.append(entry)
    return sorted(_run(entry, ends.get((entry.job, entry.token)), killed) for entry in starts)


def _run(start: Entry, end: Entry | None, killed: Mapping[int, int]) -> Run:
    if end is None:
        assert start.process in killed, f"a run neither ended nor was killed: {start}"
        # A handler may write its first entry between the instant that was noted and its death.
        instant, how = max(killed[start.process], start.instant_ns), "kill"
    else:
        instant, how = end.instant_ns, end.event
    return Run(start.instant_ns, instant, how, start.job, start.argument, start.token, start.process)


def by_group(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Group runs by the part of their arguments before the slash."""
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        groups[run.group].append(run)
    return dict(groups)


def by_job(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Group runs by job."""
    jobs: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        jobs[run.job].append(run)
    return dict(jobs)


def most_at_once(runs: Iterable[Run]) -> int:
    """Return the largest number of these runs that overlapped at one instant."""
    steps: list[tuple[int, int]] = []
    for run in runs:
        steps += [(run.begin, 1), (run.end, -1)]
    most = level = 0
    for _, step in sorted(steps):  # at one and the same instant, ends come first
        level += step
        most = max(most, level)
    return most


def find_doubled(runs: Iterable[Run], jobs: Mapping[str, JobInfo], killed: Mapping[int, int]) -> list[str]:
    """Return the jobs that ran again although the run before had not failed and its process had not died."""
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
    """Return the jobs that are not COMPLETED, or whose handler did not end under the last fencing token."""
    ended = {(run.job, run.token) for run in runs if run.how == "end"}
    return [
        job_id
        for job_id in job_ids
        if job_id not in jobs
        or jobs[job_id].status is not JobStatus.COMPLETED
        or (job_id, jobs[job_id].fencing_token) not in ended
    ]


def is_in_order(runs: Iterable[Run]) -> bool:
    """Return whether the numbers after the slash of their arguments never fall."""
    numbers = [int(run.argument.partition("/")[2]) for run in runs]
    return numbers == sorted(numbers)


def is_one_job_after_another(runs: Iterable[Run]) -> bool:
    """Return whether each job began after all runs of the job before it."""
    spans = sorted((own[0].begin, own[-1].end) for own in by_job(runs).values())
    return all(before[1] <= after[0] for before, after in pairwise(spans))


def is_one_after_another(runs: Sequence[Run]) -> bool:
    """Return whether each run began after the end of the run before it."""
    return all(before.end <= after.begin for before, after in pairwise(runs))
