"""Pauses queues and changes limits: the settings that operators and deploys change for all jobs."""

from __future__ import annotations

from mainspring.engines.sqlite import line_statements as sql
from mainspring.engines.sqlite.codec import strings, to_json
from mainspring.engines.sqlite.database import Database
from mainspring.engines.sqlite.limits import Buckets, LimitTable, family_bounds
from mainspring.engines.sqlite.waiting_groups import Parking
from mainspring.jobs.commands import DropLimit, PauseQueue, PutLimit
from mainspring.jobs.limits import Limit


class Settings:
    """Changes limits and queues; for use inside a unit (one transaction)."""

    def __init__(self, database: Database, table: LimitTable, buckets: Buckets, parking: Parking) -> None:
        self._database = database
        self._table = table
        self._buckets = buckets
        self._parking = parking

    def pause(self, command: PauseQueue) -> bool:
        """Pause or resume a queue; return whether it changed."""
        write = self._database.write
        write(sql.PAUSE_QUEUE if command.is_paused else sql.RESUME_QUEUE, (command.queue,))
        is_changed = self._database.changes() > 0
        if is_changed:
            if command.is_paused:
                write(sql.TAKE_BACK_HELD, (command.queue,))
            else:
                self._parking.admit_queue(command.queue)
            write(sql.ARRANGED)
        return is_changed

    def put_limit(self, command: PutLimit) -> bool:
        """Define a limit, and let groups that wait for it try again; return whether it changed."""
        before = self._table.limits().get(command.family)
        by = to_json(command.by)
        self._database.write(sql.PUT_LIMIT, (command.family, command.most, command.per, by))
        is_changed = self._changed_limit(command.family)
        after = Limit(command.most, command.per)
        if is_changed and before is not None and before.per is not None and after.per is not None:
            self._buckets.change_pace(command.family, before, after)
        return is_changed

    def drop_limit(self, command: DropLimit) -> bool:
        """Delete a limit, and unpark the groups that wait for it; return whether there was one."""
        self._database.write(sql.DROP_LIMIT, (command.family,))
        is_changed = self._changed_limit(command.family)
        self._buckets.forget_pace(command.family)
        return is_changed

    def _changed_limit(self, family: str) -> bool:
        is_changed = self._database.changes() > 0
        if is_changed:
            self._database.write(sql.ARRANGED)
            self._table.forget()
            self._buckets.recount(family)
            self._parking.admit_family(family)
            self._database.write(sql.WAIT_FOR_FAMILY_NO_MORE, family_bounds(family))
        return is_changed


def paused_queues(database: Database) -> frozenset[str]:
    """Return the paused queues, from which no jobs start; for use inside a unit."""
    return frozenset(strings(database.write(sql.PAUSED_QUEUES)))
