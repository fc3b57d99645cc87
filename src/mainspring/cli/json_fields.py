"""Formats jobs, schedules, queues, workers, events and explanations as JSON fields.

The names of the fields of `--json` are stable: scripts rely on them. Times are ISO 8601 strings in UTC, durations
are seconds.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from mainspring.clock import NANOSECONDS, to_nanoseconds
from mainspring.jobs.info import AttemptInfo, JobInfo, ProgressInfo
from mainspring.jobs.policies import CatchUp

if TYPE_CHECKING:
    from mainspring.cli.suggestions import Suggestion
    from mainspring.jobs.event_stream import JobEvent
    from mainspring.jobs.explanation import Explanation
    from mainspring.jobs.paused_receivers import CallbackPause
    from mainspring.jobs.queues import QueueStatistics
    from mainspring.jobs.recurrence.rules import Rule
    from mainspring.jobs.recurrence.schedule_info import ScheduleInfo
    from mainspring.jobs.statistics import QueueTotals
    from mainspring.jobs.worker_status import WorkerStatus


def job_fields(job: JobInfo) -> dict[str, Any]:
    """Return all fields of a job, for JSON output."""
    described: dict[str, Any] = {field.name: getattr(job, field.name) for field in fields(job)}
    return described | {
        "priority": job.priority.name,
        "headers": dict(job.headers),
        "history": [_attempt_fields(attempt) for attempt in job.history],
        "progress": None if job.progress is None else _progress_fields(job.progress),
        "lateness": job.lateness,
        "updated": job.updated,
    }


def _attempt_fields(attempt: AttemptInfo) -> dict[str, Any]:
    return {field.name: getattr(attempt, field.name) for field in fields(attempt)}


def _progress_fields(progress: ProgressInfo) -> dict[str, Any]:
    return {field.name: getattr(progress, field.name) for field in fields(progress)} | {"share": progress.share}


def schedule_fields(schedule: ScheduleInfo) -> dict[str, Any]:
    """Return the fields of a schedule, for JSON output."""
    names = ("name", "type", "queue", "arguments", "overlap", "start", "end", "next_due", "last_due", "created")
    misfire = schedule.misfire
    return {name: getattr(schedule, name) for name in names} | {
        "rule": None if schedule.rule is None else rule_fields(schedule.rule),
        "priority": schedule.priority.name,
        "misfire": "catch-up" if isinstance(misfire, CatchUp) else misfire,
        "catch_up": misfire.limit if isinstance(misfire, CatchUp) else None,
        "jitter": schedule.jitter.total_seconds(),
        "paused": schedule.is_paused,
        "declared": schedule.is_declared,
    }


def rule_fields(rule: Rule) -> dict[str, Any]:
    """Return the fields of a schedule's rule, for JSON output."""
    from mainspring.jobs.recurrence.rules import Every  # noqa: PLC0415 - a list of jobs does not need it

    if isinstance(rule, Every):
        return {"kind": "every", "interval": rule.interval.total_seconds()}
    return dict(rule.describe())


def rule_text(rule: Rule | None) -> str:
    """Return the rule of a schedule as a short text; None is a rule that this version cannot read."""
    from mainspring.jobs.recurrence.cron import Cron  # noqa: PLC0415 - a list of jobs does not need it
    from mainspring.jobs.recurrence.rules import Every  # noqa: PLC0415

    match rule:
        case Cron():
            return f"{rule.expression} ({rule.tz})"
        case Every():
            return f"every {rule.interval}"
        case _:
            return "unreadable: written by a newer version, or with a time zone that is unknown here"


def explanation_fields(explanation: Explanation, suggestion: Suggestion) -> dict[str, Any]:
    """Return the fields of a job's explanation, with the suggestion and its commands, for JSON output."""
    described = {field.name: getattr(explanation, field.name) for field in fields(explanation)}
    return described | {"remedy": suggestion.text, "commands": suggestion.commands}


def event_fields(event: JobEvent) -> dict[str, Any]:
    """Return the fields of an event, for JSON output."""
    return {field.name: getattr(event, field.name) for field in fields(event)}


def queue_fields(queue: QueueStatistics) -> dict[str, Any]:
    """Return the fields of a queue's statistics, for JSON output."""
    described = {field.name: getattr(queue, field.name) for field in fields(queue) if field.name != "is_paused"}
    rate = queue.submit_rate
    per = None if rate is None else to_nanoseconds(rate.per, "per") / NANOSECONDS
    quota = None if rate is None else {"n": rate.n, "per": per}
    return described | {"paused": queue.is_paused, "submit_rate": quota}


def waiting_fields(totals: QueueTotals) -> dict[str, Any]:
    """Return how many pending jobs of a queue are due, blocked and scheduled, as fields for JSON output."""
    oldest = None if totals.oldest_due is None else totals.oldest_due.total_seconds()
    return {
        "due": totals.due,
        "blocked": totals.blocked,
        "scheduled": totals.scheduled,
        "oldest_due_seconds": oldest,
        "is_exact": totals.is_exact,
    }


def pause_fields(pause: CallbackPause) -> dict[str, Any]:
    """Return the fields of a paused receiver of callbacks, for JSON output."""
    return {field.name: getattr(pause, field.name) for field in fields(pause)}


def worker_fields(worker: WorkerStatus) -> dict[str, Any]:
    """Return the fields of a worker, for JSON output."""
    return {field.name: getattr(worker, field.name) for field in fields(worker)}
