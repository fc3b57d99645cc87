"""The fixtures that an engine gives to the conformance suite, and those that every part of it uses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mainspring.testing.engine_bench import Bench, MakeEngine
from mainspring.testing.manual_clock import ManualClock


class EngineSuite:
    """A part of the suite. Whoever uses it overrides `make_engine`."""

    @pytest.fixture
    def make_engine(self) -> MakeEngine:
        """Override this: return a function that takes a `ManualClock` and returns an engine, not opened yet."""
        raise NotImplementedError(
            "override the fixture make_engine: it returns a function from a clock to an engine"
        )

    @pytest.fixture
    def bench(self, make_engine: MakeEngine) -> Iterator[Bench]:
        """Lend an open engine on a manual clock."""
        clock = ManualClock()
        bench = Bench(make_engine(clock), clock)
        yield bench
        bench.engine.close()
