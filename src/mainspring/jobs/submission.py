"""Submitting: arguments are checked and encoded by the caller, and stored when the call returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from mainspring.errors import (
    ArgumentsTooLarge,
    DuplicateJob,
    LimitExceeded,
    MainspringError,
    PartialSubmit,
    RefusedByStore,
)
from mainspring.jobs.engine import Capability, Engine
from mainspring.jobs.handlers import Handler
from mainspring.jobs.ids import JobIds
from mainspring.jobs.io_layer import MAX_BYTES, SUBMIT, Answer, IoLayer, Operation
from mainspring.jobs.limit_book import LimitBook
from mainspring.jobs.middleware import Middlewares
from mainspring.jobs.policies import Unique
from mainspring.jobs.records import Conflict, ConflictKind, NewJob
from mainspring.jobs.shaping import Shape
from mainspring.jobs.submit_options import SubmitOptions

MAX_PAYLOAD = 1_048_576
CHUNK = 5_000  # jobs of one commit in a bulk submit
MAX_ATOMIC = 268_435_456  # bytes of arguments that are stored all or none
CHUNKS_IN_FLIGHT = 2  # one is committed while the next is prepared


class Submission:
    """Stores new jobs."""

    def __init__(
        self, engine: Engine, io: IoLayer, *, book: LimitBook, middlewares: Middlewares, max_payload: int
    ) -> None:
        self._engine = engine
        self._io = io
        self._book = book
        self._middlewares = middlewares
        self._max_payload = max_payload
        self._ids = JobIds()
        self.after_submit: Callable[[], None] = _nothing  # called in the submitter, once its jobs are stored

    def submit(
        self, handler: Handler, options: SubmitOptions, positional: tuple[Any, ...], named: Mapping[str, Any]
    ) -> str:
        """Store one job, durably when this returns."""
        shape = self._shape(handler, options)
        with self._middlewares.around_submit(handler.name, shape.queue, 1, shape.headers):
            job = self._make(handler, options, shape, positional, named)
            (conflict,) = self._io.call(SUBMIT, (job,), size=len(job.payload))
        job_id = _resolve(conflict, job, shape.unique)
        self.after_submit()
        return job_id

    async def submit_async(
        self, handler: Handler, options: SubmitOptions, positional: tuple[Any, ...], named: Mapping[str, Any]
    ) -> str:
        """Store one job without blocking the event loop."""
        shape = self._shape(handler, options)
        with self._middlewares.around_submit(handler.name, shape.queue, 1, shape.headers):
            job = self._make(handler, options, shape, positional, named)
            (conflict,) = await self._io.call_async(SUBMIT, (job,), size=len(job.payload))
        job_id = _resolve(conflict, job, shape.unique)
        self.after_submit()
        return job_id

    def submit_many(
        self, handler: Handler, options: SubmitOptions, arguments: Iterable[Any], *, atomic: bool
    ) -> list[str]:
        """Store many jobs: all are checked before the first is stored."""
        if options.id is not None:
            raise ValueError(f"submit_many() makes the ids itself, and id={options.id!r} is one; leave it out")
        shape = self._shape(handler, options)
        if atomic and Capability.ATOMIC_BATCH not in self._engine.capabilities:
            raise RefusedByStore(
                engine=self._engine.description,
                reason="it cannot store many jobs all or none (atomic=True)",
                remedy="submit without atomic=True, or use a store that can",
            )
        if atomic and shape.unique is not None and shape.unique.on_conflict == "raise":
            raise ValueError("atomic=True and on_conflict='raise' contradict each other; use on_conflict='return'")
        calls: Iterable[Any] = arguments
        given: list[dict[str, Any]] | None = None
        if shape.needs_arguments:
            given = [handler.arguments.bind_one_of_many(call) for call in arguments]
            calls = given
        payloads = handler.arguments.encode_many(calls)
        self.check_size(handler.name, max(payloads, key=len, default=b""))
        if atomic:
            _check_atomic(payloads)
        with self._middlewares.around_submit(handler.name, shape.queue, len(payloads), shape.headers):
            jobs = self._make_many(shape, payloads, given)
            conflicts = self._store([jobs] if atomic else list(_chunks(jobs)))
        self.after_submit()
        return _ids_of(jobs, conflicts, shape.unique)

    def _store(self, chunks: list[list[NewJob]]) -> list[Conflict | None]:
        answers: list[Answer[Any]] = []
        conflicts: list[Conflict | None] = []
        done = 0
        for chunk in chunks:
            if len(answers) - done >= CHUNKS_IN_FLIGHT:
                conflicts += self._confirm(chunks, answers, done)
                done += 1
            answers.append(self._io.make_answer())
            self._io.dispatch(Operation(SUBMIT, chunk, answers[-1], size=_size(chunk)))
        for place in range(done, len(answers)):
            conflicts += self._confirm(chunks, answers, place)
        return conflicts

    def _confirm(
        self, chunks: list[list[NewJob]], answers: list[Answer[Any]], place: int
    ) -> list[Conflict | None]:
        try:
            return answers[place].get()  # type: ignore[no-any-return]
        except MainspringError as error:
            raise self._partial(chunks, answers, place, error) from error

    def _partial(
        self, chunks: list[list[NewJob]], answers: list[Answer[Any]], place: int, error: MainspringError
    ) -> MainspringError:
        if len(chunks) == 1:
            return error
        stored = set(range(place))
        for later in range(place + 1, len(answers)):  # what is under way may still succeed
            try:
                answers[later].get()
            except MainspringError:
                continue
            stored.add(later)
        done = [job.id for number, chunk in enumerate(chunks) if number in stored for job in chunk]
        failed = [job.id for number, chunk in enumerate(chunks) if number not in stored for job in chunk]
        return PartialSubmit(done=done, failed=failed, cause=str(error))

    def _shape(self, handler: Handler, options: SubmitOptions) -> Shape:
        return Shape(handler, options, self._book, self._engine.now())

    def _make(
        self,
        handler: Handler,
        options: SubmitOptions,
        shape: Shape,
        positional: tuple[Any, ...],
        named: Mapping[str, Any],
    ) -> NewJob:
        given = handler.arguments.bind(positional, named)
        payload = handler.arguments.encode_stored(given)
        self.check_size(handler.name, payload)
        return shape.job(options.id or self._ids.make(shape.now)[0], payload, given)

    def _make_many(self, shape: Shape, payloads: list[bytes], given: list[dict[str, Any]] | None) -> list[NewJob]:
        ids = self._ids.make(self._engine.now(), len(payloads))
        if given is not None:
            return [shape.job(*parts) for parts in zip(ids, payloads, given, strict=True)]
        return shape.jobs(ids, payloads)

    def check_size(self, handler: str, payload: bytes) -> None:
        """Refuse arguments that are too large."""
        if len(payload) > self._max_payload:
            raise ArgumentsTooLarge(handler=handler, size=len(payload), limit=self._max_payload)

    def new_id(self) -> str:
        """Make an id."""
        return self._ids.make(self._engine.now())[0]


def _check_atomic(payloads: list[bytes]) -> None:
    size = sum(map(len, payloads))
    if size > MAX_ATOMIC:
        raise LimitExceeded(
            what="the arguments of this atomic submit, in bytes,",
            size=size,
            limit=MAX_ATOMIC,
            remedy="submit in parts, or without atomic=True",
        )


def _chunks(jobs: list[NewJob]) -> Iterator[list[NewJob]]:
    """Cut a bulk submit into commits, by number and by size."""
    chunk: list[NewJob] = []
    size = 0
    for job in jobs:
        if len(chunk) == CHUNK or (chunk and size + len(job.payload) > MAX_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(job)
        size += len(job.payload)
    if chunk:
        yield chunk


def _size(jobs: list[NewJob]) -> int:
    return sum(len(job.payload) for job in jobs)


def _resolve(conflict: Conflict | None, job: NewJob, unique: Unique | None) -> str:
    """Return the id of the job that is there now, or raise what the policy says."""
    if conflict is None:
        return job.id
    if conflict.kind is ConflictKind.ID:
        raise DuplicateJob(existing_id=conflict.existing_id)
    if unique is not None and unique.on_conflict == "raise":
        key = None if job.unique is None else job.unique.key
        raise DuplicateJob(existing_id=conflict.existing_id, key=key)
    return conflict.existing_id


def _ids_of(jobs: list[NewJob], conflicts: list[Conflict | None], unique: Unique | None) -> list[str]:
    ids = [
        job.id if conflict is None else conflict.existing_id for job, conflict in zip(jobs, conflicts, strict=True)
    ]
    if unique is not None and unique.on_conflict == "raise" and any(conflicts):
        raise PartialSubmit(
            done=[job.id for job, conflict in zip(jobs, conflicts, strict=True) if conflict is None],
            failed=[job.id for job, conflict in zip(jobs, conflicts, strict=True) if conflict is not None],
            cause="jobs with their unique keys exist already",
        )
    return ids


def _nothing() -> None:
    return None
