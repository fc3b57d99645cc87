"""The endpoint that submits up to 10,000 jobs at once, as a JSON array or as NDJSON: one job in each line.

Invariants
- All lines are checked, with the rights for each, before the first job is stored. A wrong line is a problem that
  names it, and nothing is stored.
- A line is decoded when it is its turn, and encoded for the store at once: decoded jobs never pile up.
- If some jobs were stored and others were not, the answer is a problem with the ids of those that were.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from io import BytesIO
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta, Struct

from mainspring.errors import DuplicateJob, MainspringError
from mainspring.jobs.handle import open_manager
from mainspring.jobs.manager import JobManager
from mainspring.jobs.policies import Unique
from mainspring.jobs.submission import MixedSubmit, PreparedJob
from mainspring.jobs.submit_options import SubmitOptions
from mainspring.plurals import format_count
from mainspring.security.permissions import Scope
from mainspring.web.api.decoding import decode_beside, decode_json, invalid_value
from mainspring.web.api.endpoint import CREATED, JSON, NDJSON, AnswerType, ApiAnswer, ApiCall, Endpoint
from mainspring.web.api.job_views import EXAMPLE_ID
from mainspring.web.api.submitting import HIDDEN_DUPLICATE, PROBLEMS, NewJobBody, to_call, unknown_ids
from mainspring.web.problems import TYPE_PREFIX, Problem, Refused, problem_of, refuse

if TYPE_CHECKING:
    from mainspring.app import Mainspring

Line: TypeAlias = tuple[int, bytes | msgspec.Raw]
"""The number of a line or an array element, counted from 1, and its JSON, which is not decoded yet."""


class BatchQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The query parameters of a batch of jobs."""

    atomic: Annotated[
        bool, Meta(description="Store all jobs or none. SQLite can; jobs must not have ids of their own then.")
    ] = False


class BatchView(Struct, frozen=True, kw_only=True):
    """The answer to a batch whose jobs are all stored."""

    ids: Annotated[list[str], Meta(description="The ids of the jobs, in the order of the lines.")]
    stored: Annotated[int, Meta(description="How many jobs are new.")]
    existing: Annotated[
        list[int], Meta(description="The lines, from 1, whose unique key another job has: `ids` has its id.")
    ]


class BatchEndpoints:
    """The endpoint that submits many jobs at once."""

    async def submit(self, call: ApiCall[None, BatchQuery]) -> ApiAnswer:
        """Submit the jobs of a body, and answer their ids.

        Raises `Refused` and stores nothing if a job is wrong, or if there are no jobs, too many, or more than the
        rate of the caller admits. Also raises `Refused` if the store did not take all jobs: some may be stored
        then, and the problem has their ids.
        """
        manager = await open_manager(call.app)
        kind = call.request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
        split = _items if kind == JSON else partial(_lines, most=call.limits.max_batch)
        lines = await decode_beside(call.app.off_loop, split, call.raw)
        _check_number(len(lines), call.limits.max_batch)
        call.meter.count(len(lines))
        result = await call.app.off_loop.write(_submit, call, manager, lines)
        numbers = [number for number, _ in lines]
        hidden = await call.app.off_loop.read(_hide_unknown, call, manager, result)
        if result.failed or hidden:
            raise Refused(_failure(result, hidden, numbers))
        existing = sorted(numbers[place] for place in result.existing)
        ids = [job_id for job_id in result.ids if job_id is not None]
        content = BatchView(ids=ids, stored=len(ids) - len(existing), existing=existing)
        return ApiAnswer(status=CREATED, content=content)


def _check_number(number: int, limit: int) -> None:
    if number > limit:
        raise refuse(
            413,
            "batch-too-large",
            f"the batch has {number:,} jobs or more, the limit is {limit:,}; send several batches",
        )
    if not number:
        raise refuse(422, "invalid-body", "the batch has no jobs; send a JSON array of jobs, or one in each line")


def _submit(call: ApiCall[None, BatchQuery], manager: JobManager, lines: Sequence[Line]) -> MixedSubmit:
    is_resumed = call.ids is not None and call.ids.is_resumed
    prepared = _prepare(call, manager, lines)
    return manager.submission.submit_mixed(prepared, atomic=call.query.atomic, is_resumed=is_resumed)


def _prepare(call: ApiCall[None, BatchQuery], manager: JobManager, lines: Sequence[Line]) -> Iterator[PreparedJob]:
    now = manager.engine.now()
    # each line has an id of its own, whether it uses it or not
    ids: Sequence[str | None] = [None] * len(lines) if call.ids is None else call.ids.take(len(lines))
    for (number, line), own_id in zip(lines, ids, strict=True):
        try:
            body = decode_json(line, NewJobBody, what=f"line {number}", max_depth=call.limits.max_depth)
            job_call = to_call(call.app, call.identity, body, now, call.limits)
            if call.query.atomic:
                is_restricted = call.identity.permissions.queues is not None
                _require_independent(
                    job_call.options, job_call.handler.options.unique, is_restricted=is_restricted
                )
            job = manager.submission.prepare(job_call, own_id)
        except Refused as refused:
            raise Refused(_at_line(refused.problem, number)) from None
        except MainspringError as error:
            raise Refused(_at_line(problem_of(error), number)) from error
        yield job


