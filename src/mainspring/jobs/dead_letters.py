"""The dead letters: jobs that were given up. They stay until somebody looks at them.

A replay is a new job that is linked with the letter, both ways, and a letter is replayed once: a filtered replay
that is run again continues where it stopped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from mainspring.errors import InvalidTransition
from mainspring.jobs.engine import Delete, Edit, Query, Replay
from mainspring.jobs.handle import ManagerSource
from mainspring.jobs.info import JobInfo, JobPage, decode_any
from mainspring.jobs.status import JobStatus

PAGE = 500


class DeadLetters:
    """Lists, edits and replays jobs that FAILED."""

    def __init__(self, source: ManagerSource) -> None:
        self._source = source

    def list(
        self,
        *,
        queue: str | None = None,
        type: str | None = None,
        limit: int = 50,
        after: str | None = None,
        replayed: bool | None = False,
    ) -> JobPage:
        """List dead letters, oldest first; by default without those that were replayed."""
        return self._source.manager().list(
            status=JobStatus.FAILED, queue=queue, type=type, limit=limit, after=after, is_replayed=replayed
        )

    def get(self, job_id: str) -> JobInfo:
        """Return one; `InvalidTransition` if the job is not a dead letter."""
        info = self._source.manager().get(job_id)
        if info.status is not JobStatus.FAILED:
            raise InvalidTransition(
                job_id=job_id, status=str(info.status), action="read as a dead letter", needs="FAILED"
            )
        return info

    def edit(self, job_id: str, changes: Mapping[str, Any]) -> None:
        """Change arguments of a dead letter, checked against its handler, before it is replayed."""
        manager = self._source.manager()
        record = manager.record(job_id)
        arguments = manager.registry.get(record.type).arguments
        payload = arguments.encode_stored({**decode_any(record.payload, record.codec), **changes})
        manager.submission.check_size(record.type, payload)
        manager.change(Edit(job_id, payload, arguments.codec), action="edit", needs="FAILED")

    def replay(
        self,
        *ids: str,
        queue: str | None = None,
        type: str | None = None,
        limit: int | None = None,
        rate: float | None = None,
    ) -> tuple[str, ...]:
        """Submit dead letters again, as new jobs; return their ids.

        Give ids, or filters, or nothing for all. `rate` spreads their due times: at most that many a second.
        """
        if rate is not None and not rate > 0:
            raise ValueError(f"rate must be a positive number of jobs per second, got {rate!r}")
        manager = self._source.manager()
        step = 0.0 if rate is None else 1_000_000 / rate
        first = manager.engine.now()
        replayed: deque[str] = deque()
        full_name = None if type is None else manager.registry.full_name(type)
        # All of them first: those that fail again are dead letters, too, and would be replayed for ever.
        for job_id in ids or tuple(self._unreplayed(queue, full_name)):
            if limit is not None and len(replayed) >= limit:
                break
            command = Replay(job_id, manager.submission.new_id(), first + round(step * len(replayed)))
            try:
                manager.change(command, action="replay", needs="FAILED and was not replayed yet")
            except InvalidTransition:
                if ids:
                    raise
                continue  # somebody else was quicker
            replayed.append(command.new_id)
        return tuple(replayed)

    def _unreplayed(self, queue: str | None, type_: str | None) -> Iterator[str]:
        after: str | None = None
        while True:
            page = self._source.manager().engine.find(
                Query(status=JobStatus.FAILED, queue=queue, type=type_, is_replayed=False, limit=PAGE, after=after)
            )
            yield from (record.id for record in page.records)
            if page.end is None:
                return
            after = page.end

    def purge(self, *ids: str) -> int:
        """Forget dead letters for good; return how many there were."""
        manager = self._source.manager()
        for job_id in ids:
            manager.change(Delete(job_id, JobStatus.FAILED), action="purge", needs="FAILED")
        return len(ids)
