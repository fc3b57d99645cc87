"""Stores schedules: those that the code declares, and those of `app.schedules.put`.

A change neither loses nor doubles an occurrence: occurrences until now are fired by the stored rule, and the new
rule applies from then on. Every write is conditional. If another process has changed the schedule first, the write
is repeated with the new record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from mainspring.jobs.commands import PutSchedule
from mainspring.jobs.limit_registry import LimitRegistry
from mainspring.jobs.manager import JobManager
from mainspring.jobs.recurrence.planning import first_due, plan_firing
from mainspring.jobs.recurrence.rules import decode_rule, rule_of
from mainspring.jobs.recurrence.schedule_definition import ScheduleDefinition
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

    The due occurrences of a stored schedule are fired by its old rule before it changes.

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

    An equal schedule of version 0.1 is not stored again, so its origin stays unknown.
    """
    return before.is_declared not in (None, record.is_declared)


def _store(manager: JobManager, changes: list[_Change]) -> list[ScheduleDefinition]:
    """Fire the due occurrences of schedules by their old rules, and store the changed schedules.

    Return the definitions to try again, because another process has changed their schedules meanwhile.
    """
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
    """Fire the due occurrences of stored schedules by their old rules, before the new rules are stored.

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


def sign_with_new_key(manager: JobManager) -> None:
    """Sign and store the schedules again that another key has signed, so that the other key can be removed.

    An unsigned schedule, and one whose signature is not right, stays as it is. Do nothing if this process has no
    key to sign with.
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
