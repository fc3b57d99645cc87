"""Finds the jobs that a job is linked with: its predecessor, its follow-up, the dead letter that it replays.

The store keeps most links on one side only. A follow-up job has the id of its predecessor in a header, and is
stored in the transaction that completes it. So it is found among the jobs of its type that were submitted then.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from mainspring.jobs.dead_letter_jobs import MARK
from mainspring.jobs.engine import Engine
from mainspring.jobs.job_policies import PREDECESSOR
from mainspring.jobs.records import JobRecord, Query
from mainspring.jobs.status import JobStatus
from mainspring.jobs.timestamps import MICROSECONDS

EARLIER = MICROSECONDS
"""How long before the end of its predecessor a follow-up job may seem to be stored, because clocks differ."""
MAX_READ = 500
"""How many jobs `find_follow_up` reads at most."""


class Relation(StrEnum):
    """What a linked job is for the job whose links were requested, such as its predecessor."""

    PREDECESSOR = "predecessor"
    FOLLOW_UP = "follow-up"
    ORIGINAL = "original"
    """The dead letter that the job replays."""
    REPLAY = "replay"
    """The job that replays this dead letter."""
    DEAD_LETTER = "dead letter"
    """The dead letter for which a dead-letter handler runs, or from whose handler the job results."""


@dataclass(frozen=True, slots=True)
class JobLink:
    """A job that exists in the store, and its relation to the job whose links were requested."""

    relation: Relation
    record: JobRecord


def find_links(engine: Engine, record: JobRecord) -> list[JobLink]:
    """Return the jobs that a job is linked with: predecessor, follow-up, replay and dead letters.

    Jobs that were deleted are left out.
    """
    headers = record.headers or {}
    ids = {
        Relation.PREDECESSOR: headers.get(PREDECESSOR),
        Relation.ORIGINAL: record.origin,
        Relation.REPLAY: record.replayed_as,
        Relation.DEAD_LETTER: headers.get(MARK),
    }
    wanted = tuple({job_id for job_id in ids.values() if job_id is not None})
    found = {each.id: each for each in engine.find(Query(ids=wanted)).records} if wanted else {}
    links = [
        JobLink(relation, found[job_id])
        for relation, job_id in ids.items()
        if job_id is not None and job_id in found
    ]
    follow_up = find_follow_up(engine, record)
    return links if follow_up is None else [*links, JobLink(Relation.FOLLOW_UP, follow_up)]


def find_follow_up(engine: Engine, record: JobRecord) -> JobRecord | None:
    """Return the follow-up job of a COMPLETED job, looked for among the jobs that were submitted from its end on.

    Return None if there is no follow-up job, or if more than `MAX_READ` jobs come before it.
    """
    plan = record.follow_up
    if plan is None or record.status is not JobStatus.COMPLETED or record.finished is None:
        return None
    query = Query(
        type=plan.type, queue=plan.queue, created_since=max(0, record.finished - EARLIER), limit=MAX_READ
    )
    for each in engine.find(query).records:
        if (each.headers or {}).get(PREDECESSOR) == record.id:
            return each
    return None
