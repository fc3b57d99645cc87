"""Committing the starts of jobs that were held until shortly before their due time.

Starts that come together are one commit. While an answer is outstanding, nothing else is done with its jobs: only
the answer says whether they are ours to run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from msgspec.structs import replace

from mainspring.jobs.control import Control
from mainspring.jobs.io_layer import START, Callback, IoLayer, Operation
from mainspring.jobs.working.active import ActiveJob

logger = logging.getLogger("mainspring.worker")


class Starting:
    """Marks held jobs as started in the store. Belongs to the control sequence."""

    def __init__(
        self,
        io: IoLayer,
        control: Control,
        *,
        worker: Callable[[], int],
        on_answer: Callable[[list[ActiveJob], list[ActiveJob]], None],
        on_failure: Callable[[list[ActiveJob]], None],
    ) -> None:
        self._io = io
        self._control = control
        self._worker = worker
        self._on_answer = on_answer
        self._on_failure = on_failure
        self._waiting: list[ActiveJob] = []
        self.is_busy = False

    def start(self, job: ActiveJob) -> None:
        """Commit the start of a job, together with others that come before the last commit is through."""
        job.is_starting = True
        self._waiting.append(job)
        if not self.is_busy:
            self._commit()

    def _commit(self) -> None:
        jobs, self._waiting = self._waiting, []
        self.is_busy = True
        reply: Callback[list[bool]] = Callback(
            lambda answers: self._control.post(self._answered, jobs, answers),
            lambda error: self._control.post(self._failed, jobs, error),
        )
        leases = [job.lease for job in jobs]
        self._io.dispatch(Operation(START, leases, reply, worker=self._worker(), durable=False))

    def _go_on(self) -> None:
        self.is_busy = False
        if self._waiting:
            self._commit()

    def _answered(self, jobs: list[ActiveJob], answers: list[bool]) -> None:
        self._go_on()
        for job in jobs:
            job.lease = replace(job.lease, is_started=True)
            job.is_starting = False
        accepted = [job for job, is_accepted in zip(jobs, answers, strict=True) if is_accepted]
        refused = [job for job, is_accepted in zip(jobs, answers, strict=True) if not is_accepted]
        self._on_answer(accepted, refused)

    def _failed(self, jobs: list[ActiveJob], error: Exception) -> None:
        logger.error("the start of %d jobs could not be stored, so they are handed back: %s", len(jobs), error)
        self._go_on()
        for job in jobs:
            job.is_starting = False
        self._on_failure(jobs)
