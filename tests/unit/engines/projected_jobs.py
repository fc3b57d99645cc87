"""Changes for a projection in tests. Child processes import it, so it imports little."""

from __future__ import annotations

from typing import Any

import msgspec

from mainspring.jobs.projection import ProjectedJob
from mainspring.jobs.records import JobRecord, NewJob
from mainspring.jobs.transitions import submitted


def record(job_id: str, **changes: Any) -> JobRecord:
    plain = submitted(JobRecord, NewJob(job_id, "ping", "default", 1, 1, b"{}", "json"), now=1)
    return msgspec.structs.replace(plain, **changes)


def put(place: int, job_id: str, **changes: Any) -> ProjectedJob:
    return ProjectedJob(job_id, place, record(job_id, **changes))


def forget(job_id: str) -> ProjectedJob:
    return ProjectedJob(job_id, 0, None)
