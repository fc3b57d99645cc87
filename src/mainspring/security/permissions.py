"""What a caller may do: scopes, and the job types and queues that they apply to.

Invariants
- A caller may do nothing that its scopes do not name. `admin` includes every scope; no other scope includes one.
- A restriction to types or queues applies to every scope. An action that names no type, or no queue, concerns all
  of them: a restricted caller may not do it. So code that forgets to pass the type refuses too much, never too
  little.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from mainspring.errors import NotAllowed
from mainspring.similar_names import did_you_mean

MAX_NAMES = 100
MAX_NAME_LENGTH = 200


class Scope(StrEnum):
    """A kind of action that a token may allow."""

    SUBMIT = "submit"
    """Submit jobs."""
    READ = "read"
    """Read jobs, queues, schedules, statistics and metrics."""
    WORK = "work"
    """Claim and settle jobs, as a worker does."""
    OPERATE = "operate"
    """Cancel, retry, replay and reschedule jobs, pause queues, change schedules."""
    ADMIN = "admin"
    """Everything."""
    CALLBACK = "callback"
    """Submit jobs that call a URL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Permissions:
    """The scopes of a caller, and the job types and queues that they apply to."""

    scopes: frozenset[Scope] = frozenset()
    types: frozenset[str] | None = None
    """The job types; None for all."""
    queues: frozenset[str] | None = None
    """The queues; None for all."""

    def has(self, scope: Scope) -> bool:
        """Return whether the caller has a scope or `admin`, even if only for certain types and queues.

        Lists use this, and leave out the jobs that `allows` refuses.
        """
        return scope in self.scopes or Scope.ADMIN in self.scopes

    def allows(self, scope: Scope, *, type: str | None = None, queue: str | None = None) -> bool:
        """Return whether the caller may do an action of this scope for a job type and a queue.

        - `type`: the job type that the action concerns; None if it concerns all, which needs a right for all
        - `queue`: the queue that the action concerns; None if it concerns all, which needs a right for all
        """
        return self.has(scope) and _includes(self.types, type) and _includes(self.queues, queue)


def _includes(allowed: frozenset[str] | None, name: str | None) -> bool:
    return allowed is None or name in allowed


TOKEN_CALLER = "token "
"""The beginning of `Identity.caller` for a caller with a token, before the id of the token."""
ALL_PERMISSIONS = Permissions(scopes=frozenset({Scope.ADMIN}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A caller: its name, for logs and audits, and its permissions."""

    name: str
    permissions: Permissions
    token: str | None = None
    """The id of the caller's token, which is no secret; None if it has no token."""

    def allows(self, scope: Scope, *, type: str | None = None, queue: str | None = None) -> bool:
        """Return whether the caller may do an action: see `Permissions.allows`."""
        return self.permissions.allows(scope, type=type, queue=queue)

    @property
    def caller(self) -> str:
        """The name under which rates, idempotency keys, remote workers and schedules of the caller are kept: by
        the id of its token, else by its name.
        """
        return f"{TOKEN_CALLER}{self.token}" if self.token is not None else f"caller {self.name}"

    def require(self, scope: Scope, *, type: str | None = None, queue: str | None = None) -> None:
        """Raise `NotAllowed` unless the caller may do an action: see `Permissions.allows`."""
        if not self.allows(scope, type=type, queue=queue):
            raise NotAllowed(name=self.name, scope=str(scope), type=type, queue=queue)


def parse_scopes(given: Iterable[str]) -> frozenset[Scope]:
    """Return the scopes with these names; raise `ValueError` for an unknown name, and if no name is given."""
    names = [given] if isinstance(given, str) else list(given)
    scopes = set()
    for name in names:
        try:
            scopes.add(Scope(str(name).strip().lower()))
        except ValueError:
            known = ", ".join(Scope)
            hint = did_you_mean(str(name), list(Scope)) or f"the scopes are {known}"
            raise ValueError(f"{name!r} is no scope; {hint}") from None
    if not scopes:
        raise ValueError(f"a token needs a scope: {', '.join(Scope)}")
    return frozenset(scopes)


def parse_names(given: Iterable[str] | None, what: str) -> frozenset[str] | None:
    """Check names of job types or queues and return them; return None, which means all, for None and no names.

    Raises `ValueError` for a wrong name or too many, and `TypeError` for a string instead of a list. `what` is
    `types` or `queues`, for errors.
    """
    if isinstance(given, str):
        raise TypeError(f"{what} must be a list of names, got {given!r}; write [{given!r}]")
    names = frozenset(() if given is None else given)
    if len(names) > MAX_NAMES:
        raise ValueError(f"{len(names):,} {what} are given, the limit is {MAX_NAMES}; use several tokens")
    for name in names:
        if not name.strip() or len(name) > MAX_NAME_LENGTH:
            raise ValueError(f"{name!r} is no name for {what}; a name has 1 to {MAX_NAME_LENGTH} characters")
    return names or None
