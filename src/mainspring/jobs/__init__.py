"""Durable jobs: job manager, handlers, policies, retries, schedules, and the protocol of engines.

The package imports the module of a name with the first use of the name, so that a command imports only what it
needs. `mainspring.public` imports all of them. `Job` is the deprecated alias of `JobFunction`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
    from mainspring.jobs.job_function import JobFunction as Job
    from mainspring.jobs.manager import JobManager
    from mainspring.jobs.middleware import AttemptEnd, Middleware, Submit
    from mainspring.jobs.paused_receivers import CallbackPause
    from mainspring.jobs.policies import CatchUp, Concurrency, Keep, ProcessSettings, Rate, Unique
    from mainspring.jobs.queues import Queue, QueueStatistics
    from mainspring.jobs.recurrence.cron import Cron
    from mainspring.jobs.recurrence.rules import Every
    from mainspring.jobs.recurrence.schedule_info import OccurrenceInfo, ScheduleInfo
    from mainspring.jobs.recurrence.schedules import Schedules
    from mainspring.jobs.retry import Cancel, Retry, Snooze, Suspend
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
else:
    from importlib import import_module
    from warnings import warn

    _MODULES = {
        "ActivityRow": "mainspring.jobs.activity_rows",
        "AttemptEnd": "mainspring.jobs.middleware",
        "AttemptInfo": "mainspring.jobs.info",
        "AuditEntry": "mainspring.jobs.audit",
        "CallbackPause": "mainspring.jobs.paused_receivers",
        "Cancel": "mainspring.jobs.retry",
        "CatchUp": "mainspring.jobs.policies",
        "CommitStatistics": "mainspring.jobs.statistics",
        "Concurrency": "mainspring.jobs.policies",
        "Cron": "mainspring.jobs.recurrence.cron",
        "DeadLetter": "mainspring.jobs.dead_letter_jobs",
        "DeadLetters": "mainspring.jobs.dead_letters",
        "Engine": "mainspring.jobs.engine",
        "EventKind": "mainspring.jobs.events",
        "EventStream": "mainspring.jobs.event_stream",
        "Every": "mainspring.jobs.recurrence.rules",
        "Explanation": "mainspring.jobs.explanation",
        "GroupStatistics": "mainspring.jobs.statistics",
        "Histogram": "mainspring.jobs.histogram",
        "JobContext": "mainspring.jobs.context",
        "JobEvent": "mainspring.jobs.event_stream",
        "JobFunction": "mainspring.jobs.job_function",
        "JobHandle": "mainspring.jobs.handle",
        "JobInfo": "mainspring.jobs.info",
        "JobManager": "mainspring.jobs.manager",
        "JobPage": "mainspring.jobs.info",
        "JobStatus": "mainspring.jobs.status",
        "JsonSerializer": "mainspring.jobs.serializers",
        "Keep": "mainspring.jobs.policies",
        "Liveness": "mainspring.jobs.worker_status",
        "Middleware": "mainspring.jobs.middleware",
        "MsgpackSerializer": "mainspring.jobs.serializers",
        "NewToken": "mainspring.jobs.tokens",
        "OccurrenceInfo": "mainspring.jobs.recurrence.schedule_info",
        "PlainSerializer": "mainspring.jobs.serializers",
        "ProcessSettings": "mainspring.jobs.policies",
        "ProcessStatistics": "mainspring.jobs.statistics",
        "ProgressInfo": "mainspring.jobs.info",
        "Queue": "mainspring.jobs.queues",
        "QueueStatistics": "mainspring.jobs.queues",
        "QueueTotals": "mainspring.jobs.statistics",
        "Rate": "mainspring.jobs.policies",
        "Reason": "mainspring.jobs.explanation",
        "Retry": "mainspring.jobs.retry",
        "ScheduleInfo": "mainspring.jobs.recurrence.schedule_info",
        "Schedules": "mainspring.jobs.recurrence.schedules",
        "Serializer": "mainspring.jobs.serializers",
        "SlotKind": "mainspring.jobs.statistics",
        "SlotStatistics": "mainspring.jobs.statistics",
        "Snooze": "mainspring.jobs.retry",
        "Statistics": "mainspring.jobs.statistics",
        "StopReport": "mainspring.jobs.worker.stop_report",
        "Submit": "mainspring.jobs.middleware",
        "Suspend": "mainspring.jobs.retry",
        "TokenInfo": "mainspring.jobs.tokens",
        "Unique": "mainspring.jobs.policies",
        "UpcomingSlot": "mainspring.jobs.statistics",
        "WorkerStatus": "mainspring.jobs.worker_status",
        "acting_as": "mainspring.jobs.audit",
        "current_batch": "mainspring.jobs.context",
        "current_job": "mainspring.jobs.context",
    }

    def __getattr__(name):
        if name == "Job":
            warn(
                "mainspring.jobs.Job is deprecated; use mainspring.jobs.JobFunction",
                DeprecationWarning,
                stacklevel=2,
            )
            name = "JobFunction"
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = getattr(import_module(_MODULES[name]), name)
        return globals()[name]

    def __dir__():
        return sorted({*globals(), *_MODULES})


__all__ = [
    "ActivityRow",
    "AttemptEnd",
    "AttemptInfo",
    "AuditEntry",
    "CallbackPause",
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
    "Suspend",
    "TokenInfo",
    "Unique",
    "UpcomingSlot",
    "WorkerStatus",
    "acting_as",
    "current_batch",
    "current_job",
]

if TYPE_CHECKING:
    __all__ += ["Job"]
