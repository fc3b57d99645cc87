"""The test kit: time that obeys, and a suite that says what an engine must do. Nothing else may import it."""

from mainspring.testing.manual_clock import ManualClock
from mainspring.testing.time_travel import TimeTravel, time_travel

__all__ = ["ManualClock", "TimeTravel", "time_travel"]
