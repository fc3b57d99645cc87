"""The arguments of a handler, typed by its signature and checked twice: at submit and before each attempt.

A struct is made from the signature. Submitting encodes the arguments by name and decodes them again with the
struct's decoder, so what would not arrive is refused while the caller can still do something about it. Only
what was given is stored: a default changed in a deploy holds for jobs submitted before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from inspect import Parameter, Signature, isclass, isroutine, signature
from typing import Any, get_type_hints

import msgspec
from msgspec.structs import astuple

from mainspring.errors import InvalidArguments
from mainspring.jobs.serializers import SERIALIZERS, Decoder, Serializer, to_builtin

_PATH = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")
_MISSING = re.compile(r"missing required field `(?P<name>[^`]*)`")
_UNKNOWN = re.compile(r"unknown field `(?P<name>[^`]*)`")

_REFUSALS = (msgspec.ValidationError, TypeError, ValueError, OverflowError, RecursionError)


_encode_key = msgspec.json.Encoder(enc_hook=to_builtin, decimal_format="string", order="sorted").encode


def key_part(name: str, value: Any) -> str:
    """Make a text of an argument for a key: the same for a value and for what was stored of it."""
    return f"{name}={_encode_key(value).decode()}"


class Arguments:
    """Checks, encodes and decodes the arguments of one handler."""

    def __init__(self, name: str, function: Callable[..., Any], serializer: Serializer) -> None:
        self._name = name
        self._signature = _signature_of(name, function)
        self._serializer = serializer
        parameters = self._signature.parameters.values()
        self._names = tuple(p.name for p in parameters)
        self._is_plain = all(p.kind is Parameter.POSITIONAL_OR_KEYWORD for p in parameters)
        self._struct = _make_struct(name, function, self._signature)
        self._decoders: dict[str, Decoder] = {serializer.name: serializer.decoder(self._struct)}
        self._decode = self._decoders[serializer.name].decode
        self.codec = serializer.name

    def encode(self, positional: tuple[Any, ...], named: Mapping[str, Any]) -> bytes:
        """Bind and encode a call; `InvalidArguments` names the parameter that does not fit."""
        return self.encode_stored(self.bind(positional, named))

    def encode_stored(self, given: dict[str, Any]) -> bytes:
        """Encode arguments that are bound already, by the names under which they are stored."""
        try:
            payload = self._serializer.encode(given)
            self._decode(payload)
        except _REFUSALS as error:
            raise self._explain(error, given) from error
        return payload

    def encode_many(self, calls: Iterable[Any]) -> list[bytes]:
        """Bind and encode many calls, each a dict of named arguments or a tuple of positional ones."""
        encode, decode = self._serializer.encode, self._decode
        payloads: list[bytes] = []
        for call in calls:
            try:
                given = self.bind_one_of_many(call)
                try:
                    payload = encode(given)
                    decode(payload)
                except _REFUSALS as error:
                    raise self._explain(error, given) from error
            except InvalidArguments as error:
                problem = f"item {len(payloads)} of this submit_many: {error.problem}"
                raise InvalidArguments(handler=self._name, parameter=error.parameter, problem=problem) from error
            payloads.append(payload)
        return payloads

    def key(self, given: Mapping[str, Any], names: Sequence[str]) -> str:
        """Make a text of some arguments, defaults included: equal for equal values."""
        parts = []
        for name in names:
            value = given[name] if name in given else self._default(name)
            parts.append(key_part(name, value))
        return ", ".join(parts)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the parameters."""
        return self._names

    @property
    def required(self) -> tuple[str, ...]:
        """The names of the parameters without a default."""
        kinds = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
        parameters = self._signature.parameters.values()
        return tuple(p.name for p in parameters if p.default is Parameter.empty and p.kind not in kinds)

    def require_parameters(self, names: Sequence[str]) -> None:
        """Refuse names that are not those of parameters."""
        for name in names:
            if name not in self._names:
                raise ValueError(f"handler {self._name!r} has no parameter {name!r}; it is {self}")

    def _default(self, name: str) -> Any:
        parameter = self._signature.parameters.get(name)
        return None if parameter is None or parameter.default is Parameter.empty else parameter.default

    def bind_one_of_many(self, call: Any) -> dict[str, Any]:
        """Bind one call of a `submit_many`."""
        if isinstance(call, Mapping):
            return call if self._is_plain and type(call) is dict else self.bind((), call)
        if isinstance(call, tuple | list):
            return self.bind(tuple(call), {})
        raise InvalidArguments(
            handler=self._name,
            parameter=None,
            problem=f"each job of submit_many is a dict or a tuple of arguments, got {call!r}",
        )

    def decode(self, payload: bytes, codec: str) -> tuple[Sequence[Any], dict[str, Any]]:
        """Decode what was stored into a call."""
        decoder = self._decoders.get(codec)
        if decoder is None:
            decoder = self._decoders[codec] = _serializer_named(codec, self._name).decoder(self._struct)
        try:
            values = decoder.decode(payload)
        except (msgspec.MsgspecError, TypeError, ValueError) as error:
            raise self._explain(error, {}) from error
        return self._call_of(values)

    def bind(self, positional: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
        """Bind a call: what was given, by the names under which it is stored."""
        if self._is_plain and len(positional) <= len(self._names):
            given = dict(zip(self._names, positional, strict=False))
            if not named:
                return given
            if given.keys().isdisjoint(named):
                return {**given, **named}
        try:
            return dict(self._signature.bind(*positional, **named).arguments)
        except TypeError as error:
            raise InvalidArguments(
                handler=self._name, parameter=_quoted(str(error)), problem=f"{error}, in a call of {self}"
            ) from None

    def _call_of(self, values: Any) -> tuple[Sequence[Any], dict[str, Any]]:
        if self._is_plain:
            return self._plain_call_of(astuple(values))
        positional: list[Any] = []
        named: dict[str, Any] = {}
        for parameter in self._signature.parameters.values():
            value = getattr(values, parameter.name)
            if value is msgspec.UNSET:
                continue
            if parameter.kind is Parameter.VAR_POSITIONAL:
                positional.extend(value)
            elif parameter.kind is Parameter.VAR_KEYWORD:
                named.update(value)
            elif self._is_positional(parameter, len(positional)):
                positional.append(value)
            else:
                named[parameter.name] = value
        return positional, named

    def _plain_call_of(self, values: tuple[Any, ...]) -> tuple[Sequence[Any], dict[str, Any]]:
        for place, value in enumerate(values):
            if value is msgspec.UNSET:
                rest = zip(self._names[place:], values[place:], strict=True)
                return values[:place], {name: value for name, value in rest if value is not msgspec.UNSET}
        return values, {}

    def _is_positional(self, parameter: Parameter, given: int) -> bool:
        """Whether it can be passed by place: nothing before it was left out."""
        if parameter.kind is Parameter.POSITIONAL_ONLY:
            return True
        return parameter.kind is Parameter.POSITIONAL_OR_KEYWORD and given == self._names.index(parameter.name)

    def _explain(self, error: Exception, given: Mapping[str, Any]) -> InvalidArguments:
        text = str(error)
        for pattern in (_MISSING, _UNKNOWN):
            found = pattern.search(text)
            if found and not _PATH.search(text):
                return InvalidArguments(
                    handler=self._name, parameter=found["name"], problem=f"{text}, in a call of {self}"
                )
        path = _PATH.search(text)
        if path:
            name = re.split(r"[.\[]", path["path"])[0]
            value = f" ({given[name]!r:.200})" if name in given else ""
            inside = f" at {path['path']}" if path["path"] != name else ""
            problem = text[: path.start()] + inside + value
            return InvalidArguments(handler=self._name, parameter=name, problem=problem)
        return InvalidArguments(handler=self._name, parameter=self._find_bad(given), problem=text)

    def _find_bad(self, given: Mapping[str, Any]) -> str | None:
        """Find the argument that cannot be encoded; the encoder does not say."""
        for name, value in given.items():
            try:
                self._serializer.encode(value)
            except _REFUSALS:
                return name
        return None

    def __str__(self) -> str:
        return f"{self._name}{self._signature}"


def _signature_of(name: str, function: Callable[..., Any]) -> Signature:
    try:
        return signature(function)
    except (TypeError, ValueError) as error:
        raise TypeError(f"handler {name!r} must be a function with a signature, got {function!r}") from error


def plain_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function behind a partial or a callable object: the one that has annotations."""
    while isinstance(function, partial):
        function = function.func
    if isroutine(function) or isclass(function):
        return function
    return type(function).__call__


def _make_struct(name: str, function: Callable[..., Any], of: Signature) -> type[msgspec.Struct]:
    try:
        hints = get_type_hints(plain_function(function), include_extras=True)
    except NameError as error:
        raise TypeError(
            f"handler {name!r}: its annotations cannot be read: {error}; "
            "import the name at run time, not under TYPE_CHECKING only"
        ) from error
    fields: list[Any] = []
    for parameter in of.parameters.values():
        kind: Any = hints.get(parameter.name, Any)
        if parameter.kind is Parameter.VAR_POSITIONAL:
            fields.append((parameter.name, list.__class_getitem__(kind) | msgspec.UnsetType, msgspec.UNSET))
        elif parameter.kind is Parameter.VAR_KEYWORD:
            fields.append((parameter.name, dict.__class_getitem__((str, kind)) | msgspec.UnsetType, msgspec.UNSET))
        elif parameter.default is Parameter.empty:
            fields.append((parameter.name, kind))
        else:
            fields.append((parameter.name, kind | msgspec.UnsetType if kind is not Any else Any, msgspec.UNSET))
    try:
        struct = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
        msgspec.json.Decoder(struct, dec_hook=_never)
    except TypeError as error:
        raise TypeError(
            f"handler {name!r}: its parameters cannot be carried: {error}; annotate them with types that can be "
            "stored: plain data, dataclasses, msgspec structs, pydantic models"
        ) from error
    return struct


def _never(_kind: type[Any], data: Any) -> Any:
    return data


def _serializer_named(codec: str, handler: str) -> Serializer:
    if codec not in SERIALIZERS:
        raise InvalidArguments(
            handler=handler,
            parameter=None,
            problem=f"the arguments were stored as {codec!r}, and only {', '.join(SERIALIZERS)} are known here",
        )
    return SERIALIZERS[codec]()


def _quoted(text: str) -> str | None:
    found = re.search(r"'([^']*)'", text)
    return found[1] if found else None
