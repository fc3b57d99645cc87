"""The undo of a migration: the SQLite file can be used again as it was, if no worker has changed the moved jobs.

First, it compares the moved jobs and schedules on the target with the file. Only if none of them has changed, it
deletes them on the target, and then the mark in the file. Jobs that were submitted to the target stay there, and
so do limits and pauses.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

from mainspring.engines.sqlite.export import SqliteExport
from mainspring.errors import EngineUnavailable
from mainspring.jobs.migration_records import CHANGED, TAKEN, MigrationStage
from mainspring.migration.migrator import delete_moved, pages, source_name, wrong_target

if TYPE_CHECKING:
    from mainspring.engines.nats.engine import NatsEngine
    from mainspring.engines.nats.migration import MigrationCheckpoint
    from mainspring.engines.sqlite.export import MoveRecord


class MigrationUndo:
    """Undoes the migration of one SQLite file: deletes the moved jobs on the target, and unmarks the file."""

    def __init__(self, source: SqliteExport, target: NatsEngine, url: str) -> None:
        self._source = source
        self._target = target
        self._checkpoints = target.components.checkpoints
        self._job_importer = target.components.job_importer
        self._settings_importer = target.components.settings_importer
        self._url = url

    def total(self) -> int:
        """Return how many jobs have arrived at the target; 0 without a migration.

        The undo compares and deletes each of them.
        """
        move = self._source.move()
        checkpoint = None if move is None else self._checkpoints.find(move.id)
        return 0 if checkpoint is None else self._source.count_jobs_until(checkpoint.position)

    def run(self) -> Generator[int]:
        """Undo the migration; after each batch, yield how many jobs it compared or deleted.

        If the file is not marked as moved, only delete what abandoned migrations left on the target. Raises
        `EngineUnavailable` if there is nothing to undo, or if the target is the wrong one, has workers, or has run
        or changed a job.
        """
        move = self._source.move()
        if move is None:
            yield from self._delete_leftovers()
            return
        checkpoint = self._checkpoints.find(move.id)
        if checkpoint is None and move.has_receipt and not move.is_being_undone:
            raise wrong_target(self._source, move, self._url)
        if checkpoint is not None:
            if checkpoint.stage is not MigrationStage.UNDOING:
                yield from self._review(move, checkpoint)
            self._source.record_undo()  # first, because without the checkpoint only the file records the undo
            yield from delete_moved(self._target, checkpoint.id, MigrationStage.UNDOING)
        self._source.unmark()

    def _delete_leftovers(self) -> Iterator[int]:
        """Delete jobs that abandoned migrations of this file left on the target.

        Raises `EngineUnavailable` if there was no such migration.
        """
        abandoned = self._checkpoints.find_open(source_name(self._source))
        if not abandoned:
            require_move(self._source)
        for checkpoint in abandoned:
            yield from delete_moved(self._target, checkpoint.id, checkpoint.stage)

    def _review(self, move: MoveRecord, checkpoint: MigrationCheckpoint) -> Iterator[int]:
        """Raise `EngineUnavailable` if a worker is alive on the target, or has run or changed migrated jobs.

        Otherwise set the stage UNDOING. After each batch, yield the number of compared jobs. No worker can enroll
        during the comparison. If another process finishes the migration meanwhile, workers may enroll, and the
        migration cannot be undone any more.
        """
        stage = checkpoint.stage
        if stage is MigrationStage.COMPLETE:
            stage = MigrationStage.IN_REVIEW
            self._checkpoints.set_stage(move.id, stage, after=[MigrationStage.COMPLETE])
        try:
            self._require_no_workers()
            for jobs in pages(self._source, 0, checkpoint.position):
                found = self._job_importer.compare(move.id, jobs)
                self._require_none([deviation.name for deviation in found if deviation.problem != TAKEN], "job")
                yield len(jobs)
            found = self._settings_importer.compare_schedules(move.id, self._source.schedules())
            self._require_none([deviation.name for deviation in found if deviation.problem == CHANGED], "schedule")
        except BaseException:
            if checkpoint.stage is MigrationStage.COMPLETE:
                self._checkpoints.set_stage(move.id, MigrationStage.COMPLETE, after=[MigrationStage.IN_REVIEW])
            raise
        self._checkpoints.set_stage(move.id, MigrationStage.UNDOING, after=[stage])

    def _require_no_workers(self) -> None:
        workers = self._checkpoints.find_workers()
        if workers:
            raise EngineUnavailable(
                engine=self._target.description,
                reason=f"the target has live workers: {', '.join(workers)}",
                remedy="stop them; if they have run any of the jobs, the migration cannot be undone",
            )

    def _require_none(self, names: list[str], what: str) -> None:
        if names:
            raise EngineUnavailable(
                engine=self._target.description,
                reason=f"{what} {names[0]} was run, changed or deleted on the target, so no undo is possible",
                remedy="keep the jobs on the target: the same command without --undo finishes the migration",
            )


def require_move(source: SqliteExport) -> MoveRecord:
    """Return the record of a file's migration; raise `EngineUnavailable` if there is none."""
    move = source.move()
    if move is None:
        raise EngineUnavailable(
            engine=source.description,
            reason="the jobs of this file were not moved, so there is nothing to undo",
            remedy="use the file as it is",
        )
    return move
