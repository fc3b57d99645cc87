"""Durable jobs: job manager, handlers, policies, retries, schedules, and the protocol of engines.

`Job` is the deprecated alias of `JobFunction`.
"""

from typing import TYPE_CHECKING
from warnings import warn

from mainspring.jobs.activity_rows import ActivityRow
from mainspring.jobs.audit import AuditEntry, acting_as
from mainspring.jobs.context import JobContext, current_batch, current_job
from mainspring.jobs.dead_letter_jobs import DeadLetter
from mainspring.jobs.dead_letters import DeadLetters
from mainspring.jobs.engine import Engine
from mainspring.jobs.event_stream import EventStream, JobEvent
from mainspring.jobs.events import EventKind
from mainspring.jobs.explanation import Explanation, Reason
from mainspring.jobs.handle import JobHandle
from mainspring.jobs.histogram import Histogram
from mainspring.jobs.info import AttemptInfo, JobInfo, JobPage, ProgressInfo
from mainspring.jobs.job_function import JobFunction
from mainspring.jobs.manager import JobManager
from mainspring.jobs.middleware import AttemptEnd, Middleware, Submit
from mainspring.jobs.policies import CatchUp, Concurrency, Keep, ProcessSettings, Rate, Unique
from mainspring.jobs.queues import Queue, QueueStatistics
from mainspring.jobs.recurrence.cron import Cron
from mainspring.jobs.recurrence.rules import Every
from mainspring.jobs.recurrence.schedule_info import OccurrenceInfo, ScheduleInfo
from mainspring.jobs.recurrence.schedules import Schedules
from mainspring.jobs.retry import Cancel, Retry, Snooze
from mainspring.jobs.serializers import JsonSerializer, MsgpackSerializer, PlainSerializer, Serializer
from mainspring.jobs.statistics import (
    CommitStatistics,
    GroupStatistics,
    ProcessStatistics,
    QueueTotals,
    SlotKind,
    SlotStatistics,
    Statistics,
    UpcomingSlot,
)
from mainspring.jobs.status import JobStatus
from mainspring.jobs.tokens import NewToken, TokenInfo
from mainspring.jobs.worker.stop_report import StopReport
from mainspring.jobs.worker_status import Liveness, WorkerStatus

__all__ = [
    "ActivityRow",
    "AttemptEnd",
    "AttemptInfo",
    "AuditEntry",
    "Cancel",
    "CatchUp",
    "CommitStatistics",
    "Concurrency",
    "Cron",
    "DeadLetter",
    "DeadLetters",
    "Engine",
    "EventKind",
    "EventStream",
    "Every",
    "Explanation",
    "GroupStatistics",
    "Histogram",
    "JobContext",
    "JobEvent",
    "JobFunction",
    "JobHandle",
    "JobInfo",
    "JobManager",
    "JobPage",
    "JobStatus",
    "JsonSerializer",
    "Keep",
    "Liveness",
    "Middleware",
    "MsgpackSerializer",
    "NewToken",
    "OccurrenceInfo",
    "PlainSerializer",
    "ProcessSettings",
    "ProcessStatistics",
    "ProgressInfo",
    "Queue",
    "QueueStatistics",
    "QueueTotals",
    "Rate",
    "Reason",
    "Retry",
    "ScheduleInfo",
    "Schedules",
    "Serializer",
    "SlotKind",
    "SlotStatistics",
    "Snooze",
    "Statistics",
    "StopReport",
    "Submit",
    "TokenInfo",
    "Unique",
    "UpcomingSlot",
    "WorkerStatus",
    "acting_as",
    "current_batch",
    "current_job",
]

if TYPE_CHECKING:
    from mainspring.jobs.job_function import JobFunction as Job

    __all__ += ["Job"]
else:

    def __getattr__(name):
        if name != "Job":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        warn(
            "mainspring.jobs.Job is deprecated; use mainspring.jobs.JobFunction", DeprecationWarning, stacklevel=2
        )
        return JobFunction
