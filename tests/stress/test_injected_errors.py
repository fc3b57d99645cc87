"""Errors in every call of the engine: no job is lost, none runs twice. `make soak` does this with many seeds."""

from pathlib import Path

import pytest

from tests.stress.injected_errors import run_on_sqlite
from tests.support import amount

pytestmark = pytest.mark.long


@pytest.mark.parametrize("seed", amount([1, 2], thorough=list(range(1, 21))))
def test_errors_in_every_call_of_the_engine_lose_no_job_and_start_none_twice(tmp_path: Path, seed: int) -> None:
    print(f"seed {seed}: {run_on_sqlite(tmp_path / 'jobs.db', seed=seed)}")  # noqa: T201 - the figures are asked for
