"""Sequences, follow-ups and unique jobs, with real workers that are killed with -9 and started again."""

import pytest

from tests.processes.sandbox import Sandbox
from tests.processes.scenario_policies import run_follow_ups, run_sequences, run_unique
from tests.support import amount

KEYS = 24
LENGTH = amount(6, thorough=10)
ORDERS = amount(120, thorough=300)
KILLS = amount(2, thorough=5)
SEED = 5  # of two kills, one hits all workers at once


@pytest.mark.stress
def test_jobs_of_a_sequence_run_one_after_another_in_their_order_while_processes_are_killed(
    sandbox: Sandbox,
) -> None:
    sequences = run_sequences(sandbox, keys=KEYS, length=LENGTH, kills=KILLS, seed=SEED)
    assert (sequences.figures.lost, sequences.figures.doubled) == (0, 0)
    assert sequences.figures.completed == sequences.figures.submitted == KEYS * LENGTH
    assert sequences.figures.kills >= KILLS
    assert sequences.figures.reruns > 0, "no kill found a job at work"
    assert sequences.overlapping == []
    assert sequences.out_of_order == []
    assert sequences.failures > KEYS, "retries were to hold their place, and there were none"
    assert sequences.at_once > 4, "sequences did not run side by side"


@pytest.mark.stress
def test_each_completed_job_is_followed_by_exactly_one_while_processes_are_killed(sandbox: Sandbox) -> None:
    follow_ups = run_follow_ups(sandbox, count=ORDERS, kills=KILLS, seed=SEED)
    assert (follow_ups.figures.lost, follow_ups.figures.doubled) == (0, 0)
    assert follow_ups.figures.completed == 2 * ORDERS
    assert follow_ups.figures.kills >= KILLS
    assert follow_ups.figures.reruns > 0, "no kill found a job at work"
    assert (follow_ups.without, follow_ups.twice) == ([], [])


@pytest.mark.stress
def test_of_unique_jobs_one_is_alive_for_each_key_while_submitters_and_workers_are_killed(
    sandbox: Sandbox,
) -> None:
    unique = run_unique(sandbox, keys=KEYS, kills=KILLS, seed=SEED)
    assert {len(ids) for ids in unique.waiting.values()} == {1}
    assert len(unique.waiting) == KEYS
    assert unique.overlapping == []
    assert (unique.figures.lost, unique.figures.doubled) == (0, 0)
    assert KEYS < unique.figures.submitted < unique.answers, "keys were to be free again, and to be in the way"
    assert unique.figures.kills >= KILLS
