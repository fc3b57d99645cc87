"""Schedules that are declared in code: collected by decorators, stored when a worker starts.

Storing them is one read, and no write if nothing has changed. A schedule whose declaration has gone stays in the
store: another version of the code may still have it. `app.schedules.remove` takes it out.
"""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock
from typing import Any

from mainspring.jobs.job import Job
from mainspring.jobs.limit_book import LimitBook
from mainspring.jobs.manager import JobManager
from mainspring.jobs.recurrence.cron import Cron
from mainspring.jobs.recurrence.definitions import Definition, define
from mainspring.jobs.recurrence.rules import Every
from mainspring.jobs.recurrence.schedule_records import ScheduleRecord
from mainspring.jobs.recurrence.storing import store_all


class DeclaredSchedules:
    """What `@app.cron` and `@app.every` have said."""

    def __init__(self, book: LimitBook) -> None:
        self._book = book
        self._lock = Lock()
        self._definitions: dict[str, Definition] = {}  # guarded by _lock

    def add(self, name: str, job: Job[..., Any], rule: Cron | Every | str, **policies: Any) -> None:
        """Declare a schedule; its job takes no arguments. A name is taken once, unless its module is reloaded."""
        required = job.handler.arguments.required
        if required:
            raise TypeError(
                f"{job.name} cannot recur by a decorator: nobody would give it {', '.join(required)}; give its "
                "parameters defaults, or use app.schedules.put(name, job, rule, arguments=...)"
            )
        definition = define(name, job, rule, **policies)
        with self._lock:
            other = self._definitions.get(name)
            if other is not None and (other.job.name != job.name or other.job.handler is job.handler):
                raise ValueError(
                    f"two schedules are named {name!r}: one of {other.job.name} and one of {job.name}; "
                    "give one of them another name="
                )
            self._definitions[name] = definition

    def __len__(self) -> int:
        return len(self._definitions)

    def compare(self, stored: Iterable[ScheduleRecord], now: int) -> tuple[list[str], list[str]]:
        """Return the names of those that are not stored, and of those that are stored otherwise than declared."""
        found = {record.name: record for record in stored}
        with self._lock:
            definitions = dict(sorted(self._definitions.items()))
        missing = [name for name in definitions if name not in found]
        records = [definitions[name].record(found[name], self._book, now) for name in definitions if name in found]
        return missing, [record.name for record in records if not record.has_definition_of(found[record.name])]

    def store(self, manager: JobManager) -> None:
        """Store what differs from what is there."""
        with self._lock:
            definitions = list(self._definitions.values())
        if definitions:
            store_all(manager, definitions, manager.engine.schedules(), self._book)
