"""The dead letters: jobs that were given up. They stay until somebody looks at them.

A replay is a new job that is linked with the letter, both ways, and a letter is replayed once: a filtered replay
that is run again continues where it stopped.
"""

from __future__ import annotations

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
        newest_first: bool = False,
        replayed: bool | None = False,
    ) -> JobPage:
        """List dead letters as `app.jobs` does; by default without those that were replayed."""
        return self._source.manager().list(
            status=JobStatus.FAILED,
            queue=queue,
            type=type,
            limit=limit,
            after=after,
            newest_first=newest_first,
            is_replayed=replayed,
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
        payload, codec = self._edited(job_id, changes)
        self._source.manager().change(Edit(job_id, payload, codec), action="edit", needs="FAILED")

    def replay(
        self,
        *ids: str,
        queue: str | None = None,
        type: str | None = None,
        limit: int | None = None,
        rate: float | None = None,
        changes: Mapping[str, Any] | None = None,
    ) -> tuple[str, ...]:
        """Submit dead letters again, as new jobs; return their ids.

        Give ids, or filters, or nothing for all. `rate` spreads their due times: at most that many a second.
        `changes` are other arguments for the new jobs; they are checked for all before the first is submitted, and
        the letters stay as they are.
        """
        steps = self.replaying(*ids, queue=queue, type=type, limit=limit, rate=rate, changes=changes)
        return tuple(new_id for _, new_id in steps)

    def replaying(
        self,
        *ids: str,
        queue: str | None = None,
        type: str | None = None,
        limit: int | None = None,
        rate: float | None = None,
        changes: Mapping[str, Any] | None = None,
    ) -> Iterator[tuple[str, str]]:
        """Replay step by step: yield each dead letter with its new job; whoever stops early leaves the rest."""
        if rate is not None and not rate > 0:
            raise ValueError(f"rate must be a positive number of jobs per second, got {rate!r}")
        manager = self._source.manager()
        full_name = None if type is None else manager.registry.full_name(type)
        # All of them first: those that fail again are dead letters, too, and would be replayed for ever.
        chosen = ids or tuple(self._unreplayed(queue, full_name))
        edited = {job_id: self._edited(job_id, changes) for job_id in chosen} if changes else {}
        step = 0.0 if rate is None else 1_000_000 / rate
        first = manager.engine.now()
        count = 0
        for job_id in chosen:
            if limit is not None and count >= limit:
                break
            payload, codec = edited.get(job_id, (None, None))
            due = first + round(step * count)
            command = Replay(job_id, manager.submission.new_id(), due, payload, codec)
            try:
                manager.change(command, action="replay", needs="FAILED and was not replayed yet")
            except InvalidTransition:
                if ids:
                    raise
                continue  # somebody else was quicker
            count += 1
            yield job_id, command.new_id

    def _edited(self, job_id: str, changes: Mapping[str, Any]) -> tuple[bytes, str]:
        """Encode the arguments of a dead letter with some changes."""
        manager = self._source.manager()
        record = manager.record(job_id)
        arguments = manager.registry.get(record.type).arguments
        payload = arguments.encode_stored({**decode_any(record.payload, record.codec), **changes})
        manager.submission.check_size(record.type, payload)
        return payload, arguments.codec

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
