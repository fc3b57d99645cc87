"""Queries on a read-only connection: lists and counts of jobs, queues, workers and the backlog."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import apsw
from msgspec.structs import replace

from mainspring.engines.sqlite import statements as sql
from mainspring.engines.sqlite.codec import (
    CODES,
    RAW_RECORD_COLUMNS,
    RECORD_COLUMNS,
    STATUSES,
    UNREADABLE,
    decode_numbers,
    decode_terms,
    drop_unreadable,
    strings,
    to_json,
    to_record,
)
from mainspring.engines.sqlite.schema import DECLARED_DEAD
from mainspring.jobs import transitions
from mainspring.jobs.backlog import Backlog
from mainspring.jobs.records import (
    JobRecord,
    Page,
    Query,
    RunningLease,
    SearchTerm,
    WorkerInfo,
    WorkerRecord,
    invalid_cursor,
    to_place,
)
from mainspring.jobs.status import JobStatus


def find(connection: apsw.Connection, query: Query) -> Page:
    """Return a page of jobs in the order of submission, or of failure with `by_failure`.

    With `newest_first`, the order is reversed. A query with ids returns all jobs that match it, on one page.
    """
    if query.ids is not None:
        rows, records = _read(connection, *statement_of(query))
        return Page(records, None)
    if query.created_since is None and query.created_until is None:
        rows, records = _read(connection, *statement_of(query))
    else:
        with connection:  # all statements see the same jobs
            first, last = _seqs_between(connection, query.created_since, query.created_until)
            rows, records = _read(connection, *statement_of(query, first=first, last=last))
    is_more = len(rows) > query.limit
    if is_more:
        del rows[query.limit :], records[query.limit :]
    positions = tuple(str(row[-1]) for row in rows)
    if query.by_failure:
        positions = tuple(f"{record.finished}.{seq}" for record, seq in zip(records, positions, strict=True))
    return Page(records, positions[-1] if is_more else None, positions)


def _read(
    connection: apsw.Connection, statement: str, bindings: dict[str, Any]
) -> tuple[list[Any], list[JobRecord]]:
    """Return rows and their records. Headers and follow-up jobs that cannot be read are left out of the records.

    Another program may have spoiled a row. Such a row must not hide the other jobs of a list, nor keep a worker
    from starting; a worker that claims the job makes it a dead letter.
    """
    try:
        rows: list[Any] = connection.execute(statement, bindings).fetchall()
        return rows, [to_record(row) for row in rows]
    except UNREADABLE:
        rows = connection.execute(statement.replace(RECORD_COLUMNS, RAW_RECORD_COLUMNS), bindings).fetchall()
        return rows, [to_record(drop_unreadable(row)) for row in rows]


def _seqs_between(
    connection: apsw.Connection, since: int | None, until: int | None
) -> tuple[int | None, int | None]:
    """Return bounds of the seqs of the jobs that were submitted from `since` on and before `until`.

    The bounds are the first and the last seq that such a job can have; None for no bound.
    """
    first = None if since is None else _first_submitted(connection, since)
    return first, None if until is None else _first_submitted(connection, until) - 1


def _first_submitted(connection: apsw.Connection, since: int) -> int:
    """Return the seq from which on jobs were submitted at an instant or later, by a binary search; 0 without jobs.

    The search relies on the order of submission. If the clock was set back, jobs of the time that occurred twice
    may be missing from a list by time.
    """
    low, last = connection.execute(sql.FIRST_AND_LAST_SEQ).get
    if low is None:
        return 0
    high: int = last + 1
    while low < high:
        middle = (low + high) // 2
        seq, created = connection.execute(sql.FIRST_JOB_FROM, (middle,)).get
        if created < since:
            low = seq + 1
        else:
            high = middle
    return int(low)


def statement_of(query: Query, *, first: int | None = None, last: int | None = None) -> tuple[str, dict[str, Any]]:
    """Return the SQL statement for a page of a query, with its bindings.

    The statement reads one job more than the page has. For a query with ids, it reads all jobs that match.

    `first` and `last` are the bounds of `seq` that follow from the times of the query; None for no bound.
    """
    bindings: dict[str, Any] = {}
    conditions = _conditions(query, bindings)
    places = _places(query, first, last, bindings)
    lanes = _lanes_of(query, bindings)
    direction = _direction(query)
    order = f"j.seq {direction}"
    if query.ids is not None:
        bindings["ids"] = to_json(query.ids)
        conditions = [sql.WITH_IDS, *_states_and_lanes(query.status, lanes, bindings), *conditions]
        return sql.FIND.format(conditions=_all(conditions), order=order), bindings
    bindings["limit"] = query.limit + 1
    if query.by_failure:
        conditions = [f"j.seq IN ({_failed(query, lanes, conditions, bindings)})"]
        order = f"j.finished {direction}, j.seq {direction}"
    elif query.status is not None or lanes or query.search:
        chosen = _choices(query, lanes, conditions, places, bindings)
        conditions = [f"j.seq IN (SELECT seq FROM ({chosen}) ORDER BY seq {direction} LIMIT :limit)"]
    else:
        conditions += [place.format("j.seq") for place in places]
    return sql.FIND.format(conditions=_all(conditions), order=order) + " LIMIT :limit", bindings


def _lanes_of(query: Query, bindings: dict[str, Any]) -> list[str]:
    """Return the SQL conditions of a query on the table `lanes`, and add their values to `bindings`.

    The conditions are about queues, job types, and whether jobs are in sequences or under limits.
    """
    lanes = _lane_conditions(query.queue, query.type, bindings)
    for name, allowed in (("type", query.types), ("queue", query.queues)):
        if allowed is not None:
            lanes.append(f"w.{name} IN (SELECT value FROM json_each(:{name}s))")
            bindings[f"{name}s"] = to_json(allowed)
    if query.is_bound is not None:
        lanes.append(f"w.exact = {int(query.is_bound)}")  # jobs with a sequence or limits have lanes of their own
    return lanes


def count_up_to(connection: apsw.Connection, query: Query, most: int) -> int:
    """Count the jobs that match a query, at most `most`.

    The fields `ids`, `search`, `limit` and `after` of the query are ignored.
    """
    with connection:  # all statements see the same jobs
        first, last = _seqs_between(connection, query.created_since, query.created_until)
        found: int = connection.execute(*statement_of_bounded_count(query, most, first=first, last=last)).get
    return found


def statement_of_bounded_count(
    query: Query, most: int, *, first: int | None = None, last: int | None = None
) -> tuple[str, dict[str, Any]]:
    """Return the statement that counts the jobs of a query and stops at `most`, with its bindings.

    The `ids`, `search`, `limit` and `after` of the query are ignored.
    """
    bindings: dict[str, Any] = {"most": most}
    bindings["states"] = to_json(sorted(CODES.values()) if query.status is None else [CODES[query.status]])
    unplaced = replace(query, after=None, ids=None)
    places = [place.format("j.seq") for place in _places(unplaced, first, last, bindings)]
    conditions = [*_lanes_of(query, bindings), *places, *_conditions(query, bindings)]
    return sql.COUNT_UP_TO.format(conditions=_all(conditions)), bindings


def _choices(
    query: Query,
    lanes: list[str],
    conditions: list[str],
    places: list[str],
    bindings: dict[str, Any],
) -> str:
    """Return a SELECT of the `seq` of the jobs that may be on the page of a query.

    Jobs of a lane (queue, type, priority and search parameters) are found by the index of the first search term
    whose parameter is among those of the lane. The jobs of other lanes are read one by one.
    """
    direction = _direction(query)
    bindings["states"] = to_json(sorted(CODES.values()) if query.status is None else [CODES[query.status]])
    selects: list[str] = []
    others = list(lanes)
    on_index = [*conditions, *(place.format("s.seq") for place in places)]
    if query.status is not None:
        on_index.append(f"j.status = {CODES[query.status]}")
    for number, term in enumerate(query.search):
        bindings[f"parameter{number}"] = f",{term.name},"
        bindings |= {f"key{number}_{place}": key for place, key in enumerate(term.keys)}
    for number, term in enumerate(query.search):
        is_indexed = f"instr(w.search, :parameter{number})"
        also = [_has_key(later, query.search[later]) for later in range(number + 1, len(query.search))]
        selects += [
            sql.FIRST_WITH_KEY.format(
                key=f"key{number}_{place}",
                lanes=_all([*others, is_indexed]),
                conditions=_all(on_index + also),
                direction=direction,
            )
            for place in range(len(term.keys))
        ]
        others.append(f"NOT {is_indexed}")
    in_lanes = [*conditions, *(place.format("j.seq") for place in places)]
    selects.append(sql.FIRST_OF_LANES.format(conditions=_all(in_lanes), direction=direction, lanes=_all(others)))
    return " UNION ALL ".join(f"SELECT seq FROM ({select})" for select in selects)


def _has_key(number: int, term: SearchTerm) -> str:
    """Return the SQL condition that a job has a key of a term, or that jobs of its lane (queue, type, priority)
    are not indexed by the term's parameter.
    """
    keys = ", ".join(f":key{number}_{place}" for place in range(len(term.keys)))
    has_key = f"EXISTS (SELECT 1 FROM search AS x WHERE x.key IN ({keys}) AND x.seq = s.seq)"
    return f"(NOT instr(w.search, :parameter{number}) OR {has_key})"


def _failed(query: Query, lanes: list[str], conditions: list[str], bindings: dict[str, Any]) -> str:
    """Return a SELECT of the `seq` of one page of FAILED jobs, in the order of their failure.

    The earliest failure is first; with `newest_first`, the latest. Raises `ValueError` if the query is for another
    status, or has search terms.
    """
    if query.status is not JobStatus.FAILED or query.search:
        raise ValueError(f"by_failure needs the status FAILED and no search, got {query!r}")
    if query.after is not None:
        bindings["finished"], bindings["after"] = _to_failure(query.after)
        sign = "<" if query.newest_first else ">"
        conditions = [*conditions, f"(j.finished, j.seq) {sign} (:finished, :after)"]
    return sql.FIRST_FAILED_OF_LANES.format(
        conditions=_all(conditions), direction=_direction(query), lanes=_all(lanes)
    )


def count(connection: apsw.Connection, *, queue: str | None, type_: str | None) -> dict[JobStatus, int]:
    """Count jobs by status. FAILED counts only jobs that were not replayed."""
    with connection:  # both statements see the same jobs
        counts = count_all(connection, queue=queue, type_=type_)
        if counts[JobStatus.FAILED]:
            counts[JobStatus.FAILED] -= connection.execute(*statement_of_replayed(queue, type_)).get
    return counts


def count_all(connection: apsw.Connection, *, queue: str | None, type_: str | None) -> dict[JobStatus, int]:
    """Count jobs by status. FAILED includes the jobs that were replayed."""
    rows: list[Any] = connection.execute(*statement_of_counts(queue, type_)).fetchall()
    found = dict(rows)
    return {status: found.get(code, 0) for code, status in enumerate(STATUSES)}


def count_pending(connection: apsw.Connection, queue: str) -> int:
    """Count the PENDING jobs of a queue, those that are due later included."""
    pending: int = connection.execute(sql.COUNT_PENDING, (queue,)).get
    return pending


def read_workers(connection: apsw.Connection, is_dead: Callable[[int], bool]) -> list[WorkerRecord]:
    """List the workers, also dead ones, with `is_gone` for those that were declared dead or that `is_dead` names.

    `is_dead` is called with the number of a worker.
    """
    rows: list[Any] = connection.execute(sql.WORKERS).fetchall()
    return [
        WorkerRecord(
            number,
            WorkerInfo(
                name,
                process,
                tuple(strings(types)),
                None if queues is None else tuple(strings(queues)),
                decode_numbers(timeouts or "{}"),
                decode_numbers(slots or "{}"),
                version or "",
                None if remote is None else decode_terms(remote),
            ),
            heartbeat,
            is_gone=heartbeat == DECLARED_DEAD or (remote is None and is_dead(number)),  # a remote one has no lock
        )
        for number, name, process, types, queues, timeouts, slots, version, heartbeat, remote in rows
    ]


def read_leased(connection: apsw.Connection, worker: int) -> list[RunningLease]:
    """List the leases of the jobs that a worker is running, with their starts and stop requests."""
    rows: list[Any] = connection.execute(sql.LEASED, (worker,)).fetchall()
    found: list[RunningLease] = []
    for once, stop, *row in rows:
        record = to_record(row)
        lease = transitions.lease_of(record, row[-1], is_started=True, at_most_once=once is not None)
        started = record.started or record.due
        found.append(RunningLease(lease, started, None if stop is None else max(stop, started)))
    return found


def read_backlog(connection: apsw.Connection, now: int) -> list[Backlog]:
    """Count the due jobs that wait for a worker, for each queue and job type, including those of paused queues."""
    rows: list[Any] = connection.execute(sql.BACKLOG, (now,)).fetchall()
    return [Backlog(*row) for row in rows]


def statement_of_counts(queue: str | None, type_: str | None) -> tuple[str, dict[str, Any]]:
    """Return a statement, and its bindings, that counts jobs by status. A queue or type of None means all."""
    bindings: dict[str, Any] = {}
    lanes = _lane_conditions(queue, type_, bindings)
    return sql.COUNTS.format(lanes=_in_lanes("lane", lanes) if lanes else "true"), bindings


def statement_of_replayed(queue: str | None, type_: str | None) -> tuple[str, dict[str, Any]]:
    """Return a statement, and its bindings, that counts the replayed FAILED jobs.

    A queue or type of None means all.
    """
    bindings: dict[str, Any] = {}
    return sql.COUNT_REPLAYED.format(lanes=_all(_lane_conditions(queue, type_, bindings))), bindings


def find_queues(connection: apsw.Connection) -> tuple[str, ...]:
    """List the queues that have jobs.

    The table `lanes` is not enough, because a row there (queue, type and priority) remains when its jobs are
    deleted.
    """
    return tuple(sorted(strings(connection.execute(sql.QUEUES).get)))


def _conditions(query: Query, bindings: dict[str, Any]) -> list[str]:
    """Return the conditions of a query on replay, limits, due time and time of submission, as SQL.

    The values of the conditions are added to `bindings`.
    """
    conditions = []
    if query.is_replayed is not None:
        conditions.append(f"j.replayed_as IS {'NOT ' if query.is_replayed else ''}NULL")
    if query.is_limited is not None:
        conditions.append(f"j.grp IS {'NOT ' if query.is_limited else ''}NULL")
    if query.due_until is not None:
        conditions.append("j.due <= :due_until")
        bindings["due_until"] = query.due_until
    if query.created_since is not None:
        conditions.append("j.created >= :created_since")
        bindings["created_since"] = query.created_since
    if query.created_until is not None:
        conditions.append("j.created < :created_until")
        bindings["created_until"] = query.created_until
    return conditions


def _places(query: Query, first: int | None, last: int | None, bindings: dict[str, Any]) -> list[str]:
    """Return the SQL conditions on the place of a job in the order of submission, with `{}` for the column.

    The values of the conditions are added to `bindings`. The cursor of a query with ids, or in the order of
    failure, is left out.
    """
    is_unused = query.after is None or query.ids is not None or query.by_failure
    after = None if is_unused or query.after is None else to_place(query.after)
    given = {"first": first, "last": last, "after": after}
    signs = {"first": ">=", "last": "<=", "after": "<" if query.newest_first else ">"}
    bounds = {name: seq for name, seq in given.items() if seq is not None}
    bindings.update(bounds)
    return [f"{{}} {signs[name]} :{name}" for name in bounds]


def _states_and_lanes(status: JobStatus | None, lanes: list[str], bindings: dict[str, Any]) -> list[str]:
    conditions = [_in_lanes("j.lane", lanes)] if lanes else []
    if status is not None:
        conditions.append("j.status = :status")
        bindings["status"] = CODES[status]
    return conditions


def _lane_conditions(queue: str | None, type_: str | None, bindings: dict[str, Any]) -> list[str]:
    wanted = {name: value for name, value in (("queue", queue), ("type", type_)) if value is not None}
    bindings.update(wanted)
    return [f"w.{name} = :{name}" for name in wanted]


def _in_lanes(column: str, lanes: list[str]) -> str:
    return f"{column} IN (SELECT w.id FROM lanes AS w WHERE {_all(lanes)})"


def _direction(query: Query) -> str:
    return "DESC" if query.newest_first else "ASC"


def _all(conditions: list[str]) -> str:
    return " AND ".join(conditions) or "true"


def _to_failure(cursor: str) -> tuple[int, int]:
    finished, _, seq = cursor.partition(".")
    try:
        return to_place(finished), to_place(seq)
    except ValueError:
        raise invalid_cursor(cursor) from None
