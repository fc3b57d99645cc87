"""Schedules that are declared in code: decorators collect them, and a worker stores them when it starts.

Storing them takes one read, and no write if nothing has changed. A schedule whose declaration was removed stays in
the store, because another version of the code may still declare it; `app.schedules.remove` deletes it. A worker
that fires it logs a warning once (`orphaned_schedules.py`).

A change neither loses nor doubles an occurrence: occurrences until now are fired by the stored rule, and the new
rule applies from then on. Every write is conditional. If another process has changed the schedule first, the write
is repeated with the new record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from threading import Lock
from typing import Any

from msgspec.structs import replace

from mainspring.jobs.commands import PutSchedule
from mainspring.jobs.job_function import JobFunction
from mainspring.jobs.limit_registry import LimitRegistry
from mainspring.jobs.manager import JobManager
from mainspring.jobs.recurrence.cron import Cron
from mainspring.jobs.recurrence.planning import first_due, plan_firing
from mainspring.jobs.recurrence.rules import Every, decode_rule, rule_of
from mainspring.jobs.recurrence.schedule_definition import ScheduleDefinition, define_schedule
from mainspring.jobs.recurrence.schedule_firer import log_skipped
from mainspring.jobs.recurrence.schedule_records import Firing, ScheduleRecord

CHUNK = 500  # how many schedules one transaction stores


def store_schedules(
    manager: JobManager,
    definitions: Sequence[ScheduleDefinition],
    stored: Iterable[ScheduleRecord],
    limits: LimitRegistry,
    *,
    check: Callable[[ScheduleRecord | None], object] | None = None,
) -> None:
    """Store the definitions that differ from the stored schedules. If none differs, nothing is written.

    `check` is called with the record that a definition would replace, or with None if there is none, each time
    before the definition is stored. It raises an error to prevent that.
    """
    while definitions:
        found = {record.name: record for record in stored}
        if check is not None:
            for definition in definitions:
                check(found.get(definition.name))
        refused: list[ScheduleDefinition] = []
        changed = _changed(manager, definitions, found, limits)
        for first in range(0, len(changed), CHUNK):
            refused += _store(manager, changed[first : first + CHUNK])
        definitions = refused
        if definitions:
            stored = manager.engine.schedules(names=[definition.name for definition in definitions])


_Change = tuple[ScheduleDefinition, ScheduleRecord, ScheduleRecord | None]


def _changed(
    manager: JobManager,
    definitions: Sequence[ScheduleDefinition],
    found: dict[str, ScheduleRecord],
    limits: LimitRegistry,
) -> list[_Change]:
    now = manager.engine.now()
    changed: list[_Change] = []
    for definition in definitions:
        before = found.get(definition.name)
        record = definition.record(before, limits, now)
        is_changed = before is None or not record.has_definition_of(before) or _changes_origin(record, before)
        signer = manager.signer
        if signer is not None and (is_changed or before is None or signer.must_sign_schedule(before)):
            record, is_changed = signer.sign_schedule(record), True
        if is_changed:
            manager.submission.check_size(record.type, record.payload)
            changed.append((definition, record, before))
    return changed


def _changes_origin(record: ScheduleRecord, before: ScheduleRecord) -> bool:
    """Return whether a schedule that `put` stored is now declared in code, or the other way round.

    Of a schedule of version 0.1 the origin is unknown: then return False, so that it is not stored again.
    """
    return before.is_declared not in (None, record.is_declared)


def _store(manager: JobManager, changes: list[_Change]) -> list[ScheduleDefinition]:
    """Store changed schedules; return the definitions to try again, because another process has changed them."""
    now = manager.engine.now()
    late = _fire_due_before(manager, [before for _, _, before in changes if before is not None], now)
    current = [change for change in changes if change[1].name not in late]
    puts = [_put(record, before, now) for _, record, before in current]
    answers = manager.arrange(puts) if puts else []
    late |= {put.record.name for put, is_done in zip(puts, answers, strict=True) if not is_done}
    return [definition for definition, record, _ in changes if record.name in late]


def _put(record: ScheduleRecord, before: ScheduleRecord | None, now: int) -> PutSchedule:
    after = now if before is None or before.last_due is None else max(now, before.last_due)
    next_due = first_due(decode_rule(record.rule), record.start, record.end, after)
    return PutSchedule(replace(record, next_due=next_due), None if before is None else before.revision)


def _fire_due_before(manager: JobManager, stored: list[ScheduleRecord], now: int) -> set[str]:
    """Fire the due occurrences of stored schedules by their old rules, before these change.

    Return the names of the schedules that another process has changed meanwhile.
    """
    firings = [firing for record in stored if (firing := _plan_due(manager, record, now)) is not None]
    if not firings:
        return set()
    answers = manager.fire(firings)
    for firing, fired in zip(firings, answers, strict=True):
        if fired.is_done:
            log_skipped(firing, fired)
    return {firing.schedule for firing, fired in zip(firings, answers, strict=True) if not fired.is_done}


def _plan_due(manager: JobManager, record: ScheduleRecord, now: int) -> Firing | None:
    rule = rule_of(record)
    if rule is None or record.is_paused or record.next_due is None or record.next_due > now:
        return None
    firing = plan_firing(record, rule, now, lambda _now: manager.submission.new_id())
    firing = replace(firing, jobs=tuple(map(manager.registry.with_search_keys, firing.jobs)))
    return firing if manager.signer is None else manager.signer.refer_to_schedule(record, firing)


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
        """Store the declared schedules that are new or have changed, and sign stored ones again that have an old
        key.
        """
        with self._lock:
            definitions = list(self._definitions.values())
        if definitions:
            store_schedules(manager, definitions, manager.engine.schedules(), self._limits)
        if manager.signer is not None:
            _sign_with_new_key(manager)


def _sign_with_new_key(manager: JobManager) -> None:
    """Sign the schedules again that another key has signed, so that this key can be removed from the ring.

    A schedule without a signature, or with a wrong one, stays as it is.
    """
    signer = manager.signer
    if signer is None or not signer.can_sign:
        return
    old = [
        record
        for record in manager.engine.schedules()
        if record.signature is not None
        and signer.schedule_problem(record) is None
        and signer.must_sign_schedule(record)
    ]
    for first in range(0, len(old), CHUNK):
        manager.arrange(
            [PutSchedule(signer.sign_schedule(record), record.revision) for record in old[first : first + CHUNK]]
        )
