"""`clock`, `failures`, `make_pool` and `pool`, all on manual time."""

from tests.runner_fixtures import clock, failures, make_pool, pool

__all__ = ["clock", "failures", "make_pool", "pool"]
