"""The timeout of a command on a job, such as `cancel(timeout=1)`, and the error if the store answers too late."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mainspring.clock import NANOSECONDS, Duration, to_nanoseconds
from mainspring.jobs.commands import CancelJob


def to_seconds(timeout: Duration | None) -> float | None:
    """Return a timeout in seconds; None, for no timeout, stays None."""
    return None if timeout is None else to_nanoseconds(timeout, "timeout") / NANOSECONDS


@contextmanager
def explained_timeout(command: Any, seconds: float | None) -> Iterator[None]:
    """If the `with` block raises `TimeoutError`, raise one that names the command that the store has not
    confirmed.

    Without a timeout of its own (`seconds` is None), the error stays as it is.
    """
    try:
        yield
    except TimeoutError:
        if seconds is None:
            raise
        change = "canceled" if isinstance(command, CancelJob) else f"changed by {type(command).__name__}"
        raise TimeoutError(
            f"the store has not confirmed within {seconds} s that job {command.id!r} is {change}; the request is "
            f"queued and may still take effect: get({command.id!r}) shows whether it has"
        ) from None
