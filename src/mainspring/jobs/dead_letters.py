"""Dead letters: lists, edits, replays and purges jobs that FAILED.

A dead letter is a job that FAILED and was not replayed. It stays until it is replayed, retried or purged, or
until `Keep(failed=…)` deletes it. A replay is a new job; the two jobs are linked in both directions. A dead
letter is replayed only once, so a filtered replay that is run again continues where it stopped.
"""

from __future__ import annotations

import builtins
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from mainspring.errors import InvalidArguments, InvalidTransition
from mainspring.jobs.audit import AuditNote, clip_names
from mainspring.jobs.audit_drafts import AuditDraft
from mainspring.jobs.commands import Changed, Delete, DropDeadLetterHandler, Edit, Replay
from mainspring.jobs.handle import ManagerProvider
from mainspring.jobs.handlers import Handler
from mainspring.jobs.ids import require_id
from mainspring.jobs.info import JobInfo, JobPage
from mainspring.jobs.manager import JobManager
from mainspring.jobs.masking import REDACTED
from mainspring.jobs.off_loop import OffLoop, async_iterator_twin, async_twin
from mainspring.jobs.records import JobRecord, Query
from mainspring.jobs.redaction import Redactions
from mainspring.jobs.serializers import Serializers
from mainspring.jobs.status import JobStatus

if TYPE_CHECKING:
    from mainspring.jobs.signing import JobSigner

logger = logging.getLogger("mainspring.signing")

PAGE = 500  # dead letters in one query
CHUNK = 100  # dead letters in one transaction
REPLAYABLE = "FAILED and was not replayed yet"


def with_changes(
    arguments: Mapping[str, Any], changes: Mapping[str, Any], without: Collection[str]
) -> dict[str, Any]:
    """Return a dead letter's arguments with `changes` applied, and without those named in `without`.

    A name in both keeps its value from `changes`.
    """
    return {name: value for name, value in arguments.items() if name not in without} | dict(changes)


def apply_changes(
    handler: Handler, arguments: Any, *, changes: Mapping[str, Any], without: Collection[str]
) -> dict[str, Any]:
    """Return a dead letter's arguments with `changes` applied and without those named in `without`.

    Raises `InvalidArguments` if the stored arguments could not be decoded, so that they are no mapping.
    """
    if not isinstance(arguments, Mapping):
        raise InvalidArguments(
            handler=handler.name,
            parameter=None,
            problem="the stored arguments cannot be decoded here",
            remedy="use an application with the serializer that has encoded them",
        )
    return with_changes(arguments, changes, without)


ChangeArguments: TypeAlias = Callable[[Handler, Mapping[str, Any]], dict[str, Any]]
"""A function that returns the changed arguments of a dead letter, from its handler and its own arguments."""


class EditedArguments(Struct, frozen=True):
    """Changed arguments of a dead letter, checked against the signature of its handler."""

    arguments: dict[str, Any]
    payload: bytes
    codec: str
    search: tuple[str, ...]


class PlannedReplay(Struct, frozen=True):
    """A dead letter that can be replayed. `edited` has its changed arguments; None if it keeps its own."""

    letter: JobRecord
    edited: EditedArguments | None
    serializers: Serializers
    redactions: Redactions
    signer: JobSigner | None = None
    """Signs the new job; None if the application does not sign jobs."""

    @property
    def arguments(self) -> Any:
        """The arguments of the new job as plain data, with the values of redacted parameters masked."""
        if self.edited is None:
            arguments = self.serializers.decode_any(self.letter.payload, self.letter.codec)
        else:
            arguments = self.edited.arguments
        return self.redactions.show(self.letter.type, arguments)

    def command(self, new_id: str, due: int) -> Replay:
        """Return the command that replays the dead letter as a new job with this id and due time.

        The new job is signed if the application signs jobs.
        """
        edited = self.edited
        headers = None
        if self.signer is not None:
            payload, codec = (None, None) if edited is None else (edited.payload, edited.codec)
            headers = self.signer.headers_for(
                self.letter, due, "replay", new_id=new_id, payload=payload, codec=codec
            )
        if edited is None:
            return Replay(self.letter.id, new_id, due, headers=headers)
        return Replay(self.letter.id, new_id, due, edited.payload, edited.codec, edited.search, headers)


