"""Handlers, and the registry that finds a handler by its name.

A job type that is read from the store is only looked up, never imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction, unwrap
from pathlib import Path
from threading import Lock
from typing import Any

from msgspec.structs import replace

from mainspring.clock import Duration
from mainspring.errors import UnknownHandler
from mainspring.jobs.arguments import Arguments, plain_function, search_key, single_item_function
from mainspring.jobs.handler_options import DEFAULT_RETRY, HandlerOptions
from mainspring.jobs.job_policies import RETRY, retry_of
from mainspring.jobs.named_arguments import NamedArguments, has_any_parameters
from mainspring.jobs.policies import Unique, names_of
from mainspring.jobs.records import NewJob
from mainspring.jobs.results import ResultType
from mainspring.jobs.retry import Retry
from mainspring.jobs.serializers import Serializer
from mainspring.jobs.timestamps import to_microseconds


class Handler:
    """A handler: a registered function with its name, its parameters and its options."""

    __slots__ = (
        "arguments",
        "expires",
        "function",
        "is_async",
        "is_coroutine",
        "is_process",
        "is_remote",
        "keep_result",
        "name",
        "options",
        "place",
        "redacted",
        "result",
        "search_by",
        "sequence_by",
        "soft_timeout",
        "timeout",
    )

    is_callback = False
    """Whether the handler sends an HTTP request: see `mainspring.callbacks`."""
    chooses_url = False
    """Whether an argument is the URL of a callback, so that submits need the right to choose it."""

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        options: HandlerOptions,
        serializer: Serializer,
        *,
        is_remote: bool = False,
    ) -> None:
        plain = plain_function(function)
        if isgeneratorfunction(plain) or isasyncgenfunction(plain):
            raise TypeError(
                f"handler {name!r} is a generator function, which a worker cannot run; "
                "use a function that returns its result, or None"
            )
        self.name = name
        self.function = function
        self.options = options
        self.is_remote = is_remote
        """Whether remote workers run the jobs, and no worker of the application does."""
        self.is_process = options.execution == "process"
        self.is_coroutine = iscoroutinefunction(plain)
        self.is_async = self.is_coroutine and not self.is_process  # it runs on the event loop of the worker
        if self.is_coroutine and options.execution == "thread":
            raise ValueError(
                f"handler {name!r} is a coroutine function, for the event loop; leave execution='thread' out"
            )
        self.place = _locate(function) if self.is_process else None
        call = function if options.batch is None else single_item_function(name, function)
        self.redacted = names_of(options.redact, "redact")
        make_arguments = NamedArguments if is_remote and has_any_parameters(call) else Arguments
        self.arguments = make_arguments(name, call, serializer, self.redacted)
        for policy, option in ((options.rate, "rate"), (options.concurrency, "concurrency")):
            if policy is not None:
                self.arguments.require_parameters(names_of(policy.by))
                self.require_visible(names_of(policy.by), f"{option}=")
        self.require_unique(options.unique)  # type: ignore[arg-type]  # a text has become a `Unique` by now
        self.sequence_by = names_of(options.sequence_by)
        self.arguments.require_parameters(self.sequence_by)
        self.require_visible(self.sequence_by, "sequence_by=")
        self.search_by = names_of(options.search)
        self.arguments.require_parameters(self.search_by)
        self.require_visible(self.search_by, "search=")
        self.result = ResultType(plain, is_batch=options.batch is not None, serializers=self.arguments.serializers)
        self.timeout = _optional(options.timeout, "timeout")
        self.soft_timeout = _optional(options.soft_timeout, "soft_timeout")
        self.expires = _optional(options.expires, "expires")
        keep = options.keep_result
        self.keep_result = None if isinstance(keep, bool) else to_microseconds(keep, "keep_result")

    @property
    def requests_at_once(self) -> int:
        """How many HTTP requests of callbacks a worker has in flight at once; 0 for handlers that are no
        callbacks.
        """
        return 0

    @property
    def longest_run(self) -> int | None:
        """The timeout in microseconds, or the soft timeout if there is no timeout; None if there is neither."""
        return self.soft_timeout if self.timeout is None else self.timeout

    def require_unique(self, policy: Unique | None) -> None:
        """Raise `ValueError` if a unique key needs a parameter that the handler does not have, or that it redacts.

        A policy without `key` and `by` uses all parameters. No policy (None) is always accepted.
        """
        if policy is None:
            return
        names = names_of(policy.by)
        self.arguments.require_parameters(names)
        if self.redacted:
            self.require_visible(names if names or policy.key else self.arguments.names, "unique=")

    def require_visible(self, names: Iterable[str], where: str) -> None:
        """Raise `ValueError` if one of the parameters `names` is redacted.

        `where` is the option that would show its value.
        """
        for name in names:
            if name in self.redacted:
                raise ValueError(
                    f"handler {self.name!r} redacts the parameter {name!r}, and {where} would show its value as a "
                    f"key, or let it be guessed; use another parameter for {where}, or leave {name!r} out of "
                    "redact="
                )

    def search_keys(self, given: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the search keys of a job with these arguments: see `NewJob.search`."""
        return tuple(search_key(name, given[name]) if name in given else name for name in self.search_by)


