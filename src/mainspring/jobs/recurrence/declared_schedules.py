"""Schedules that are declared in code: decorators collect them, and a worker stores them when it starts.

Storing them takes one read, and no write if nothing has changed. A schedule whose declaration was removed stays in
the store, because another version of the code may still declare it; `app.schedules.remove` deletes it. A worker
that fires it logs a warning once (`orphaned_schedules.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock
from typing import TYPE_CHECKING, Any

from mainspring.jobs.job_function import JobFunction
from mainspring.jobs.limit_registry import LimitRegistry
from mainspring.jobs.recurrence.schedule_records import ScheduleRecord

if TYPE_CHECKING:
    from mainspring.jobs.manager import JobManager
    from mainspring.jobs.recurrence.cron import Cron
    from mainspring.jobs.recurrence.rules import Every
    from mainspring.jobs.recurrence.schedule_definition import ScheduleDefinition


class DeclaredSchedules:
    """The schedules that `@app.cron` and `@app.every` have declared in this process."""

    def __init__(self, limits: LimitRegistry) -> None:
        self._limits = limits
        self._lock = Lock()
        self._definitions: dict[str, ScheduleDefinition] = {}  # guarded by _lock

    def add(self, name: str, job: JobFunction[..., Any], rule: Cron | Every | str, **policies: Any) -> None:
        """Declare a schedule for a handler without required parameters; raise `TypeError` if it has some.

        Raises `ValueError` if the name is declared already, unless the module of the same job was reloaded.
        """
        from mainspring.jobs.recurrence.schedule_definition import define_schedule  # noqa: PLC0415 - see `mainspring.public`

        required = job.handler.arguments.required
        if required:
            raise TypeError(
                f"{job.name} cannot recur by a decorator: no caller would pass {', '.join(required)}; give its "
                "parameters defaults, or use app.schedules.put(name, job, rule, arguments=...)"
            )
        definition = define_schedule(name, job, rule, is_declared=True, **policies)
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

    def __contains__(self, name: object) -> bool:
        return name in self._definitions

    def compare(self, stored: Iterable[ScheduleRecord], now: int) -> tuple[list[str], list[str]]:
        """Return the names of declared schedules that are not stored, and of those stored with another
        definition.
        """
        found = {record.name: record for record in stored}
        with self._lock:
            definitions = dict(sorted(self._definitions.items()))
        missing = [name for name in definitions if name not in found]
        records = [
            definitions[name].record(found[name], self._limits, now) for name in definitions if name in found
        ]
        return missing, [record.name for record in records if not record.has_definition_of(found[record.name])]

    def store(self, manager: JobManager) -> None:
        """Store the declared schedules that are new or have changed.

        If the application signs jobs, also sign all stored schedules again that another key has signed.
        """
        from mainspring.jobs.recurrence.schedule_storage import sign_with_new_key, store_schedules  # noqa: PLC0415 - see `mainspring.public`

        with self._lock:
            definitions = list(self._definitions.values())
        if definitions:
            store_schedules(manager, definitions, manager.engine.schedules(), self._limits)
        if manager.signer is not None:
            sign_with_new_key(manager)
