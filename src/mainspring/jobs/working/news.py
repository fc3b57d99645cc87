"""What a worker writes into the log about its jobs."""

from __future__ import annotations

import logging

from mainspring.jobs.engine import Swept
from mainspring.jobs.records import Outcome, OutcomeKind

logger = logging.getLogger("mainspring.worker")


def tell_outcome(outcome: Outcome) -> None:
    """Say that an attempt did not end well."""
    lease = outcome.lease
    fields = {"job": lease.id, "handler": lease.type, "queue": lease.queue}
    if outcome.kind is OutcomeKind.FAILED:
        text = "job %s (%s) was given up, a dead letter now: %s"
        logger.error(text, lease.id, lease.type, outcome.error, extra=fields)
    elif outcome.kind is OutcomeKind.RETRY:
        text = "job %s (%s) failed and runs again: %s"
        logger.warning(text, lease.id, lease.type, outcome.error, extra=fields)


def tell_refusal(outcome: Outcome) -> None:
    """Say that another worker has taken a job over."""
    logger.warning(
        "job %s was taken over by another worker; the outcome of this run was refused", outcome.lease.id
    )


def tell_sweep(swept: Swept) -> None:
    """Say what was rescued."""
    if swept.rescued:
        logger.warning("rescued %s of workers that died: %s", _jobs(swept.rescued), _some(swept.rescued))
    if swept.quarantined:
        logger.error(
            "%s killed workers again and again; dead letters now: %s",
            _jobs(swept.quarantined),
            _some(swept.quarantined),
        )


def _jobs(ids: list[str]) -> str:
    return f"{len(ids)} job{'' if len(ids) == 1 else 's'}"


def _some(ids: list[str]) -> str:
    return ", ".join(ids[:5]) + (", ..." if len(ids) > 5 else "")
