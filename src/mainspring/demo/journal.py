"""The shop's own books: a line for everything that happens to an order, in a file that Mainspring never sees.

Whether anything was lost is read from here and not from the scheduler's store, so the check is honest. A line is
one write to a file opened with O_APPEND: lines of several processes do not mix, and a killed process leaves none
half written.
"""

import os
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from mainspring import SystemClock

clock = SystemClock()


class Event(StrEnum):
    """What can happen to an order."""

    PLACED = "placed"
    PAID = "paid"
    """In time: its time-out was called off."""
    PAID_LATE = "paid-late"
    """Its time-out had begun and could no longer be called off."""
    STARTED = "started"
    """A worker began to cancel it."""
    REFUSED = "refused"
    """The order service was down."""
    CANCELLED = "cancelled"
    PARCEL = "parcel"
    """Paid by a regular customer: it is to be charged, packed and mailed, in this order."""
    HELD_UP = "held-up"
    """The order service was down: it could not be charged, and what comes after it had to wait."""
    CHARGED = "charged"
    PACKED = "packed"
    MAILED = "mailed"
    REPORTED = "reported"
    """Not about an order: a nightly report was written."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the books; instants in seconds since 1970."""

    event: Event
    order: int
    job: str
    at: float
    due: float


class Journal:
    """Written by many processes, read by one."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._read = 0

    def note(self, event: Event, order: int, job: str, due: datetime | None = None) -> None:
        """Append one line."""
        now = clock.now()
        line = f"{event} {order} {job} {now.timestamp()} {(due or now).timestamp()}\n"
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)

    def read_new(self) -> list[Entry]:
        """Return what was written since the last time."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        self._read += len(data)
        return [_parse(line) for line in data.decode().splitlines()]


def _parse(line: str) -> Entry:
    event, order, job, at, due = line.split()
    return Entry(Event(event), int(order), job, float(at), float(due))
