"""Timers: the timing wheel, and the thread that calls callbacks when they are due."""

from mainspring.timing.wheel import TimerEntry, TimingWheel, WheelStatistics

__all__ = ["TimerEntry", "TimingWheel", "WheelStatistics"]
