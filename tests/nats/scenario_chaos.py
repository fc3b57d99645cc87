"""Chaos: workers run jobs of many kinds while one fault after another hits them or the servers.

A round is a batch of jobs, half of it submitted before the fault and half of it meanwhile. It lasts until all of
its jobs have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import ceil
from random import Random

from mainspring import JobStatus, Mainspring
from mainspring.engines.nats.subject_names import DEFAULT_PREFIX
from tests.nats.apps import mixed
from tests.nats.chaos_report import ChaosReport, RunAnalysis
from tests.nats.chaos_workers import ChaosWorkers, projection_in
from tests.nats.servers import Servers
from tests.processes.run_history import (
    Run,
    by_group,
    is_in_order,
    is_one_after_another,
    is_one_job_after_another,
    most_at_once,
    runs_from_log,
)
from tests.processes.sandbox import Sandbox
from tests.support import PATIENCE

KEYS = 3
TENANTS = 2
LONGEST = 0.5  # seconds that a handler takes
STREAM = DEFAULT_PREFIX


@dataclass(frozen=True)
class Chaos:
    """The result of a chaos scenario."""

    report: ChaosReport
    strangers: list[str]
    """Jobs that the scenario has not submitted."""
    overlapping: list[str]
    """Sequences with two jobs that ran at once."""
    out_of_order: list[str]
    at_once: dict[str, int]
    """How many calls of a tenant ran at once, at most."""
    twice_alive: list[str]
    """Unique keys with two jobs that were alive at once."""

    def check(self) -> None:
        """Assert that nothing was lost, and that no rule was broken."""
        assert self.report.lost == [], self
        assert self.report.unexplained == [], "\n".join(self.report.unexplained)
        assert self.report.late == [], "\n".join(self.report.late)
        assert self.strangers == [], self
        assert (self.overlapping, self.out_of_order, self.twice_alive) == ([], [], []), self
        assert max(self.at_once.values()) <= mixed.ADMITTED, self
        assert self.report.completed == self.report.submitted, self


Act = Callable[[ChaosWorkers], None]


def on_one_node(lease: float) -> list[Act]:
    """Return the faults for a single server."""
    away = lease + 1.0
    return [
        ChaosWorkers.kill_a_worker,
        ChaosWorkers.restart_the_server,
        lambda workers: workers.stop_a_worker(away),
        lambda workers: workers.cut_a_worker(away),
        lambda workers: workers.freeze_a_worker(away),
        ChaosWorkers.drop_a_connection,
    ]


def on_three_nodes(lease: float) -> list[Act]:
    """Return the faults for a cluster."""
    return [
        lambda workers: workers.kill_the_leader(STREAM),
        lambda workers: workers.cut_a_worker(lease + 1.0),
        ChaosWorkers.kill_a_worker,
    ]


def run_chaos(
    site: Sandbox,
    servers: Servers,
    acts: Sequence[Act],
    *,
    rounds: int,
    lease: float,
    seed: int,
    share: float = 1.0,
) -> Chaos:
    """Run rounds with every fault in turn, each with a share of the jobs."""
    chance = Random(seed)
    options = f"lease={lease}&timeout={PATIENCE:g}&replicas={len(servers.nodes)}"
    app = mixed.app
    app.url = f"{servers.url}?{options}&{projection_in(site.folder)}"
    ids: list[str] = []
    with app:
        workers = ChaosWorkers(site, servers, options=options, seed=seed)
        workers.start()
        for number in range(rounds):
            ids += _run_round(workers, number, acts[number % len(acts)], chance, share)
        workers.stop()
        jobs = {job.id: job for job in app.jobs(limit=1_000_000)}
    runs = runs_from_log(site.run_log(), workers.killed)
    analysis = RunAnalysis(workers.faults, lease)
    report = analysis.report(ids, runs, jobs)
    strangers = [f"{job}" for job_id, job in jobs.items() if job_id not in set(ids)]
    return _check_rules(replace(report, rounds=rounds), strangers, analysis.without_zombies(runs))


def _run_round(workers: ChaosWorkers, number: int, act: Act, chance: Random, share: float) -> list[str]:
    first = workers.lines
    ids = submit_all_kinds(f"{number}a", chance, share)
    with ThreadPoolExecutor(1) as other:
        workers.wait_for_lines(first + chance.randrange(1, 20))
        more = other.submit(submit_all_kinds, f"{number}b", Random(chance.random()), share)
        act(workers)
        ids += more.result(PATIENCE)
    for job_id in ids:
        _wait(mixed.app, job_id, number)
    return ids


def _wait(app: Mainspring, job_id: str, number: int) -> None:
    try:
        status = app.handle(job_id).wait(PATIENCE)
    except TimeoutError as error:
        raise AssertionError(f"round {number}: {app.explain(job_id)}") from error
    assert status is JobStatus.COMPLETED, f"round {number}: {app.get(job_id)}"


def submit_all_kinds(name: str, chance: Random, share: float = 1.0) -> list[str]:
    """Submit a share of the jobs of each kind; the part of their argument before the slash names their group."""

    def some(most: float = 0.05) -> float:
        return round(chance.uniform(0.002, most), 3)

    def places(number: int) -> range:
        return range(ceil(number * share))

    mixed_up: list[Callable[[], list[str]]] = [
        lambda: mixed.plain.submit_many([(f"plain/{name}-{place}", some()) for place in places(8)]),
        lambda: mixed.plain.submit_many([(f"long/{name}-{place}", some(LONGEST)) for place in places(3)]),
        lambda: mixed.flawed.submit_many([(f"flawed/{name}-{place}", some()) for place in places(3)]),
        lambda: [mixed.plain.after(some(1.5)).submit(f"delayed/{name}-{place}", some()).id for place in places(5)],
        *(
            lambda key=f"key{number}-{name}": mixed.step.options(sequence=key).submit_many(
                [(f"{key}/{place}", some()) for place in places(4)]
            )
            for number in range(KEYS)
        ),
        *(
            lambda tenant=f"tenant{number}": mixed.call.submit_many(
                [(f"{tenant}/{name}-{place}", some(0.1), tenant) for place in places(4)]
            )
            for number in range(TENANTS)
        ),
        lambda: [
            mixed.refresh.submit(f"refresh{place % 2}/{name}", some(), f"{place % 2}").id for place in places(6)
        ],
    ]
    chance.shuffle(mixed_up)
    return list(dict.fromkeys(job_id for submit in mixed_up for job_id in submit()))


def _check_rules(report: ChaosReport, strangers: list[str], runs: list[Run]) -> Chaos:
    groups = by_group(runs)
    sequences = {name: own for name, own in groups.items() if name.startswith("key")}
    keys = {name: own for name, own in groups.items() if name.startswith("refresh")}
    return Chaos(
        report=report,
        strangers=strangers,
        overlapping=[name for name, own in sequences.items() if not is_one_after_another(own)],
        out_of_order=[name for name, own in sequences.items() if not is_in_order(own)],
        at_once={name: most_at_once(own) for name, own in groups.items() if name.startswith("tenant")},
        twice_alive=[name for name, own in keys.items() if not is_one_job_after_another(own)],
    )
