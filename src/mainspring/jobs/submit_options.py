"""The options of a submit: when a job is due, its id, queue, priority and policies. Wrong values are refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from mainspring.clock import Duration
from mainspring.jobs.handler_options import FollowingJob, require_following_job, require_headers
from mainspring.jobs.ids import require_id
from mainspring.jobs.policies import Unique
from mainspring.jobs.retry import Retry
from mainspring.jobs.timestamps import (
    FIRST,
    FIRST_INSTANT,
    LAST,
    LAST_INSTANT,
    MICROSECONDS,
    to_instant,
    to_microseconds,
)
from mainspring.runners.task import Priority
from mainspring.runners.validation import require_instance


class SubmitOptions(Struct, frozen=True, kw_only=True):
    """The options of a submit. For an option that is None, the option of the handler applies, if there is one."""

    delay: int | None = None
    at: int | None = None
    id: str | None = None
    queue: str | None = None
    priority: Priority | None = None
    unique: Unique | None = None
    sequence: str | None = None
    steps_aside: bool | None = None
    expires: int | None = None
    headers: Mapping[str, str] | None = None
    then: FollowingJob | None = None
    retry: Retry | None = None
    timeout: int | None = None

    def changed(
        self,
        *,
        delay: Duration | None = None,
        at: datetime | None = None,
        id: str | None = None,
        queue: str | None = None,
        priority: Priority | None = None,
        unique: str | Unique | None = None,
        sequence: str | None = None,
        steps_aside: bool | None = None,
        expires: Duration | None = None,
        headers: Mapping[str, str] | None = None,
        then: FollowingJob | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
    ) -> SubmitOptions:
        """Check the given options, and return a copy with them; options that are None stay as they are.

        `delay` clears `at`, and `at` clears `delay`. Raises `ValueError` if both are given.
        """
        changes: dict[str, Any] = {}
        if delay is not None and at is not None:
            raise ValueError("give delay= or at=, not both")
        if delay is not None:
            changes |= {"delay": to_microseconds(delay, "delay"), "at": None}
        if at is not None:
            changes |= {"at": to_instant(at, "at"), "delay": None}
        given = {
            "id": id,
            "queue": queue,
            "priority": priority,
            "unique": unique,
            "sequence": sequence,
            "steps_aside": steps_aside,
            "expires": expires,
            "headers": headers,
            "then": then,
            "retry": retry,
            "timeout": timeout,
        }
        changes |= {name: _CHECKS[name](value) for name, value in given.items() if value is not None}
        return replace(self, **changes)

    def due(self, now: int, latest: int | None = None) -> int:
        """Return the due instant of a job that is submitted at `now`, in microseconds since 1970.

        A delay begins at `latest`, the engine's time at the latest, or at `now` without it. Raises `ValueError` if
        the store cannot represent the due instant.
        """
        start = latest if self.delay and latest is not None else now
        due = start + (self.delay or 0) if self.at is None else self.at
        if due > LAST_INSTANT:
            raise ValueError(
                f"the job would be due {(due - now) // MICROSECONDS:,} s from now, after {LAST:%Y-%m-%d} UTC, the "
                "last due time that can be stored; give an earlier at= or a shorter delay="
            )
        if due < FIRST_INSTANT:
            raise ValueError(
                f"at is before {FIRST.year:04}-01-02 UTC, the first due time that can be stored; give a later at="
            )
        return due


def _to_unique(unique: str | Unique) -> Unique:
    policy = Unique(unique) if isinstance(unique, str) else unique
    return require_instance(policy, Unique, "unique", "Unique(by='order_id')")


def _to_expires(expires: Duration) -> int:
    microseconds = to_microseconds(expires, "expires")
    if microseconds == 0:
        raise ValueError("expires must be greater than zero, got 0; leave it out for a job that does not expire")
    return microseconds


def _to_timeout(timeout: Duration) -> int:
    microseconds = to_microseconds(timeout, "timeout")
    if microseconds == 0:
        raise ValueError("timeout must be greater than zero, got 0; leave it out for that of the handler")
    return microseconds


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "id": require_id,
    "queue": lambda value: require_id(value, "queue"),
    "priority": lambda value: require_instance(value, Priority, "priority", "Priority.USER_BLOCKING"),
    "unique": _to_unique,
    "sequence": lambda value: require_id(value, "sequence"),
    "steps_aside": lambda value: require_instance(value, bool, "steps_aside", "True"),
    "expires": _to_expires,
    "headers": require_headers,
    "then": require_following_job,
    "retry": lambda value: require_instance(value, Retry, "retry", "Retry(max_attempts=3)"),
    "timeout": _to_timeout,
}
