"""Decodes bodies and query strings of requests. Every wrong one is a problem that names the place and the remedy.

Invariants
- A large body is decoded on a thread, so that the event loop goes on.
- No input raises an exception other than `Refused`: neither deep nesting, nor invalid UTF-8, nor a number out of
  range.
- An unknown field or parameter is refused, with the name that may have been meant.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import accumulate
from typing import Any, TypeVar, get_args, get_origin, get_type_hints
from urllib.parse import parse_qsl

import msgspec

from mainspring.errors import LimitExceeded
from mainspring.jobs.off_loop import OffLoop
from mainspring.security.http_limits import HttpLimits
from mainspring.security.tokens import hide_tokens
from mainspring.similar_names import did_you_mean
from mainspring.web.problems import Refused, refuse

T = TypeVar("T")
StructT = TypeVar("StructT", bound=msgspec.Struct)

MAX_DEPTH = HttpLimits().max_depth
"""How deep arrays and objects of a body may be nested. Deeper data would end in recursion errors elsewhere."""
LARGE_BODY = 65_536
"""A body with more bytes is decoded on another thread, so that other requests need not wait."""
MAX_PARAMETERS = 100
MAX_SHOWN = 200
_STRINGS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?+', re.DOTALL)  # without backtracking: linear for any input
_NOT_BRACKETS = bytes(sorted(set(range(256)) - set(b"[]{}")))
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # up and down, as signed bytes
_PATH = re.compile(r" - at `\$(?P<path>[^`]*)`$")
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<name>.*)`", re.DOTALL)


async def decode_beside(off_loop: OffLoop, decode: Callable[[bytes], T], raw: bytes) -> T:
    """Return `decode(raw)`. If the body `raw` is large, a thread of `off_loop` decodes it."""
    return await off_loop.compute(decode, raw) if len(raw) > LARGE_BODY else decode(raw)


def decode_json(
    raw: bytes | msgspec.Raw,
    kind: type[T],
    *,
    what: str = "the body",
    checks_depth: bool = True,
    max_depth: int = MAX_DEPTH,
) -> T:
    """Decode JSON to a type; raise `Refused` if it is malformed, too deep, or not of the type.

    - `raw`: the bytes
    - `kind`: the type, such as a struct
    - `what`: what is decoded, for errors: `line 3`
    - `checks_depth`: False if the parts of the data, such as lines, are checked later
    - `max_depth`: how deep arrays and objects may be nested
    """
    if checks_depth:
        _check_depth(bytes(raw), what, max_depth)
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        raise refuse(422, "invalid-body", f"{what} is wrong{_explain(str(error), kind)}") from None
    except msgspec.DecodeError as error:
        raise refuse(400, "invalid-json", f"{what} is not valid JSON: {error}; correct it") from None
    except UnicodeDecodeError as error:
        raise refuse(
            400, "invalid-json", f"{what} is not UTF-8 ({error.reason}, byte {error.start}); encode it as UTF-8"
        ) from None
    except RecursionError:
        raise _too_deep(what, max_depth) from None


def decode_query(query_string: bytes, kind: type[StructT]) -> StructT:
    """Decode a query string to a struct of parameters.

    A field of the struct that is a dict gets all parameters that begin with its name and a dot: `argument.id=42`.
    Raises `Refused` for a parameter that is unknown, repeated or wrong.
    """
    names, groups = _parameters(kind)
    values: dict[str, Any] = {name: {} for name in groups}
    seen: set[str] = set()
    for name, value in _pairs(query_string):
        group, dot, key = name.partition(".")
        if name in seen:
            raise _bad_query(f"the parameter {_shown(name)} is given several times; give it once")
        seen.add(name)
        if "\0" in name or "\0" in value:
            raise _bad_query(f"the parameter {_shown(name)} contains a NUL character; leave it out")
        if dot and group in groups and key:
            values[group][key] = value
        elif name in names:
            values[name] = value
        else:
            known = sorted(names) + sorted(f"{group}.NAME" for group in groups)
            hint = did_you_mean(name[:MAX_SHOWN], known) or _known_names(known, "parameters")
            raise _bad_query(f"this endpoint has no parameter {_shown(name)}; {hint}")
    try:
        query = msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise _bad_query(f"a parameter is wrong{_explain(str(error), kind)}") from None
    for name in values.keys() - groups:
        if getattr(query, names[name]) is None:  # msgspec takes the text "null" for None
            raise _bad_query(f"the parameter {_shown(name)} cannot be {_shown(values[name])}; give another value")
    return query


@cache
def _parameters(kind: type[msgspec.Struct]) -> tuple[dict[str, str], frozenset[str]]:
    """Return the names of a query's parameters with the names of their fields, and the names of dict fields.

    A dict field gets all parameters that begin with its name and a dot.
    """
    fields = {each.encode_name: each.name for each in msgspec.structs.fields(kind)}
    hints = get_type_hints(kind, include_extras=False)  # slow: it evaluates each annotation
    groups = frozenset(name for name, own in fields.items() if get_origin(hints[own]) is dict)
    return {name: own for name, own in fields.items() if name not in groups}, groups


def _pairs(query_string: bytes) -> list[tuple[str, str]]:
    try:
        text = query_string.decode("ascii")
        return parse_qsl(
            text, keep_blank_values=True, errors="strict", max_num_fields=MAX_PARAMETERS, separator="&"
        )
    except UnicodeError:
        raise _bad_query("the query is not UTF-8 in percent-encoding; encode it as UTF-8") from None
    except ValueError:
        raise _bad_query(f"the query has more than {MAX_PARAMETERS} parameters; give fewer") from None


@contextmanager
def checked_values() -> Iterator[None]:
    """Turn a `ValueError`, `TypeError`, `OverflowError` or `LimitExceeded` of the block into a `Refused` with 422.

    Only checks of a request's values belong inside: an error of other code would be blamed on the caller.
    """
    try:
        yield
    except (ValueError, TypeError, OverflowError, LimitExceeded) as error:
        raise invalid_value(str(error)) from error


def invalid_value(detail: str) -> Refused:
    """Return the `Refused` (422) for a request with a value that has the right type but is not acceptable."""
    return refuse(422, "invalid-value", detail)


def _bad_query(detail: str) -> Refused:
    return refuse(422, "invalid-query", detail)


# -- depth


def _check_depth(raw: bytes, what: str, limit: int) -> None:
    """Raise `Refused` if JSON has more than `limit` nested levels. The check is linear in the size of the JSON."""
    if raw.count(b"[") + raw.count(b"{") <= limit:
        return
    steps = memoryview(_STRINGS.sub(b"", raw).translate(_STEPS, _NOT_BRACKETS)).cast("b")
    if any(depth > limit for depth in accumulate(steps)):
        raise _too_deep(what, limit)


def _too_deep(what: str, limit: int) -> Refused:
    return refuse(422, "too-deep", f"{what} has arrays and objects in more than {limit} levels; send flatter data")


# -- words


def _explain(text: str, kind: Any) -> str:
    """Turn msgspec's text about a wrong value into one for users: ` at 'delay': expected int, got str`."""
    path = _PATH.search(text)
    where = "" if path is None else f" at {_shown(path['path'].lstrip('.'))}"
    problem = text if path is None else text[: path.start()]
    unknown, missing = _UNKNOWN.fullmatch(problem), _MISSING.fullmatch(problem)
    if unknown is not None:
        known = sorted(_field_names(kind, "" if path is None else path["path"]))
        hint = did_you_mean(unknown["name"][:MAX_SHOWN], known) or _known_names(known, "fields")
        return f"{where}: there is no field {_shown(unknown['name'])}; {hint}"
    if missing is not None:
        return f"{where}: the field {_shown(missing['name'])} is missing; give it"
    return f"{where}: {problem[:1].lower()}{problem[1:].replace('`', '')}"


def _field_names(kind: Any, path: str) -> set[str]:
    """Return the names of the fields that an object at a path inside of a value of type `kind` may have."""
    found = _structs_in(kind)
    for name in re.findall(r"[^.\[\]]+", path):
        hints = [get_type_hints(struct, include_extras=False) for struct in found]
        inner = [hint[name] for hint in hints if name in hint]
        found = [struct for each in inner for struct in _structs_in(each)] if inner else found  # else: an index
    return {field.encode_name for struct in found for field in msgspec.structs.fields(struct)}


def _structs_in(kind: Any) -> list[type[msgspec.Struct]]:
    """Return the structs that values of a type may be, or may have as elements."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return [kind]
    return [struct for each in get_args(kind) for struct in _structs_in(each)]


def _known_names(known: list[str], what: str) -> str:
    return f"the {what} are {', '.join(known)}" if known else f"it takes no {what}"


def _shown(text: str) -> str:
    """Return a name that a caller has sent, for an error: quoted, shortened, with secrets of tokens masked."""
    return repr(hide_tokens(text)[:MAX_SHOWN])
