"""Mainspring: one scheduler for Python, from a thread pool to a cluster."""

from mainspring.clock import Clock, SystemClock
from mainspring.errors import MainspringError, QueueEmpty, QueueFull, RunnerClosed, WouldDeadlock
from mainspring.runners import (
    FuncQueue,
    Priority,
    RunnerStatistics,
    SequenceBound,
    ShutdownBehavior,
    ShutdownReport,
    TaskEvent,
    TaskFailure,
    TaskFuture,
    TaskHandle,
    TaskObserver,
    TaskRunner,
    TaskTraits,
    ThreadPool,
    blocking,
    current_runner,
)

__all__ = [
    "Clock",
    "FuncQueue",
    "MainspringError",
    "Priority",
    "QueueEmpty",
    "QueueFull",
    "RunnerClosed",
    "RunnerStatistics",
    "SequenceBound",
    "ShutdownBehavior",
    "ShutdownReport",
    "SystemClock",
    "TaskEvent",
    "TaskFailure",
    "TaskFuture",
    "TaskHandle",
    "TaskObserver",
    "TaskRunner",
    "TaskTraits",
    "ThreadPool",
    "WouldDeadlock",
    "blocking",
    "current_runner",
]
