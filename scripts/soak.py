"""The long runs of `make soak`: the scenarios of tests/processes and tests/nats, for minutes instead of seconds.

python -m scripts.soak                          all of them
python -m scripts.soak --only kills --seed 7    one of them, with the seed that a failed run said
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from scripts import soak_nats, soak_sqlite
from tests.processes.apps.limited import MAILS, MAILS_OF_A_TENANT, SCANS
from tests.processes.sandbox import Sandbox
from tests.processes.scenario_busy import compute_beside_a_worker, time_settles
from tests.processes.scenario_cancels import cancel_around_due
from tests.processes.scenario_contention import contend
from tests.processes.scenario_kills import KillLoop
from tests.processes.scenario_limits import run_limited, run_rated, visit_side_by_side
from tests.processes.scenario_policies import run_follow_ups, run_sequences, run_unique
from tests.processes.scenario_processes import run_in_processes
from tests.processes.scenario_schedules import Recurrence, recur, roll
from tests.processes.scenario_speedup import compare_processes
from tests.processes.scenario_waking import measure_idleness, time_waking
from tests.processes.worker_processes import Figures
from tests.stress.injected_errors import run_on_sqlite


def soak_kills(site: Sandbox, seed: int) -> str:
    """Kill workers and submitters 300 times."""
    killing = KillLoop(site, seed=seed).run(300)
    killing.check()
    crashed = sum(job.crashes > 0 for job in killing.jobs.values())
    return f"{killing.kills} kills, {len(killing.jobs)} jobs, none lost, {crashed} ran again after a crash"


def soak_errors(site: Sandbox, seed: int) -> str:
    """Let every call of the engine fail, before its effect and after it, on 100 stores."""
    errors = jobs = 0
    for number in range(100):
        figures = run_on_sqlite(site.folder / f"errors-{number}.db", seed=seed + number)
        errors += figures.errors
        jobs += figures.confirmed
    return f"{errors} errors in calls of the engine, {jobs} jobs confirmed, none lost, none started without need"


def soak_cancels(site: Sandbox, seed: int) -> str:
    """Cancel 60,000 jobs around their due instant, over a minute."""
    cancels = cancel_around_due(site, count=60_000, seconds=60, seed=seed)
    cancels.check()
    return (
        f"{len(cancels.answers)} cancels, {cancels.share_canceled:.0%} in time, {cancels.share_near_due:.0%} near"
    )


def soak_contention(site: Sandbox, _seed: int) -> str:
    """Let eight processes submit and two work for a minute."""
    contention = contend(site, seconds=60)
    contention.check()
    return f"{len(contention.submitted)} jobs of 8 processes, no error, none lost"


def soak_busy(site: Sandbox, _seed: int) -> str:
    """Compute on every thread for longer than three heartbeats may be missed."""
    compute_beside_a_worker(site, seconds=60)
    return "8 threads computed for a minute, and no job was rescued"


def soak_settles(site: Sandbox, _seed: int) -> str:
    """Settle beside handlers that compute."""
    milliseconds = time_settles(site)
    return f"200 jobs in {median(milliseconds):.0f} ms (median of {milliseconds})"


def soak_sequences(site: Sandbox, seed: int) -> str:
    """Run 100 sequences of 40 jobs while workers are killed 40 times."""
    sequences = run_sequences(site, keys=100, length=40, kills=40, seed=seed)
    _require_sound(sequences.figures)
    assert (sequences.overlapping, sequences.out_of_order) == ([], []), sequences
    return f"{sequences.figures}; {sequences.failures} retries in their place, {sequences.at_once} at once"


def soak_follow_ups(site: Sandbox, seed: int) -> str:
    """Follow 3,000 jobs while workers are killed 40 times."""
    follow_ups = run_follow_ups(site, count=3_000, kills=40, seed=seed)
    _require_sound(follow_ups.figures)
    assert (follow_ups.without, follow_ups.twice) == ([], []), follow_ups
    return f"{follow_ups.figures}; each followed once"


def soak_unique(site: Sandbox, seed: int) -> str:
    """Submit the same 50 keys from three processes while workers are killed 40 times."""
    unique = run_unique(site, keys=50, kills=40, seed=seed)
    _require_sound(unique.figures)
    assert {len(ids) for ids in unique.waiting.values()} == {1}, unique.waiting
    assert unique.overlapping == []
    return f"{unique.figures} of {unique.answers} submits; one alive for each key"


def soak_limits(site: Sandbox, seed: int) -> str:
    """Run 3,000 jobs under limits while workers are killed 40 times."""
    limits = run_limited(site, each=500, kills=40, seed=seed)
    _require_sound(limits.figures)
    at_once = (limits.mails, limits.mails_of_a_tenant, limits.scans)
    assert at_once == (MAILS, MAILS_OF_A_TENANT, SCANS), limits
    return f"{limits.figures}; {at_once} at once"


def soak_rates(site: Sandbox, seed: int) -> str:
    """Call 20 times a second for half a minute while workers are killed 10 times."""
    rates = run_rated(site, each=600, kills=10, seed=seed)
    _require_sound(rates.figures)
    assert set(rates.excess.values()) == {0}, rates
    return f"{rates.figures}; no window with too many"


def soak_turns(site: Sandbox, _seed: int) -> str:
    """Let a tenant with 5,000 jobs and one with 50 take turns."""
    turns = visit_side_by_side(site, big=5_000, small=50)
    _require_sound(turns.figures)
    assert turns.ahead < 500, turns
    return f"{turns.figures}; {turns.ahead} of the big tenant before the last of the small one"


def soak_schedules(site: Sandbox, seed: int) -> str:
    """Let schedules run for about a minute while workers are killed 40 times."""
    return _describe(recur(site, kills=40, lines=3_000, seed=seed))


def soak_releases(site: Sandbox, seed: int) -> str:
    """Roll releases with other schedules forth and back ten times."""
    return _describe(roll(site, releases=["old", "new"] * 5, lines=20, seed=seed))


def soak_processes(site: Sandbox, seed: int) -> str:
    """Run 1,000 jobs in processes while their workers are killed 20 times."""
    processes = run_in_processes(site, count=1_000, kills=20, seed=seed)
    _require_sound(processes.figures)
    assert processes.left_behind == []
    return f"{processes.figures}; no process left behind"


def soak_speedup(site: Sandbox, _seed: int) -> str:
    """Compute in one process and in two, twelve times."""
    with_jobs, bare = compare_processes(site, rounds=12)
    return f"two processes are {with_jobs:.2f} times as fast as one; without jobs {bare:.2f} times"


def soak_waking(site: Sandbox, _seed: int) -> str:
    """Submit and cancel 200 times beside a worker of another process."""
    return f"{time_waking(site, rounds=200)}"


def soak_idleness(site: Sandbox, _seed: int) -> str:
    """Leave a worker alone for ten seconds."""
    return f"an idle worker uses {measure_idleness(site):.1%} of a processor"


def _describe(recurrence: Recurrence) -> str:
    _require_sound(recurrence.figures)
    assert (recurrence.missing, recurrence.twice, recurrence.stray) == ([], [], []), recurrence
    return f"{recurrence.figures}; occurrences {recurrence.occurrences}, each with one job"


def _require_sound(figures: Figures) -> None:
    assert (figures.lost, figures.doubled) == (0, 0), figures


SCENARIOS: dict[str, Callable[[Sandbox, int], str]] = {
    function.__name__.removeprefix("soak_"): function
    for function in (
        soak_kills,
        soak_errors,
        soak_cancels,
        soak_contention,
        soak_busy,
        soak_settles,
        soak_sequences,
        soak_follow_ups,
        soak_unique,
        soak_limits,
        soak_rates,
        soak_turns,
        soak_schedules,
        soak_releases,
        soak_processes,
        soak_speedup,
        soak_waking,
        soak_idleness,
        *soak_sqlite.SCENARIOS,
        *soak_nats.SCENARIOS,
    )
}


def run(name: str, seed: int) -> bool:
    """Run one scenario, and say how it went."""
    print(f"{name} (seed {seed}) ...", end=" ", flush=True)
    before = time.monotonic()  # noqa: TID251 - for people
    try:
        with TemporaryDirectory(prefix=f"soak-{name}-") as folder, Sandbox(Path(folder)) as site:
            result = SCENARIOS[name](site, seed)
    except Exception:  # the other scenarios are still worth running
        print("FAILED", flush=True)
        traceback.print_exc()
        return False
    print(f"{result} ({time.monotonic() - before:.0f} s)", flush=True)  # noqa: TID251 - for people
    return True


def main() -> int:
    """Run the scenarios that were asked for."""
    parser = argparse.ArgumentParser(description="Long runs with real processes.")
    parser.add_argument("--only", action="append", choices=list(SCENARIOS), help="again for another one")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    arguments = parser.parse_args()
    outcomes = [run(name, arguments.seed) for name in arguments.only or SCENARIOS]
    return 0 if all(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
