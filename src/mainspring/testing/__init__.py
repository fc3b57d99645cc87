"""The test kit: a manual clock, time travel, assertions about submits, simulated crashes, and the engine suite.

The rest of the package must not import it.
"""

from typing import TYPE_CHECKING, Any

from mainspring.testing.assertions import assert_submitted, refute_submitted, submitted
from mainspring.testing.crashes import Crash, ProcessDied, every_crash
from mainspring.testing.inline import inline
from mainspring.testing.manual_clock import ManualClock
from mainspring.testing.recording import Recording, recording
from mainspring.testing.time_travel import TimeTravel, time_travel

if TYPE_CHECKING:
    from mainspring.testing.conformance import EngineConformance

__all__ = [
    "Crash",
    "EngineConformance",
    "ManualClock",
    "ProcessDied",
    "Recording",
    "TimeTravel",
    "assert_submitted",
    "every_crash",
    "inline",
    "recording",
    "refute_submitted",
    "submitted",
    "time_travel",
]


def __getattr__(name: str) -> Any:
    """Import the engine suite at its first use, because it needs pytest and the rest of the kit does not."""
    if name == "EngineConformance":
        from mainspring.testing.conformance import EngineConformance  # noqa: PLC0415

        return EngineConformance
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
