"""Errors in words for a terminal: where the library names a Python call as the remedy, a command stands here."""

from __future__ import annotations

import shlex

from mainspring.errors import DuplicateJob, MainspringError, ScheduleNotFound, UnknownHandler


def in_words(error: MainspringError) -> str:
    """Say what was wrong, and what to do about it from a command line."""
    match error:
        case DuplicateJob():
            why = "exists already" if error.key is None else f"has the unique key {error.key!r}"
            look = shlex.join(("mainspring", "jobs", "show", error.existing_id))
            return f"job {error.existing_id!r} {why} and nothing was stored; see {look}, or give another --id"
        case ScheduleNotFound():
            return (
                f"there is no schedule {error.name!r}; mainspring schedules list shows all, and those that are "
                "declared in code are stored when a worker starts"
            )
        case UnknownHandler(known=()):
            return f"no handler is known, and {error.name!r} is needed; give --app module:app beside the store"
        case UnknownHandler():
            known = ", ".join(error.known)
            return (
                f"no handler is registered as {error.name!r} (registered: {known}); "
                "check the name, and that the application imports its module"
            )
        case _:
            return str(error)
