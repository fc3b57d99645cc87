"""`clock`, `failures`, `make_pool` and `pool`, all on manual time."""

import pytest

from tests.runner_fixtures import clock, failures, make_pool, pool

__all__ = ["clock", "failures", "make_pool", "pool"]

for module in ("base", "posting", "time", "errors", "ending"):
    pytest.register_assert_rewrite(f"tests.conformance.runner_{module}")
