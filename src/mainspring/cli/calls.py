"""Arguments of a handler as they are typed: `order_id=42 reason=unpaid`, or `--args '{"order_id": 42}'`.

The signature of the handler decides what a value is: `name=42` is a text where a text is asked for.
"""

from __future__ import annotations

from typing import Any

import msgspec
import typer

from mainspring.errors import InvalidArguments
from mainspring.jobs.handlers import Handler


def arguments_of(handler: Handler, pairs: list[str], text: str | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return a call of a handler, positional and named, from what was typed."""
    if text is None:
        return (), _fitting(handler, _split(pairs))
    if pairs:
        raise typer.BadParameter(f"give --args or name=value, not both; got {pairs[0]!r} beside --args")
    return call_of(decoded(text, "--args"), "--args")


def call_of(data: Any, where: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Make a call of an object of named arguments, or of a list of positional ones."""
    if isinstance(data, dict):
        return (), data
    if isinstance(data, list):
        return tuple(data), {}
    raise typer.BadParameter(f"{where}: arguments are an object or a list, got {data!r:.100}")


def decoded(text: str | bytes, where: str) -> Any:
    """Decode JSON; `where` is what to blame."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{where}: this is not JSON: {error}") from error


def to_pair(text: str) -> tuple[str, Any]:
    """Convert `name=value`; the value is JSON, or a text if it is none."""
    name, sign, value = text.partition("=")
    if not sign or not name.strip():
        raise typer.BadParameter(f"{text!r} is not of the form name=value, as in order_id=43")
    return name.strip(), to_value(value)


def to_value(text: str) -> Any:
    """Convert JSON; what is none is a text, so that nobody has to quote twice."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _split(pairs: list[str]) -> dict[str, str]:
    values: dict[str, str] = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign or not name.isidentifier():
            raise typer.BadParameter(f"{pair!r} is not of the form name=value, as in order_id=42")
        if name in values:
            raise typer.BadParameter(f"{name} is given twice, as {values[name]!r} and as {value!r}")
        values[name] = value
    return values


def _fitting(handler: Handler, texts: dict[str, str]) -> dict[str, Any]:
    """Read values as JSON where the handler takes them so, and as texts where it does not."""
    values: dict[str, Any] = {name: to_value(text) for name, text in texts.items()}
    while True:
        try:
            handler.arguments.encode((), values)
        except InvalidArguments as error:
            name = error.parameter
            if name not in texts or values[name] == texts[name]:
                raise
            values[name] = texts[name]
        else:
            return values
