"""Moves waiting jobs, dead letters, schedules and settings from a SQLite file to NATS, each exactly once.

If the process dies, the next run continues with the step that was not finished.


1. Mark the file: no other process can use it any more, and nothing is ever deleted in it.
2. Write a checkpoint to the target: no worker enrolls there before the move is complete.
3. Copy settings, the audit trail and the envelopes of signed jobs that have ended, then jobs in the order of their
   submission, then schedules. The checkpoint advances in the same transactions as the jobs, so a migrator that
   resumes begins exactly there.
4. Read everything back and compare it with the file.
5. Mark the checkpoint complete, so that workers may enroll; the file then names the store that has its jobs.

Each step can be repeated. `copying` and `verifying` yield the number of jobs after each batch: the caller may stop
between two batches.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from secrets import token_hex
from typing import TYPE_CHECKING

from mainspring.engines.sqlite.export import SqliteExport
from mainspring.errors import EngineUnavailable, LimitExceeded
from mainspring.jobs.audit import current_actor
from mainspring.jobs.audit_drafts import AuditDraft
from mainspring.jobs.migration_records import MISSING, MigratedJob, MigrationDifference, MigrationStage

if TYPE_CHECKING:
    from mainspring.engines.nats.engine import NatsEngine
    from mainspring.engines.nats.migration import MigrationCheckpoint
    from mainspring.engines.sqlite.export import MoveRecord

PAGE = 1_000  # how many jobs are read at once
LAST_PLACE = 2**62  # a place after all jobs


class Migrator:
    """Moves the jobs of a SQLite file to NATS. `url` is the target for messages and records, without a password.

    Call `begin`, `copying`, `verifying` and `finish`, in this order.
    """

    def __init__(self, source: SqliteExport, target: NatsEngine, url: str) -> None:
        self._source = source
        self._target = target
        self._checkpoints = target.components.checkpoints
        self._job_importer = target.components.job_importer
        self._settings_importer = target.components.settings_importer
        self._url = url
        self._id = ""
        self.done_before = 0
        """How many jobs had arrived at the target before this run."""
        self.is_complete = False
        """Whether the migration was complete before this run."""
        self.deviations: list[MigrationDifference] = []
        """The jobs, settings, schedules and envelopes that differ on the target, as `verifying` found them."""

    def begin(self) -> None:
        """Mark the file as moving, and write a checkpoint (how far the migration has come) to the target.

        If both exist, resume the migration.

        Raises `EngineUnavailable` if the target has workers or is the wrong one, or if the migration is being
        undone; and `LimitExceeded` if a job is too large for the target.
        """
        move = self._source.move()
        if move is None:
            self._require_room()
            self._require_no_workers()
            self._source.begin(token_hex(8), self._url)
            move = self._source.move()
        assert move is not None
        self._id = move.id
        checkpoint = self._find_checkpoint(move)
        if checkpoint.stage is not MigrationStage.COMPLETE:
            self._require_no_workers()
        self.is_complete = checkpoint.stage is MigrationStage.COMPLETE
        self.done_before = self._source.count_jobs_until(checkpoint.position)

    def _find_checkpoint(self, move: MoveRecord) -> MigrationCheckpoint:
        checkpoint = self._checkpoints.find(move.id)
        if move.is_being_undone or (checkpoint is not None and checkpoint.stage is MigrationStage.UNDOING):
            raise EngineUnavailable(
                engine=self._source.description,
                reason=f"the migration of this file to {move.target} is being undone",
                remedy="finish the undo with --undo, then migrate again",
            )
        if checkpoint is None and (move.has_receipt or move.target != self._url):
            raise wrong_target(self._source, move, self._url)
        # this can happen after an undo that was abandoned
        if checkpoint is not None and checkpoint.stage is MigrationStage.IN_REVIEW:
            self._checkpoints.set_stage(move.id, MigrationStage.COMPLETE, after=[MigrationStage.IN_REVIEW])
        checkpoint = self._checkpoints.begin(move.id, source_name(self._source), last=move.last)
        if not move.has_receipt:
            self._source.record_receipt()
        return checkpoint

    def _require_room(self) -> None:
        """Raise `LimitExceeded` if a job is too large for a message of the target, before anything is changed."""
        largest = self._source.largest_job()
        if largest is not None and largest[1] > self._job_importer.max_job_bytes:
            raise LimitExceeded(
                what=f"job {largest[0]}, in bytes,",
                size=largest[1],
                limit=self._job_importer.max_job_bytes,
                remedy="raise max_payload of the server, or cancel the job, or purge it if it is FAILED; "
                "nothing was moved",
            )

    def _require_no_workers(self) -> None:
        workers = self._checkpoints.find_workers()
        if workers:
            raise EngineUnavailable(
                engine=self._target.description,
                reason=f"the target has live workers ({', '.join(workers)}), which would run jobs before earlier "
                "ones arrive",
                remedy="stop them until all jobs are there, then run the same command",
            )

    # -- step by step

    def copying(self) -> Iterator[int]:
        """Copy the settings, audit entries, envelopes (signatures of ended jobs), jobs and schedules that the
        target does not have yet.

        First delete what abandoned migrations of this file left on the target. After each batch, yield how many
        jobs were in it. Raises `EngineUnavailable` if the target has workers.
        """
        self._clear_leftovers()
        checkpoint = self._checkpoints.require(self._target.components.transactions.begin(), self._id)
        if not checkpoint.has_settings:
            settings = self._source.settings()
            self._target.arrange(self._settings_importer.arrangements(settings))
            self._copy_audit_trail()
            self._copy_envelopes()
            self._settings_importer.finish_settings(self._id, settings)
        for jobs in pages(self._source, checkpoint.position, LAST_PLACE):
            # checked again, because a replica that lags behind may have hidden a worker
            self._require_no_workers()
            self._job_importer.store(self._id, jobs)
            yield len(jobs)
        self._settings_importer.store_schedules(self._id, self._source.schedules())

    def _copy_audit_trail(self) -> None:
        """Copy the audit trail, and add an entry about the migration if the call has an actor (`acting_as`)."""
        entries = self._source.audit_entries()
        actor = current_actor()
        if actor is not None:
            draft = AuditDraft(actor, self._target.now())
            entries.append(draft.for_migration(self._source.description, self._url))
        self._target.audit.store(entries)

    def _copy_envelopes(self) -> None:
        """Let the target remember the signed jobs that have ended, so that no copy of one runs there.

        An undo does not delete what the target remembers. It ends with the signatures, and jobs of the same ids
        that are signed later are not affected.
        """
        now = self._target.now()
        for envelopes in self._source.envelopes(now):
            self._target.spent_envelopes.store(envelopes, now)

    def _clear_leftovers(self) -> None:
        """Delete the jobs, schedules and checkpoints that abandoned migrations of this file left on the target.

        The jobs of the file may have run since then, so these copies are out of date.
        """
        for checkpoint in self._checkpoints.find_open(source_name(self._source)):
            if checkpoint.id != self._id:
                for _ in delete_moved(self._target, checkpoint.id, checkpoint.stage):
                    pass

    def verifying(self) -> Iterator[int]:
        """Compare the target with the file: settings, jobs, schedules, and signatures of ended jobs (envelopes).

        Set `deviations`. After each batch, yield how many jobs were in it. If another process has finished the
        migration meanwhile, `deviations` is empty.
        """
        self.deviations = self._settings_importer.compare_settings(self._source.settings())
        for jobs in pages(self._source, 0, LAST_PLACE):
            self.deviations += self._job_importer.compare(self._id, jobs)
            yield len(jobs)
        self.deviations += self._settings_importer.compare_schedules(self._id, self._source.schedules())
        for envelopes in self._source.envelopes(self._target.now()):
            missing = self._target.spent_envelopes.missing(envelopes)
            self.deviations += [MigrationDifference("envelope", each.id, MISSING) for each in missing]
        checkpoint = self._checkpoints.find(self._id)
        if checkpoint is not None and checkpoint.stage is MigrationStage.COMPLETE:
            self.deviations.clear()  # another process has finished the migration, so workers may have started

    def finish(self) -> None:
        """Allow workers to enroll on the target, and record in the source file that the migration has ended.

        Raises `EngineUnavailable` if the migration was undone meanwhile.
        """
        move = self._source.move()
        if move is None or move.id != self._id:
            raise EngineUnavailable(
                engine=self._source.description,
                reason="the migration of this file was undone or given up meanwhile, so its jobs may have run",
                remedy="delete the copies on the target with --undo, then migrate again",
            )
        self._checkpoints.set_stage(
            self._id, MigrationStage.COMPLETE, after=[MigrationStage.MOVING, MigrationStage.IN_REVIEW]
        )
        if move.finished is None:
            self._source.finish()


def pages(source: SqliteExport, after: int, until: int) -> Iterator[list[MigratedJob]]:
    """Yield pages of the jobs to move with places (order of submission) above `after` and at most `until`.

    The jobs are sorted by place.
    """
    while page := [job for job in source.jobs(after, PAGE) if job.place <= until]:
        yield page
        after = page[-1].place


def wrong_target(source: SqliteExport, move: MoveRecord, url: str) -> EngineUnavailable:
    """Return the error for a target that has no checkpoint (stored progress) of the file's migration."""
    return EngineUnavailable(
        engine=source.description,
        reason=f"the jobs of this file are moving or were moved to {move.target}, and {url} has no record of that",
        remedy=f"use the target {move.target}; if it is gone for good, --undo --force lets the file be used again",
    )


def source_name(source: SqliteExport) -> str:
    """Return the name of a SQLite file with that of its machine, so that equal paths on two machines differ."""
    return f"{source.description} on {platform.node()}"


def delete_moved(target: NatsEngine, move_id: str, stage: MigrationStage) -> Iterator[int]:
    """Delete the jobs and schedules that a migration has stored on the target, and then its checkpoint (stored
    progress).

    After each batch, yield how many jobs were in it. Raises `EngineUnavailable` if the stage of the checkpoint is
    neither `stage` nor UNDOING.
    """
    checkpoints = target.components.checkpoints
    checkpoints.set_stage(move_id, MigrationStage.UNDOING, after=[stage])
    target.components.settings_importer.remove_schedules(move_id)
    yield from target.components.job_importer.remove_jobs(move_id)
    checkpoints.delete(move_id)
