"""The schedules of an application, `app.schedules`: stores, lists, pauses, triggers and removes them at run time.

This includes schedules that are declared in code. A change of such a schedule lasts until a worker starts whose
code declares a different definition. A declared schedule that was removed is stored again when a worker starts.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import replace as replace_field
from datetime import datetime
from typing import Any, TypeAlias

from msgspec.structs import replace

from mainspring.clock import Duration
from mainspring.errors import NotAllowed, ScheduleBusy, ScheduleNotFound
from mainspring.jobs.commands import PauseSchedule, RemoveSchedule
from mainspring.jobs.handle import JobHandle, ManagerProvider
from mainspring.jobs.ids import require_id
from mainspring.jobs.info import JobInfo
from mainspring.jobs.job_function import JobFunction
from mainspring.jobs.off_loop import OffLoop, async_twin
from mainspring.jobs.records import Query
from mainspring.jobs.recurrence.cron import Cron
from mainspring.jobs.recurrence.planning import first_due, plan_trigger
from mainspring.jobs.recurrence.rules import Every, decode_rule
from mainspring.jobs.recurrence.schedule_definition import (
    CallArguments,
    Misfire,
    OverlapName,
    ScheduleDefinition,
    define_schedule,
)
from mainspring.jobs.recurrence.schedule_info import (
    OccurrenceInfo,
    ScheduleInfo,
    to_occurrence_info,
    to_schedule_info,
)
from mainspring.jobs.recurrence.schedule_records import Overlap, ScheduleRecord
from mainspring.jobs.recurrence.schedule_storage import store_schedules
from mainspring.runners.validation import require_positive

Occurrences: TypeAlias = list[OccurrenceInfo]
Jobs: TypeAlias = list[JobInfo]
Infos: TypeAlias = list[ScheduleInfo]
RecordCheck: TypeAlias = Callable[[ScheduleRecord | None], bool]
"""Returns whether the caller may know of a stored schedule; raises an error if it must not change it.

