"""The options of `@app.job(...)`, checked when they are given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, Protocol, TypeAlias

from msgspec import Struct
from msgspec.structs import force_setattr

from mainspring.clock import Duration, to_nanoseconds
from mainspring.jobs.ids import require_id
from mainspring.jobs.job_policies import RESERVED
from mainspring.jobs.policies import Concurrency, Rate, Unique, names_of
from mainspring.jobs.records import FollowUp
from mainspring.jobs.retry import Retry
from mainspring.runners.task import Priority
from mainspring.runners.validation import require_instance, require_positive

DEFAULT_QUEUE = "default"
DEFAULT_RETRY = Retry()

Execution: TypeAlias = Literal["thread", "process"]


class FollowingJob(Protocol):
    """A value of `then=`: a job function, a variant of one, or one with bound arguments."""

    def follow_up(self) -> FollowUp:
        """Return the plan for the follow-up job."""


class HandlerOptions(Struct, frozen=True, kw_only=True):
    """The options of a handler, as given to `@app.job(...)`. The docstring of `Decorators.job` explains them."""

    queue: str = DEFAULT_QUEUE
    priority: Priority = Priority.USER_VISIBLE
    retry: Retry = DEFAULT_RETRY
    timeout: Duration | None = None
    soft_timeout: Duration | None = None
    execution: Execution | None = None
    keep_result: bool | Duration = True
    unique: str | Unique | None = None
    rate: Rate | None = None
    concurrency: Concurrency | None = None
    expires: Duration | None = None
    then: FollowingJob | None = None
    batch: int | None = None
    sequence_by: str | tuple[str, ...] | None = None
    at_most_once: bool = False
    steps_aside: bool = False
    search: str | tuple[str, ...] = ()
    redact: str | tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_id(self.queue, "queue")
        if not isinstance(self.aliases, tuple):
            raise TypeError(f"aliases must be a tuple of names such as ('shop.old_name',), got {self.aliases!r}")
        for alias in self.aliases:
            require_id(alias, "aliases")
        require_instance(self.priority, Priority, "priority", "Priority.USER_BLOCKING")
        require_instance(self.retry, Retry, "retry", "Retry(max_attempts=3)")
        require_instance(self.at_most_once, bool, "at_most_once", "True")
        if self.at_most_once:
            self._allow_one_attempt()
        self._check_times()
        if self.execution not in (None, "thread", "process"):
            raise ValueError(f"execution must be 'thread' or 'process', got {self.execution!r}")
        if self.batch is not None:
            require_positive(self.batch, "batch", "jobs in one call")
        if isinstance(self.unique, str):
            force_setattr(self, "unique", Unique(self.unique))
        for name, kind, example in (
            ("unique", Unique, "Unique(by='order_id')"),
            ("rate", Rate, "Rate(10, per=60)"),
            ("concurrency", Concurrency, "Concurrency(5, by='tenant')"),
        ):
            value = getattr(self, name)
            if value is not None:
                require_instance(value, kind, name, example)
        names_of(self.sequence_by, "sequence_by")
        names_of(self.search, "search")
        names_of(self.redact, "redact")
        require_instance(self.steps_aside, bool, "steps_aside", "True")
        if self.then is not None:
            require_following_job(self.then)

    def _allow_one_attempt(self) -> None:
        if self.retry is not DEFAULT_RETRY and self.retry.max_attempts > 1:
            raise ValueError(
                f"at_most_once=True and {self.retry!r} contradict each other: a job that has started is not "
                "retried; leave out one of them"
            )
        force_setattr(self, "retry", replace(self.retry, max_attempts=1))

    def _check_times(self) -> None:
        for name in ("timeout", "soft_timeout", "expires"):
            value = getattr(self, name)
            if value is not None and to_nanoseconds(value, name) == 0:
                raise ValueError(f"{name} must be greater than zero, got 0; leave it out for no {name}")
        if not isinstance(self.keep_result, bool):
            to_nanoseconds(self.keep_result, "keep_result")
        if self.timeout is not None and self.soft_timeout is not None:
            soft, hard = to_nanoseconds(self.soft_timeout, "soft_timeout"), to_nanoseconds(self.timeout, "timeout")
            if soft >= hard:
                raise ValueError(
                    f"soft_timeout must be shorter than timeout, got {self.soft_timeout!r} and {self.timeout!r}"
                )


def require_following_job(value: object) -> FollowingJob:
    """Return a value of `then=`; raise `TypeError` if it is not a `FollowingJob`."""
    if not hasattr(value, "follow_up"):
        raise TypeError(
            "then must be a job such as other, other.options(delay=60) or other.bind(channel='mail'), "
            f"got {value!r}"
        )
    return value


def require_headers(headers: object) -> dict[str, str]:
    """Return the headers as a dict; raise `TypeError` unless they are a mapping of strings to strings."""
    if not isinstance(headers, Mapping) or not all(
        isinstance(name, str) and isinstance(value, str) for name, value in headers.items()
    ):
        raise TypeError(f"headers must be a dict of strings such as {{'user': '42'}}, got {headers!r}")
    reserved = RESERVED & headers.keys()
    if reserved:
        raise ValueError(
            f"the header {min(reserved)!r} is reserved; use options(retry=..., timeout=...), or "
            "Mainspring(signing=...) instead"
        )
    return dict(headers)
