"""Job types whose handlers run elsewhere: what `app.remote_job` returns, and the handler that it registers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, ParamSpec, TypeVar

from mainspring.jobs.handler_options import HandlerOptions
from mainspring.jobs.handlers import Handler
from mainspring.jobs.ids import require_id
from mainspring.jobs.job_function import JobFunction
from mainspring.jobs.serializers import Serializer

P = ParamSpec("P")
R = TypeVar("R")


class RemoteJobFunction(JobFunction[P, R]):
    """The job function that `app.remote_job` returns. It submits jobs for remote workers, and cannot be called."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> NoReturn:
        """Raise `TypeError`: the handler runs in a remote worker, not in this program."""
        raise TypeError(
            f"{self.name} runs in a remote worker and cannot be called here; its submit(...) stores a job"
        )


def make_remote_handler(
    name: str, signature: Callable[..., Any] | None, options: HandlerOptions, serializer: Serializer
) -> tuple[Handler, Callable[..., Any]]:
    """Return the handler of a remote job type, and the function whose signature it has.

    Without a `signature`, that function takes any named arguments. Raises `ValueError` for a retry policy that
    names exceptions.
    """
    if options.retry.on is not None or options.retry.give_up_on:
        raise ValueError(
            f"the remote job {name!r} has Retry(on=..., give_up_on=...), and errors of a remote worker have no "
            'Python class; let the worker settle with "retry": false instead'
        )
    function = _take_anything if signature is None else signature
    return Handler(require_id(name, "name"), function, options, serializer, is_remote=True), function


def _take_anything(**arguments: Any) -> Any:
    """Raise `NotImplementedError`.

    This function is the signature of a remote job type that declares no parameters.
    """
    raise NotImplementedError(
        f"only a remote worker can run this handler, which was called with the arguments {sorted(arguments)}; "
        "submit a job instead"
    )
