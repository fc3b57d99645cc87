"""The application of a worker in the child processes of the worker.

A child process imports the module of the application before the module of a handler. So everything that the
application sets up at import (a framework, settings, other handlers) is set up in the child, too. If the child
opens the application, it uses the store of its worker, not the store that the code names, because `mainspring run
--url` may have chosen another store.

A child imports the same modules as its worker and creates the same applications. So an application is identified
by the module that created it, and by its number among the applications of that module.
"""

from __future__ import annotations

import logging
import sys
from collections import Counter
from importlib import import_module
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary

from msgspec import Struct

from mainspring.jobs.middleware import Middlewares
from mainspring.jobs.processes.handler_location import MAIN


class ApplicationId(Struct, frozen=True, array_like=True):
    """The module that created an application, and the number of the application in that module, from 1."""

    module: str
    number: int


class ChildSetup(Struct, frozen=True, array_like=True):
    """The data about a worker that its child process needs."""

    module: str | None = None
    """The module that the child imports first; None if the worker has no application, only a job manager."""
    application: ApplicationId | None = None
    url: str | None = None
    """The URL of the worker's store."""
    log_level: int = logging.WARNING
    """The level of the worker's root logger. The child sends records of this level and above."""


_lock = Lock()  # guards the numbers and the applications
_numbers: Counter[str] = Counter()
_applications: WeakValueDictionary[ApplicationId, Any] = WeakValueDictionary()
_setup = ChildSetup()


def identify(application: object) -> ApplicationId:
    """Return a new id for an application, and remember the application under it.

    The `__init__` of the application must call this function, once.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_locals.get("self") is application:
        frame = frame.f_back
    module = canonical_module(str(frame.f_globals.get("__name__")))
    with _lock:
        _numbers[module] += 1
        identity = ApplicationId(module, _numbers[module])
        _applications[identity] = application
        return identity


def canonical_module(name: str) -> str:
    """Return the name of a module that is the same in a worker and in its children: `__main__` for a script."""
    return MAIN[0] if name in MAIN else name


def adopt(setup: ChildSetup) -> None:
    """Remember the application and the store of the worker, for the other functions of this module.

    A child process calls it once, when it starts.
    """
    global _setup  # noqa: PLW0603 - a child process has one worker
    _setup = setup


def worker_url(application: ApplicationId) -> str | None:
    """Return the URL of the worker's store; None if this process is no child of a worker of `application`."""
    return _setup.url if _setup.application == application else None


def worker_middlewares() -> Middlewares:
    """Return the middleware of the worker's application, in a child process that has imported the application.

    In any other process, return an empty `Middlewares`.
    """
    application = None if _setup.application is None else _applications.get(_setup.application)
    return Middlewares() if application is None else application.middlewares


def import_application() -> None:
    """Import the module of the worker's application, in a child process.

    Do nothing if the worker has no application, or if it is a script: the child imported that when it started.
    """
    if _setup.module is not None and _setup.module not in MAIN:
        import_module(_setup.module)
