"""The cost of limits that are hardly reached, and whether a tenant with many jobs delays other tenants."""

from functools import partial
from pathlib import Path

from benchmarks.jobs import drain
from benchmarks.jobs.process import WorkerProcess, submitter
from benchmarks.jobs.rounds import best_rates, for_each, least
from benchmarks.jobs.systems.variants import BY_TENANT, FAIR, LIMITED, WITHOUT, Limited
from benchmarks.measure import Line, Section, faster

SHARE = 0.8
MANY, SMALL, FEW = 10_000, 10, 10  # jobs of the large tenant; small tenants, and jobs of each
SECONDS = 120
LARGE = 0  # the large tenant


def tenant_of(value: int) -> int:
    """The first jobs are all of one tenant, and the last of some others in turn."""
    return LARGE if value < MANY else 1 + value % SMALL


def last_small(system: Limited, store: Path) -> tuple[int]:
    """Return the place in the order of starts at which the last job of a small tenant started."""
    total = MANY + SMALL * FEW
    before, system.tenant_of = system.tenant_of, tenant_of
    try:
        with submitter(system, store):
            system.submit_many(range(total))
            with WorkerProcess(system, store, expected=total) as worker:
                starts = worker.wait_started(total, SECONDS)
    finally:
        system.tenant_of = before
    drain.require_all(system, {start.value for start in starts}, total)
    return (max(place for place, start in enumerate(starts, 1) if start.value >= MANY),)


def fairness_lines(rounds: int) -> list[Line]:
    beside = least(partial(last_small, WITHOUT), rounds)
    lines = []
    for system in (BY_TENANT, FAIR):
        found = least(partial(last_small, system), rounds)
        if found is None or beside is None:
            raise RuntimeError(f"{system.setting}: not all jobs were started within {SECONDS} s")
        lines.append(
            Line(
                what=f"{SMALL} tenants with {FEW} jobs behind one with {MANY:,}, {system.setting}: all started as",
                ours=f"number {found[0]:,}",
                peer=f"number {beside[0]:,} {WITHOUT.setting}",
            )
        )
    return lines


def typical_rates(rounds: int) -> dict[str, tuple[float, float]]:
    """Return, for each limit, its rate and that without limits in the round with the median of their ratios.

    The two of a round follow each other at once, now one first and now the other: a busy minute hits both.
    """
    found: dict[str, list[tuple[float, float]]] = {limited.title: [] for limited in LIMITED}
    for number in range(rounds):
        for limited in LIMITED:
            pair = (WITHOUT, limited) if number % 2 == 0 else (limited, WITHOUT)
            rates = best_rates(for_each(pair, drain.ours), 1)
            found[limited.title].append((rates[limited.title], rates[WITHOUT.title]))
    return {
        title: sorted(pairs, key=lambda pair: pair[0] / pair[1])[rounds // 2] for title, pairs in found.items()
    }


def run(rounds: int = 11) -> Section:
    rates = typical_rates(rounds)
    lines = [
        faster(
            limited.setting,
            *rates[limited.title],
            peer_name=f"ours, {WITHOUT.setting}",
            at_least=SHARE,
        )
        for limited in LIMITED
    ]
    lines += fairness_lines(1)
    return Section(
        title=f"Jobs: {drain.JOBS:,} no-op jobs under limits, one worker process, median ratio of {rounds} rounds",
        lines=lines,
        text="FULL, until the last job is settled. This is what it costs to keep count: a thousand at once are "
        "reached now and then, as a worker takes up to 1,032 quick jobs, and the others never. When all tenants "
        f"take turns, the last job of the small ones starts as about number {(SMALL + 1) * FEW}.",
    )
