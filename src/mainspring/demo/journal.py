"""The journal of the demo's shop: one line for each event of an order, in a file that Mainspring does not use.

The demo checks for lost orders with this file and not with the scheduler's store, so the check is independent.
Each line is one write to a file opened with O_APPEND. So lines of several processes do not mix, and a killed
process leaves no partial line. A reader may still see the first part of a line that is just being written.
"""

import os
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from mainspring import SystemClock

clock = SystemClock()


class OrderEvent(StrEnum):
    """The events that the journal records: those of orders, and written reports."""

    PLACED = "placed"
    PAID = "paid"
    """The order was paid in time: its time-out job was canceled."""
    PAID_LATE = "paid-late"
    """The order was paid after its time-out job had started, which could no longer be canceled."""
    STARTED = "started"
    """A worker started the time-out job, which cancels the order."""
    REFUSED = "refused"
    """The time-out job could not cancel the order, because the order service was down."""
    CANCELED = "cancelled"
    PARCEL = "parcel"
    """A regular customer has paid the order: it must be charged, packed and mailed, in this order."""
    HELD_UP = "held-up"
    """The order could not be charged, because the order service was down. The next steps had to wait."""
    CHARGED = "charged"
    PACKED = "packed"
    MAILED = "mailed"
    REPORTED = "reported"
    """A nightly report was written. This event belongs to no order."""


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One line of the journal: an event of an order, the job that caused it, and Unix times in seconds."""

    event: OrderEvent
    order: int
    job: str
    at: float
    due: float


class OrderJournal:
    """The journal file. Several processes write it, and one reads it."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._read = 0

    def note(self, event: OrderEvent, order: int, job: str, due: datetime | None = None) -> None:
        """Append an event to the journal, with the current time. `due` is the job's due time; None for now."""
        now = clock.now()
        line = f"{event} {order} {job} {now.timestamp()} {(due or now).timestamp()}\n"
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)

    def read_new(self) -> list[JournalEntry]:
        """Return the complete entries that were written since the last call; none if there is no file yet."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        complete, newline, _ = data.rpartition(b"\n")
        self._read += len(complete) + len(newline)
        return [_parse(line) for line in complete.decode().splitlines()]


def _parse(line: str) -> JournalEntry:
    event, order, job, at, due = line.split()
    return JournalEntry(OrderEvent(event), int(order), job, float(at), float(due))
