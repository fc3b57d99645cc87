"""When: the timing wheel."""

from mainspring.timing.wheel import TimerEntry, TimingWheel, WheelStatistics

__all__ = ["TimerEntry", "TimingWheel", "WheelStatistics"]