def plan_replay(
    manager: JobManager,
    ids: Sequence[str],
    *,
    queue: str | None,
    type: str | None,
    all: bool,
    limit: int | None,
    change: ChangeArguments | None,
    types: Collection[str] | None = None,
    queues: Collection[str] | None = None,
    until: int | None = None,
    check: Callable[[JobRecord], object] | None = None,
) -> list[PlannedReplay]:
    """Return the dead letters to replay, with their changed arguments, after every check that the replay makes.

    Raises `ValueError` if the caller gives neither ids nor a filter nor `all`, or gives ids together with one of
    the others; `JobNotFound` or `InvalidTransition` for an id that cannot be replayed; `UnknownHandler` or
    `InvalidArguments` if the handler of a changed dead letter is not registered or does not accept its arguments;
    `SignatureInvalid` for an id whose signature is wrong. A filter leaves such dead letters out, with a warning.

    - `types`, `queues`: a filter finds only dead letters of these; None for all
    - `until`: a filter finds only jobs that were submitted before this instant
    - `check`: is called with each dead letter that is given by its id, and raises an error to refuse it
    """
    is_filtered = queue is not None or type is not None
    if ids and (is_filtered or all):
        raise ValueError(
            "ids of dead letters cannot be combined with queue=, type= or all=True; leave out the ids or these "
            "options"
        )
    if not ids and not is_filtered and not all:
        raise ValueError(
            "say which dead letters: replay('order-42') replays one, replay(type='cancel_order') or queue= "
            "those that match, and replay(all=True) all of them"
        )
    # Read all dead letters first: replays that fail again are dead letters, too, and would be replayed again.
    full_name = None if type is None else manager.registry.full_name(type)
    query = Query(
        status=JobStatus.FAILED,
        queue=queue,
        type=full_name,
        is_replayed=False,
        created_until=until,
        limit=PAGE if limit is None else min(limit, PAGE),
        types=None if types is None else tuple(sorted(types)),
        queues=None if queues is None else tuple(sorted(queues)),
    )
    found = _named(manager, ids, check) if ids else _matching(manager, query)
    letters = list(islice(found if ids else _with_right_signatures(manager, found), limit))
    if manager.signer is not None:
        for letter in letters:
            manager.signer.check(letter, "replay")
    redactions = manager.redactions()
    return [
        PlannedReplay(
            letter,
            None if change is None else _edit(manager, letter, change),
            manager.serializers,
            redactions,
            manager.signer,
        )
        for letter in letters
    ]


def replay_planned(
    manager: JobManager,
    plans: Sequence[PlannedReplay],
    *,
    rate: float | None,
    is_by_id: bool,
    details: Mapping[str, Any],
    start: int | None = None,
) -> Iterator[tuple[tuple[str, str], ...]]:
    """Replay dead letters a few at a time; yield pairs of the id of a dead letter and the id of its new job.

    A dead letter that another caller has replayed, retried or deleted meanwhile is left out; with `is_by_id`, it
    raises `InvalidTransition` or `JobNotFound`. At most `rate` of the new jobs become due per second. `details` go
    into the audit entry: see `audit_details`. `start` is the due time of the first new job; None for now.
    """
    if rate is not None and not rate > 0:
        raise ValueError(f"rate must be a positive number of jobs per second, got {rate!r}")
    step = 0.0 if rate is None else 1_000_000 / rate
    first = manager.engine.now() if start is None else start
    commands = (
        plan.command(manager.submission.new_id(), first + round(step * number))
        for number, plan in enumerate(plans)
    )
    paced = {} if rate is None else {"rate": rate}
    draft = manager.begin_audit(len(plans), AuditNote(details={**details, **paced}))
    while chunk := list(islice(commands, 1 if is_by_id else CHUNK)):
        answers = list(zip(chunk, manager.change_all(chunk, audit=draft), strict=True))
        if is_by_id:
            manager.require_done(*answers[0], action="replay", needs=REPLAYABLE)
        # If a command is not done, another caller has replayed, retried or deleted this dead letter meanwhile.
        yield tuple((command.id, command.new_id) for command, changed in answers if changed.is_done)


def audit_details(
    *,
    queue: str | None = None,
    type: str | None = None,
    all: bool = False,
    limit: int | None = None,
    changed: Collection[str] = (),
    removed: Collection[str] = (),
) -> dict[str, Any]:
    """Return the details of an audit entry about dead letters: the filters, and the names of changed arguments."""
    given = {
        "queue": queue,
        "type": type,
        "all": all or None,
        "limit": limit,
        "changed": clip_names(changed) or None,
        "removed": clip_names(removed) or None,
    }
    return {name: value for name, value in given.items() if value is not None}


def purge_planned(manager: JobManager, ids: Sequence[str], *, details: Mapping[str, Any]) -> Iterator[int]:
    """Delete jobs that FAILED, a hundred at a time; after each hundred, yield how many jobs it had.

    `details` go into the audit entry. Before each hundred is deleted, `JobNotFound` or `InvalidTransition` is
    raised if one of its ids is not that of a FAILED job; earlier ones stay deleted.
    """
    draft = manager.begin_audit(len(ids), AuditNote(details=details))
    for start in range(0, len(ids), CHUNK):
        chunk = ids[start : start + CHUNK]
        _require_failed(manager, chunk)
        yield _purge(manager, chunk, draft)


