"""Submit quotas of queues: how many jobs may be pending, and how many may be submitted within a time.

A quota is stored like a limit, under a family of its own, so that it holds for all processes, including those
whose code does not declare it. `Engine.submit` checks it. All other ways in which a job becomes pending are
exempt, because no caller would get the error, and the job would be lost: retries, rescues, follow-up jobs, the
jobs of schedules, and replays. They count as pending all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from msgspec import Struct
from msgspec.structs import replace

from mainspring.errors import LimitExceeded
from mainspring.jobs.limits import Limit, bucket_of
from mainspring.plurals import format_count

DEPTH_OF = "depth of queue "
SUBMIT_RATE_OF = "submit rate of queue "


class Quota(Struct, frozen=True):
    """The submit quotas of one queue; None means unlimited."""

    max_depth: int | None = None
    """How many jobs may be PENDING, those that are due later included."""
    submit_rate: Limit | None = None


def depth_family(queue: str) -> str:
    """Return the name of the limit that stores the quota `max_depth` of a queue."""
    return f"{DEPTH_OF}{queue}"


def submit_rate_family(queue: str) -> str:
    """Return the name of the limit that stores the quota `submit_rate` of a queue."""
    return f"{SUBMIT_RATE_OF}{queue}"


def submit_rate_bucket(queue: str) -> str:
    """Return the name under which the tokens of a queue's submit rate are counted (its bucket)."""
    return bucket_of(submit_rate_family(queue))


def is_quota(family: str) -> bool:
    """Return whether a stored limit is a submit quota of a queue, and not a limit of the starts of jobs."""
    return family.startswith((DEPTH_OF, SUBMIT_RATE_OF))


def quotas_of(limits: Mapping[str, Limit]) -> dict[str, Quota]:
    """Return the submit quotas by queue, selected from all limits of a store."""
    found: dict[str, Quota] = {}
    for family, limit in limits.items():
        if family.startswith(DEPTH_OF) and limit.per is None:
            queue = family.removeprefix(DEPTH_OF)
            found[queue] = replace(found.get(queue, Quota()), max_depth=limit.most)
        elif family.startswith(SUBMIT_RATE_OF) and limit.per is not None:
            queue = family.removeprefix(SUBMIT_RATE_OF)
            found[queue] = replace(found.get(queue, Quota()), submit_rate=limit)
    return found


def depth_exceeded(queue: str, *, pending: int, new: int, max_depth: int) -> LimitExceeded:
    """Return the error for a submit of `new` jobs to a queue that has `pending` and takes at most `max_depth`."""
    return LimitExceeded(
        what=f"queue {queue!r}, in pending jobs,",
        size=pending + new,
        limit=max_depth,
        problem=f"queue {queue!r} has {format_count(pending, 'pending job')} and takes at most {max_depth:,}, "
        f"so a submit of {format_count(new, 'job')} was refused and stored nothing",
        remedy=f"submit again when workers have run some, or raise max_depth= of app.queue({queue!r}, ...)",
    )


def rate_exceeded(queue: str, *, rate: Limit, new: int, wait: int | None) -> LimitExceeded:
    """Return the error for a submit of `new` jobs beyond the submit rate of a queue.

    `wait` is the time until the rate admits the submit, in microseconds; None if it never does, because the submit
    has more jobs than the rate admits at once.
    """
    per = (rate.per or 0) / 1_000_000
    remedy = f"submit at most {rate.most:,} at once, or raise submit_rate= of app.queue({queue!r}, ...)"
    if wait is not None:
        remedy = f"submit again in {wait / 1_000_000:.3g} s"
    return LimitExceeded(
        what=f"a submit to queue {queue!r}, in jobs,",
        size=new,
        limit=rate.most,
        problem=f"queue {queue!r} accepts {format_count(rate.most, 'job')} in {per:g} s, "
        f"so a submit of {format_count(new, 'job')} was refused and stored nothing",
        remedy=remedy,
        retry_after=None if wait is None else timedelta(microseconds=wait),
    )
