"""What an engine whose store cannot list jobs asks of a projection: a local copy that can be listed and counted.

A projection is fed from the stream of job records and remembers how far it has come, so it goes on where it
stopped. It is never the truth: it can be thrown away and built again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from mainspring.jobs.queries import Page, Query
from mainspring.jobs.records import JobRecord
from mainspring.jobs.status import JobStatus


class Projected(Struct, frozen=True, gc=False):
    """A job as it is now; None: it was forgotten."""

    id: str
    place: int
    """Its place in the order of submission, over all jobs; 0 if it was forgotten."""
    record: JobRecord | None


class Projection(Protocol):
    """A local copy of job records. Reads may be called from any thread, the rest from one."""

    @property
    def description(self) -> str:
        """Say where it is, for people."""

    def open(self, source: str) -> int:
        """Get ready; return the sequence number up to which it is complete.

        `source` names the stream and its creation: a projection of another one begins anew, at 0.
        """

    def apply(self, changes: Sequence[Projected], upto: int) -> None:
        """Take over changes, in order, and note in the same transaction how far they go."""

    def reset(self) -> None:
        """Forget everything: the next `apply` begins anew."""

    def close(self) -> None:
        """Give everything back."""

    def find(self, query: Query) -> Page:
        """List jobs, as an engine does."""

    def counts(self, *, queue: str | None = None, type: str | None = None) -> dict[JobStatus, int]:
        """Count jobs by state, as `Engine.counts` does."""

    def queues(self) -> tuple[str, ...]:
        """List the queues in which there are jobs, by name."""
