"""Sequences, follow-ups and unique jobs on workers that are killed at random."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from datetime import timedelta
from random import Random

from mainspring.clock import SystemClock
from tests.processes.apps.policies import app, order, refresh, step
from tests.processes.run_history import (
    by_group,
    by_job,
    is_in_order,
    is_one_after_another,
    is_one_job_after_another,
    most_at_once,
)
from tests.processes.sandbox import Child, Sandbox
from tests.processes.worker_processes import Figures, WorkerProcesses
from tests.support import PATIENCE

SUBMITTERS = 3


@dataclass(frozen=True)
class Sequences:
    """What came of jobs in sequences."""

    figures: Figures
    overlapping: list[str]
    """Keys with two jobs that ran at once."""
    out_of_order: list[str]
    """Keys whose jobs did not run in their order, retries in their place."""
    failures: int
    at_once: int
    """How many ran at once, at most."""


def run_sequences(sandbox: Sandbox, *, keys: int, length: int, kills: int, seed: int) -> Sequences:
    """Submit so many sequences, in an order of their own; then let them run while workers are killed."""
    with app:
        ids = _submit_steps(keys, length, Random(seed))
        workers = WorkerProcesses(sandbox, "policies", seed=seed)
        workers.start_together(app, "default")
        workers.kill_at_random(kills, until=keys * length * 2)
        result = workers.finish(app, ids)
    sequences = by_group(result.runs)
    return Sequences(
        figures=result.figures(),
        overlapping=[key for key, runs in sequences.items() if not is_one_after_another(runs)],
        out_of_order=[key for key, runs in sequences.items() if not is_in_order(runs)],
        failures=sum(run.how == "fail" for run in result.runs),
        at_once=most_at_once(result.runs),
    )


def _submit_steps(keys: int, length: int, chance: Random) -> list[str]:
    """Submit steps whose due times come in pairs: pairs in any order, within a pair in the order of submission."""
    begin = SystemClock().now()
    pairs = [(f"key{key}", number) for key in range(keys) for number in range(0, length, 2)]
    chance.shuffle(pairs)
    ids = []
    for key, first in pairs:
        variant = step.options(sequence=key, at=begin + timedelta(milliseconds=first))
        ids += variant.submit_many([(key, number) for number in range(first, min(first + 2, length))])
    return ids


@dataclass(frozen=True)
class FollowUps:
    """What came of jobs that are followed by another."""

    figures: Figures
    without: list[str]
    """Orders that completed and were not followed."""
    twice: list[str]
    """Orders that were followed more than once."""


def run_follow_ups(sandbox: Sandbox, *, count: int, kills: int, seed: int) -> FollowUps:
    """Let orders run while workers are killed, and look for what follows each."""
    with app:
        ids = order.submit_many([(number,) for number in range(count)])
        workers = WorkerProcesses(sandbox, "policies", seed=seed)
        workers.start_together(app, "default")
        workers.kill_at_random(kills, until=count * 4)
        for job_id in ids:
            app.handle(job_id).wait(PATIENCE)
        jobs = [job.id for job in app.jobs(limit=1_000_000)]  # those that follow are stored by now
        result = workers.finish(app, jobs)
    followers = Counter(runs[0].argument for runs in by_job(result.runs).values())
    return FollowUps(
        figures=result.figures(),
        without=[f"{number}" for number in range(count) if followers[f"pack/{number}"] == 0],
        twice=[argument for argument, number in followers.items() if number > 1],
    )


@dataclass(frozen=True)
class UniqueJobs:
    """What came of unique jobs: one may be alive for each key."""

    figures: Figures
    waiting: dict[str, set[str]]
    """The jobs of each key that were handed out while none could run."""
    overlapping: list[str]
    """Keys with two jobs that were alive at once."""
    answers: int
    """How many submits returned."""


def run_unique(sandbox: Sandbox, *, keys: int, kills: int, seed: int) -> UniqueJobs:
    """Submit the same keys from three processes at once: before there are workers, and while they are killed."""
    with app:
        submitters = [sandbox.start_app("refreshing", str(keys)) for _ in range(SUBMITTERS)]
        _tell_all(submitters, "ready")
        for submitter in submitters:
            submitter.expect("once")
        waiting = _answers(submitters)

        workers = WorkerProcesses(sandbox, "policies", seed=seed)
        workers.start()
        _tell_all(submitters, "once")
        workers.kill_at_random(kills, until=kills * 40)
        for submitter in submitters:
            submitter.close_stdin()
        assert [submitter.wait() for submitter in submitters] == [0] * SUBMITTERS
        answers = _answers(submitters)
        result = workers.finish(app, set().union(*answers.values()))
    assert {job.type for job in result.jobs.values()} == {refresh.name}
    return UniqueJobs(
        figures=result.figures(),
        waiting=waiting,
        overlapping=[key for key, runs in by_group(result.runs).items() if not is_one_job_after_another(runs)],
        answers=sum(line.startswith("submitted") for submitter in submitters for line in submitter.lines),
    )


def _tell_all(submitters: list[Child], expected: str) -> None:
    """Let all of them go on together, as soon as each has said what is expected."""
    for submitter in submitters:
        submitter.expect_all(expected)
    for submitter in submitters:
        submitter.send_line("go")


def _answers(submitters: list[Child]) -> dict[str, set[str]]:
    answers: dict[str, set[str]] = defaultdict(set)
    for line in (line for submitter in submitters for line in submitter.lines):
        if line.startswith("submitted"):
            _, key, job_id = line.split(" ")
            answers[key].add(job_id)
    return dict(answers)
