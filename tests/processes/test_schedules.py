"""Schedules on real workers: killed with -9 and started again, or replaced by another release."""

import pytest

from tests.processes.sandbox import Sandbox
from tests.processes.scenario_schedules import recur, roll
from tests.support import amount

KILLS = amount(2, thorough=6)
SEED = 5  # of two kills, one hits all workers at once


@pytest.mark.stress
def test_each_occurrence_makes_exactly_one_job_while_processes_are_killed(sandbox: Sandbox) -> None:
    recurrence = recur(sandbox, kills=KILLS, lines=320, seed=SEED)
    assert (recurrence.missing, recurrence.twice, recurrence.stray) == ([], [], [])
    assert (recurrence.figures.lost, recurrence.figures.doubled) == (0, 0)
    assert recurrence.figures.kills >= KILLS
    assert recurrence.occurrences["often"] >= 100
    assert min(recurrence.occurrences["second"], recurrence.occurrences["half"] // 2) >= 5


@pytest.mark.stress
def test_a_deploy_that_changes_schedules_loses_no_occurrence_and_doubles_none(sandbox: Sandbox) -> None:
    recurrence = roll(sandbox, releases=["old", "new", "old"], lines=12, seed=2)
    assert (recurrence.missing, recurrence.twice, recurrence.stray) == ([], [], [])
    assert (recurrence.figures.lost, recurrence.figures.doubled) == (0, 0)
    assert recurrence.figures.kills >= 2
    assert recurrence.occurrences["often"] >= 20
