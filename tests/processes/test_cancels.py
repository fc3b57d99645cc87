"""Cancelling jobs in the very moment in which they are to start."""

import pytest

from tests.processes.sandbox import Sandbox
from tests.processes.scenario_cancels import cancel_around_due


@pytest.mark.stress
def test_a_cancel_that_answered_true_is_never_followed_by_a_run(sandbox: Sandbox) -> None:
    cancels = cancel_around_due(sandbox, count=1_000, seconds=5, seed=5)
    assert 0.05 < cancels.share_canceled < 0.95, "too few came before or after the start to show anything"
    cancels.check()
