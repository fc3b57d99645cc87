"""What a handler's policies and a submit's options make of a job: keys, limits, expiry, what follows it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

from msgspec.structs import replace

from mainspring.jobs.context import current_headers
from mainspring.jobs.handlers import Handler
from mainspring.jobs.ids import MAX_ID_LENGTH
from mainspring.jobs.instants import LAST_INSTANT, to_microseconds
from mainspring.jobs.limit_book import LimitBook
from mainspring.jobs.policies import Unique, names_of
from mainspring.jobs.records import FollowUp, NewJob, UniqueKey
from mainspring.jobs.submit_options import SubmitOptions


class Shape:
    """What all jobs of one submit have in common; `job` makes one of them."""

    def __init__(self, handler: Handler, options: SubmitOptions, book: LimitBook, now: int) -> None:
        own = handler.options
        self._handler = handler
        self._options = options
        self.now = now
        self.due = options.due(now)
        self.queue = options.queue or own.queue
        self.priority = int(own.priority if options.priority is None else options.priority)
        self._families = book.families(handler, self.queue)
        self.unique: Unique | None = options.unique or own.unique  # type: ignore[assignment]
        ambient = current_headers()
        self.headers: dict[str, str] = {**ambient, **(options.headers or {})} if ambient or options.headers else {}
        then = options.then or own.then
        self._follow_up = None if then is None else then.follow_up()
        expires = handler.expires if options.expires is None else options.expires
        self._expires = None if expires is None else min(LAST_INSTANT, self.due + expires)
        self._steps_aside = own.steps_aside if options.steps_aside is None else options.steps_aside
        policies = (self.unique, self._follow_up, self._expires, options.sequence)
        self._is_plain = not self._families and not handler.sequence_by and policies == (None, None, None, None)

    @property
    def needs_arguments(self) -> bool:
        """Whether something depends on the arguments of each job."""
        return self.unique is not None or bool(self._families) or self._is_keyed

    def job(self, job_id: str, payload: bytes, given: Mapping[str, Any]) -> NewJob:
        """Make a job; `given` may be empty if nothing depends on it."""
        handler = self._handler
        if self._is_plain and not self.headers:
            codec = handler.arguments.codec
            return NewJob(job_id, handler.name, self.queue, self.priority, self.due, payload, codec)
        return NewJob(
            job_id,
            handler.name,
            self.queue,
            self.priority,
            self.due,
            payload,
            handler.arguments.codec,
            sequence=self._sequence(given),
            steps_aside=self._steps_aside,
            limits=tuple(family.bucket(handler, given) for family in self._families),
            unique=None if self.unique is None else self._unique_key(self.unique, given),
            expires=self._expires,
            headers=self.headers or None,
            follow_up=self._follow_up,
        )

    def jobs(self, ids: list[str], payloads: list[bytes]) -> list[NewJob]:
        """Make many jobs of which nothing depends on the arguments."""
        model = self.job("", b"", {})
        if not model.is_plain:
            return [
                replace(model, id=job_id, payload=payload) for job_id, payload in zip(ids, payloads, strict=True)
            ]
        kind, queue, priority, due, codec = model.type, model.queue, model.priority, model.due, model.codec
        return [
            NewJob(job_id, kind, queue, priority, due, payload, codec)
            for job_id, payload in zip(ids, payloads, strict=True)
        ]

    @property
    def _is_keyed(self) -> bool:
        return self._options.sequence is None and bool(self._handler.sequence_by)

    def _sequence(self, given: Mapping[str, Any]) -> str | None:
        if not self._is_keyed:
            return self._options.sequence
        return short_key(self._handler.arguments.key(given, self._handler.sequence_by))

    def _unique_key(self, policy: Unique, given: Mapping[str, Any]) -> UniqueKey:
        handler = self._handler
        names = names_of(policy.by)
        parts = [handler.name]
        if policy.key is not None:
            parts.append(policy.key)
        if names or policy.key is None:
            parts.append(handler.arguments.key(given, names or handler.arguments.names))
        key = short_key(": ".join(parts))
        window = None if policy.window is None else to_microseconds(policy.window, "window")
        return UniqueKey(key, policy.states_in_the_way, window, policy.on_conflict == "replace")


def short_key(key: str) -> str:
    """Cut a key that is too long to be stored, and let a hash tell it from others."""
    return key if len(key) <= MAX_ID_LENGTH else f"{key[:80]}... {sha256(key.encode()).hexdigest()}"


def describe_follow_up(handler: Handler, options: SubmitOptions, book: LimitBook) -> FollowUp:
    """Describe a job that follows another: it gets the result as its argument, if it takes one."""
    own = handler.options
    names = handler.arguments.names
    _require_single(handler, handler.arguments.required)
    _require_possible(handler, options)
    then = options.then or own.then
    queue = options.queue or own.queue
    return FollowUp(
        handler.name,
        queue,
        int(own.priority if options.priority is None else options.priority),
        options.delay or 0,
        names[0] if names else None,
        options.sequence,
        own.steps_aside if options.steps_aside is None else options.steps_aside,
        handler.expires if options.expires is None else options.expires,
        tuple((family.name, family.by) for family in book.families(handler, queue)),
        None if then is None else then.follow_up(),
    )


def _require_possible(handler: Handler, options: SubmitOptions) -> None:
    """Refuse what a job that follows another cannot have."""
    given: dict[str, Any] = {"id": options.id, "at": options.at, "headers": options.headers}
    given["unique"] = options.unique or handler.options.unique
    given["sequence_by"] = handler.options.sequence_by
    for name, value in given.items():
        if value is not None:
            raise ValueError(
                f"{handler.name} cannot follow another job with {name}={value!r}: leave it out, or submit it "
                "yourself at the end of the first one"
            )


def _require_single(handler: Handler, required: Iterable[str]) -> None:
    count = len(tuple(required))
    if count > 1:
        raise TypeError(
            f"{handler.name} cannot follow another job: it has {count} parameters without a default, and gets one "
            "argument, the result of its predecessor"
        )
