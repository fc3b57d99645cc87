"""Parses the arguments of a handler: `order_id=42 reason=unpaid`, or `--args '{"order_id": 42}'`.

The signature of the handler decides the type of a value: `name=42` is the string "42" for a `str` parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec

from mainspring.errors import InvalidArguments, UnknownHandler
from mainspring.jobs.handlers import Handler
from mainspring.jobs.job_function import JobFunction

if TYPE_CHECKING:
    from mainspring.app import Mainspring


def find_job_function(application: Mainspring, name: str, command: str) -> JobFunction[..., Any]:
    """Return the job function with this job type, or with its short name; raise `UnknownHandler` if there is none.

    Raises a usage error if the application has no handlers; `command` is the command, for that error.
    """
    registry = application.registry
    if not registry.all():
        raise click.BadParameter(
            f"{command} needs the handlers: give --app module:app, whose module must import all handlers; --url "
            "may name another store"
        )
    full_name = registry.full_name(name)
    if full_name not in registry:
        raise UnknownHandler(name=name, known=tuple(handler.name for handler in registry.all()))
    handler = registry.get(full_name)
    return JobFunction(handler, handler.function, application)


def parse_arguments(
    handler: Handler, pairs: Sequence[str], text: str | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and named arguments for a handler, from `name=value` pairs or the JSON of `--args`.

    Raises a usage error if both are given, or if one of them has a wrong form, and `InvalidArguments` if the
    handler refuses the values of the pairs. The JSON of `--args` is not compared with the handler here.
    """
    if text is None:
        return (), convert_values(split_pairs(pairs), lambda values: handler.arguments.encode((), values))
    if pairs:
        raise click.BadParameter(f"give --args or name=value, not both; got {pairs[0]!r} beside --args")
    return to_call(decode_json(text, "--args"), "--args")


def to_call(data: Any, where: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return decoded JSON as (positional, named) arguments: a list is positional, an object is named.

    Raises `click.BadParameter` for anything else; `where` names the source in the message.
    """
    if isinstance(data, dict):
        return (), data
    if isinstance(data, list):
        return tuple(data), {}
    raise click.BadParameter(f"{where}: arguments must be a JSON object or list, got {data!r:.100}")


def decode_json(text: str | bytes, where: str) -> Any:
    """Decode JSON; raise a usage error for other text, in which `where` names the source."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{where}: this is not JSON: {error}") from error


def parse_value(text: str) -> Any:
    """Decode JSON; return text that is not JSON as it is, so that users need not quote strings twice."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def split_pairs(pairs: Sequence[str]) -> dict[str, str]:
    """Split `name=value` pairs into a dict; raise a usage error for another form, or if a name is given twice."""
    values: dict[str, str] = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign or not name.isidentifier():
            raise click.BadParameter(f"{pair!r} is not of the form name=value, as in order_id=42")
        if name in values:
            raise click.BadParameter(f"{name} is given twice, as {values[name]!r} and as {value!r}; give it once")
        values[name] = value
    return values


def convert_values(texts: Mapping[str, str], check: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Decode the text of each argument as JSON; keep the text as a string if the handler refuses the JSON value.

    `check` raises `InvalidArguments` for values that the handler refuses. That error is raised if the handler also
    refuses the string.
    """
    values: dict[str, Any] = {name: parse_value(text) for name, text in texts.items()}
    while True:
        try:
            check(values)
        except InvalidArguments as error:
            name = error.parameter
            if name is None or name not in texts or values[name] == texts[name]:
                raise
            values[name] = texts[name]
        else:
            return values
