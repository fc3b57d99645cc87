"""A server that comes back with everything that it had to do later."""

from pathlib import Path

import pytest

from tests.nats.scenario_restart import restart_with_schedules
from tests.nats.servers import MakeServers
from tests.processes.sandbox import Sandbox
from tests.support import amount

pytestmark = pytest.mark.long

COUNT = amount(3_000, thorough=10_000)


def test_a_server_that_was_killed_with_thousands_of_schedules_has_them_all_and_goes_on(
    tmp_path: Path, make_nats_server: MakeServers
) -> None:
    with Sandbox(tmp_path) as site:
        restart = restart_with_schedules(site, make_nats_server(), count=COUNT)
    print(restart)  # noqa: T201 - the figures are asked for
    assert restart.pending == COUNT
    assert restart.starts == 1
