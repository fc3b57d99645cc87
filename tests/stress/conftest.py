"""The parts of the machine check on their own, and say in a failure what differs."""

import pytest

for module in ("machine_users", "machine_workers", "machine_operators", "model_schedules"):
    pytest.register_assert_rewrite(f"tests.stress.{module}")
