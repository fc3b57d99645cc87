"""The conformance suite: tests that every engine must pass. Subclass it in a test module, and pytest runs it.

    import pytest
    from mainspring.testing import EngineConformance

    class TestMyEngine(EngineConformance):
        @pytest.fixture
        def make_engine(self, tmp_path):
            return lambda clock: MyEngine(tmp_path / "jobs", clock=clock)

For each test the suite creates an engine with a `ManualClock`, and opens and closes it. Engines may differ only in
the capabilities that they declare (`Capability`). A class whose engine lacks capabilities that tests need names
them:

    class TestMyServer(EngineConformance):
        lacks = frozenset({Capability.VIRTUAL_TIME, Capability.EXACT_ORDER, Capability.FORESIGHT})

Tests that need one of them (`needs`) are then not part of the class. A test of the suite compares `lacks` with the
declared capabilities. An engine without `VIRTUAL_TIME` ignores the clock. Tests then let real time pass, at most
two seconds each, and wait for the engine to deliver due jobs and to wake its workers.
"""
# ruff: noqa: E402 - pytest can explain failed assertions only if the parts are registered before they are imported

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
    "workers",
    "events",
    "starts",
    "pruning",
)
MODULES = [f"{__name__}.{part}" for part in PARTS]
pytest.register_assert_rewrite(*(name for name in MODULES if name not in sys.modules))

from mainspring.testing.conformance.blocked import BlockedJobs
from mainspring.testing.conformance.commanding import Commanding
from mainspring.testing.conformance.events import Events
from mainspring.testing.conformance.explaining import Explaining
from mainspring.testing.conformance.firing import Firings
from mainspring.testing.conformance.following import Following
from mainspring.testing.conformance.limits import Limits
from mainspring.testing.conformance.pruning import Pruning
from mainspring.testing.conformance.queues import Queues
from mainspring.testing.conformance.rates import Rates
from mainspring.testing.conformance.reading import Reading
from mainspring.testing.conformance.rescuing import Rescuing
from mainspring.testing.conformance.schedules import Schedules
from mainspring.testing.conformance.sequences import Sequences
from mainspring.testing.conformance.settling import Settling
from mainspring.testing.conformance.starts import Starts
from mainspring.testing.conformance.submitting import Submitting
from mainspring.testing.conformance.taking import Taking
from mainspring.testing.conformance.transitions import Transitions
from mainspring.testing.conformance.uniqueness import Uniqueness
from mainspring.testing.conformance.waiting import WhatWaits
from mainspring.testing.conformance.workers import Crew


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
    """All tests that every engine must pass; override the fixture `make_engine`."""
