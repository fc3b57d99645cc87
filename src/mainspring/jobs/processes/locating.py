"""How a child process finds a handler: by module and qualified name, as the worker's own registry has them.

What a child could not import is refused when the handler is registered, not when its first job runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from inspect import isclass, ismodule, isroutine, unwrap
from pathlib import Path
from typing import Any

from mainspring.jobs.handlers import Handler, HandlerOptions
from mainspring.jobs.job import Job
from mainspring.jobs.serializers import JsonSerializer

MAIN = ("__main__", "__mp_main__")
REMEDY = "define it with def at the top level of a module that can be imported"


class HandlerNotFound(Exception):
    """A child looked where the worker has the handler, and it is not there."""


def locate(function: Callable[..., Any]) -> tuple[str, str]:
    """Return the module and the qualified name of a function; `TypeError` if a child could not import it."""
    if isinstance(function, partial) or not (isroutine(function) or isclass(function)):
        raise _refusal(function, f"it is a {type(function).__name__}, not a function")
    owner = getattr(function, "__self__", None)
    if owner is not None and not (isclass(owner) or ismodule(owner)):
        raise _refusal(function, f"it is a method of an object, {owner!r}, which stays in this process")
    module, qualname = function.__module__, function.__qualname__
    if "<lambda>" in qualname:
        raise _refusal(function, "it is a lambda and has no name")
    if "<locals>" in qualname:
        raise _refusal(function, "it is defined inside of another function")
    if module in MAIN:
        problem = _problem_of_main()
        if problem is not None:
            raise _refusal(function, problem)
        module = "__main__"
    return module, qualname


def _problem_of_main() -> str | None:
    """Say why a child would not have what `__main__` defines; None if it would."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        is_unnamed = spec.name.rpartition(".")[2] == "__main__"
        return f"{spec.name} is run as a program and is not imported again" if is_unnamed else None
    file = getattr(main, "__file__", None)
    if file is None or not Path(file).is_file():
        return "it was typed into an interactive session, or read from standard input or -c"
    return None


def _refusal(function: Callable[..., Any], problem: str) -> TypeError:
    return TypeError(f'execution="process" cannot run {function!r} in another process: {problem}; {REMEDY}')


def find(name: str, module: str, qualname: str) -> Handler:
    """Import a handler, in the child. What stands there is the decorator's `Job`, or the function itself."""
    try:
        found: Any = sys.modules["__main__"] if module in MAIN else import_module(module)
    except ImportError as error:
        raise HandlerNotFound(
            f"the process for {name} cannot import {module!r}: {error}; make it importable there, too"
        ) from error
    for part in qualname.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise HandlerNotFound(
            f"{module} has no function {qualname!r} in the process for {name}; {REMEDY}, under its own name"
        )
    innermost = unwrap(found, stop=lambda one: isinstance(one, Job))
    if isinstance(innermost, Job):
        return innermost.handler
    return Handler(name, found, HandlerOptions(), JsonSerializer())
