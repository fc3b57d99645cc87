"""Durable jobs: what they are, how they are submitted, retried and run, and what an engine must do for them."""

from mainspring.jobs.context import JobContext, current_job
from mainspring.jobs.cron import Cron
from mainspring.jobs.dead_letters import DeadLetters
from mainspring.jobs.engine import Engine
from mainspring.jobs.handle import JobHandle
from mainspring.jobs.info import AttemptInfo, JobInfo, JobPage
from mainspring.jobs.job import Job
from mainspring.jobs.manager import JobManager
from mainspring.jobs.retry import Retry
from mainspring.jobs.rules import Every
from mainspring.jobs.serializers import JsonSerializer, MsgpackSerializer, Serializer
from mainspring.jobs.signals import Cancel, Snooze
from mainspring.jobs.status import JobStatus

__all__ = [
    "AttemptInfo",
    "Cancel",
    "Cron",
    "DeadLetters",
    "Engine",
    "Every",
    "Job",
    "JobContext",
    "JobHandle",
    "JobInfo",
    "JobManager",
    "JobPage",
    "JobStatus",
    "JsonSerializer",
    "MsgpackSerializer",
    "Retry",
    "Serializer",
    "Snooze",
    "current_job",
]
