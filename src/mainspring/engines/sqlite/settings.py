"""What holds for all jobs: paused queues and limits, read again only when somebody has changed them."""

from __future__ import annotations

from collections.abc import Callable, Collection

import msgspec

from mainspring.engines.sqlite import line_statements as sql
from mainspring.engines.sqlite.database import Database
from mainspring.engines.sqlite.lines import Lines, family_bounds
from mainspring.engines.sqlite.rows import strings, to_json
from mainspring.jobs.engine import DropLimit, PauseQueue, PutLimit
from mainspring.jobs.limits import Admission, Limit

_limits = msgspec.json.Decoder(list[tuple[str, int, int | None, list[str]]]).decode


class Settings:
    """Limits and queues, inside of units."""

    def __init__(self, database: Database, lines: Lines, now: Callable[[], int]) -> None:
        self._database = database
        self._lines = lines
        self._now = now
        self._version: int | None = None
        self._limits: dict[str, Limit] = {}

    def pause(self, command: PauseQueue) -> bool:
        """Pause a queue, or let it go on."""
        write = self._database.write
        write(sql.PAUSE_QUEUE if command.is_paused else sql.RESUME_QUEUE, (command.queue,))
        is_changed = self._database.changes() > 0
        if is_changed:
            if command.is_paused:
                write(sql.TAKE_BACK_HELD, (command.queue,))
            write(sql.ARRANGED)
        return is_changed

    def put_limit(self, command: PutLimit) -> bool:
        """Define a limit; those who wait for it try again."""
        before = self.limits().get(command.family)
        by = to_json(command.by)
        self._database.write(sql.PUT_LIMIT, (command.family, command.most, command.per, by))
        is_changed = self._changed_limit(command.family)
        after = Limit(command.most, command.per)
        if is_changed and before is not None and before.per is not None and after.per is not None:
            # As many tokens are missing as before; they come at the new pace.
            bounds = family_bounds(command.family)
            self._database.write(sql.CHANGE_PACE, (*bounds, self._now(), before.interval, after.interval))
        return is_changed

    def drop_limit(self, command: DropLimit) -> bool:
        """Forget a limit; those who wait for it go."""
        self._database.write(sql.DROP_LIMIT, (command.family,))
        is_changed = self._changed_limit(command.family)
        self._database.write(sql.FORGET_PACE, family_bounds(command.family))
        return is_changed

    def _changed_limit(self, family: str) -> bool:
        is_changed = self._database.changes() > 0
        if is_changed:
            self._database.write(sql.ARRANGED)
            self._version = None
            self._lines.unpark_family(family)
        return is_changed

    def limits(self) -> dict[str, Limit]:
        """Return all limits."""
        version = self._database.write("SELECT arrangements FROM settings")
        if version != self._version:
            rows = _limits(self._database.write(sql.LIMITS))
            self._limits = {family: Limit(most, per) for family, most, per, _ in rows}
            self._version = version
        return self._limits

    def forget(self) -> None:
        """Read everything again: what was read may have been rolled back."""
        self._version = None

    def admission(self, buckets: Collection[str]) -> Admission:
        """Make a count of these buckets as they are now."""
        return Admission(self.limits(), self._lines.states(buckets), self._now())

    def with_room(self, buckets: Collection[str]) -> set[str]:
        """Return those buckets that would admit one more."""
        admission = self.admission(buckets)
        return {bucket for bucket in buckets if admission.room((bucket,), 1)}


def paused_queues(database: Database) -> frozenset[str]:
    """Return the queues from which no jobs start, inside of a unit."""
    return frozenset(strings(database.write(sql.PAUSED_QUEUES)))
