"""Whose keys are taken: unique keys by state, and the occurrences of schedules."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

from mainspring.jobs.engine import JobRecord
from mainspring.jobs.status import JobStatus

ALIVE = (JobStatus.PENDING, JobStatus.RUNNING)

Key = TypeVar("Key")


class Places(Generic[Key]):
    """For each key the places of its jobs, in the order of submission."""

    def __init__(self) -> None:
        self._places: dict[Key, list[int]] = {}

    def of(self, key: Key) -> Sequence[int]:
        """Return the places of a key."""
        return self._places.get(key, ())

    def add(self, key: Key, place: int) -> None:
        """Note a place."""
        insort(self._places.setdefault(key, []), place)

    def remove(self, key: Key, place: int) -> None:
        """Forget it."""
        places = self._places[key]
        del places[bisect_left(places, place)]
        if not places:
            del self._places[key]


class Keys:
    """Finds the jobs that may be in the way of a new one."""

    def __init__(self) -> None:
        self._unique: Places[tuple[str, JobStatus]] = Places()
        self._alive: Places[str] = Places()  # by schedule
        self._occurrences: dict[tuple[str, int | None], str] = {}

    def update(self, before: JobRecord | None, job: JobRecord, place: int) -> None:
        """Take note of a job that is new or has changed."""
        if before is None and job.schedule is not None and job.occurrence is not None:
            self._occurrences[job.schedule, job.occurrence] = job.id
        if before is not None and before.status is not job.status:
            self._forget(before, place)
        if before is None or before.status is not job.status:
            if job.unique_key is not None:
                self._unique.add((job.unique_key, job.status), place)
            if job.schedule is not None and job.status in ALIVE:
                self._alive.add(job.schedule, place)

    def remove(self, job: JobRecord, place: int) -> None:
        """Forget a job."""
        self._forget(job, place)
        if job.schedule is not None:
            self._occurrences.pop((job.schedule, job.occurrence), None)

    def with_occurrence(self, schedule: str, occurrence: int | None) -> str | None:
        """Return the job of an occurrence."""
        return self._occurrences.get((schedule, occurrence))

    def alive_of(self, schedule: str) -> list[int]:
        """Return the places of the jobs of a schedule that have not ended, in order."""
        return list(self._alive.of(schedule))

    def newest(self, key: str, states: Iterable[JobStatus]) -> list[int]:
        """Return the places of the newest jobs with a unique key, one or two of each state, the latest first."""
        found = [place for status in states for place in self._unique.of((key, status))[-2:]]
        return sorted(found, reverse=True)

    def _forget(self, job: JobRecord, place: int) -> None:
        if job.unique_key is not None:
            self._unique.remove((job.unique_key, job.status), place)
        if job.schedule is not None and job.status in ALIVE:
            self._alive.remove(job.schedule, place)
