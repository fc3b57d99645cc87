"""The dead-letter handlers that an application declares: a worker stores them when it starts.

Storing them takes one read, and no write if nothing has changed. They are stored because any worker may give a job
up, also one of another application or version. A handler whose function was removed from the code stays in the
store, because another version of the code may still have it; `app.dead_letters.remove_handler` deletes it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec.structs import replace

from mainspring.errors import InvalidArguments
from mainspring.jobs.arguments import plain_function
from mainspring.jobs.commands import DropDeadLetterHandler, PutDeadLetterHandler
from mainspring.jobs.dead_letter_jobs import DeadLetter, DeadLetterHandler
from mainspring.jobs.handlers import Handler, HandlerRegistry
from mainspring.jobs.job_function import JobFunction
from mainspring.jobs.manager import JobManager
from mainspring.jobs.serializers import JsonSerializer

_START = datetime(1970, 1, 1, tzinfo=UTC)
_SAMPLE = DeadLetter(
    id="sample",
    type="sample",
    queue="default",
    error="ValueError: no",
    created=_START,
    due=_START,
    finished=_START,
    starts=1,
    failures=1,
    timeouts=0,
    crashes=0,
    interruptions=0,
    headers={},
)

logger = logging.getLogger("mainspring.worker")


class DeadLetterHandlers:
    """The dead-letter handlers that the code of this process declares with `@app.on_dead_letter`."""

    def __init__(self, registry: HandlerRegistry) -> None:
        self._registry = registry
        self._declared: dict[str, tuple[JobFunction[Any, Any], bool]] = {}

    def add(self, job: JobFunction[Any, Any]) -> None:
        """Declare a dead-letter handler; `store` stores it.

        Raises `TypeError` if its parameters cannot take a dead letter, `ValueError` if it has a limit with a key.
        """
        passes_id = _require_parameter(job.handler)
        _describe(job, passes_id=passes_id)
        self._declared[job.name] = (job, passes_id)

    def store(self, manager: JobManager) -> None:
        """Store the declared dead-letter handlers, and delete stored ones that this process no longer declares.

        A stored handler is deleted only if this process has its function, but not as a dead-letter handler. For a
        stored handler whose function this process does not have, a warning is logged.
        """
        found = {handler.type: handler for handler in manager.engine.dead_letter_handlers()}
        declared = [
            _signed(_describe(job, passes_id=passes_id), found.get(job.name), manager)
            for job, passes_id in self._declared.values()
        ]
        dropped = [name for name in found if name in self._registry and name not in self._declared]
        manager.arrange(
            [
                *(PutDeadLetterHandler(handler) for handler in declared if found.get(handler.type) != handler),
                *(DropDeadLetterHandler(name) for name in dropped),
            ]
        )
        _warn_of_unknown([name for name in found if name not in self._registry])


def _signed(
    handler: DeadLetterHandler, stored: DeadLetterHandler | None, manager: JobManager
) -> DeadLetterHandler:
    """Return a handler with a signature: the stored handler, if it is equal and rightly signed, else a newly
    signed one.

    Without a signer, return the handler as it is.
    """
    signer = manager.signer
    if signer is None:
        return handler
    same = None if stored is None else replace(handler, signature=stored.signature)
    if same is not None and same == stored and not signer.must_sign_handler(stored):
        return stored
    return signer.sign_handler(handler)


def _warn_of_unknown(names: Sequence[str]) -> None:
    for name in names:
        logger.warning(
            "the store has the dead-letter handler %r, for which each dead letter makes a job, but this worker "
            "does not have it; if you have removed it from the code, call app.dead_letters.remove_handler(%r)",
            name,
            name,
        )


def annotate(function: Callable[..., Any]) -> None:
    """Annotate the first parameter of a function with `DeadLetter`, if it has no annotation."""
    plain = plain_function(function)
    annotations, code = getattr(plain, "__annotations__", None), getattr(plain, "__code__", None)
    if plain is function and annotations is not None and code is not None and code.co_argcount:
        annotations.setdefault(code.co_varnames[0], DeadLetter)


def _require_parameter(handler: Handler) -> bool:
    """Return whether a handler takes the id of a dead letter instead of a `DeadLetter`.

    Raises `TypeError` if it can take neither as its only argument, or if it is a batch handler.
    """
    if handler.options.batch is not None:
        raise TypeError(
            f"handler {handler.name!r} cannot get dead letters, because it has batch={handler.options.batch}; "
            "leave batch= out"
        )
    names, required = handler.arguments.names, handler.arguments.required
    if len(required) > 1 or (required and required[0] != names[0]):
        raise TypeError(f"{_describe_needs(handler)}; its other parameters need defaults")
    if not names:
        return False
    letter, job_id = _decode(handler, _SAMPLE), _decode(handler, _SAMPLE.id)
    if isinstance(letter, DeadLetter) or (letter is None and isinstance(job_id, str)):
        return letter is None
    raise TypeError(f"{_describe_needs(handler)}; app.get(letter.id) returns its JobInfo")


def _describe_needs(handler: Handler) -> str:
    return (
        f"a handler of @app.on_dead_letter gets one argument, the dead letter, and {handler.arguments} cannot "
        "take it: annotate its first parameter with mainspring.DeadLetter, or with str for the id"
    )


def _decode(handler: Handler, value: DeadLetter | str) -> Any:
    """Return the argument that a handler would get for this value; None if its signature does not accept the
    value.
    """
    payload = msgspec.json.encode({handler.arguments.names[0]: value})
    try:
        positional, named = handler.arguments.decode(payload, JsonSerializer.name)
    except InvalidArguments:
        return None
    return (*positional, *named.values())[0]


def _describe(job: JobFunction[Any, Any], *, passes_id: bool) -> DeadLetterHandler:
    plan = job.follow_up()
    for family, names in plan.limits:
        if names:
            raise ValueError(
                f"handler {job.name!r} cannot get dead letters: its limit {family!r} is by {', '.join(names)}, "
                "and the engine that makes its jobs does not know its parameters; leave by= out"
            )
    return DeadLetterHandler(plan, job.handler.options.aliases, passes_id)
