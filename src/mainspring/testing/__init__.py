"""The public test kit."""

from mainspring.testing.manual_clock import ManualClock

__all__ = ["ManualClock"]