def _require_failed(manager: JobManager, ids: Sequence[str]) -> None:
    """Raise `JobNotFound` or `InvalidTransition` if one of the ids is not that of a FAILED job."""
    statuses = {record.id: record.status for record in manager.engine.find(Query(ids=tuple(ids))).records}
    for job_id in ids:
        status = statuses.get(job_id)
        answer = Changed(is_done=status is JobStatus.FAILED, status=status)
        manager.require_done(Delete(job_id, JobStatus.FAILED), answer, action="purge", needs="FAILED")


def _purge(manager: JobManager, ids: Sequence[str], draft: AuditDraft | None) -> int:
    commands = [Delete(job_id, JobStatus.FAILED) for job_id in ids]
    for command, changed in zip(commands, manager.change_all(commands, audit=draft), strict=True):
        manager.require_done(command, changed, action="purge", needs="FAILED")
    return len(ids)


def _named(
    manager: JobManager, ids: Sequence[str], check: Callable[[JobRecord], object] | None
) -> Iterator[JobRecord]:
    for job_id in dict.fromkeys(ids):
        letter = manager.record(job_id)
        if check is not None:
            check(letter)
        is_done = letter.status is JobStatus.FAILED and letter.replayed_as is None
        answer = Changed(is_done, letter.status, letter.replayed_as)
        manager.require_done(Replay(letter.id, "", 0), answer, action="replay", needs=REPLAYABLE)
        yield letter


def _matching(manager: JobManager, query: Query) -> Iterator[JobRecord]:
    after: str | None = None
    while True:
        page = manager.engine.find(replace(query, after=after))
        yield from page.records
        if page.end is None:
            return
        after = page.end


def _with_right_signatures(manager: JobManager, letters: Iterator[JobRecord]) -> Iterator[JobRecord]:
    """Yield the dead letters whose signature is valid or has expired. Log a warning for each of the others.

    A replay signs jobs anew, so that it must not replay a dead letter with a wrong signature.
    """
    signer = manager.signer
    for letter in letters:
        if signer is None or signer.is_right(letter):
            yield letter
        else:
            logger.warning(
                "dead letter %s is not replayed: its signature is wrong; replay it by its id to see why", letter.id
            )


def _edit(manager: JobManager, letter: JobRecord, change: ChangeArguments) -> EditedArguments:
    """Change the arguments of a dead letter, check them as a submit does, and encode them.

    A redacted argument that is set to `REDACTED` keeps its value. So a client may send back what it was shown.
    """
    handler = manager.registry.get(letter.type)
    manager.submission.store_declarations()
    before = handler.arguments.plain(letter.payload, letter.codec)
    arguments = change(handler, before)
    for name in handler.redacted:
        if name in before and isinstance(arguments.get(name), str) and arguments[name] == REDACTED:
            arguments[name] = before[name]
    payload = handler.arguments.encode_bound(arguments)
    manager.submission.check_size(letter.type, payload)
    return EditedArguments(arguments, payload, handler.arguments.codec, handler.search_keys(arguments))


