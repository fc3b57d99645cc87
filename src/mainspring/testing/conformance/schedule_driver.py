"""Helpers for schedules in the conformance suite: describe, store and fire them."""

from __future__ import annotations

from typing import Any

from mainspring.jobs.commands import PutSchedule
from mainspring.jobs.records import NewJob
from mainspring.jobs.recurrence.schedule_records import (
    Fired,
    Firing,
    Occurrence,
    OccurrenceKind,
    Overlap,
    ScheduleRecord,
)
from mainspring.testing.conformance.bench import TYPE, Bench, seconds

EVERY_SECONDS = 60.0
NAME = "nightly"


class ScheduleDriver:
    """Stores and fires schedules that recur every minute. The test decides which occurrences are fired."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    def record(self, name: str = NAME, *, after: float | None = EVERY_SECONDS, **changes: Any) -> ScheduleRecord:
        """Return a schedule whose next occurrence is `after` seconds from now; with None, it has no next one.

        The schedule is not stored.
        """
        fields: dict[str, Any] = {
            "type": TYPE,
            "queue": "default",
            "priority": 1,
            "payload": b"{}",
            "codec": "json",
            "rule": "{}",
            "misfire": "once",
            "catch_up": 0,
            "overlap": Overlap.ALLOW,
            "jitter": 0,
            "start": None,
            "end": None,
            "expires": None,
            "limits": (),
            "next_due": None if after is None else self.bench.now + seconds(after),
        }
        return ScheduleRecord(name, **(fields | changes))

    def put(self, name: str = NAME, *, expected: int | None = None, **changes: Any) -> bool:
        """Store a schedule, and return whether it was accepted."""
        return self.bench.arrange(PutSchedule(self.record(name, **changes), expected))

    def stored(self, name: str = NAME) -> ScheduleRecord:
        """Return the stored record of a schedule."""
        (record,) = self.bench.engine.schedules(names=[name])
        return record

    def firing(self, name: str = NAME, **changes: Any) -> Firing:
        """Return a firing with one job for the next occurrence, as a worker makes it."""
        stored = self.stored(name)
        expected = stored.next_due or 0
        fields: dict[str, Any] = {
            "expected": expected,
            "next_due": expected + seconds(EVERY_SECONDS),
            "last_due": expected,
            "jobs": (self.job(name, expected),),
            "overlap": stored.overlap,
            "records": (),
        }
        return Firing(name, stored.revision, **(fields | changes))

    def trigger(self, job_id: str, name: str = NAME, **changes: Any) -> Firing:
        """Return a firing that makes a job by hand, beside the occurrences."""
        by_hand = self.bench.job(job_id, schedule=name)
        return self.firing(name, **({"expected": None, "jobs": (by_hand,)} | changes))

    def job(self, name: str, occurrence: int, **options: Any) -> NewJob:
        """Return the job of a schedule for one of its occurrences. It is not submitted."""
        return self.bench.job(f"{name} {occurrence}", schedule=name, occurrence=occurrence, **options)

    def occurrence(self, due: int, kind: OccurrenceKind = OccurrenceKind.MISSED) -> Occurrence:
        """Return a record of an occurrence for which no job was made."""
        return Occurrence(due, due, 1, kind, f"occurrence {due}", self.bench.now)

    def fire(self, firing: Firing | None = None) -> Fired:
        """Let the engine execute one firing, by default the one that `firing()` returns; return its answer."""
        (fired,) = self.bench.engine.fire([firing or self.firing()])
        return fired
