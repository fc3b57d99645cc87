"""The long runs of `make soak`: the scenarios of tests/processes, for minutes instead of seconds.

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

from tests.processes.harness import Site
from tests.processes.scenario_busy import compute_beside_a_worker, time_settles
from tests.processes.scenario_cancels import cancel_around_due
from tests.processes.scenario_contention import contend
from tests.processes.scenario_kills import KillLoop


def soak_kills(site: Site, seed: int) -> str:
    """Kill workers and submitters 300 times."""
    killing = KillLoop(site, seed=seed).run(300)
    killing.check()
    crashed = sum(job.crashes > 0 for job in killing.jobs.values())
    return f"{killing.kills} kills, {len(killing.jobs)} jobs, none lost, {crashed} ran again after a crash"


def soak_cancels(site: Site, seed: int) -> str:
    """Cancel 60,000 jobs around their due instant, over a minute."""
    cancels = cancel_around_due(site, count=60_000, seconds=60, seed=seed)
    cancels.check()
    return (
        f"{len(cancels.answers)} cancels, {cancels.share_cancelled:.0%} in time, {cancels.share_near_due:.0%} near"
    )


def soak_contention(site: Site, _seed: int) -> str:
    """Let eight processes submit and two work for a minute."""
    contention = contend(site, seconds=60)
    contention.check()
    return f"{len(contention.submitted)} jobs of 8 processes, no error, none lost"


def soak_busy(site: Site, _seed: int) -> str:
    """Compute on every thread for longer than three heartbeats may be missed."""
    compute_beside_a_worker(site, seconds=60)
    return "8 threads computed for a minute, and no job was rescued"


def soak_settles(site: Site, _seed: int) -> str:
    """Settle beside handlers that compute."""
    milliseconds = time_settles(site)
    assert median(milliseconds) < 100, milliseconds
    return f"200 jobs in {median(milliseconds):.0f} ms (median of {milliseconds})"


SCENARIOS: dict[str, Callable[[Site, int], str]] = {
    function.__name__.removeprefix("soak_"): function
    for function in (soak_kills, soak_cancels, soak_contention, soak_busy, soak_settles)
}


def run(name: str, seed: int) -> bool:
    """Run one scenario, and say how it went."""
    print(f"{name} (seed {seed}) ...", end=" ", flush=True)
    before = time.monotonic()  # noqa: TID251 - for people
    try:
        with TemporaryDirectory(prefix=f"soak-{name}-") as folder, Site(Path(folder)) as site:
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
