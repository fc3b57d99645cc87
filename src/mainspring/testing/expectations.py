"""Compares submitted jobs with the expectation of a test, and describes the differences."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from inspect import Parameter, signature
from typing import Any
from unittest.mock import ANY

from mainspring.clock import Duration
from mainspring.errors import InvalidArguments
from mainspring.jobs.handlers import Handler
from mainspring.jobs.info import JobInfo
from mainspring.jobs.job_function import JobFunction
from mainspring.jobs.records import JobRecord
from mainspring.jobs.serializers import BUILT_IN, JsonSerializer
from mainspring.jobs.submission import JobTemplate
from mainspring.jobs.timestamps import to_datetime, to_instant, to_microseconds


class _Nothing:
    """Stands for an argument that was not given."""

    def __repr__(self) -> str:
        return "not given"


_NOTHING = _Nothing()


class Expectation:
    """The arguments and submit options that a test expects of a job. Options that are not set match any value.

    If the test gives no arguments, any arguments match. Otherwise, arguments left out must have their defaults.
    """

    def __init__(
        self,
        job: JobFunction[..., Any],
        positional: tuple[Any, ...],
        named: Mapping[str, Any],
        *,
        due: datetime | Duration | None,
        within: Duration,
    ) -> None:
        self._job = job
        self._defaults = _defaults_of(job.handler)
        self._given = _bind(job.handler, positional, named) if positional or named else None
        chosen = job.chosen
        self._at = to_instant(due, "due") if isinstance(due, datetime) else chosen.at
        self._delay = chosen.delay if due is None or isinstance(due, datetime) else to_microseconds(due, "due")
        if due is not None and (chosen.at is not None or chosen.delay is not None):
            raise ValueError(f"give due={due!r} or a job with after() or at(), not both")
        self._within = to_microseconds(within, "within")

    def differences(self, record: JobRecord) -> list[str]:
        """Return the differences between a job and the expectation, as texts; empty if it matches."""
        return [*self._in_arguments(record), *self._in_options(record), *self._in_due(record)]

    def _in_arguments(self, record: JobRecord) -> list[str]:
        if self._given is None:
            return []
        plain, typed = _plain_arguments(record), self._typed_arguments(record)
        expected = {**self._defaults, **self._given}
        different: list[str] = []
        for name in self._job.handler.arguments.names:
            wanted = expected.get(name, _NOTHING)
            stored = plain.get(name, self._defaults.get(name, _NOTHING))
            if wanted not in (stored, typed.get(name, stored)) and _plain(wanted) != stored:
                different.append(f"{name} is {stored!r}, not {wanted!r}")
        return different

    def _typed_arguments(self, record: JobRecord) -> dict[str, Any]:
        """Return the arguments as the handler receives them; empty if they no longer match its signature."""
        arguments = self._job.handler.arguments
        try:
            return arguments.bind(*_call(arguments.decode(record.payload, record.codec)))
        except InvalidArguments:
            return {}

    def _in_options(self, record: JobRecord) -> list[str]:
        chosen = self._job.chosen
        wanted: dict[str, Any] = {
            "id": chosen.id,
            "queue": chosen.queue,
            "priority": chosen.priority,
            "sequence": chosen.sequence,
        }
        different = [
            f"{name} is {getattr(record, name)!r}, not {value!r}"
            for name, value in wanted.items()
            if value is not None and getattr(record, name) != value
        ]
        if chosen.unique is not None:
            source, handler = self._job.source, self._job.handler
            template = JobTemplate(handler, chosen, source.limits, record.created)
            unique = template.job(record.id, record.payload, _plain_arguments(record)).unique
            if unique is None or unique.key != record.unique_key:
                different.append(f"unique key is {record.unique_key!r}, not {unique.key if unique else None!r}")
        return different

    def _in_due(self, record: JobRecord) -> list[str]:
        if self._at is not None and abs(record.due - self._at) > self._within:
            return [f"due at {to_datetime(record.due)}, not {to_datetime(self._at)}"]
        after = record.due - record.created
        if self._delay is not None and abs(after - self._delay) > self._within:
            return [f"due {_duration(after)} after its submit, not {_duration(self._delay)}"]
        return []

    # -- as text

    def describe(self, info: JobInfo) -> str:
        """Return a submitted job as one line of text, for the message of a failed assertion."""
        arguments = info.arguments
        call = _listed(arguments) if isinstance(arguments, dict) else repr(arguments)
        parts = [f"queue {info.queue!r}", f"due {info.due.isoformat(sep=' ')}"]
        parts += [] if info.sequence is None else [f"sequence {info.sequence!r}"]
        parts += [] if info.unique_key is None else [f"unique key {info.unique_key!r}"]
        return f"{info.type}({call})  {', '.join(parts)}, {info.status}"

    def __str__(self) -> str:
        call = "any arguments" if self._given is None else _listed(self._given)
        chosen = self._job.chosen
        options = {
            "id": chosen.id,
            "queue": chosen.queue,
            "priority": chosen.priority,
            "sequence": chosen.sequence,
            "unique": chosen.unique,
        }
        parts = [f"{name} {value!r}" for name, value in options.items() if value is not None]
        parts += [] if self._at is None else [f"due {to_datetime(self._at).isoformat(sep=' ')}"]
        parts += [] if self._delay is None else [f"due {_duration(self._delay)} after its submit"]
        return f"{self._job.name}({call})" + (f" with {', '.join(parts)}" if parts else "")


def _bind(handler: Handler, positional: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
    """Bind expected arguments as a submit does; raise `InvalidArguments` for those that a submit would refuse.

    `...` stands for any value.
    """
    given = handler.arguments.bind(positional, named)
    names = handler.arguments.names
    for name in (
        *(n for n in given if n not in names),
        *(n for n in handler.arguments.required if n not in given),
    ):
        raise InvalidArguments(
            handler=handler.name,
            parameter=name,
            problem="it is not given; pass a value, or ... for any value"
            if name in names
            else "there is no such parameter",
            remedy=f"the signature is {handler.arguments}",
        )
    return {name: ANY if value is ... else value for name, value in given.items()}


def _call(decoded: tuple[Any, dict[str, Any]]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    positional, named = decoded
    return tuple(positional), named


def _defaults_of(handler: Handler) -> dict[str, Any]:
    parameters = signature(handler.function).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not Parameter.empty}


def _plain_arguments(record: JobRecord) -> dict[str, Any]:
    arguments = BUILT_IN.decode_any(record.payload, record.codec)
    return arguments if isinstance(arguments, dict) else {}


def _plain(value: Any) -> Any:
    """Return a value as it would be stored.

    For a value that cannot be stored, return an object equal to no other.
    """
    try:
        return BUILT_IN.decode_any(JsonSerializer().encode(value), JsonSerializer.name)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return object()


def _listed(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={'...' if value is ANY else repr(value)}" for name, value in arguments.items())


def _duration(microseconds: int) -> str:
    return str(timedelta(microseconds=microseconds))
