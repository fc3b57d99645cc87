"""Examines stores of which the doctor knows nothing but the engine protocol."""

from __future__ import annotations

from mainspring.doctor.examination import Examination


def examine_store(examination: Examination) -> None:
    """Examine jobs, workers and schedules; the engine's own package may register further checks instead."""
    examination.examine_jobs(None, counts=True)


def examine_memory(examination: Examination) -> None:
    """Report that a store in memory cannot be examined from another process."""
    examination.leave_out("store", "nothing of it outlives this process")
