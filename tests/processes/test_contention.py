"""Eight processes submit and two work on one file."""

import pytest

from tests.processes.sandbox import Sandbox
from tests.processes.scenario_contention import contend
from tests.support import amount

SECONDS = amount(1, thorough=4)


@pytest.mark.stress
def test_no_lock_reaches_a_user_and_no_update_is_lost(sandbox: Sandbox) -> None:
    contention = contend(sandbox, seconds=SECONDS)
    contention.check()
