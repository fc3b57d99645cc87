"""Validation of arguments, with errors that name the wrong value and say what is valid."""

from __future__ import annotations

from typing import TypeVar


def require_positive(value: object, name: str, of_what: str) -> int:
    """Return `value` if it is a positive integer; otherwise raise `TypeError` or `ValueError`, which call it
    `name`.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a positive whole number of {of_what}, got {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be a positive number of {of_what}, got {value!r}; the least is 1")
    return value


def require_callable(value: object, name: str = "the function of a task") -> None:
    """Raise `TypeError` if `value` is not callable, before a task is queued for it."""
    if not callable(value):
        raise TypeError(f"{name} must be callable, got {value!r}; pass a function without calling it")


T = TypeVar("T")


def require_instance(value: object, kind: type[T], name: str, example: str) -> T:
    """Return `value` if it is an instance of `kind`; otherwise raise `TypeError`, which calls it `name`."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__} such as {example}, got {value!r}")
    return value
