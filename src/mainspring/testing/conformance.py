"""The suite that says what every engine must do. Subclass it in a test module, and pytest runs it.

    import pytest
    from mainspring.testing import EngineConformance

    class TestMyEngine(EngineConformance):
        @pytest.fixture
        def make_engine(self, tmp_path):
            return lambda clock: MyEngine(tmp_path / "jobs", clock=clock)

The engine is made for each test, with a `ManualClock`, and opened and closed by the suite. Engines differ only in
what they declare as `Capability`: tests of passing time are left out without `VIRTUAL_TIME`.
"""
# ruff: noqa: E402 - the parts must be registered before they are imported, to say in a failure what differs

from __future__ import annotations

import sys

import pytest

PARTS = ("submitting", "taking", "settling", "commanding", "rescuing", "reading")
MODULES = [f"mainspring.testing.engine_{part}" for part in PARTS]
pytest.register_assert_rewrite(*(name for name in MODULES if name not in sys.modules))

from mainspring.testing.engine_commanding import Commanding
from mainspring.testing.engine_reading import Reading
from mainspring.testing.engine_rescuing import Rescuing
from mainspring.testing.engine_settling import Settling
from mainspring.testing.engine_submitting import Submitting
from mainspring.testing.engine_taking import Taking


class EngineConformance(Submitting, Taking, Settling, Commanding, Rescuing, Reading):
    """What holds for every engine."""
