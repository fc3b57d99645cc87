"""The parts of the machine check on their own, and say in a failure what differs."""

import pytest

for module in ("machine_base", "machine_working", "machine_arranging", "model_schedules"):
    pytest.register_assert_rewrite(f"tests.stress.{module}")
