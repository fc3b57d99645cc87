"""What a move has left on the target: taken away, once it is known that nobody has worked on it.

Found by the name of the move in each record, not by the file: that may have gone on since.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mainspring.engines.sqlite.departing import Departure
from mainspring.jobs.transfers import Stage

if TYPE_CHECKING:
    from mainspring.engines.nats.engine import NatsEngine


def name_of(source: Departure) -> str:
    """Name a file among those of all machines."""
    return f"{source.description} on {platform.node()}"


def removing(target: NatsEngine, move_id: str, stage: Stage) -> Iterator[int]:
    """Take away what a move has brought that is at this stage, and its receipt last.

    Yields after each batch how many jobs it had.
    """
    receipts = target.parts.receipts
    receipts.turn_to(move_id, Stage.UNDOING, after=[stage])
    target.parts.inheritance.remove_schedules(move_id)
    yield from target.parts.arrivals.removing(move_id)
    receipts.forget(move_id)
