"""Queries: lists and counts, on a connection that only reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import apsw

from mainspring.engines.sqlite import statements as sql
from mainspring.engines.sqlite.rows import CODES, STATUSES, strings, to_json, to_record
from mainspring.jobs.engine import Backlog, Page, Query, WorkerInfo, WorkerState
from mainspring.jobs.status import JobStatus
from mainspring.jobs.working.vigil import DECLARED_DEAD


def find(connection: apsw.Connection, query: Query) -> Page:
    """List jobs in the order of their submission."""
    conditions, bindings = _conditions(query)
    statement = sql.FIND.format(conditions=" AND ".join(conditions) or "true")
    if query.ids is None:
        statement += f" LIMIT {int(query.limit) + 1}"
    rows: list[Any] = connection.execute(statement, bindings).fetchall()
    is_more = query.ids is None and len(rows) > query.limit
    rows = rows[: query.limit] if is_more else rows
    return Page([to_record(row) for row in rows], str(rows[-1][-1]) if is_more else None)


def count(connection: apsw.Connection, *, queue: str | None, type_: str | None) -> dict[JobStatus, int]:
    """Count jobs by state."""
    conditions, bindings = _lane_condition(queue, type_)
    statement = sql.COUNTS.format(conditions=f"WHERE {conditions[0]}" if conditions else "")
    rows: list[Any] = connection.execute(statement, bindings).fetchall()
    found = dict(rows)
    return {status: found.get(code, 0) for code, status in enumerate(STATUSES)}


def read_workers(connection: apsw.Connection, is_dead: Callable[[int], bool]) -> list[WorkerState]:
    """List the workers; `is_dead` knows more of them than the file."""
    rows: list[Any] = connection.execute(sql.WORKERS).fetchall()
    return [
        WorkerState(
            number,
            WorkerInfo(name, process, tuple(strings(types))),
            heartbeat,
            is_gone=heartbeat == DECLARED_DEAD or is_dead(number),
        )
        for number, name, process, types, heartbeat in rows
    ]


def read_backlog(connection: apsw.Connection, now: int) -> list[Backlog]:
    """List what waits for a worker."""
    rows: list[Any] = connection.execute(sql.BACKLOG, (now,)).fetchall()
    return [Backlog(*row) for row in rows]


def _conditions(query: Query) -> tuple[list[str], dict[str, Any]]:
    conditions, bindings = _lane_condition(query.queue, query.type, prefix="j.")
    if query.status is not None:
        conditions.append("j.status = :status")
        bindings["status"] = CODES[query.status]
    if query.ids is not None:
        conditions.append("j.id IN (SELECT value FROM json_each(:ids))")
        bindings["ids"] = to_json(query.ids)
    if query.is_replayed is not None:
        conditions.append(f"j.replayed_as IS {'NOT ' if query.is_replayed else ''}NULL")
    if query.is_limited is not None:
        conditions.append(f"j.grp IS {'NOT ' if query.is_limited else ''}NULL")
    if query.due_until is not None:
        conditions.append("j.due <= :due_until")
        bindings["due_until"] = query.due_until
    if query.after is not None:
        conditions.append("j.seq > :after")
        bindings["after"] = _to_place(query.after)
    return conditions, bindings


def _lane_condition(queue: str | None, type_: str | None, prefix: str = "") -> tuple[list[str], dict[str, Any]]:
    wanted = {name: value for name, value in (("queue", queue), ("type", type_)) if value is not None}
    if not wanted:
        return [], {}
    terms = " AND ".join(f"{name} = :{name}" for name in wanted)
    return [f"{prefix}lane IN (SELECT id FROM lanes WHERE {terms})"], dict(wanted)


def _to_place(cursor: str) -> int:
    try:
        return int(cursor)
    except ValueError:
        raise ValueError(f"after must be the `next` of an earlier page, got {cursor!r}") from None
