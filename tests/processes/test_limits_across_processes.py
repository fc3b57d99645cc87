"""Limits over real workers that are killed with -9 and started again."""

import pytest

from tests.processes.apps.limited import CALLS, MAILS, MAILS_OF_A_TENANT, SCANS
from tests.processes.sandbox import Sandbox
from tests.processes.scenario_limits import count_early, find_excess, run_limited, run_rated, visit_side_by_side
from tests.support import amount

MILLISECOND = 1_000_000
EACH = amount(24, thorough=40)
KILLS = amount(2, thorough=6)
CALLS_OF_A_TENANT = amount(50, thorough=80)
SEED = 1  # of two kills at random, one hits all workers at once


@pytest.mark.stress
def test_no_more_run_at_once_than_limits_allow_while_processes_are_killed(sandbox: Sandbox) -> None:
    limits = run_limited(sandbox, each=EACH, kills=KILLS, seed=SEED)
    assert (limits.figures.lost, limits.figures.doubled) == (0, 0)
    assert limits.figures.completed == 6 * EACH
    assert limits.figures.kills > KILLS
    assert limits.figures.reruns > 0
    # Not fewer either: what was killed has given its place back.
    assert (limits.mails, limits.mails_of_a_tenant, limits.scans) == (MAILS, MAILS_OF_A_TENANT, SCANS)


@pytest.mark.stress
def test_no_more_start_than_a_rate_allows_while_processes_are_killed(sandbox: Sandbox) -> None:
    rates = run_rated(sandbox, each=CALLS_OF_A_TENANT, kills=amount(1, thorough=3), seed=8)
    assert (rates.figures.lost, rates.figures.doubled) == (0, 0)
    assert rates.early == {"call-a": 0, "call-b": 0}


def test_a_start_before_its_token_would_be_found() -> None:
    evenly = [number * 50 * MILLISECOND for number in range(100)]
    assert count_early([0] * CALLS, since=0) == 0
    assert count_early([*[0] * CALLS, *evenly[1:]], since=0) == 0
    assert count_early([0] * (CALLS + 3), since=0) == 3
    assert count_early([*[0] * CALLS, *evenly], since=0) == len(evenly)


def test_too_many_starts_in_a_window_would_be_found() -> None:
    evenly = [number * 50 * MILLISECOND for number in range(100)]
    assert find_excess([0] * CALLS, slack=0) == 0
    assert find_excess(evenly, slack=0) == 0
    assert find_excess([0] * (CALLS + 3), slack=0) == 3
    assert find_excess([*evenly, *[80 * 50 * MILLISECOND] * CALLS], slack=0) > 0


@pytest.mark.stress
def test_a_tenant_with_many_jobs_does_not_starve_one_with_few(sandbox: Sandbox) -> None:
    turns = visit_side_by_side(sandbox, big=amount(250, thorough=500), small=5)
    assert (turns.figures.lost, turns.figures.doubled) == (0, 0)
    assert turns.ahead < 100
