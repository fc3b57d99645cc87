"""Changes for a projection in tests. Child processes import it, so it imports little."""

from __future__ import annotations

from typing import Any

import msgspec

from mainspring.jobs.projection import ProjectedJob
from mainspring.jobs.records import JobRecord
from mainspring.jobs.status import JobStatus


def record(job_id: str, **changes: Any) -> JobRecord:
    plain = JobRecord(
        id=job_id,
        type="ping",
        queue="default",
        priority=1,
        status=JobStatus.PENDING,
        due=1,
        created=1,
        payload=b"{}",
        codec="json",
        token=0,
        owner=None,
        starts=0,
        failures=0,
        timeouts=0,
        crashes=0,
        interruptions=0,
        started=None,
        finished=None,
        result=None,
        error=None,
        stop_requested=False,
        origin=None,
        replayed_as=None,
        history=(),
    )
    return msgspec.structs.replace(plain, **changes)


def put(place: int, job_id: str, **changes: Any) -> ProjectedJob:
    return ProjectedJob(job_id, place, record(job_id, **changes))


def forget(job_id: str) -> ProjectedJob:
    return ProjectedJob(job_id, 0, None)
