"""The base class of the conformance suite, with its fixtures. The user overrides `make_engine`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from mainspring.jobs.engine import Capability
from mainspring.testing.conformance.bench import Bench, MakeEngine
from mainspring.testing.conformance.capabilities import hide_tests_needing
from mainspring.testing.conformance.schedule_driver import ScheduleDriver
from mainspring.testing.manual_clock import ManualClock


class EngineSuite:
    """The base class of all parts of the conformance suite.

    A test class overrides `make_engine`, and maybe `lacks`.
    """

    lacks: ClassVar[frozenset[Capability]] = frozenset()
    """The capabilities that the engine does not have. Tests that need one of them are left out."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        hide_tests_needing(cls, cls.lacks)

    @pytest.fixture
    def make_engine(self) -> MakeEngine:
        """Override this: return a function that takes a `ManualClock` and returns an engine, not opened yet.

        An engine without `Capability.VIRTUAL_TIME` has its own time and ignores the clock.
        """
        raise NotImplementedError(
            "override the fixture make_engine: it returns a function from a clock to an engine"
        )

    @pytest.fixture
    def bench(self, make_engine: MakeEngine) -> Iterator[Bench]:
        """An open engine with helpers for tests, on a manual clock if the engine supports one."""
        clock = ManualClock()
        bench = Bench(make_engine(clock), clock)
        yield bench
        bench.engine.close()

    @pytest.fixture
    def other(self, bench: Bench, make_engine: MakeEngine) -> Iterator[Bench]:
        """A bench with a second engine on the same store, as in another process; `bench` if it is not shared."""
        if Capability.SHARED not in bench.engine.capabilities:
            yield bench
            return
        other = Bench(make_engine(bench.clock), bench.clock)
        yield other
        other.engine.close()

    @pytest.fixture
    def timetable(self, bench: Bench) -> ScheduleDriver:
        """Helpers that store and fire schedules on the engine under test."""
        return ScheduleDriver(bench)
