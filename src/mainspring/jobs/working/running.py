"""Handlers at work, each where its kind of execution says: on threads, on an event loop, in processes.

Each kind is set up when its first job is there: an application without coroutines has no event loop, one without
processes has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from mainspring.jobs.working.active import ActiveJob
from mainspring.jobs.working.attempts import Call
from mainspring.jobs.working.slots import Kind, Slots


class Performer(Protocol):
    """One kind of execution."""

    @property
    def perform(self) -> Callable[[list[ActiveJob]], Any]:
        """Run jobs as soon as there is room, unless somebody else claims their start."""

    @property
    def perform_batch(self) -> Callable[[list[ActiveJob]], Any]:
        """The same for jobs of one batch handler, in as few calls as may be."""

    def close(self) -> None:
        """Take nothing more, and leave behind or end what still runs."""


def in_processes(*parts: Any) -> Performer:
    """Set up the execution in child processes."""
    from mainspring.jobs.working.in_processes import InProcesses  # noqa: PLC0415 - most applications need none

    return InProcesses(*parts)


def require_main_guard() -> None:
    """Refuse to run in a child process that imports a main module without a guard."""
    from mainspring.jobs.processes.child import require_main_guard  # noqa: PLC0415 - it needs the manager

    require_main_guard()


class Running:
    """Runs jobs that are ready. `dispatch` is called in the control sequence, the rest from any thread."""

    def __init__(self, makers: dict[Kind, Callable[[], Performer]]) -> None:
        self._makers = makers
        self._performers: dict[Kind, Performer] = {}

    def dispatch(self, jobs: Iterable[ActiveJob]) -> None:
        """Run jobs as soon as there is room for them."""
        groups: dict[Slots, list[ActiveJob]] = {}
        for job in jobs:
            groups.setdefault(job.slots, []).append(job)
        for slots, group in groups.items():
            performer = self._performer(slots.kind)
            if slots.batch is None:
                performer.perform(group)
            else:
                performer.perform_batch(group)

    def _performer(self, kind: Kind) -> Performer:
        performer = self._performers.get(kind)
        if performer is None:
            performer = self._performers[kind] = self._makers[kind]()
        return performer

    def announce_shutdown(self, jobs: Iterable[ActiveJob]) -> None:
        """Let handlers know that their worker shuts down."""
        running = list(jobs)
        for job in running:
            job.context.announce_shutdown()
        for call in _calls_of(running):
            if call.announce is not None:
                call.announce()

    def stop(self, job: ActiveJob) -> None:
        """Ask the handler of a job to stop, and see to it where that is possible and harms no other job."""
        job.context.request_stop()
        call = job.call
        if call is not None and len(call.jobs) == 1 and call.kill is not None:
            call.kill()

    def stop_all(self, jobs: Iterable[ActiveJob]) -> None:
        """Ask the handlers of all jobs to stop, and see to it where that is possible."""
        stopped = list(jobs)
        for job in stopped:
            job.context.request_stop()
        for call in _calls_of(stopped):
            if call.kill is not None:
                call.kill()

    def close(self) -> None:
        """Close what was set up."""
        for performer in self._performers.values():
            performer.close()


def _calls_of(jobs: list[ActiveJob]) -> set[Call]:
    return {job.call for job in jobs if job.call is not None}