def _lines(raw: bytes, most: int) -> list[Line]:
    """Return the lines of an NDJSON body that are not blank, with their numbers from 1; at most `most` and one."""
    filled = ((number, line) for number, line in enumerate(BytesIO(raw), 1) if line.strip())
    return list(islice(filled, most + 1))


def _items(raw: bytes) -> list[Line]:
    """Return the elements of a JSON array, with their numbers from 1. They are not decoded yet."""
    return list(enumerate(decode_json(raw, list[msgspec.Raw], checks_depth=False), 1))


def _hide_unknown(call: ApiCall[None, BatchQuery], manager: JobManager, result: MixedSubmit) -> set[int]:
    """Remove existing jobs that the caller may not see from a result; return their places in the batch, from 0.

    In `result`, these places then have no id, and are neither existing nor failed.
    """
    existing = {place: result.ids[place] or "" for place in result.existing}
    existing |= {
        place: error.existing_id
        for place, error in result.failed.items()
        if isinstance(error, DuplicateJob) and error.key is not None  # otherwise it is the id that was sent
    }
    unknown = unknown_ids(manager, call.identity, existing.values())
    hidden = {place for place, job_id in existing.items() if job_id in unknown}
    for place in hidden:
        result.ids[place] = None
        result.existing.discard(place)
        result.failed.pop(place, None)
    return hidden


def _require_independent(options: SubmitOptions, own: Unique | str | None, *, is_restricted: bool) -> None:
    """Raise `Refused` for a job of an atomic batch that another job could make fail: by its id or unique key.

    `own` is the `unique` option of the handler. `is_restricted` is whether the token may use certain queues only.
    """
    unique = options.unique or own
    if unique is not None and is_restricted:
        raise invalid_value(
            "a job of an atomic batch cannot have a unique key if the token is restricted to queues, because a "
            "job of another queue may have this key; leave atomic out, or use a token without --queue"
        )
    if options.id is not None:
        raise invalid_value("a job of an atomic batch cannot have an id; leave id out, or atomic")
    if isinstance(unique, Unique) and unique.on_conflict == "raise":
        raise invalid_value(
            "a job of an atomic batch cannot have on_conflict 'raise'; use 'return', or leave atomic out"
        )


def _at_line(problem: Problem, number: int) -> Problem:
    prefix = "" if problem.detail.startswith(f"line {number} ") else f"line {number}: "
    detail = f"{prefix}{problem.detail}; no job of this batch was stored"
    return replace(problem, detail=detail, members={**problem.members, "line": number})


def _failure(result: MixedSubmit, hidden: Iterable[int], numbers: Sequence[int]) -> Problem:
    """Return the problem that answers a batch if some of its jobs, or all, were not stored.

    `hidden` are the indices in the batch, from 0, of jobs whose unique key belongs to a job that the caller may
    not see. `numbers` are the line numbers of all jobs.
    """
    found = {place: problem_of(error) for place, error in result.failed.items()}
    found.update(dict.fromkeys(hidden, HIDDEN_DUPLICATE))
    problems = {numbers[place]: found[place] for place in sorted(found)}
    first, problem = next(iter(problems.items()))
    stored = len(result.ids) - len(problems)
    failed = [
        {"line": line, "type": f"{TYPE_PREFIX}{each.type}", "detail": each.detail}
        for line, each in problems.items()
    ]
    detail = (
        f"{format_count(stored, 'job')} of this batch {_were(stored)} stored, and {len(failed):,} "
        f"{_were(len(failed))} not, the first in line {first}: {problem.detail}; `failed` lists all of them"
    )
    members: dict[str, Any] = {"line": first, "stored": stored, "ids": result.ids, "failed": failed}
    return replace(problem, detail=detail, members={**problem.members, **members})


def _were(count: int) -> str:
    return "was" if count == 1 else "were"


def endpoints(_app: Mainspring) -> list[Endpoint]:
    """Return the declaration of the endpoint that submits batches."""
    return [
        Endpoint(
            name="submit_jobs",
            method="POST",
            path="/jobs/batch",
            subject="jobs",
            summary="Submit up to 10,000 jobs.",
            description=(
                "The body is a JSON array of jobs, or NDJSON with one job in each line. All jobs are checked "
                "before the first one is stored; a problem has the number of the wrong line, from 1, in `line`. "
                "If only some jobs were stored, the problem has all `ids`, with null for those that were not, "
                "and the reasons in `failed`."
            ),
            scopes=(Scope.SUBMIT, Scope.CALLBACK),
            serve=BatchEndpoints().submit,
            query=BatchQuery,
            body=list[NewJobBody],
            decodes_body=False,
            media_types=(JSON, NDJSON),
            body_examples={
                "two jobs": [
                    {"type": "shop.cancel_order", "arguments": {"order_id": 42}, "delay": 1800},
                    {"type": "shop.cancel_order", "arguments": {"order_id": 43}, "delay": 1800},
                ]
            },
            answers={
                CREATED: AnswerType(
                    type=BatchView,
                    description="All jobs are stored.",
                    example={"ids": [EXAMPLE_ID, EXAMPLE_ID[:-1] + "4"], "stored": 2, "existing": []},
                )
            },
            problems=(*PROBLEMS, "batch-too-large"),
        )
    ]
