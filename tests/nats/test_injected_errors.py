"""Errors in every call of the engine, and lost replies: no job is lost, none runs twice without need."""

from pathlib import Path

import pytest

from tests.nats.scenario_errors import run_on_nats
from tests.nats.servers import Servers
from tests.support import amount

pytestmark = pytest.mark.long


@pytest.mark.parametrize("seed", amount([1], thorough=[1, 2, 3]))
def test_errors_in_every_call_of_the_engine_lose_no_job_and_start_none_twice(
    nats_server: Servers, nats_prefix: str, tmp_path: Path, seed: int
) -> None:
    print(f"seed {seed}: {run_on_nats(nats_server, nats_prefix, tmp_path, seed=seed)}")  # noqa: T201 - asked for
