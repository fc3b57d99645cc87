"""Limits over workers that are killed at random: how many at once, how many in a time, and whose turn."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil

from tests.processes.apps.limited import CALLS, GATE, MAILS, SCANS, app, call, mail, scan, visit
from tests.processes.run_history import Run, by_group, most_at_once
from tests.processes.run_log import now_ns
from tests.processes.sandbox import Sandbox
from tests.processes.worker_processes import Figures, WorkerProcesses
from tests.support import eventually

TENANTS = ("a", "b", "c", "d")
HANDING_OVER = (
    500_000_000  # nanoseconds from the admission of a job to its handler, on a machine with nothing else
)


@dataclass(frozen=True)
class Limits:
    """What came of jobs that count for limits."""

    figures: Figures
    mails: int
    """How many of a queue ran at once, at most; and so on."""
    mails_of_a_tenant: int
    scans: int


def run_limited(sandbox: Sandbox, *, each: int, kills: int, seed: int) -> Limits:
    """Submit so many mails of each tenant, and scans; count how many ran at once while workers were killed.

    A worker is killed once while as many jobs run as the limits allow, and then `kills` times at random moments.
    """
    with app:
        ids = mail.submit_many([(tenant, number) for number in range(each) for tenant in TENANTS])
        ids += scan.submit_many([(number,) for number in range(each * 2)])
        workers = WorkerProcesses(sandbox, "limited", seed=seed)
        workers.start_together(app, "default", "mail")
        wait_for_most(sandbox, workers)
        workers.kill_and_restart(1)
        wait_for_most(sandbox, workers)  # the jobs of the killed worker have given their places back
        (sandbox.folder / GATE).touch()
        workers.kill_at_random(kills, until=len(ids) * 2)
        result = workers.finish(app, ids)
    groups = by_group(result.runs)
    tenants = [runs for name, runs in groups.items() if name.startswith("mail")]
    return Limits(
        figures=result.figures(),
        mails=most_at_once(run for runs in tenants for run in runs),
        mails_of_a_tenant=max(most_at_once(runs) for runs in tenants),
        scans=most_at_once(groups["scan"]),
    )


def wait_for_most(sandbox: Sandbox, workers: WorkerProcesses) -> None:
    """Wait until as many mails and scans run as the limits allow."""

    def running() -> tuple[int, int]:
        begun = {
            (entry.job, entry.token): entry.argument
            for entry in sandbox.run_log()
            if entry.process not in workers.killed
        }
        scans = sum(argument.startswith("scan") for argument in begun.values())
        return len(begun) - scans, scans

    assert eventually(lambda: running() == (MAILS, SCANS)), f"{running()} mails and scans run at once"


@dataclass(frozen=True)
class Rates:
    """What came of jobs that use up tokens."""

    figures: Figures
    seconds: dict[str, float]
    """From the first to the last start of each tenant."""
    early: dict[str, int]
    """How many handlers began before there can have been a token for them, however late others began."""
    excess: dict[str, int]
    """By how many starts a tenant was over its rate in any window; only for a machine with nothing else to do."""


def run_rated(sandbox: Sandbox, *, each: int, kills: int, seed: int) -> Rates:
    """Submit so many calls of two tenants; look at every window of time while workers were killed."""
    with app:
        submitted = now_ns()
        ids = call.submit_many([(tenant, number) for number in range(each) for tenant in TENANTS[:2]])
        workers = WorkerProcesses(sandbox, "limited", seed=seed)
        workers.start()
        workers.kill_at_random(kills, until=len(ids) * 2)
        result = workers.finish(app, ids)
    begins = {name: [run.begin for run in runs] for name, runs in by_group(result.runs).items()}
    return Rates(
        figures=result.figures(),
        seconds={name: (instants[-1] - instants[0]) / 1e9 for name, instants in begins.items()},
        early={name: count_early(instants, since=submitted) for name, instants in begins.items()},
        excess={name: find_excess(instants, slack=HANDING_OVER) for name, instants in begins.items()},
    )


def count_early(instants: Iterable[int], *, since: int) -> int:
    """Return how many of these come before their token: the first ones have theirs at once, then it is a rate."""
    return sum(
        instant < since + (number - CALLS) * 1e9 / CALLS for number, instant in enumerate(sorted(instants), 1)
    )


def find_excess(instants: Iterable[int], *, slack: int) -> int:
    """Return how many starts were too many in the worst window, which may be longer by `slack`.

    It is a bucket of tokens that fills up evenly in a second, and does without those that are not there.
    """
    full = CALLS + slack * CALLS / 1e9
    tokens = least = full
    ordered = sorted(instants)
    for before, instant in zip([ordered[0], *ordered], ordered, strict=False):
        tokens = min(full, tokens + (instant - before) * CALLS / 1e9) - 1
        least = min(least, tokens)
    return ceil(-least - 0.001) if least < 0 else 0


@dataclass(frozen=True)
class Turns:
    """How a small tenant fared beside a big one."""

    figures: Figures
    ahead: int
    """How many of the big one had started before the last of the small one."""


def visit_side_by_side(sandbox: Sandbox, *, big: int, small: int) -> Turns:
    """Submit many visits of one tenant and then a few of another."""
    with app:
        ids = visit.submit_many([("big", number) for number in range(big)])
        ids += visit.submit_many([("small", number) for number in range(small)])
        workers = WorkerProcesses(sandbox, "limited")
        workers.start()
        result = workers.finish(app, ids)
    order: list[Run] = result.runs
    last = max(place for place, run in enumerate(order) if run.group == "visit-small")
    return Turns(result.figures(), sum(run.group == "visit-big" for run in order[:last]))
