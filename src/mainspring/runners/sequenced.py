"""One logical thread: tasks run in strict order, one at a time, on whichever worker is free.

What only tasks of one sequence touch needs no lock.
"""

from __future__ import annotations

from mainspring.runners.source import TaskSource


class SequencedRunner(TaskSource):
    """A sequence. Make one with `pool.sequenced()`."""

    __slots__ = ()
