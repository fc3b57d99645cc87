"""Converts between job records and rows of SQLite.

A batch goes into and out of SQLite as one JSON text: one statement, one step and one release of the interpreter's
lock, however many jobs it has. JSON cannot hold blobs, so binary payloads are passed as hexadecimal.

A group is the set of jobs of one lane under the same limits. Its name is the JSON text of its lane and buckets, in
a table with the count of its jobs; deleting the last job deletes the name. Jobs and indexes hold the number of the
group instead, a short hash of the name. The chance that two of a million groups share a number is one in ten
million.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import msgspec

from mainspring.jobs.job_policies import SIGNATURE
from mainspring.jobs.limits import is_fair
from mainspring.jobs.records import (
    KINDS,
    STATUS_AFTER,
    Attempt,
    Cause,
    FollowUp,
    JobRecord,
    Lease,
    NewJob,
    Outcome,
    OutcomeKind,
    Progress,
    RemoteTerms,
)
from mainspring.jobs.serializers import JsonSerializer
from mainspring.jobs.status import JobStatus
from mainspring.jobs.transitions import is_interruption

CACHE_SIZE = 10_000
POSITIVE = 0x7FFF_FFFF_FFFF_FFFF  # the largest INTEGER of SQLite

_parts = msgspec.json.Decoder(tuple[str | int, ...]).decode


@lru_cache(CACHE_SIZE)
def to_group(lane: int, limits: tuple[str, ...]) -> str | None:
    """Return the name of the group of a job; None if the job has no limits.

    The name is made of the number of the job's lane and of the buckets of its limits. A lane is a queue, job type
    and priority; a bucket is the part of a limit for one key; a group has the jobs that are alike in both.
    """
    return msgspec.json.encode((lane, *limits)).decode() if limits else None


@lru_cache(CACHE_SIZE)
def number_of(group: str | None) -> int | None:
    """Return the number of a group (jobs under the same limits), a short hash of its name; None for no group."""
    if group is None:
        return None
    return int.from_bytes(blake2b(group.encode(), digest_size=8).digest(), "big") & POSITIVE


@lru_cache(CACHE_SIZE)
def limits_of(group: str | None) -> tuple[str, ...]:
    """Return the buckets (limit and key) that must admit a job of a group before it starts; none for no group."""
    return () if group is None else _parts(group)[1:]  # type: ignore[return-value]


@lru_cache(CACHE_SIZE)
def takes_turns(group: str) -> bool:
    """Return whether the jobs of a group (under the same limits) start in turn with those of other groups.

    This holds if one of these limits has a key.
    """
    return is_fair(limits_of(group))


STATUSES = tuple(JobStatus)
CODES = {status: code for code, status in enumerate(STATUSES)}
PENDING, RUNNING, COMPLETED, FAILED, CANCELED = range(5)

encode = msgspec.json.Encoder().encode
_history_decoder = msgspec.json.Decoder(tuple[Attempt, ...])

# The lease of a job `j` as a JSON text, in the order of LeaseRow. Columns that few jobs use are one value, mostly
# NULL, because each value costs time for each job.
_LEASE = """j.seq, j.id, j.lane, j.due, CASE typeof(j.payload) WHEN 'blob' THEN hex(j.payload) ELSE j.payload END,
    j.codec, j.token + 1, j.failures, j.timeouts, j.crashes, j.interruptions,
    iif(j.schedule IS NULL, j.due > j.created, 2)"""
_EXTRAS = "json_array(j.ready, j.sequence, j.grp, j.headers, j.follow_up)"
LEASE = f"json_array({_LEASE}, iif(coalesce(j.sequence, j.grp, j.follow_up) IS NULL, j.headers, {_EXTRAS}))"
# The same for a job behind the head of its group. Such a job counts as ready when it is due.
MEMBER_LEASE = f"json_array({_LEASE}, iif(coalesce(j.sequence, j.headers, j.follow_up) IS NULL, j.grp, {_EXTRAS}))"
# An array of JSON texts in the column `lease`. Joining them takes half as long as `json_group_array`, which would
# need the values of all columns from a subquery.
ALL_LEASES = "SELECT '[' || coalesce(group_concat(lease), '') || ']'"

RECORD_COLUMNS = """j.id, l.type, l.queue, l.priority, j.status, j.due, j.created, j.payload, j.codec, j.token,
    j.owner, j.starts, j.failures, j.timeouts, j.crashes, j.interruptions, j.started, j.finished, j.result,
    j.error, j.stop, j.origin, j.replayed_as, j.history, j.sequence, j.aside,
    (SELECT name FROM groups WHERE groups.id = j.grp), j.unique_key, j.expires,
    j.schedule, j.occurrence, j.headers, j.follow_up, j.progress, j.seq"""
# The same for `drop_unreadable`: texts that another program can have spoiled are bytes, which need not be UTF-8.
RAW_RECORD_COLUMNS = (
    RECORD_COLUMNS.replace("j.payload", "CAST(j.payload AS BLOB)")
    .replace("j.headers", "CAST(j.headers AS BLOB)")
    .replace("j.follow_up", "CAST(j.follow_up AS BLOB)")
)
UNREADABLE = (ValueError, msgspec.MsgspecError)
"""The errors that decoding a row raises if its values are damaged. `UnicodeDecodeError` is a `ValueError`."""


class Extras(msgspec.Struct, array_like=True, gc=False):
    """The values of one job in the columns that only some jobs use."""

    ready: int
    sequence: str | None
    grp: int | None
    headers: str | None
    follow_up: str | None


class LeaseRow(msgspec.Struct, array_like=True, gc=False):
    """A job that a claim has picked, as a database row."""

    seq: int
    id: str
    lane: int
    due: int
    payload: str
    codec: str
    token: int
    failures: int
    timeouts: int
    crashes: int
    interruptions: int
    kind: int
    """The kind of the job: its place in `records.KINDS`."""
    extras: Extras | str | int | None
    """The rare columns of the job. Only its headers, or only the number of its group, if it uses no other of them;
    None if it uses none. A job without a sequence and a group is ready when it is due."""

    @property
    def ready(self) -> int:
        """The instant by which claims order jobs of the same priority, the earliest first.

        It is the due time. Jobs under a limit with a key start in turn with jobs under other keys. For the first
        waiting job of each such group, it is the instant at which the job became the first, if that is later.
        """
        return self.extras.ready if isinstance(self.extras, Extras) else self.due

    @property
    def grp(self) -> int | None:
        """The number of the group of jobs under the same limits; None if the job has no limits."""
        extras = self.extras
        if isinstance(extras, Extras):
            return extras.grp
        return extras if isinstance(extras, int) else None


lease_rows = msgspec.json.Decoder(list[LeaseRow]).decode
strings = msgspec.json.Decoder(list[str]).decode
decode_terms = msgspec.json.Decoder(RemoteTerms).decode
decode_numbers = msgspec.json.Decoder(dict[str, int]).decode
pairs = msgspec.json.Decoder(list[tuple[str, int]]).decode
due_lanes = msgspec.json.Decoder(tuple[int, int | None, int]).decode
next_times = msgspec.json.Decoder(tuple[int | None, int | None, int | None, int, int]).decode
pairs_of_integers = msgspec.json.Decoder(list[tuple[int, int]]).decode
expired_rows = msgspec.json.Decoder(list[tuple[int, str, int]]).decode
pairs_by_number = msgspec.json.Decoder(list[tuple[int, str]]).decode
_headers = msgspec.json.Decoder(dict[str, str]).decode
to_follow_up = msgspec.json.Decoder(FollowUp).decode
_progress = msgspec.json.Decoder(Progress).decode
numbers = msgspec.json.Decoder(list[int]).decode


def headers_column(headers: Mapping[str, str] | None) -> str | None:
    """Return the value of the column `headers`: JSON, or the signature alone if there are no other headers.

    Most signed jobs have no other headers. Each change of a job writes its row anew, so a short row saves time.
    """
    if headers is None:
        return None
    if len(headers) == 1 and SIGNATURE in headers and not headers[SIGNATURE].startswith("{"):
        return headers[SIGNATURE]
    return to_json(headers)


def to_headers(column: str) -> dict[str, str]:
    """Return the headers that a value of the column `headers` stands for: JSON, or a signature alone."""
    return _headers(column) if column[:1] == "{" else {SIGNATURE: column}


def to_json(batch: object) -> str:
    """Encode rows or other plain data as JSON text for SQLite."""
    return encode(batch).decode()


def to_text(data: bytes, codec: str) -> str:
    """Convert a payload to text for a batch: JSON as it is, other codecs as hexadecimal."""
    return data.decode() if codec == JsonSerializer.name else data.hex()


def to_stored(data: bytes, codec: str | None) -> str | bytes:
    """Convert a payload to the value that SQLite stores: text for JSON, a blob for other codecs."""
    return data.decode() if codec == JsonSerializer.name else data


def to_bytes(value: Any) -> bytes:
    """Convert a stored value, text or a blob, back to a payload."""
    return value.encode() if isinstance(value, str) else bytes(value)


def to_optional_json(value: object) -> str | None:
    """Encode a value for a column with JSON text; None stays None."""
    return None if value is None else to_json(value)


def new_rows(jobs: Iterable[NewJob], lanes: Iterable[int]) -> str:
    """Return one JSON text with the values of jobs without search keys, for the statement `INSERT`.

    `lanes` has the row number of each job's lane (queue, job type and priority).
    """
    return to_json([_new_row(job, lane) for job, lane in zip(jobs, lanes, strict=True)])


def searchable_rows(jobs: Iterable[NewJob], lanes: Iterable[int]) -> str:
    """Return one JSON text with the values of jobs and their search keys, for `INSERT_WITH_SEARCH_KEYS`.

    `lanes` has the row number of each job's lane (queue, job type and priority). Some of the jobs may have no
    search keys.
    """
    pairs = zip(jobs, lanes, strict=True)
    return to_json([(*_new_row(job, lane), job.search or None) for job, lane in pairs])


def plain_rows(jobs: Iterable[NewJob], lanes: Iterable[int]) -> str:
    """Return one JSON text with the values of jobs without policies and headers, for the statement `INSERT_PLAIN`.

    `lanes` has the row number of each job's lane (queue, job type and priority).
    """
    return to_json(
        [
            (job.id, lane, job.due, to_text(job.payload, job.codec), job.codec)
            for job, lane in zip(jobs, lanes, strict=True)
        ]
    )


def _new_row(job: NewJob, lane: int) -> tuple[Any, ...]:
    return (
        job.id,
        lane,
        job.due,
        to_text(job.payload, job.codec),
        job.codec,
        job.origin,
        job.sequence,
        int(job.steps_aside),
        number_of(to_group(lane, job.limits)),
        None if job.unique is None else job.unique.key,
        job.expires,
        job.schedule,
        job.occurrence,
        headers_column(job.headers),
        to_optional_json(job.follow_up),
    )


def equal_rows(jobs: Iterable[NewJob]) -> str:
    """Return one JSON text with the ids and payloads of jobs that are equal otherwise, for `INSERT_EQUAL`."""
    return to_json({job.id: to_text(job.payload, job.codec) for job in jobs})


def alike_rows(jobs: Iterable[NewJob], lane: int) -> str:
    """Return one JSON text for `INSERT_ALIKE` with the values in which these jobs may differ.

    These are id, payload, number of the group (jobs under the same limits), unique key and sequence key.
    """
    return to_json(
        [
            (
                job.id,
                to_text(job.payload, job.codec),
                number_of(to_group(lane, job.limits)),
                None if job.unique is None else job.unique.key,
                job.sequence,
            )
            for job in jobs
        ]
    )


def shared_columns(job: NewJob) -> tuple[Any, ...]:
    """Return the values of the columns that are the same for all jobs of an `alike_rows` batch."""
    headers, follow_up = headers_column(job.headers), to_optional_json(job.follow_up)
    return (int(job.steps_aside), job.expires, headers, follow_up)


def are_alike(jobs: Sequence[NewJob]) -> bool:
    """Return whether `INSERT_ALIKE` can store these jobs. Jobs of one bulk submit usually meet its conditions.

    The jobs must have different ids, no schedule and no origin. They may differ in payload and in the values of
    their keys (unique key, sequence, limits, search keys). A key that one job has, all must have.
    """
    first = _kind(jobs[0])
    if jobs[0].origin is not None or jobs[0].schedule is not None or jobs[0].due != jobs[-1].due:
        return False  # jobs of many submitters differ in due time, so they are not compared in full
    return len({job.id for job in jobs}) == len(jobs) and all(_kind(job) == first for job in jobs)


def _kind(job: NewJob) -> tuple[Any, ...]:
    return (
        job.due,
        job.type,
        job.queue,
        job.priority,
        job.codec,
        job.sequence is None,
        job.steps_aside,
        not job.limits,
        job.unique is None,
        job.expires,
        job.headers,
        job.follow_up,
        job.origin,
        job.schedule,
        job.search and [key.partition("=")[0] for key in job.search],
    )


def to_lease(
    row: LeaseRow,
    lane: tuple[str, str, int, int, str],
    limits: Mapping[int, tuple[str, ...]],
    *,
    is_started: bool,
    at_most_once: bool = False,
) -> Lease:
    """Convert a claimed row to a lease. `lane` has its queue, job type and priority.

    `limits` has the buckets (limit and key) of each group of jobs, by group number.
    """
    queue, kind, priority, _, _ = lane
    payload = row.payload.encode() if row.codec == JsonSerializer.name else bytes.fromhex(row.payload)
    sequence = follow_up = None
    headers: dict[str, str] | None = None
    buckets: tuple[str, ...] = ()
    extras = row.extras
    if extras is not None:
        if isinstance(extras, str):
            headers = _headers(extras) if extras[:1] == "{" else {SIGNATURE: extras}  # as `to_headers` does
        elif isinstance(extras, int):
            buckets = limits[extras]
        else:
            sequence, follow_up = extras.sequence, extras.follow_up
            headers = None if extras.headers is None else to_headers(extras.headers)
            buckets = () if extras.grp is None else limits[extras.grp]
    return Lease(
        row.seq,
        row.id,
        kind,
        queue,
        row.due,
        payload,
        row.codec,
        row.token,
        is_started,
        row.failures,
        row.timeouts,
        row.crashes,
        row.interruptions,
        priority,
        sequence,
        buckets,
        headers,
        None if follow_up is None else to_follow_up(follow_up),
        at_most_once,
        KINDS[row.kind],
    )


def completed_rows(outcomes: Sequence[Outcome], *, has_more: bool) -> str:
    """Return one JSON text with outcomes of the kind COMPLETED, for the statement `COMPLETE`.

    With `has_more`, it also has the warnings of results and the times at which results are deleted, for
    `COMPLETE_WITH_MORE`.
    """
    rows: list[tuple[Any, ...]] = [
        (
            (lease := outcome.lease).ref,
            lease.token,
            None if outcome.result is None else to_text(outcome.result, lease.codec),
            lease.codec,
            outcome.began,
        )
        for outcome in outcomes
    ]
    if has_more:
        rows = [(*row, one.keep_result_until, one.error) for row, one in zip(rows, outcomes, strict=True)]
    return to_json(rows)


def outcome_rows(outcomes: Sequence[Outcome], now: int) -> str:
    """Return outcomes as one JSON text for the statement `SETTLE`; none of them may be COMPLETED."""
    return to_json([_outcome_row(outcome, now) for outcome in outcomes])


def _outcome_row(outcome: Outcome, now: int) -> tuple[Any, ...]:
    lease = outcome.lease
    is_handed_back = outcome.kind is OutcomeKind.HANDED_BACK
    return (
        lease.ref,
        lease.token,
        CODES[STATUS_AFTER[outcome.kind]],
        outcome.due,
        outcome.error,
        int(outcome.cause is Cause.FAILURE),
        int(outcome.cause is Cause.TIMEOUT),
        int(is_interruption(outcome)),
        int(is_handed_back and lease.is_started),
        PENDING if is_handed_back and not lease.is_started else RUNNING,
        _attempt(outcome, now),
        outcome.began,
        int(outcome.cause is Cause.CRASH),
    )


def _attempt(outcome: Outcome, now: int) -> dict[str, Any] | None:
    """Return the history entry of an attempt that failed, timed out, crashed or was interrupted, else None.

    SQL adds its number and its start.
    """
    cause = Cause.DEPLOY if outcome.kind is OutcomeKind.INTERRUPTED else outcome.cause
    if cause is None:
        return None
    return {"ended": now, "cause": cause.value, "error": outcome.error or "interrupted by a shutdown"}


def to_record(row: Sequence[Any]) -> JobRecord:
    """Convert a database row with `RECORD_COLUMNS` to a job record."""
    return JobRecord(
        id=row[0],
        type=row[1],
        queue=row[2],
        priority=row[3],
        status=STATUSES[row[4]],
        due=row[5],
        created=row[6],
        payload=to_bytes(row[7]),
        codec=row[8],
        token=row[9],
        owner=row[10],
        starts=row[11],
        failures=row[12],
        timeouts=row[13],
        crashes=row[14],
        interruptions=row[15],
        started=row[16],
        finished=row[17],
        result=None if row[18] is None else to_bytes(row[18]),
        error=row[19],
        stop_requested=bool(row[20]),
        origin=row[21],
        replayed_as=row[22],
        history=() if row[23] is None else _history_decoder.decode(row[23]),
        sequence=row[24],
        steps_aside=bool(row[25]),
        limits=limits_of(row[26]),
        unique_key=row[27],
        expires=row[28],
        schedule=row[29],
        occurrence=row[30],
        headers=None if row[31] is None else to_headers(row[31]),
        follow_up=None if row[32] is None else to_follow_up(row[32]),
        progress=None if row[33] is None else _progress(row[33]),
    )


def drop_unreadable(row: Sequence[Any]) -> list[Any]:
    """Convert a row with `RAW_RECORD_COLUMNS` to one for `to_record`.

    Headers and a follow-up job that cannot be read are replaced with None.
    """
    values = list(row)
    for place, read in ((_HEADERS, to_headers), (_FOLLOW_UP, to_follow_up)):
        column: bytes | None = values[place]
        try:
            values[place] = None if column is None else column.decode()
            if column is not None:
                read(values[place])
        except UNREADABLE:
            values[place] = None
    return values


_HEADERS, _FOLLOW_UP = 31, 32
