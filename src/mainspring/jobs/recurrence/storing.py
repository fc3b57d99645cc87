"""Brings definitions of schedules into the store, without losing or doubling an occurrence.

What the stored definition owes until now is fired by the stored rule; the new rule holds from then on. Everything
is conditional: where another process was quicker, it is done again with what is there then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from mainspring.jobs.commands import PutSchedule
from mainspring.jobs.limit_book import LimitBook
from mainspring.jobs.manager import JobManager
from mainspring.jobs.recurrence.definitions import Definition
from mainspring.jobs.recurrence.planning import first_due, plan
from mainspring.jobs.recurrence.recurring import tell
from mainspring.jobs.recurrence.schedule_records import Firing, ScheduleRecord
from mainspring.jobs.recurrence.stored_rules import decode_rule, rule_of

CHUNK = 500  # schedules of one commit


def store_all(
    manager: JobManager, definitions: Sequence[Definition], stored: Iterable[ScheduleRecord], book: LimitBook
) -> None:
    """Store what differs from what was read; nothing is written if nothing does."""
    while definitions:
        found = {record.name: record for record in stored}
        refused: list[Definition] = []
        changed = _changed(manager, definitions, found, book)
        for first in range(0, len(changed), CHUNK):
            refused += _store(manager, changed[first : first + CHUNK])
        definitions = refused
        if definitions:
            stored = manager.engine.schedules(names=[definition.name for definition in definitions])


_Change = tuple[Definition, ScheduleRecord, ScheduleRecord | None]


def _changed(
    manager: JobManager, definitions: Sequence[Definition], found: dict[str, ScheduleRecord], book: LimitBook
) -> list[_Change]:
    now = manager.engine.now()
    changed: list[_Change] = []
    for definition in definitions:
        before = found.get(definition.name)
        record = definition.record(before, book, now)
        if before is None or not record.has_definition_of(before):
            manager.submission.check_size(record.type, record.payload)
            changed.append((definition, record, before))
    return changed


def _store(manager: JobManager, changes: list[_Change]) -> list[Definition]:
    """Store changes; return those that came too late."""
    now = manager.engine.now()
    late = _fire_owed(manager, [before for _, _, before in changes if before is not None], now)
    current = [change for change in changes if change[1].name not in late]
    puts = [_put(record, before, now) for _, record, before in current]
    answers = manager.arrange(puts) if puts else []
    late |= {put.record.name for put, is_done in zip(puts, answers, strict=True) if not is_done}
    return [definition for definition, record, _ in changes if record.name in late]


def _put(record: ScheduleRecord, before: ScheduleRecord | None, now: int) -> PutSchedule:
    after = now if before is None or before.last_due is None else max(now, before.last_due)
    next_due = first_due(decode_rule(record.rule), record.start, record.end, after)
    return PutSchedule(replace(record, next_due=next_due), None if before is None else before.revision)


def _fire_owed(manager: JobManager, stored: list[ScheduleRecord], now: int) -> set[str]:
    """Fire what schedules owe until now; return the names of those that somebody else has moved on."""
    firings = [firing for record in stored if (firing := _owed(manager, record, now)) is not None]
    if not firings:
        return set()
    answers = manager.fire(firings)
    for firing, fired in zip(firings, answers, strict=True):
        if fired.is_done:
            tell(firing, fired)
    return {firing.schedule for firing, fired in zip(firings, answers, strict=True) if not fired.is_done}


def _owed(manager: JobManager, record: ScheduleRecord, now: int) -> Firing | None:
    rule = rule_of(record)
    if rule is None or record.is_paused or record.next_due is None or record.next_due > now:
        return None
    return plan(record, rule, now, lambda _now: manager.submission.new_id())
