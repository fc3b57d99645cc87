"""Stores dead letters, each together with a job for each dead-letter handler.

A job becomes a dead letter when its outcome is FAILED, when it expires, and when a rescue finds that it may not
run again. The code for each of these cases calls `DeadLetterWriter.store`.
"""

from __future__ import annotations

from collections.abc import Sequence
from secrets import token_hex

from mainspring.engines.nats.job_records import StoredJob
from mainspring.engines.nats.settings_cache import SettingsCache
from mainspring.engines.nats.submitting import JobSubmitter
from mainspring.engines.nats.transaction import Transaction
from mainspring.jobs.activity import EngineNote
from mainspring.jobs.dead_letter_jobs import DeadLetterHandler, SignLetter, letter_jobs, letter_of
from mainspring.jobs.ids import JobIds


class DeadLetterWriter:
    """Stores dead letters, and the jobs that dead-letter handlers get for them."""

    def __init__(self, settings_cache: SettingsCache, submitter: JobSubmitter) -> None:
        self._settings_cache = settings_cache
        self._submitter = submitter
        self._ids = JobIds()
        self.sign: SignLetter | None = None
        """Signs the jobs of dead-letter handlers; None if they are not signed."""

    def handlers(self) -> tuple[DeadLetterHandler, ...]:
        """Return the dead-letter handlers of the cached settings, which are read first if they may be outdated."""
        self._settings_cache.refresh_if_needed()
        return self._settings_cache.dead_letter_handlers

    def store(self, transaction: Transaction, job: StoredJob, handlers: Sequence[DeadLetterHandler]) -> None:
        """Store the record of a job that is FAILED now, and a job for each of these dead-letter handlers."""
        transaction.put_job(job)
        if handlers:
            now = transaction.now
            latest = transaction.latest()
            jobs = letter_jobs(
                [letter_of(job)], handlers, now, lambda: self._ids.make(now)[0], self.sign, latest=latest
            )
            for letter_job in jobs:
                transaction.assume(transaction.names.job(letter_job.id), 0, b"")  # the id is new
                self._submitter.add(transaction, letter_job, token_hex(8))
                transaction.note(EngineNote("submitted", letter_job.queue, letter_job.type))
