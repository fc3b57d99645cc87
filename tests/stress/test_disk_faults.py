"""Power failures and failing disks below a SQLite store. `make soak` runs the same scenarios for longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stress.scenario_disk import fail_disk, lose_power
from tests.support import amount

pytestmark = pytest.mark.stress


@pytest.mark.parametrize("seed", range(amount(2, thorough=10)))
def test_a_power_failure_loses_nothing_that_was_confirmed(tmp_path: Path, seed: int) -> None:
    loss = lose_power(tmp_path, seed=seed, operations=40, images=amount(40, thorough=200))
    assert loss.images >= 40


@pytest.mark.parametrize("seed", range(amount(6, thorough=50)))
def test_a_disk_that_fails_loses_nothing_that_was_confirmed(tmp_path: Path, seed: int) -> None:
    assert fail_disk(tmp_path, seed=seed, operations=60).injected > 0
