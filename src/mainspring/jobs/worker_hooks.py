"""The functions of `@app.on_worker_start` and `@app.on_worker_stop`, which run when a worker starts and stops.

They run in the process of the worker, on the thread that starts or stops it, in the order of their registration.

Invariants
- Start functions run before the worker registers itself and fetches jobs. If one raises an exception, the worker
  does not start, and its stop functions do not run.
- Stop functions run once for each start, after the last handler has ended or was interrupted, and also if the
  worker could not start after its start functions had run. An exception is logged; the others still run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from inspect import iscoroutinefunction, signature
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[[], Any])

logger = logging.getLogger("mainspring.worker")


class WorkerHooks:
    """The functions that an application runs when its worker starts and stops."""

    def __init__(self) -> None:
        self._start: list[Callable[[], Any]] = []
        self._stop: list[Callable[[], Any]] = []

    def add_start(self, function: F) -> F:
        """Add a function that runs before the worker fetches its first job, and return it.

        Raises `TypeError` if it is a coroutine function, or cannot be called without arguments.
        """
        self._start.append(_require_plain(function, "on_worker_start"))
        return function

    def add_stop(self, function: F) -> F:
        """Add a function that runs after the last handler of the worker has ended, and return it.

        Raises `TypeError` if it is a coroutine function, or cannot be called without arguments.
        """
        self._stop.append(_require_plain(function, "on_worker_stop"))
        return function

    def run_start(self) -> None:
        """Run the start functions in order. An exception of one is raised, and the later ones do not run."""
        for function in tuple(self._start):
            function()

    def run_stop(self) -> None:
        """Run the stop functions. An exception of one is logged, and the others still run."""
        for function in tuple(self._stop):
            try:
                function()
            except Exception:
                logger.exception(
                    "%s, which runs when the worker stops, has failed; the worker stops all the same",
                    _name_of(function),
                )


def _require_plain(function: Callable[[], Any], decorator: str) -> Callable[[], Any]:
    if not callable(function):
        raise TypeError(f"@app.{decorator} decorates a function and has no options, got {function!r}")
    if iscoroutinefunction(function):
        raise TypeError(
            f"@app.{decorator} decorates a plain function, and {_name_of(function)} is a coroutine function; "
            "call asyncio.run(...) in a plain one"
        )
    try:
        signature(function).bind()
    except TypeError as error:
        raise TypeError(
            f"{_name_of(function)} is called without arguments by @app.{decorator}: {error}; give its parameters "
            "a default"
        ) from None
    except ValueError:  # a built-in function without a signature
        pass
    return function


def _name_of(function: Callable[[], Any]) -> str:
    return getattr(function, "__qualname__", None) or repr(function)
