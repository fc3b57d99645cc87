"""Batch handlers: one call for jobs that are due together, each of them settled on its own.

The handler has one parameter, a list; each job carries one element of it. It returns nothing, or a list with one
entry for each element: a result, or an exception that is charged to that job alone. What it raises is charged to
each job, by that job's own counts.

A worker makes one call of a handler at a time, and the next jobs gather meanwhile. `current_batch()` has the jobs
in the order of the list. A request to stop one of them sets `cancelled` of that one; timeouts hold for the call,
and reach them all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import Parameter, Signature, signature
from typing import Any, get_args, get_origin, get_type_hints

from mainspring.jobs.arguments import plain_function


def one_of_batch(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with the signature of a submit: one element of the handler's list."""
    parameters = list(signature(function).parameters.values())
    kinds = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    if len(parameters) != 1 or parameters[0].kind not in kinds:
        raise TypeError(
            f"batch handler {name!r} must have one parameter, the list of what its jobs carry, such as "
            f"(orders: list[int]); it has {signature(function)}"
        )
    parameter = parameters[0]
    annotation = get_type_hints(plain_function(function), include_extras=True).get(parameter.name, Any)
    element = _element_of(name, parameter.name, annotation)

    def one(item: Any) -> Any:
        return item

    one.__signature__ = Signature(  # type: ignore[attr-defined]
        [Parameter(parameter.name, Parameter.POSITIONAL_OR_KEYWORD, annotation=element)]
    )
    one.__annotations__ = {parameter.name: element}
    return one


def _element_of(handler: str, parameter: str, annotation: Any) -> Any:
    if annotation is Any or annotation is list:
        return Any
    if get_origin(annotation) not in (list, Sequence):
        raise TypeError(
            f"batch handler {handler!r}: its parameter {parameter!r} must be a list such as list[int], "
            f"got {annotation!r}"
        )
    return get_args(annotation)[0]


def results_of(handler: str, returned: Any, count: int) -> list[Any]:
    """Return what a batch handler returned for each job; an exception in it is that job's own."""
    if returned is None:
        return [None] * count
    if not isinstance(returned, list | tuple) or len(returned) != count:
        raise TypeError(
            f"batch handler {handler!r} got {count} jobs and must return nothing or a list of as many results, "
            f"got {returned!r:.200}"
        )
    return list(returned)
