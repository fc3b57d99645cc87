"""When and how a job is to run, as a submit says it: immutable, so variants can be kept and used again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from mainspring.clock import Duration
from mainspring.jobs.handler_options import FollowingJob, require_following_job, require_headers
from mainspring.jobs.ids import require_id
from mainspring.jobs.instants import LAST_INSTANT, to_instant, to_microseconds
from mainspring.jobs.policies import Unique
from mainspring.runners.checks import require_instance
from mainspring.runners.traits import Priority


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitOptions:
    """When and how a job is to run; what is None is the handler's."""

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
    ) -> SubmitOptions:
        """Return a copy with other options, checked; a delay replaces an instant and the other way round."""
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
        }
        changes |= {name: _CHECKS[name](value) for name, value in given.items() if value is not None}
        return replace(self, **changes)

    def due(self, now: int) -> int:
        """Return the due instant of a job that is submitted now."""
        due = now + (self.delay or 0) if self.at is None else self.at
        if due > LAST_INSTANT:
            raise ValueError(f"the job would be due after the year 9999, {due - now} microseconds from now")
        return due


def _to_unique(unique: str | Unique) -> Unique:
    policy = Unique(unique) if isinstance(unique, str) else unique
    return require_instance(policy, Unique, "unique", "Unique(by='order_id')")


def _to_expires(expires: Duration) -> int:
    microseconds = to_microseconds(expires, "expires")
    if microseconds == 0:
        raise ValueError("expires must be longer than nothing, got 0; leave it out for no expires")
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
}
