"""A form for the arguments of a job: one field for each parameter, by its type; and the values of a sent form.

Texts, numbers, choices and times have fields of their own. Everything else, such as a list or a dataclass, is a
field for JSON. `arguments_of` only turns texts into JSON values: the submit checks whether they match the
signature, as for every other submit, so the errors are the same.

Invariants
- A field that is left empty is not given: the default applies, or the submit says that the argument is missing.
- The value of a redacted parameter is never part of a page, not even of the form that was just sent.
"""

from __future__ import annotations

import enum
import re
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from inspect import Parameter
from typing import Annotated, Any, Literal, Union, get_args, get_origin
from uuid import UUID

import msgspec

from mainspring.jobs.arguments import key_part
from mainspring.jobs.handlers import Handler
from mainspring.jobs.masking import REDACTED

PREFIX = "argument."
"""The beginning of the names of form fields for arguments: `argument.order_id`."""
EMPTY_TEXT = '""'
"""The text that a user writes into a field for an empty string, because an empty field is left out."""
MAX_EDITABLE = 20_000
"""The largest number of characters of an existing argument that a form can edit."""
MAX_TYPE = 120  # characters of the name of a type
_INTEGER = re.compile(r"[+-]?[0-9]{1,300}", re.ASCII)
_UNEDITABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
"""Characters that a browser does not send back unchanged in a form."""
_MODULES = re.compile(r"\b(?:[A-Za-z_][A-Za-z0-9_]*\.)+(?=[A-Za-z_])")

_HINTS: dict[Any, str] = {
    datetime: "2026-11-17T12:30:00Z",
    date: "2026-11-17",
    time: "12:30:00",
    timedelta: "PT90S (ISO 8601), or seconds",
    Decimal: "12.50",
    UUID: "0199c1a2-7c4e-7b1f-9a3d-5e6f70819203",
    bytes: "base64",
    bytearray: "base64",
}


class FieldKind(enum.StrEnum):
    """How a field is shown, and how its text becomes a value."""

    TEXT = "text"
    INTEGER = "integer"
    NUMBER = "number"
    CHOICE = "choice"
    JSON = "json"
    ANY = "any"
    """A parameter without a type: the text is read as JSON, or taken as a string if it is no JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormField:
    """The form field for one parameter of a handler."""

    name: str
    kind: FieldKind
    type: str
    """The type of the parameter as text, such as `int | None`."""
    is_required: bool
    default: str | None = None
    """The default of the parameter as JSON, or as Python's `repr`; None if there is none."""
    choices: tuple[tuple[str, str], ...] = ()
    """For `CHOICE`: the values as JSON, and their names."""
    hint: str = ""
    """An example of a value, or of its outline; empty if none is needed."""
    is_optional: bool = False
    """Whether the value may be null."""
    is_redacted: bool = False
    is_many: bool = False
    """Whether the field may have several lines."""

    @property
    def input_name(self) -> str:
        """The name of the HTML input: `argument.` and the name of the parameter."""
        return f"{PREFIX}{self.name}"


def fields_of(handler: Handler) -> list[FormField]:
    """Return the fields for the arguments of a handler, in the order of its parameters."""
    return [
        _field(parameter, kind, is_redacted=parameter.name in handler.redacted)
        for parameter, kind in handler.arguments.parameters
    ]


def _field(parameter: Parameter, annotation: Any, *, is_redacted: bool) -> FormField:
    if parameter.kind is Parameter.VAR_POSITIONAL:
        return FormField(
            name=parameter.name,
            kind=FieldKind.JSON,
            type=f"list[{_type_name(annotation)}]",
            is_required=False,
            hint="[1, 2]",
            is_redacted=is_redacted,
            is_many=True,
        )
    if parameter.kind is Parameter.VAR_KEYWORD:
        return FormField(
            name=parameter.name,
            kind=FieldKind.JSON,
            type=f"dict[str, {_type_name(annotation)}]",
            is_required=False,
            hint='{"name": 1}',
            is_redacted=is_redacted,
            is_many=True,
        )
    inner, is_optional = _without_none(annotation)
    kind, choices = _kind_of(inner)
    has_default = parameter.default is not Parameter.empty
    if kind is FieldKind.CHOICE and is_optional:
        choices = (*choices, ("null", "none (null)"))
    return FormField(
        name=parameter.name,
        kind=kind,
        type=_type_name(annotation),
        is_required=not has_default,
        default=_shown_default(parameter.default, is_redacted=is_redacted) if has_default else None,
        choices=choices,
        hint=_hint_of(inner, kind),
        is_optional=is_optional,
        is_redacted=is_redacted,
        is_many=kind is FieldKind.JSON,
    )


