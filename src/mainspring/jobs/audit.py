"""The audit trail: who changed jobs, queues, schedules and tokens, when, and from where.

A block `with acting_as("alice"):` names the actor of the calls inside it. The command line names the user of the
operating system, an HTTP server names the caller of each request. A call that changes the store on behalf of an
actor also stores an `AuditEntry`, in the same transaction. Calls without an actor store none: ordinary program
code submits and cancels jobs without a trace here.

Invariants
- An entry exists only if the store has changed. A refused call, such as the cancel of a job that has ended, stores
  none.
- An entry contains names, ids and numbers. It never contains values of arguments, and never a secret.
- The actor belongs to the context (`contextvars`) of the caller: other threads and other asyncio tasks have their
  own. A task that is started inside the block has the actor of the block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Any

from msgspec import Struct

from mainspring.jobs.timestamps import to_instant, to_past
from mainspring.runners.validation import require_positive
from mainspring.security.permissions import Permissions, Scope

MAX_TEXT = 200
"""The longest name of an actor or target, and the longest text in the details, in characters."""
MAX_JOBS = 100
"""How many jobs an entry lists at most. It counts all of them."""
MAX_NAMES = 20
"""How many job types, queues and names of arguments an entry lists at most."""


class Actor(Struct, frozen=True, kw_only=True):
    """The person or program that makes calls, and the way by which the calls come. `acting_as` sets it."""

    name: str
    source: str
    token: str | None = None
    request_id: str | None = None
    sudo_user: str | None = None


class AuditEntry(Struct, frozen=True, kw_only=True):
    """One change of the store by an actor. A change of many jobs by one call is one entry."""

    id: str
    """The id of the entry. Ids sort by time."""
    at: datetime
    actor: str
    """The name of the actor: a token, or a user with the host, such as `alice@web-1`."""
    action: str
    """What was done, such as `job.cancel` or `queue.pause`."""
    target: str | None
    """The id of the job, or the name of the schedule, queue, limit or token; None for a change of many jobs."""
    source: str = "program"
    """How the call came: `cli`, `http` or `program`."""
    token: str | None = None
    """The id of the actor's token, which is no secret; None if it has no token."""
    request_id: str | None = None
    """The id of the HTTP request; None for other calls."""
    count: int = 1
    """How many jobs, or other objects, were changed."""
    jobs: tuple[str, ...] = ()
    """The ids of jobs beside the target: the first hundred of many, or the job that a trigger or replay made."""
    types: tuple[str, ...] | None = None
    """The job types that the change concerned; None if it may concern any."""
    queues: tuple[str, ...] | None = None
    """The queues that the change concerned; None if it may concern any."""
    details: dict[str, Any] = {}
    """More about the change, such as filters and the names of edited arguments."""

    def is_visible_to(self, permissions: Permissions) -> bool:
        """Return whether a reader with these permissions may see the entry.

        A reader that is restricted to some job types or queues sees an entry only if the change concerned no
        others.
        """
        return all(
            permissions.allows(Scope.READ, type=type_, queue=queue)
            for type_ in self.types or (None,)
            for queue in self.queues or (None,)
        )

    def concerns(self, job_id: str) -> bool:
        """Return whether the entry names this job as its target, or in `jobs` as one that was changed or made."""
        is_target = self.target == job_id and self.action.startswith(("job.", "dead_letter."))
        return is_target or job_id in self.jobs


class AuditQuery(Struct, frozen=True, kw_only=True):
    """Filters for entries of the audit trail, which are listed latest first. Times are microseconds since 1970."""

    limit: int
    since: int | None = None
    until: int | None = None
    actor: str | None = None
    """The name of an actor, or its part before the `@`, or the id of a token."""
    action: str | None = None
    """An action such as `job.cancel`, or its part before the dot, such as `job`."""
    job: str | None = None
    """List only entries that name the job with this id; None for all."""
    before: str | None = None
    """List only entries before this one: the id of the last entry of the previous page."""
    reader: Permissions | None = None
    """List only entries that a reader with these permissions may see."""

    @classmethod
    def of(
        cls,
        now: int,
        limit: int,
        *,
        since: datetime | timedelta | None = None,
        until: datetime | timedelta | None = None,
        **others: Any,
    ) -> AuditQuery:
        """Make a query from the times that callers give: aware datetimes, or timedeltas before `now`.

        Raises `ValueError` if `limit` is not positive.
        """
        return cls(
            limit=require_positive(limit, "limit", "entries"),
            since=None if since is None else to_past(since, now, "since"),
            until=None if until is None else to_past(until, now, "until"),
            **others,
        )

    def matches(self, entry: AuditEntry) -> bool:
        """Return whether an entry passes all filters of the query. `limit` is not considered."""
        at = to_instant(entry.at, "at")
        return (
            (self.since is None or self.since <= at)
            and (self.until is None or at < self.until)
            and (self.actor is None or self.actor in (entry.actor, entry.actor.rpartition("@")[0], entry.token))
            and (self.action is None or self.action in (entry.action, entry.action.partition(".")[0]))
            and (self.job is None or entry.concerns(self.job))
            and (self.before is None or entry.id < self.before)
            and (self.reader is None or entry.is_visible_to(self.reader))
        )

    @property
    def first_id(self) -> str:
        """A lower bound for the ids of entries at `since` or later; "" if the query has no `since`."""
        return "" if self.since is None else id_at(self.since)


def id_at(instant: int) -> str:
    """Return the first 14 hexadecimal digits of the ids of audit entries of an instant.

    Later instants sort higher.
    """
    return f"{max(0, instant):014x}"


_actor: ContextVar[Actor | None] = ContextVar("mainspring_actor", default=None)

current_actor = _actor.get
"""Return the actor that `acting_as` has set for the current context; None outside of such a block."""


@contextmanager
def acting_as(
    name: str,
    *,
    source: str = "program",
    token: str | None = None,
    request_id: str | None = None,
    sudo_user: str | None = None,
) -> Iterator[None]:
    """Record the changes that the `with` block makes in the audit trail, under the name of an actor.

    - `name`: the name of the actor, such as the user who is logged in
    - `source`: how the calls come: `"cli"`, `"http"`, `"program"`, or a word of your own
    - `token`: the public id of the actor's token, if it has one
    - `request_id`: the id of the request that makes the calls, to find it in logs
    - `sudo_user`: the user who has called a command with sudo
    """
    if not name or not name.isprintable():
        raise ValueError(f"name must be a non-empty printable string, got {name!r}; name the user or the program")
    actor = Actor(name=clip(name), source=clip(source), token=token, request_id=request_id, sudo_user=sudo_user)
    before = _actor.set(actor)
    try:
        yield
    finally:
        _actor.reset(before)


class AuditNote(Struct, frozen=True, kw_only=True):
    """Action, target and details that the caller of a change gives for its audit entry.

    An action or target of None leaves the one that follows from the command. The details are added.
    """

    action: str | None = None
    target: str | None = None
    details: Mapping[str, Any] = {}


def clip(text: str) -> str:
    """Return a text, shortened to `MAX_TEXT` characters with "..." at its end if it is longer."""
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 3]}..."


def clip_names(names: Iterator[str] | Any) -> list[str]:
    """Return the first `MAX_NAMES` names in alphabetical order, each shortened to `MAX_TEXT` characters."""
    return [clip(str(name)) for name in sorted(names)[:MAX_NAMES]]
