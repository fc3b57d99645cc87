"""Finds a handler in a child process: imports its module and looks up its qualified name."""

from __future__ import annotations

import sys
from importlib import import_module
from inspect import unwrap
from typing import Any

from mainspring.jobs.handler_options import HandlerOptions
from mainspring.jobs.handlers import Handler
from mainspring.jobs.job_function import JobFunction
from mainspring.jobs.processes.locating import MAIN, REMEDY
from mainspring.jobs.processes.messages import Request
from mainspring.jobs.serializers import JsonSerializer


class HandlerNotFound(Exception):
    """A child process cannot find a handler at the place where the worker has it."""


def find(request: Request) -> Handler:
    """Import the handler of a request. Its qualified name leads to the `JobFunction`, or to the plain function."""
    name, module, qualname = request.handler, request.module, request.qualname
    try:
        found: Any = sys.modules["__main__"] if module in MAIN else import_module(module)
    except ImportError as error:
        raise HandlerNotFound(
            f"the process for {name} cannot import {module!r}: {error}; make it importable there, too"
        ) from error
    for part in qualname.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise HandlerNotFound(f"{module} has no function {qualname!r} in the process for {name}; {REMEDY}")
    innermost = unwrap(found, stop=lambda one: isinstance(one, JobFunction))
    if isinstance(innermost, JobFunction):
        return innermost._handler
    options = HandlerOptions(batch=len(request.leases) if request.is_batch else None)
    return Handler(name, found, options, JsonSerializer())
