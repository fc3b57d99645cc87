"""Undoes a move, as long as no worker has changed the moved jobs: the file is used again as it was.

First, everything on the target is compared with the file. Only if nothing has changed, it is deleted there, and
the mark in the file with it. Jobs that others have submitted to the target stay there, and so do limits and
pauses.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

from mainspring.engines.sqlite.departing import Departure
from mainspring.errors import EngineUnavailable
from mainspring.jobs.migration_records import CHANGED, TAKEN, MigrationStage
from mainspring.moving.mover import name_of, pages, removing, wrong_target

if TYPE_CHECKING:
    from mainspring.engines.nats.arriving import Receipt
    from mainspring.engines.nats.engine import NatsEngine
    from mainspring.engines.sqlite.departing import Leaving


class Undoing:
    """Undoes the move of one file."""

    def __init__(self, source: Departure, target: NatsEngine, url: str) -> None:
        self._source = source
        self._target = target
        self._receipts = target.parts.receipts
        self._arrivals = target.parts.arrivals
        self._inheritance = target.parts.inheritance
        self._url = url

    def total(self) -> int:
        """Return how many jobs have arrived: each of them is compared once and deleted once."""
        state = self._source.state()
        receipt = None if state is None else self._receipts.find(state.id)
        return 0 if receipt is None else self._source.count_until(receipt.position)

    def undoing(self) -> Generator[int]:
        """Undo the move; yields the number of jobs after each batch."""
        state = self._source.state()
        if state is None:
            yield from self._clearing()
            return
        receipt = self._receipts.find(state.id)
        if receipt is None and state.is_known and not state.is_undone:
            raise wrong_target(self._source, state, self._url)
        if receipt is not None:
            if receipt.stage is not MigrationStage.UNDOING:
                yield from self._reviewing(state, receipt)
            self._source.note_undone()  # before the receipt is deleted: from then on only the file knows
            yield from removing(self._target, receipt.id, MigrationStage.UNDOING)
        self._source.take_back()

    def _clearing(self) -> Iterator[int]:
        """Delete what abandoned moves left on the target: they were given up without access to it."""
        given_up = self._receipts.find_open(name_of(self._source))
        if not given_up:
            require_move(self._source)
        for receipt in given_up:
            yield from removing(self._target, receipt.id, receipt.stage)

    def _reviewing(self, state: Leaving, receipt: Receipt) -> Iterator[int]:
        """Refuse to undo a move whose jobs were run or changed; no worker enrolls during the comparison.

        If a mover finishes the move meanwhile, workers may enroll, and it cannot be undone any more.
        """
        stage = receipt.stage
        if stage is MigrationStage.COMPLETE:
            stage = MigrationStage.IN_REVIEW
            self._receipts.turn_to(state.id, stage, after=[MigrationStage.COMPLETE])
        try:
            self._require_no_workers()
            for jobs in pages(self._source, 0, receipt.position):
                found = self._arrivals.compare(state.id, jobs)
                self._require_none([deviation.name for deviation in found if deviation.problem != TAKEN], "job")
                yield len(jobs)
            found = self._inheritance.compare_schedules(state.id, self._source.schedules())
            self._require_none([deviation.name for deviation in found if deviation.problem == CHANGED], "schedule")
        except BaseException:
            if receipt.stage is MigrationStage.COMPLETE:
                self._receipts.turn_to(state.id, MigrationStage.COMPLETE, after=[MigrationStage.IN_REVIEW])
            raise
        self._receipts.turn_to(state.id, MigrationStage.UNDOING, after=[stage])

    def _require_no_workers(self) -> None:
        workers = self._receipts.find_workers()
        if workers:
            raise EngineUnavailable(
                engine=self._target.description,
                reason=f"worker {', '.join(workers)} works on it",
                remedy="stop it; if it has run any of the jobs, they cannot be taken back",
            )

    def _require_none(self, names: list[str], what: str) -> None:
        if names:
            raise EngineUnavailable(
                engine=self._target.description,
                reason=f"{what} {names[0]} was run or changed there since, so the move cannot be taken back",
                remedy="go on with what is there: the same command without --undo finishes the move",
            )


def require_move(source: Departure) -> Leaving:
    """Return the move of a file; raises `EngineUnavailable` if there is none."""
    state = source.state()
    if state is None:
        raise EngineUnavailable(
            engine=source.description,
            reason="its jobs were not moved, so there is nothing to take back",
            remedy="use it as it is",
        )
    return state
