"""The fixtures that an engine gives to the conformance suite, and those that every part of it uses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from mainspring.jobs.engine import Capability
from mainspring.testing.engine_bench import Bench, MakeEngine
from mainspring.testing.engine_needs import leave_out
from mainspring.testing.engine_timetable import Timetable
from mainspring.testing.manual_clock import ManualClock


class EngineSuite:
    """A part of the suite. Whoever uses it overrides `make_engine`, and perhaps `lacks`."""

    lacks: ClassVar[frozenset[Capability]] = frozenset()
    """What the engine cannot do; tests that need it are not part of the class."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        leave_out(cls, cls.lacks)

    @pytest.fixture
    def make_engine(self) -> MakeEngine:
        """Override this: return a function that takes a `ManualClock` and returns an engine, not opened yet.

        An engine without `Capability.VIRTUAL_TIME` has a time of its own and ignores the clock.
        """
        raise NotImplementedError(
            "override the fixture make_engine: it returns a function from a clock to an engine"
        )

    @pytest.fixture
    def bench(self, make_engine: MakeEngine) -> Iterator[Bench]:
        """Lend an open engine, on a manual clock if it can live by one."""
        clock = ManualClock()
        bench = Bench(make_engine(clock), clock)
        yield bench
        bench.engine.close()

    @pytest.fixture
    def other(self, bench: Bench, make_engine: MakeEngine) -> Iterator[Bench]:
        """Lend the bench of another process with the same jobs; the same one, if there can be no other."""
        if Capability.SHARED not in bench.engine.capabilities:
            yield bench
            return
        other = Bench(make_engine(bench.clock), bench.clock)
        yield other
        other.engine.close()

    @pytest.fixture
    def timetable(self, bench: Bench) -> Timetable:
        """Lend schedules on the bench."""
        return Timetable(bench)