class DeadLetters:
    """`app.dead_letters`: lists, edits, replays and purges jobs that FAILED."""

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
        """Return a page of dead letters, the earliest failure first, or with `newest_first`, the latest.

        `replayed=True` lists the failed jobs that were replayed, None all failed jobs. `after` is `next` of the
        page before.
        """
        return self._source.manager().list(
            status=JobStatus.FAILED,
            queue=queue,
            type=type,
            limit=limit,
            after=after,
            newest_first=newest_first,
            is_replayed=replayed,
            by_failure=True,
        )

    list_async = async_twin(list)  # noqa: A003 - the method above

    def count(self, *, queue: str | None = None, type: str | None = None) -> int:
        """Count the dead letters (jobs that failed and were not replayed), like `app.counts()["FAILED"]`."""
        return self._source.manager().counts(queue=queue, type=type)[JobStatus.FAILED]

    count_async = async_twin(count)

    def get(self, job_id: str) -> JobInfo:
        """Return a snapshot of a job that FAILED, replayed or not.

        Raises `InvalidTransition` for a job with another status, and `JobNotFound` if there is no such job.
        """
        info = self._source.manager().get(job_id)
        if info.status is not JobStatus.FAILED:
            raise InvalidTransition(
                job_id=job_id, status=str(info.status), action="read the dead letter of", needs="FAILED"
            )
        return info

    get_async = async_twin(get)

    def edit(self, job_id: str, changes: Mapping[str, Any], *, without: Collection[str] = ()) -> None:
        """Change arguments of a dead letter, and remove those in `without`.

        A redacted argument can be changed like others; it keeps its value if it is set to `"[redacted]"`, as lists
        show it. Raises `InvalidArguments` if the handler's signature does not accept the new arguments,
        `JobNotFound` or `InvalidTransition` if there is no such dead letter.
        """
        manager = self._source.manager()
        record = manager.record(job_id)
        edited = _edit(manager, record, partial(apply_changes, changes=changes, without=without))
        note = AuditNote(details=audit_details(changed=changes, removed=without))
        headers = None
        if manager.signer is not None:
            headers = manager.signer.headers_for(
                record, manager.engine.now(), "edit", payload=edited.payload, codec=edited.codec
            )
        command = Edit(job_id, edited.payload, edited.codec, edited.search, headers)
        manager.change(command, action="edit", needs="FAILED", note=note)

    edit_async = async_twin(edit, writes=True)

    def replay(
        self,
        *ids: str,
        queue: str | None = None,
        type: str | None = None,
        all: bool = False,
        limit: int | None = None,
        rate: float | None = None,
        changes: Mapping[str, Any] | None = None,
        without: Collection[str] = (),
    ) -> tuple[str, ...]:
        """Submit dead letters again as new jobs, and return the ids of the new jobs.

        Give ids, or `queue`, `type` or both, or `all=True` for all dead letters. `limit` replays at most that
        many, those that were submitted first. `rate` spreads the due times: at most that many jobs per second.
        `changes` are changed arguments for the new jobs. `without` names arguments that the handler no longer has.
        With one of the two, the arguments of all new jobs are checked before the first job is submitted. The
        arguments of the dead letters stay as they are.
        """
        steps = self.replaying(
            *ids, queue=queue, type=type, all=all, limit=limit, rate=rate, changes=changes, without=without
        )
        return tuple(new_id for pairs in steps for _, new_id in pairs)

    async def replay_async(
        self,
        *ids: str,
        queue: str | None = None,
        type: str | None = None,
        all: bool = False,
        limit: int | None = None,
        rate: float | None = None,
        changes: Mapping[str, Any] | None = None,
        without: Collection[str] = (),
    ) -> tuple[str, ...]:
        """Submit dead letters again as `replay` does, without blocking the event loop.

        If the awaiting task is canceled, no more than the current hundred dead letters are replayed.
        """
        steps = self.replaying_async(
            *ids, queue=queue, type=type, all=all, limit=limit, rate=rate, changes=changes, without=without
        )
        return tuple([new_id async for pairs in steps for _, new_id in pairs])

    def replaying(
        self,
        *ids: str,
        queue: str | None = None,
        type: str | None = None,
        all: bool = False,
        limit: int | None = None,
        rate: float | None = None,
        changes: Mapping[str, Any] | None = None,
        without: Collection[str] = (),
    ) -> Iterator[tuple[tuple[str, str], ...]]:
        """Replay dead letters a few at a time; yield pairs of the id of a dead letter and the id of its new job.

        If the caller stops the iteration early, the remaining dead letters are not replayed.
        """
        change = None
        if changes or without:
            change = partial(apply_changes, changes=changes or {}, without=without)
        manager = self._source.manager()
        plans = plan_replay(manager, ids, queue=queue, type=type, all=all, limit=limit, change=change)
        details = audit_details(
            queue=queue, type=type, all=all, limit=limit, changed=changes or (), removed=without
        )
        yield from replay_planned(manager, plans, rate=rate, is_by_id=bool(ids), details=details)

    replaying_async = async_iterator_twin(replaying)

    def purge(self, *ids: str) -> int:
        """Delete jobs that FAILED, permanently. Return how many were deleted.

        Raises `JobNotFound` or `InvalidTransition`, and deletes nothing, if an id is not that of a FAILED job. If
        another process changes one of the jobs during the purge, the error is raised after some of the others were
        deleted.
        """
        manager = self._source.manager()
        chunks = [ids[start : start + CHUNK] for start in range(0, len(ids), CHUNK)]
        for chunk in chunks:
            _require_failed(manager, chunk)
        draft = manager.begin_audit(len(ids))
        return sum(_purge(manager, chunk, draft) for chunk in chunks)

    purge_async = async_twin(purge, writes=True)

    def handlers(self) -> builtins.list[str]:
        """List the job types of the dead-letter handlers: each new dead letter is submitted to them as a job."""
        return [handler.type for handler in self._source.manager().engine.dead_letter_handlers()]

    handlers_async = async_twin(handlers)

    def remove_handler(self, name: str) -> bool:
        """Remove a dead-letter handler from the store, so that it gets no more dead letters; return False if it
        was not stored.

        A worker whose code has the handler stores it again when it starts.
        """
        (is_removed,) = self._source.manager().arrange([DropDeadLetterHandler(require_id(name, "name"))])
        return is_removed

    remove_handler_async = async_twin(remove_handler, writes=True)
