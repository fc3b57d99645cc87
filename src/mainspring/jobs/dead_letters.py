"""The dead letters: jobs that FAILED and were not replayed. They stay until they are replayed, retried or purged.

A replay is a new job that is linked with the letter, both ways, and a letter is replayed once: a filtered replay
that is run again continues where it stopped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from typing import Any

from mainspring.errors import InvalidTransition
from mainspring.jobs.commands import Delete, Edit, Replay
from mainspring.jobs.handle import ManagerSource
from mainspring.jobs.info import JobInfo, JobPage, decode_any
from mainspring.jobs.queries import Query
from mainspring.jobs.records import JobRecord
from mainspring.jobs.status import JobStatus

PAGE = 500
CHUNK = 100  # letters of one commit


def with_changes(
    arguments: Mapping[str, Any], changes: Mapping[str, Any], without: Collection[str]
) -> dict[str, Any]:
    """Return the arguments of a dead letter as they are to be from now on."""
    return {name: value for name, value in arguments.items() if name not in without} | dict(changes)


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

    def count(self, *, queue: str | None = None, type: str | None = None) -> int:
        """Count the dead letters that were not replayed: what `app.counts()["FAILED"]` says."""
        return self._source.manager().counts(queue=queue, type=type)[JobStatus.FAILED]

    def get(self, job_id: str) -> JobInfo:
        """Return one; `InvalidTransition` if the job is not a dead letter."""
        info = self._source.manager().get(job_id)
        if info.status is not JobStatus.FAILED:
            raise InvalidTransition(
                job_id=job_id, status=str(info.status), action="find a dead letter in", needs="FAILED"
            )
        return info

    def edit(self, job_id: str, changes: Mapping[str, Any], *, without: Collection[str] = ()) -> None:
        """Change arguments of a dead letter, or take some away, checked against its handler."""
        payload, codec = self._encode(self._source.manager().record(job_id), changes, without)
        self._source.manager().change(Edit(job_id, payload, codec), action="edit", needs="FAILED")

    def replay(
        self,
        *ids: str,
        queue: str | None = None,
        type: str | None = None,
        limit: int | None = None,
        rate: float | None = None,
        changes: Mapping[str, Any] | None = None,
        without: Collection[str] = (),
    ) -> tuple[str, ...]:
        """Submit dead letters again, as new jobs; return their ids.

        Give ids, or filters, or nothing for all. `rate` spreads their due times: at most that many a second.
        `changes` are other arguments for the new jobs, `without` those that the handler has no more; they
        are checked for all before the first is submitted, and the letters stay as they are.
        """
        steps = self.replaying(
            *ids, queue=queue, type=type, limit=limit, rate=rate, changes=changes, without=without
        )
        return tuple(new_id for pairs in steps for _, new_id in pairs)

    def replaying(
        self,
        *ids: str,
        queue: str | None = None,
        type: str | None = None,
        limit: int | None = None,
        rate: float | None = None,
        changes: Mapping[str, Any] | None = None,
        without: Collection[str] = (),
    ) -> Iterator[tuple[tuple[str, str], ...]]:
        """Replay a few at a time: yield pairs of dead letter and new job; whoever stops early leaves the rest."""
        if rate is not None and not rate > 0:
            raise ValueError(f"rate must be a positive number of jobs per second, got {rate!r}")
        manager = self._source.manager()
        full_name = None if type is None else manager.registry.full_name(type)
        # All of them first: those that fail again are dead letters, too, and would be replayed for ever.
        found = map(manager.record, ids) if ids else self._unreplayed(queue, full_name)
        letters = list(islice(found, limit))
        is_changed = changes or without
        edited = {letter.id: self._encode(letter, changes or {}, without) for letter in letters if is_changed}
        step = 0.0 if rate is None else 1_000_000 / rate
        first = manager.engine.now()
        commands = (
            Replay(
                letter.id,
                manager.submission.new_id(),
                first + round(step * number),
                *edited.get(letter.id, (None, None)),
            )
            for number, letter in enumerate(letters)
        )
        if ids:
            for command in commands:
                manager.change(command, action="replay", needs="FAILED and was not replayed yet")
                yield ((command.id, command.new_id),)
            return
        while chunk := list(islice(commands, CHUNK)):
            answers = zip(chunk, manager.change_all(chunk), strict=True)
            # One that is not done was replayed by somebody who was quicker.
            yield tuple((command.id, command.new_id) for command, changed in answers if changed.is_done)

    def _encode(
        self, letter: JobRecord, changes: Mapping[str, Any], without: Collection[str]
    ) -> tuple[bytes, str]:
        """Encode the arguments of a dead letter with some changes."""
        manager = self._source.manager()
        arguments = manager.registry.get(letter.type).arguments
        payload = arguments.encode_stored(with_changes(decode_any(letter.payload, letter.codec), changes, without))
        manager.submission.check_size(letter.type, payload)
        return payload, arguments.codec

    def _unreplayed(self, queue: str | None, type_: str | None) -> Iterator[JobRecord]:
        after: str | None = None
        while True:
            page = self._source.manager().engine.find(
                Query(status=JobStatus.FAILED, queue=queue, type=type_, is_replayed=False, limit=PAGE, after=after)
            )
            yield from page.records
            if page.end is None:
                return
            after = page.end

    def purge(self, *ids: str) -> int:
        """Forget dead letters for good; return how many there were."""
        manager = self._source.manager()
        remaining = iter(ids)
        while chunk := [Delete(job_id, JobStatus.FAILED) for job_id in islice(remaining, CHUNK)]:
            for command, changed in zip(chunk, manager.change_all(chunk), strict=True):
                manager.require_done(command, changed, action="purge", needs="FAILED")
        return len(ids)
