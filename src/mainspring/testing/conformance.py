"""The suite that says what every engine must do. Subclass it in a test module, and pytest runs it.

    import pytest
    from mainspring.testing import EngineConformance

    class TestMyEngine(EngineConformance):
        @pytest.fixture
        def make_engine(self, tmp_path):
            return lambda clock: MyEngine(tmp_path / "jobs", clock=clock)

The engine is made for each test, with a `ManualClock`, and opened and closed by the suite. Engines differ only in
what they declare as `Capability`. A class whose engine cannot do all that tests ask for says so:

    class TestMyServer(EngineConformance):
        lacks = frozenset({Capability.VIRTUAL_TIME, Capability.EXACT_ORDER, Capability.FORESIGHT})

Tests that need one of them (`needs`) are then no part of the class, and a test of the suite compares `lacks` with
what the engine declares. An engine without `VIRTUAL_TIME` ignores the clock; the suite really waits for it, two
seconds in a test at most, and gives it time to deliver what is due and to wake its workers.
"""
# ruff: noqa: E402 - the parts must be registered before they are imported, to say in a failure what differs

from __future__ import annotations

import sys

import pytest

PARTS = (
    "bench",
    "timetable",
    "submitting",
    "uniqueness",
    "taking",
    "sequences",
    "limits",
    "rates",
    "queues",
    "settling",
    "transitions",
    "following",
    "commanding",
    "schedules",
    "firing",
    "rescuing",
    "waiting",
    "reading",
    "explaining",
    "blocked",
    "crew",
    "events",
    "starts",
    "pruning",
)
MODULES = [f"mainspring.testing.engine_{part}" for part in PARTS]
pytest.register_assert_rewrite(*(name for name in MODULES if name not in sys.modules))

from mainspring.testing.engine_blocked import BlockedJobs
from mainspring.testing.engine_commanding import Commanding
from mainspring.testing.engine_crew import Crew
from mainspring.testing.engine_events import Events
from mainspring.testing.engine_explaining import Explaining
from mainspring.testing.engine_firing import Firings
from mainspring.testing.engine_following import Following
from mainspring.testing.engine_limits import Limits
from mainspring.testing.engine_pruning import Pruning
from mainspring.testing.engine_queues import Queues
from mainspring.testing.engine_rates import Rates
from mainspring.testing.engine_reading import Reading
from mainspring.testing.engine_rescuing import Rescuing
from mainspring.testing.engine_schedules import Schedules
from mainspring.testing.engine_sequences import Sequences
from mainspring.testing.engine_settling import Settling
from mainspring.testing.engine_starts import Starts
from mainspring.testing.engine_submitting import Submitting
from mainspring.testing.engine_taking import Taking
from mainspring.testing.engine_transitions import Transitions
from mainspring.testing.engine_uniqueness import Uniqueness
from mainspring.testing.engine_waiting import WhatWaits


class EngineConformance(
    Submitting,
    Uniqueness,
    Taking,
    Sequences,
    Limits,
    Rates,
    Queues,
    Settling,
    Transitions,
    Following,
    Commanding,
    Schedules,
    Firings,
    Rescuing,
    WhatWaits,
    Reading,
    Explaining,
    BlockedJobs,
    Crew,
    Events,
    Starts,
    Pruning,
):
    """What holds for every engine."""
