"""kill -9 in a loop, with real processes."""

import pytest

from tests.processes.sandbox import Sandbox
from tests.processes.scenario_kills import KillLoop
from tests.support import amount

ROUNDS = amount(6, thorough=12)


@pytest.mark.stress
def test_no_kill_loses_a_job_or_runs_one_twice_that_was_not_in_flight(sandbox: Sandbox) -> None:
    killing = KillLoop(sandbox, seed=90).run(ROUNDS)
    killing.check()
    assert killing.kills >= ROUNDS