class HandlerRegistry:
    """The handlers that are registered in this process, each under its name and its aliases (earlier names)."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._handlers: dict[str, Handler] = {}
        self.declaration_version = 0
        """A number that grows with every handler that redacts parameters or has limits; 0 if there is none."""

    def add(self, handler: Handler) -> None:
        """Register a handler under its name and its aliases (earlier names).

        Raises `ValueError` if another function has one of these names. If the function comes from the same line of
        the same file, because its module was reloaded, the new handler replaces the earlier one.
        """
        names = (handler.name, *handler.options.aliases)
        with self._lock:
            for name in names:
                other = self._handlers.get(name)
                if other is not None and not _is_same(other.function, handler.function):
                    raise ValueError(
                        f"two handlers are named {name!r}: {_place(other.function)} and "
                        f"{_place(handler.function)}; give one of them another name= or alias"
                    )
            self._handlers.update(dict.fromkeys(names, handler))
            options = handler.options
            self.declaration_version += bool(handler.redacted or options.concurrency or options.rate)

    def get(self, name: str) -> Handler:
        """Return a handler by its name or an alias (an earlier name).

        Raises `UnknownHandler` if it is not registered.
        """
        handler = self._handlers.get(name)
        if handler is None:
            raise UnknownHandler(name=name, known=tuple(sorted(self._handlers)))
        return handler

    def full_name(self, name: str) -> str:
        """Expand a short name, such as `cancel_order` to `shop.cancel_order`.

        Unknown or ambiguous names stay the same.
        """
        if name in self._handlers:
            return name
        matches = {handler.name for handler in self.all() if handler.name.rpartition(".")[2] == name}
        return matches.pop() if len(matches) == 1 else name

    def with_search_keys(self, job: NewJob) -> NewJob:
        """Return a job with the search keys of its handler.

        This is for jobs that a worker makes, for a schedule or after another job. A job without a handler here, or
        without `search=`, is returned as it is.
        """
        handler = self._handlers.get(job.type)
        if handler is None or not handler.search_by:
            return job
        return replace(job, search=handler.search_keys(handler.arguments.plain(job.payload, job.codec)))

    def redacted(self) -> dict[str, tuple[str, ...]]:
        """Return the redacted parameters of the handlers, by job type, earlier names (aliases) included."""
        if not self.declaration_version:
            return {}
        with self._lock:
            return {name: handler.redacted for name, handler in self._handlers.items() if handler.redacted}

    def __contains__(self, name: object) -> bool:
        return name in self._handlers

    def all(self) -> list[Handler]:
        """Return every handler once, sorted by name."""
        with self._lock:
            unique = {id(handler): handler for handler in self._handlers.values()}
        return sorted(unique.values(), key=lambda handler: handler.name)

    def names(self) -> tuple[str, ...]:
        """Return the names of all handlers, their earlier names (aliases) included."""
        with self._lock:
            return tuple(self._handlers)

    def local_names(self) -> tuple[str, ...]:
        """Return the names of the handlers that workers of this application run, with aliases (earlier names)."""
        with self._lock:
            return tuple(name for name, handler in self._handlers.items() if not handler.is_remote)

    def retry_of(self, name: str, headers: Mapping[str, str] | None) -> Retry | None:
        """Return the retry policy of a job: its own, or that of its handler; None if neither is known here."""
        handler = self._handlers.get(name)
        if handler is None and RETRY not in (headers or {}):
            return None
        return retry_of(headers, DEFAULT_RETRY if handler is None else handler.options.retry)

    def remote_names(self) -> tuple[str, ...]:
        """Return the names of the handlers that remote workers run, earlier names (aliases) included."""
        with self._lock:
            return tuple(name for name, handler in self._handlers.items() if handler.is_remote)


def _locate(function: Callable[..., Any]) -> tuple[str, str]:
    from mainspring.jobs.processes import locate  # noqa: PLC0415 - that package needs this module

    return locate(function)


def _optional(duration: Duration | None, name: str) -> int | None:
    return None if duration is None else to_microseconds(duration, name)


def default_name(function: Callable[..., Any]) -> str:
    """Return the default name of a function's handler: the module and the qualified name of the function.

    For a function in `__main__`, the module is named by its file, as other modules import it.
    """
    module = getattr(function, "__module__", None) or "__main__"
    qualname = getattr(function, "__qualname__", None) or type(function).__qualname__
    if module in ("__main__", "__mp_main__"):  # `__mp_main__` is the name in a spawned process
        main = sys.modules[module]
        spec = getattr(main, "__spec__", None)
        if spec is not None and spec.name:  # python -m package.module
            module = spec.name.removesuffix(".__main__")
        elif getattr(main, "__file__", None):
            module = Path(str(main.__file__)).stem
    return f"{module}.{qualname}"


def _is_same(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Return whether two functions come from the same line of a source file.

    That is so if their module was reloaded, or imported under two names.
    """
    return _place(one) == _place(other)


def _place(function: Callable[..., Any]) -> str:
    code = getattr(unwrap(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else repr(function)
