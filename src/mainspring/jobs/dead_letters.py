"""Dead letters: lists, edits, replays and purges jobs that FAILED.

A dead letter is a job that FAILED and was not replayed. It stays until it is replayed, retried or purged, or
until `Keep(failed=…)` deletes it. A replay is a new job; the two jobs are linked in both directions. A dead
letter is replayed only once, so a filtered replay that is run again continues where it stopped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from typing import Any

from mainspring.errors import InvalidTransition
from mainspring.jobs.commands import Delete, Edit, Replay
from mainspring.jobs.handle import ManagerProvider
from mainspring.jobs.info import JobInfo, JobPage, decode_any
from mainspring.jobs.off_loop import OffLoop, async_iterator_twin, async_twin
from mainspring.jobs.records import JobRecord, Query
from mainspring.jobs.status import JobStatus

PAGE = 500
CHUNK = 100  # dead letters in one transaction


def with_changes(
    arguments: Mapping[str, Any], changes: Mapping[str, Any], without: Collection[str]
) -> dict[str, Any]:
    """Return a dead letter's arguments with `changes` applied, and without those named in `without`."""
    return {name: value for name, value in arguments.items() if name not in without} | dict(changes)


class DeadLetters:
    """Lists, edits, replays and purges jobs that FAILED: `app.dead_letters`."""

    def __init__(self, source: ManagerProvider) -> None:
        self._source = source

    @property
    def _off_loop(self) -> OffLoop:
        return self._source.off_loop

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
        """Return a page of dead letters.

        `replayed=True` lists the failed jobs that were replayed, None all failed jobs.
        """
        return self._source.manager().list(
            status=JobStatus.FAILED,
            queue=queue,
            type=type,
            limit=limit,
            after=after,
            newest_first=newest_first,
            is_replayed=replayed,
        )

    list_async = async_twin(list)  # noqa: A003 - the method above

    def count(self, *, queue: str | None = None, type: str | None = None) -> int:
        """Count the dead letters (jobs that failed and were not replayed), like `app.counts()["FAILED"]`."""
        return self._source.manager().counts(queue=queue, type=type)[JobStatus.FAILED]

    count_async = async_twin(count)

    def get(self, job_id: str) -> JobInfo:
        """Return a snapshot of a job that FAILED, replayed or not.

        Raises `InvalidTransition` for any other job.
        """
        info = self._source.manager().get(job_id)
        if info.status is not JobStatus.FAILED:
            raise InvalidTransition(
                job_id=job_id, status=str(info.status), action="find a dead letter in", needs="FAILED"
            )
        return info

    get_async = async_twin(get)

    def edit(self, job_id: str, changes: Mapping[str, Any], *, without: Collection[str] = ()) -> None:
        """Change arguments of a dead letter, and remove those in `without`.

        Raises `InvalidArguments` if the handler's signature does not accept the new arguments.
        """
        edited = self._encode(self._source.manager().record(job_id), changes, without)
        self._source.manager().change(Edit(job_id, *edited), action="edit", needs="FAILED")

    edit_async = async_twin(edit, writes=True)

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
        """Submit dead letters again as new jobs, and return the ids of the new jobs.

        Give ids, or filters, or nothing for all dead letters. `rate` spreads the due times: at most that many jobs
        per second. `changes` are changed arguments for the new jobs. `without` names arguments that the handler no
        longer has. With one of the two, the arguments of all new jobs are checked before the first job is
        submitted. The arguments of the dead letters stay as they are.
        """
        steps = self.replaying(
            *ids, queue=queue, type=type, limit=limit, rate=rate, changes=changes, without=without
        )
        return tuple(new_id for pairs in steps for _, new_id in pairs)

    async def replay_async(
        self,
        *ids: str,
        queue: str | None = None,
        type: str | None = None,
        limit: int | None = None,
        rate: float | None = None,
        changes: Mapping[str, Any] | None = None,
        without: Collection[str] = (),
    ) -> tuple[str, ...]:
        """Submit dead letters again as `replay` does, without blocking the event loop.

        If the awaiting task is canceled, the replay stops within a hundred dead letters.
        """
        steps = self.replaying_async(
            *ids, queue=queue, type=type, limit=limit, rate=rate, changes=changes, without=without
        )
        return tuple([new_id async for pairs in steps for _, new_id in pairs])

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
        """Replay dead letters a few at a time; yield pairs of the id of a dead letter and the id of its new job.

        If the caller stops the iteration early, the remaining dead letters are not replayed.
        """
        if rate is not None and not rate > 0:
            raise ValueError(f"rate must be a positive number of jobs per second, got {rate!r}")
        manager = self._source.manager()
        full_name = None if type is None else manager.registry.full_name(type)
        # Read all dead letters first: replays that fail again are dead letters, too, and would be replayed again.
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
                *edited.get(letter.id, ()),
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
            # If a command is not done, another caller has replayed, retried or deleted this dead letter meanwhile.
            yield tuple((command.id, command.new_id) for command, changed in answers if changed.is_done)

    replaying_async = async_iterator_twin(replaying)

    def _encode(
        self, letter: JobRecord, changes: Mapping[str, Any], without: Collection[str]
    ) -> tuple[bytes, str, tuple[str, ...]]:
        """Apply changes to a dead letter's arguments; return them encoded, the encoding, and the search keys."""
        manager = self._source.manager()
        handler = manager.registry.get(letter.type)
        given = with_changes(decode_any(letter.payload, letter.codec), changes, without)
        payload = handler.arguments.encode_bound(given)
        manager.submission.check_size(letter.type, payload)
        return payload, handler.arguments.codec, handler.search_keys(given)

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
        """Delete jobs that FAILED, permanently. Return how many were deleted.

        Raises `JobNotFound` or `InvalidTransition` if an id is not that of a FAILED job. Some of the others are
        deleted nevertheless.
        """
        manager = self._source.manager()
        remaining = iter(ids)
        while chunk := [Delete(job_id, JobStatus.FAILED) for job_id in islice(remaining, CHUNK)]:
            for command, changed in zip(chunk, manager.change_all(chunk), strict=True):
                manager.require_done(command, changed, action="purge", needs="FAILED")
        return len(ids)

    purge_async = async_twin(purge, writes=True)
