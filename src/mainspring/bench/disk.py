"""What an fsync costs in a folder: the price of a durable commit, and so the context of most other figures."""

from __future__ import annotations

import os
from tempfile import TemporaryFile

from mainspring.bench.figures import Spread
from mainspring.bench.pace import Pace
from mainspring.bench.places import Place

PAGE = b"\0" * 4_096
LEAST = 5
MOST = 500
SHARE = 0.25  # of the time of a measurement: it says enough


def fsync(place: Place, pace: Pace) -> Spread | None:
    """Append pages to a file and have each written to the disk; None if the place is on none that is known."""
    if place.folder is None:
        return None
    taken: list[float] = []
    with TemporaryFile(prefix=".mainspring-bench-", dir=place.folder) as file:
        while len(taken) < LEAST or (len(taken) < MOST and pace.spent < pace.seconds * SHARE):
            began = pace.clock.monotonic_ns()
            file.write(PAGE)
            file.flush()
            os.fsync(file.fileno())
            taken.append(pace.since(began) * 1_000)
            pace.note()
    return Spread.of(taken)
