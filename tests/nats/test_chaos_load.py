"""Workers under load."""

from pathlib import Path

import pytest

from tests.nats.scenario_load import run_load
from tests.nats.servers import MakeServers
from tests.processes.sandbox import Sandbox
from tests.support import amount

pytestmark = pytest.mark.long

SECONDS = amount(2, thorough=5)


def test_three_workers_start_every_job_once(tmp_path: Path, make_nats_server: MakeServers) -> None:
    with Sandbox(tmp_path) as site:
        load = run_load(site, make_nats_server(), workers=3, per_second=100, seconds=SECONDS)
    print(load)  # noqa: T201 - the figures are asked for
    assert (load.completed, load.lost, load.twice) == (load.submitted, 0, 0)
