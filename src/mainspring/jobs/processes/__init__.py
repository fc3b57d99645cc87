"""Handlers in processes of their own: spawned, never forked, and killed when nothing else helps."""

from mainspring.jobs.processes.child import require_main_guard
from mainspring.jobs.processes.child_process import CannotStart, ChildDied, Running
from mainspring.jobs.processes.locating import locate
from mainspring.jobs.processes.messages import Answer, AnswerKind, Note, Reply, Request
from mainspring.jobs.processes.pool import ProcessPool

__all__ = [
    "Answer",
    "AnswerKind",
    "CannotStart",
    "ChildDied",
    "Note",
    "ProcessPool",
    "Reply",
    "Request",
    "Running",
    "locate",
    "require_main_guard",
]
