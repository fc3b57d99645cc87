"""Submitting: arguments are checked and encoded by the caller, and stored when the call returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from mainspring.clock import Duration
from mainspring.errors import ArgumentsTooLarge, DuplicateJob, LimitExceeded, MainspringError, PartialSubmit
from mainspring.jobs.engine import Engine, NewJob
from mainspring.jobs.handlers import Handler
from mainspring.jobs.ids import JobIds, require_id
from mainspring.jobs.instants import LAST_INSTANT, to_instant, to_microseconds
from mainspring.jobs.io_layer import MAX_BYTES, Answer, IoLayer, Operation
from mainspring.runners.checks import require_instance
from mainspring.runners.traits import Priority

MAX_PAYLOAD = 1_048_576
CHUNK = 5_000  # jobs of one commit in a bulk submit
MAX_ATOMIC = 268_435_456  # bytes of arguments that are stored all or none
CHUNKS_IN_FLIGHT = 2  # one is committed while the next is prepared


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitOptions:
    """When and how a job is to run; what is None is the handler's."""

    delay: int | None = None
    at: int | None = None
    id: str | None = None
    queue: str | None = None
    priority: Priority | None = None

    def changed(
        self,
        *,
        delay: Duration | None = None,
        at: datetime | None = None,
        id: str | None = None,
        queue: str | None = None,
        priority: Priority | None = None,
    ) -> SubmitOptions:
        """Return a copy with other options, checked; a delay replaces an instant and the other way round."""
        changes: dict[str, Any] = {}
        if delay is not None and at is not None:
            raise ValueError("give delay= or at=, not both")
        if delay is not None:
            changes |= {"delay": to_microseconds(delay, "delay"), "at": None}
        if at is not None:
            changes |= {"at": to_instant(at, "at"), "delay": None}
        if id is not None:
            changes["id"] = require_id(id)
        if queue is not None:
            changes["queue"] = require_id(queue, "queue")
        if priority is not None:
            changes["priority"] = require_instance(priority, Priority, "priority", "Priority.USER_BLOCKING")
        return replace(self, **changes)

    def due(self, now: int) -> int:
        """Return the due instant of a job that is submitted now."""
        due = now + (self.delay or 0) if self.at is None else self.at
        if due > LAST_INSTANT:
            raise ValueError(f"the job would be due after the year 9999, {due - now} microseconds from now")
        return due


class Submission:
    """Stores new jobs."""

    def __init__(self, engine: Engine, io: IoLayer, *, max_payload: int) -> None:
        self._engine = engine
        self._io = io
        self._max_payload = max_payload
        self._ids = JobIds()
        self.after_submit: Callable[[], None] = _nothing  # called in the submitter, once its jobs are stored

    def submit(
        self, handler: Handler, options: SubmitOptions, positional: tuple[Any, ...], named: Mapping[str, Any]
    ) -> str:
        """Store one job, durably when this returns."""
        job = self._make(handler, options, positional, named)
        _require_stored(self._io.call("submit", (job,), size=len(job.payload)))
        self.after_submit()
        return job.id

    async def submit_async(
        self, handler: Handler, options: SubmitOptions, positional: tuple[Any, ...], named: Mapping[str, Any]
    ) -> str:
        """Store one job without blocking the event loop."""
        job = self._make(handler, options, positional, named)
        _require_stored(await self._io.call_async("submit", (job,), size=len(job.payload)))
        self.after_submit()
        return job.id

    def submit_many(
        self, handler: Handler, options: SubmitOptions, arguments: Iterable[Any], *, atomic: bool
    ) -> list[str]:
        """Store many jobs: all are checked before the first is stored."""
        if options.id is not None:
            raise ValueError(f"submit_many() makes the ids itself, and id={options.id!r} is one; leave it out")
        payloads = handler.arguments.encode_many(arguments)
        self.check_size(handler.name, max(payloads, key=len, default=b""))
        if atomic and sum(map(len, payloads)) > MAX_ATOMIC:
            raise LimitExceeded(
                what="the arguments of this atomic submit, in bytes,",
                size=sum(map(len, payloads)),
                limit=MAX_ATOMIC,
                remedy="submit in parts, or without atomic=True",
            )
        jobs = self._make_many(handler, options, payloads)
        self._store([jobs] if atomic else list(_chunks(jobs)))
        self.after_submit()
        return [job.id for job in jobs]

    def _store(self, chunks: list[list[NewJob]]) -> None:
        answers: list[Answer[Any]] = []
        done = 0
        for chunk in chunks:
            if len(answers) - done >= CHUNKS_IN_FLIGHT:
                self._confirm(chunks, answers, done)
                done += 1
            answers.append(Answer())
            self._io.dispatch(Operation("submit", chunk, answers[-1], size=_size(chunk)))
        for place in range(done, len(answers)):
            self._confirm(chunks, answers, place)

    def _confirm(self, chunks: list[list[NewJob]], answers: list[Answer[Any]], place: int) -> None:
        try:
            answers[place].get()
        except MainspringError as error:
            self._report_partial(chunks, answers, place, error)

    def _report_partial(
        self, chunks: list[list[NewJob]], answers: list[Answer[Any]], place: int, error: MainspringError
    ) -> None:
        if len(chunks) == 1:
            raise error
        stored = set(range(place))
        for later in range(place + 1, len(answers)):  # what is under way may still succeed
            try:
                answers[later].get()
            except MainspringError:
                continue
            stored.add(later)
        done = [job.id for number, chunk in enumerate(chunks) if number in stored for job in chunk]
        failed = [job.id for number, chunk in enumerate(chunks) if number not in stored for job in chunk]
        raise PartialSubmit(done=done, failed=failed, cause=str(error)) from error

    def _make(
        self, handler: Handler, options: SubmitOptions, positional: tuple[Any, ...], named: Mapping[str, Any]
    ) -> NewJob:
        payload = handler.arguments.encode(positional, named)
        self.check_size(handler.name, payload)
        now = self._engine.now()
        job_id = options.id or self._ids.make(now)[0]
        return NewJob(
            id=job_id,
            type=handler.name,
            queue=options.queue or handler.options.queue,
            priority=handler.options.priority if options.priority is None else options.priority,
            due=options.due(now),
            payload=payload,
            codec=handler.arguments.codec,
        )

    def _make_many(self, handler: Handler, options: SubmitOptions, payloads: list[bytes]) -> list[NewJob]:
        now = self._engine.now()
        due = options.due(now)
        queue = options.queue or handler.options.queue
        priority = int(handler.options.priority if options.priority is None else options.priority)
        codec = handler.arguments.codec
        ids = self._ids.make(now, len(payloads))
        return [
            NewJob(job_id, handler.name, queue, priority, due, payload, codec)
            for job_id, payload in zip(ids, payloads, strict=True)
        ]

    def check_size(self, handler: str, payload: bytes) -> None:
        """Refuse arguments that are too large."""
        if len(payload) > self._max_payload:
            raise ArgumentsTooLarge(handler=handler, size=len(payload), limit=self._max_payload)

    def new_id(self) -> str:
        """Make an id."""
        return self._ids.make(self._engine.now())[0]


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


def _require_stored(answers: list[str | None]) -> None:
    if answers[0] is not None:
        raise DuplicateJob(existing_id=answers[0])


def _nothing() -> None:
    return None
