"""Task runners on a pool of threads, modeled on those of Chromium."""

from mainspring.runners.asyncio_runner import AsyncioRunner
from mainspring.runners.executor import RunnerExecutor
from mainspring.runners.func_queue import FuncQueue
from mainspring.runners.future import TaskFuture
from mainspring.runners.group_runner import SingleThreadRunner
from mainspring.runners.observer import TaskEvent, TaskObserver
from mainspring.runners.pooled_runners import ParallelRunner, SequencedRunner
from mainspring.runners.repeat import Repetition
from mainspring.runners.ring_buffer import RingBuffer
from mainspring.runners.runner import TaskRunner, current_runner
from mainspring.runners.sequence_bound import SequenceBound
from mainspring.runners.statistics import PoolStatistics, RunnerStatistics, ShutdownReport
from mainspring.runners.task import PostedFrom, Priority, ShutdownBehavior, TaskFailure, TaskHandle, TaskTraits
from mainspring.runners.thread_pool import ThreadPool
from mainspring.runners.worker import blocking

__all__ = [
    "AsyncioRunner",
    "FuncQueue",
    "ParallelRunner",
    "PoolStatistics",
    "PostedFrom",
    "Priority",
    "Repetition",
    "RingBuffer",
    "RunnerExecutor",
    "RunnerStatistics",
    "SequenceBound",
    "SequencedRunner",
    "ShutdownBehavior",
    "ShutdownReport",
    "SingleThreadRunner",
    "TaskEvent",
    "TaskFailure",
    "TaskFuture",
    "TaskHandle",
    "TaskObserver",
    "TaskRunner",
    "TaskTraits",
    "ThreadPool",
    "blocking",
    "current_runner",
]