It gets None before a schedule is stored under a name that no schedule has.
"""
JOB_PAGE = 500
SEARCHED_JOBS = 10_000
"""How many jobs `Schedules.jobs` searches at most."""
SUGGESTED_FROM = 500
"""How many names of schedules are compared with an unknown name, to suggest a similar one in the error."""


class Schedules:
    """`app.schedules`: stores, lists, pauses, triggers and removes the schedules of an application."""

    def __init__(
        self, source: ManagerProvider, declared: Container[str] = (), *, check: RecordCheck | None = None
    ) -> None:
        self._source = source
        self._declared = declared
        self._check = check

    @property
    def _off_loop(self) -> OffLoop:
        return self._source.off_loop

    def put(
        self,
        name: str,
        job: JobFunction[..., Any],
        rule: Cron | Every | str,
        *,
        arguments: CallArguments = (),
        misfire: Misfire = "once",
        overlap: OverlapName | Overlap = "skip",
        jitter: Duration = 0,
        start: datetime | None = None,
        end: datetime | None = None,
    ) -> ScheduleInfo:
        """Store a schedule under a name, or change the existing one with that name.

        An equal definition changes nothing. A changed definition applies from now on: occurrences until now are
        fired by the old rule, so that none is lost or doubled. An `Every` without an anchor begins one interval
        from now, or at `start`. It keeps its occurrences when it is stored again.
        """
        definition = define_schedule(
            name,
            job,
            rule,
            arguments=arguments,
            misfire=misfire,
            overlap=overlap,
            jitter=jitter,
            start=start,
            end=end,
            is_declared=name in self._declared,
        )
        return self.store(definition)

    put_async = async_twin(put, writes=True)

    def store(self, definition: ScheduleDefinition) -> ScheduleInfo:
        """Store a definition that was checked before, as `put` does, and return a snapshot of the schedule."""
        manager, name = self._source.manager(), definition.name
        manager.submission.store_declarations()
        stored = manager.engine.schedules(names=[name])
        store_schedules(manager, [definition], stored, self._source.limits, check=self._check)
        return self._info(self._read(name))

    def get(self, name: str) -> ScheduleInfo:
        """Return a snapshot of a schedule. Raises `ScheduleNotFound` if there is no such schedule."""
        return self._info(self._record(name))

    get_async = async_twin(get)

    def list(self) -> list[ScheduleInfo]:
        """List all schedules, sorted by name."""
        records = self._source.manager().engine.schedules()
        return self._infos([record for record in records if self._is_known(record)])

    list_async = async_twin(list)  # noqa: A003 - the method above

    def remove(self, name: str) -> None:
        """Delete a schedule and its history. The jobs that it has submitted stay.

        Raises `ScheduleNotFound` if there is no such schedule.
        """
        is_done = False
        while not is_done:  # another process may change the schedule meanwhile
            expected = self._record(name).revision
            (is_done,) = self._source.manager().arrange([RemoveSchedule(name, expected)])

    remove_async = async_twin(remove, writes=True)

    def pause(self, name: str) -> bool:
        """Pause a schedule. Return False if it was paused already. Jobs that it has submitted are not affected.

        Raises `ScheduleNotFound` if there is no such schedule.
        """
        while not (record := self._record(name)).is_paused:
            if self._pause(PauseSchedule(name, is_paused=True, next_due=None, expected=record.revision)):
                return True
        return False

    pause_async = async_twin(pause, writes=True)

    def resume(self, name: str) -> bool:
        """Resume a paused schedule; the first occurrence from now on is next.

        Return False if it was not paused. Raises `ScheduleNotFound` if there is no such schedule.
        """
        while (record := self._record(name)).is_paused:
            after = max(self._source.manager().engine.now(), record.last_due or 0)
            next_due = first_due(decode_rule(record.rule), record.start, record.end, after)
            if self._pause(PauseSchedule(name, is_paused=False, next_due=next_due, expected=record.revision)):
                return True
        return False

    resume_async = async_twin(resume, writes=True)

    def trigger(self, name: str, *, id: str | None = None) -> JobHandle[Any]:
        """Run the job of a schedule once, now, beside its occurrences. Return the handle of the job.

        The job has the arguments, queue, priority and limits of the schedule, and no occurrence and no jitter. The
        next occurrence stays as it is. A paused or ended schedule can be triggered as well. While an earlier job
        of the schedule has not ended, `overlap="queue"` makes the new job wait, `"replace"` cancels the earlier
        one, `"allow"` runs both, and `"skip"` raises `ScheduleBusy`. Raises `ScheduleNotFound` if there is no such
        schedule.

        - `id`: an id for the job. If a job with this id exists, it is returned, and the schedule is not triggered.
        """
        manager = self._source.manager()
        chosen = None if id is None else require_id(id)
        while True:
            record = self._record(name)
            if chosen is not None and manager.engine.find(Query(ids=(chosen,))).records:
                handler = manager.registry.get(record.type) if record.type in manager.registry else None
                return JobHandle(chosen, handler, self._source)
            firing = plan_trigger(record, manager.engine.now(), chosen or manager.submission.new_id())
            firing = replace(firing, jobs=tuple(map(manager.registry.with_search_keys, firing.jobs)))
            fired = manager.trigger(firing, record)
            if fired.skipped_for is not None:
                raise ScheduleBusy(name=name, job_id=fired.skipped_for)
            if fired.is_done:  # else another process has changed the schedule meanwhile
                handler = manager.registry.get(record.type) if record.type in manager.registry else None
                return JobHandle(fired.submitted[0], handler, self._source)

    trigger_async = async_twin(trigger, writes=True)

    def history(self, name: str, limit: int = 50) -> Occurrences:
        """Return the occurrences of a schedule for which no job was made, the latest first, at most `limit`.

        The store keeps the newest hundred. `jobs` returns the jobs of the other occurrences. Raises
        `ScheduleNotFound` if there is no such schedule.
        """
        require_positive(limit, "limit", "occurrences")
        self._record(name)
        return [to_occurrence_info(found) for found in self._source.manager().engine.occurrences(name, limit)]

    history_async = async_twin(history)

    def jobs(self, name: str, limit: int = 50) -> Jobs:
        """Return the latest jobs of a schedule, the newest first.

        Jobs that were triggered by hand have no `occurrence`. The newest 10,000 jobs of the job type are
        searched, also those of other schedules and submits. Raises `ScheduleNotFound` if there is no such
        schedule.
        """
        require_positive(limit, "limit", "jobs")
        query = Query(type=self._record(name).type, newest_first=True, limit=JOB_PAGE)
        manager = self._source.manager()
        found: Jobs = []
        for _ in range(SEARCHED_JOBS // JOB_PAGE):
            page = manager.engine.find(query)
            found += manager.infos([record for record in page.records if record.schedule == name])
            if page.end is None or len(found) >= limit:
                break
            query = replace(query, after=page.end)
        return found[:limit]

    jobs_async = async_twin(jobs)

    def _pause(self, arrangement: PauseSchedule) -> bool:
        (is_done,) = self._source.manager().arrange([arrangement])
        return is_done

    def _info(self, record: ScheduleRecord) -> ScheduleInfo:
        (info,) = self._infos([record])
        return info

    def _infos(self, records: Sequence[ScheduleRecord]) -> Infos:
        """Return snapshots of schedules that were just read, with the values of redacted parameters masked."""
        manager = self._source.manager()
        redactions = manager.redactions()
        infos = (to_schedule_info(record, manager.serializers) for record in records)
        return [
            info
            if not redactions.names(info.type)
            else replace_field(
                info,
                arguments=redactions.show(info.type, info.arguments),
                record=replace(info.record, payload=b""),
            )
            for info in infos
        ]

    def _record(self, name: str) -> ScheduleRecord:
        record = self._read(name)
        if self._check is not None and not self._check(record):
            raise self._not_found(name)
        return record

    def _read(self, name: str) -> ScheduleRecord:
        found = self._source.manager().engine.schedules(names=[require_id(name, "name")])
        if not found:
            raise self._not_found(name)
        return found[0]

    def _not_found(self, name: str) -> ScheduleNotFound:
        known = filter(self._is_known, self._source.manager().engine.schedules(limit=SUGGESTED_FROM))
        return ScheduleNotFound(name=name, known=tuple(record.name for record in known))

    def _is_known(self, record: ScheduleRecord) -> bool:
        """Return whether the caller may know that a schedule exists, even if it may not change it."""
        try:
            return self._check is None or self._check(record)
        except NotAllowed:
            return True