def _without_none(annotation: Any) -> tuple[Any, bool]:
    """Return a type without `Annotated` and without None, and whether None was allowed."""
    if get_origin(annotation) is Annotated:
        return _without_none(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        others = [each for each in get_args(annotation) if each is not type(None)]
        has_none = len(others) < len(get_args(annotation))
        if len(others) == 1:
            return _without_none(others[0])[0], has_none
        return annotation, has_none
    return annotation, False


def _kind_of(kind: Any) -> tuple[FieldKind, tuple[tuple[str, str], ...]]:
    if kind is bool:
        return FieldKind.CHOICE, (("true", "yes (true)"), ("false", "no (false)"))
    if get_origin(kind) is Literal:
        return FieldKind.CHOICE, tuple((_to_json(value), str(value)) for value in get_args(kind))
    if isinstance(kind, type) and issubclass(kind, enum.Enum) and not issubclass(kind, enum.Flag):
        return FieldKind.CHOICE, tuple((_to_json(member), member.name) for member in kind)
    if kind is int:
        return FieldKind.INTEGER, ()
    if kind is float:
        return FieldKind.NUMBER, ()
    if kind is str or kind in _HINTS:
        return FieldKind.TEXT, ()
    if kind is Any or get_origin(kind) in (Union, types.UnionType):
        return FieldKind.ANY, ()
    return FieldKind.JSON, ()


def _hint_of(kind: Any, field: FieldKind) -> str:
    if kind in _HINTS:
        return _HINTS[kind]
    if field is FieldKind.JSON:
        return _example(kind)
    return "JSON or text" if field is FieldKind.ANY else ""


def _example(kind: Any) -> str:
    """Return the outline of a value of a type in JSON: `[…]`, or an object with the names of its first fields."""
    origin = get_origin(kind) or kind
    if origin in (list, tuple, set, frozenset, Sequence):
        return "[…]"
    if origin in (dict, Mapping):
        return '{"…": …}'
    names = _field_names(origin)
    return "{" + ", ".join(f'"{name}": …' for name in names[:6]) + "}" if names else "JSON"


def _field_names(kind: Any) -> list[str]:
    if not isinstance(kind, type):
        return []
    if issubclass(kind, msgspec.Struct):
        return [field.encode_name for field in msgspec.structs.fields(kind)]
    for attribute in ("__dataclass_fields__", "model_fields", "__annotations__"):
        found = getattr(kind, attribute, None)
        if isinstance(found, Mapping):
            return list(found)
    return []


def _type_name(kind: Any) -> str:
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if kind is Any:
        return "any"
    text = kind.__qualname__ if isinstance(kind, type) and not get_args(kind) else _MODULES.sub("", str(kind))
    return text if len(text) <= MAX_TYPE else f"{text[: MAX_TYPE - 1]}…"


def _to_json(value: Any) -> str:
    return key_part("", value)[1:]


def _shown_default(value: Any, *, is_redacted: bool) -> str:
    if is_redacted:
        return REDACTED
    try:
        return _to_json(value)[:MAX_TYPE]
    except (TypeError, ValueError, RecursionError):
        return repr(value)[:MAX_TYPE]


# -- a form that was sent


def arguments_of(fields: Sequence[FormField], sent: Mapping[str, str]) -> bytes:
    """Return the arguments of a form that was sent, as a JSON object. Empty fields are left out.

    The values are not checked: a text that does not fit its field becomes a string.
    """
    parts: dict[str, msgspec.Raw] = {}
    for field in fields:
        text = sent.get(field.input_name, "")
        if text.strip():
            parts[field.name] = msgspec.Raw(_value(field, text))
    return msgspec.json.encode(parts)


def texts_of(fields: Sequence[FormField], arguments: Any) -> dict[str, str]:
    """Return the texts with which a form shows the arguments of an existing job, by the names of the inputs.

    Arguments without a field are left out. The text of a redacted one says that it is redacted. Return `{}` if
    `arguments` are no mapping.
    """
    if not isinstance(arguments, Mapping):
        return {}
    shown = {field.name: field for field in fields}
    return {
        shown[name].input_name: _text(shown[name], value) for name, value in arguments.items() if name in shown
    }


def is_editable(text: str) -> bool:
    """Return whether a form can show a text and send it back unchanged: short and without control characters."""
    return len(text) <= MAX_EDITABLE and _UNEDITABLE.search(text) is None


def _text(field: FormField, value: Any) -> str:
    if field.is_redacted:
        return REDACTED
    if isinstance(value, str) and field.kind in (FieldKind.TEXT, FieldKind.INTEGER, FieldKind.NUMBER):
        return value or EMPTY_TEXT
    text = _to_json(value)
    return msgspec.json.format(text, indent=2) if field.kind is FieldKind.JSON else text


def _value(field: FormField, text: str) -> bytes:
    """Return the text of a form field as JSON; a text that does not fit the field becomes a JSON string.

    The submit refuses this string, unless the type of the parameter allows it.
    """
    stripped = text.strip()
    if field.is_optional and stripped == "null" and field.kind is not FieldKind.TEXT:
        return b"null"
    match field.kind:
        case FieldKind.TEXT:
            return _encode_text("" if stripped == EMPTY_TEXT else _lines(text))
        case FieldKind.INTEGER:
            return str(int(stripped)).encode() if _INTEGER.fullmatch(stripped) else _encode_text(stripped)
        case FieldKind.NUMBER | FieldKind.CHOICE | FieldKind.ANY:
            return _json_or_text(stripped, text)
        case FieldKind.JSON:
            return _json_or_text(stripped, stripped)


def _json_or_text(candidate: str, text: str) -> bytes:
    try:
        msgspec.json.decode(candidate)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return _encode_text(text)
    return candidate.encode()


def _encode_text(text: str) -> bytes:
    return msgspec.json.encode(text.encode("utf-8", "replace").decode())


def _lines(text: str) -> str:
    """Return a text with LF at the ends of lines, because browsers send CR LF."""
    return text.replace("\r\n", "\n")
