"""Lists the paused receivers of callbacks, and lifts pauses: `app.callback_pauses()`, `app.resume_callbacks(...)`.

Invariants
- A lift first deletes the records of the pauses, and then makes the jobs due that were put off because of them. So
  no worker puts such a job off again.
- `run_now` lifts the pauses that concern its job, before it makes the job due.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from mainspring.jobs.callback_pauses import LONGEST_SPREAD, PUT_OFF, CallbackPauseRecord, pauses_of_job
from mainspring.jobs.commands import ChangeCallbackPause, Reschedule
from mainspring.jobs.records import JobRecord, Query
from mainspring.jobs.serializers import Serializers
from mainspring.jobs.status import JobStatus
from mainspring.jobs.timestamps import MICROSECONDS, to_datetime

if TYPE_CHECKING:
    from mainspring.jobs.manager import JobManager

TRIES = 10
"""How often a lift begins anew because a worker has changed the record of the pause meanwhile."""
PAGE = 500
MOST_EXAMINED = 50_000
"""How many pending jobs a lift examines. Further ones are due at the end of the pause that was lifted."""
LONGEST_PROBE = 60 * MICROSECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class CallbackPause:
    """A receiver of callbacks that gets no requests for a while."""

    host: str
    """The host, with its port if that is not the default."""
    type: str | None
    """The job type that is paused at this host; None for all types."""
    url: str | None
    """The URL that is paused, without its query, for jobs whose URL is an argument; None for all URLs."""
    status: int | None
    """The status of the answer that has caused the pause; None if a probe got no answer."""
    since: datetime
    until: datetime
    """The end of the pause. Then one request is sent as a probe; if it succeeds, the other jobs follow."""
    is_probing: bool
    """Whether a worker is sending the probe now."""
    count: int
    """How many pauses the receiver had in a row."""


def list_pauses(manager: JobManager) -> list[CallbackPause]:
    """List the paused receivers by host, type and URL, including those that wait for a successful probe."""
    now = manager.engine.now()
    return [
        CallbackPause(
            host=pause.host,
            type=pause.type,
            url=pause.url,
            status=pause.status,
            since=to_datetime(pause.since),
            until=to_datetime(pause.until),
            is_probing=pause.probe_until > now,
            count=pause.strikes,
        )
        for pause in manager.engine.callback_pauses()
    ]


def resume_host(manager: JobManager, host: str, type_: str | None = None) -> int:
    """Lift the pauses of a host, or of one of its job types; return how many there were.

    A lift of one type also lifts the pause of the whole host, which would hold its jobs back.
    """
    return _lift(manager, lambda pauses: [p for p in pauses if p.host == host and _is_of_type(p, type_)])


def _is_of_type(pause: CallbackPauseRecord, type_: str | None) -> bool:
    return type_ is None or pause.type in (None, type_)


def resume_jobs(manager: JobManager, job_ids: Sequence[str]) -> int:
    """Lift the pauses that concern these jobs, which the caller makes due; return how many there were."""

    def choose(pauses: Sequence[CallbackPauseRecord]) -> list[CallbackPauseRecord]:
        if not pauses:
            return []
        chosen: dict[tuple[str, str, str], CallbackPauseRecord] = {}
        for record in manager.engine.find(Query(ids=tuple(job_ids))).records:
            if record.status is JobStatus.PENDING:
                chosen |= {pause.key: pause for pause in pauses_concerning(record, pauses, manager.serializers)}
        return list(chosen.values())

    return _lift(manager, choose, besides=frozenset(job_ids))


def pauses_concerning(
    record: JobRecord, pauses: Sequence[CallbackPauseRecord], serializers: Serializers
) -> list[CallbackPauseRecord]:
    """Return the pauses that concern a job."""
    url: Any = None
    if any(pause.url is not None and pause.type == record.type for pause in pauses):
        arguments = serializers.decode_any(record.payload, record.codec)
        url = arguments.get("url") if isinstance(arguments, Mapping) else None
    note = None if record.progress is None else record.progress.note
    return pauses_of_job(pauses, record.type, url if isinstance(url, str) else None, note)


def _lift(
    manager: JobManager,
    choose: Callable[[Sequence[CallbackPauseRecord]], Sequence[CallbackPauseRecord]],
    besides: Collection[str] = (),
) -> int:
    lifted: list[CallbackPauseRecord] = []
    for _ in range(TRIES):
        chosen = choose(manager.engine.callback_pauses())
        if not chosen:
            break
        answers = manager.arrange([ChangeCallbackPause(pause, None) for pause in chosen])
        lifted += [pause for pause, is_done in zip(chosen, answers, strict=True) if is_done]
    if lifted:
        _make_due(manager, lifted, besides)
    return len(lifted)


def _make_due(manager: JobManager, lifted: Sequence[CallbackPauseRecord], besides: Collection[str]) -> None:
    """Make the jobs due that were put off because of these pauses, without those with the ids `besides`."""
    types = {pause.type for pause in lifted}
    now = manager.engine.now()
    query = Query(
        status=JobStatus.PENDING,
        types=None if None in types else tuple(sorted(name for name in types if name is not None)),
        due_until=max(now, *(pause.until for pause in lifted)) + LONGEST_PROBE + LONGEST_SPREAD,
        limit=PAGE,
    )
    starts = tuple(f"{PUT_OFF}{pause.host} " for pause in lifted)
    examined, after = 0, None
    while examined < MOST_EXAMINED:
        page = manager.engine.find(replace(query, after=after))
        examined += len(page.records)
        put_off = [
            record.id
            for record in page.records
            if record.due > now
            and record.id not in besides
            and record.progress is not None
            and record.progress.note is not None
            and record.progress.note.startswith(starts)
        ]
        if put_off:
            manager.change_all([Reschedule(job_id, now) for job_id in put_off])
        after = page.end
        if after is None:
            return
