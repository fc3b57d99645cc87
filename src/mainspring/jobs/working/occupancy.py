"""How busy the places are for which a job waits, in words for people."""

from __future__ import annotations

from dataclasses import dataclass

from mainspring.jobs.working.slots import Kind


@dataclass(frozen=True, slots=True, order=True)
class Longest:
    """The job that has run longest."""

    seconds: float
    id: str
    type: str

    def __str__(self) -> str:
        return f"job {self.id} ({self.type}) for {self.seconds:.0f} s"


@dataclass(frozen=True, slots=True)
class Occupancy:
    """The places of one kind; or the single place of a batch handler, one call of which runs at a time."""

    kind: Kind
    running: int
    places: int
    longest: Longest | None = None
    is_batch: bool = False

    def __str__(self) -> str:
        if self.is_batch and self.running:
            what = "a call of this batch handler runs here already"
        else:
            what = f"{self.running} of {self.places} places ({self.kind.value}) of this worker are occupied"
        return what if self.longest is None else f"{what}, the longest by {self.longest}"

    @property
    def remedy(self) -> str:
        """What to do about it."""
        if self.running >= self.places:
            return "give handlers a timeout=, this worker more places, or start more workers"
        return "its log may say why; else restart it, and if that helps, please report it"
