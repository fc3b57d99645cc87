"""Checks, encodes and decodes the arguments of handlers by their signatures, at submit and before each attempt.

`Arguments` makes a struct from the signature. A submit encodes the arguments by name and decodes them again with
the struct's decoder, so that the caller gets the error for arguments that a worker could not decode. Only the
arguments that were given are stored: if a deploy changes a default, the new default applies to earlier jobs, too.
A submit also compares the arguments that no annotation covers with their decoded form, and refuses those that the
encoding changes: see `type_changes`. The error about a redacted argument contains neither its value nor the
exception that does.

A batch handler has one parameter, a list; each job carries one element of it. The handler returns None, or a list
with one entry for each element: a result, or an exception that is charged to that job alone. An exception that the
handler raises is charged to each job. A worker makes one call of each batch handler at a time. `current_batch()`
returns the jobs in the order of the list. A request to stop one of them sets `cancelled` for that job. Timeouts
apply to the whole call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from inspect import Parameter, Signature, isclass, isroutine, signature
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
from msgspec.structs import astuple

from mainspring.errors import InvalidArguments, UnknownSerializer
from mainspring.jobs.ids import short_key
from mainspring.jobs.masking import REDACTED
from mainspring.jobs.peer_names import option_hint
from mainspring.jobs.serializers import Decoder, Serializer, Serializers, to_builtin
from mainspring.jobs.type_changes import Check, TypeChange, check_for
from mainspring.plurals import format_count
from mainspring.similar_names import did_you_mean

_PATH = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")
_MISSING = re.compile(r"missing required field `(?P<name>[^`]*)`")
_UNKNOWN = re.compile(r"unknown field `(?P<name>[^`]*)`")
_TYPES_ONLY = re.compile(r"Expected `[a-z0-9 |]+`, got `(int|float|str|bool|null|array|object|bytes|ext)`")
_NO_MATCH = "its value, which is redacted, does not match the signature"

_VARIADIC = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
_REFUSALS = (msgspec.ValidationError, TypeError, ValueError, OverflowError, RecursionError)


_encode_key = msgspec.json.Encoder(enc_hook=to_builtin, decimal_format="string", order="sorted").encode


def key_part(name: str, value: Any) -> str:
    """Return an argument as a part of a key (unique, sequence or limit), such as `order_id=42`.

    The value that a caller passes, and the same value decoded from the store, give the same text.
    """
    return f"{name}={_encode_key(value).decode()}"


def search_key(name: str, value: Any) -> str:
    """Return the text under which an argument is indexed for searches, at most as long as a key may be.

    Equal values have equal texts; 42.0 is equal to 42.
    """
    return short_key(key_part(name, int(value) if isinstance(value, float) and value.is_integer() else value))


class Arguments:
    """Checks, encodes and decodes the arguments of one handler by its signature."""

    def __init__(
        self, name: str, function: Callable[..., Any], serializer: Serializer, redacted: Sequence[str] = ()
    ) -> None:
        self._name = name
        self._signature = _signature_of(name, function)
        self._serializer = serializer
        self.serializers = Serializers(serializer)
        parameters = self._signature.parameters.values()
        self._names = tuple(p.name for p in parameters)
        self._is_plain = all(p.kind is Parameter.POSITIONAL_OR_KEYWORD for p in parameters)
        self._hints = _hints_of(name, function)
        self._struct = _make_struct(name, self._hints, self._signature)
        self._checks = _make_checks(self._hints, self._signature)
        self._decoders: dict[str, Decoder] = {serializer.name: serializer.decoder(self._struct)}
        self._decode = self._decoders[serializer.name].decode
        self.codec = serializer.name
        self.require_parameters(redacted)
        self._redacted = frozenset(redacted)

    def encode(self, positional: tuple[Any, ...], named: Mapping[str, Any]) -> bytes:
        """Bind the arguments of a call to the handler's parameters, check them and encode them.

        Raises `InvalidArguments`, which names the wrong parameter if it is known.
        """
        return self.encode_bound(self.bind(positional, named))

    def encode_bound(self, given: dict[str, Any]) -> bytes:
        """Check and encode arguments that are already bound to parameter names; raise `InvalidArguments` for wrong
        ones.
        """
        try:
            payload = self._serializer.encode(given)
            values = self._decode(payload)
            change = self._find_change(given, values) if self._checks else None
        except _REFUSALS as error:
            refusal, cause = self._explain(error, given)
        else:
            if self._redacted:
                self._refuse_markers(given)
            if change is None:
                return payload
            refusal, cause = self._refuse(*change), None
        raise refusal from cause  # outside of the `except` block, so that no other exception becomes its context

    def encode_some(self, given: Mapping[str, Any]) -> bytes:
        """Check and encode some of the arguments of a call, by name; the others may be missing.

        Raises `InvalidArguments` for a wrong value, or a name that is no parameter.
        """
        parameters = [p for p in self._signature.parameters.values() if p.kind not in _VARIADIC]
        unknown = given.keys() - {p.name for p in parameters}
        if unknown:
            name = min(unknown)
            problem = f"there is no such parameter in {self}"
            raise InvalidArguments(handler=self._name, parameter=name, problem=problem)
        chosen = Signature([p for p in parameters if p.name in given])
        decoder = self._serializer.decoder(_make_struct(self._name, self._hints, chosen))
        try:
            payload = self._serializer.encode(dict(given))
            change = self._find_change(given, decoder.decode(payload))
        except _REFUSALS as error:
            refusal, cause = self._explain(error, given)
        else:
            self._refuse_markers(given)
            if change is None:
                return payload
            refusal, cause = self._refuse(*change), None
        raise refusal from cause

    def encode_many(self, calls: Iterable[Any]) -> list[bytes]:
        """Bind, check and encode the arguments of many calls, each a dict of named or a tuple of positional ones.

        Raises `InvalidArguments` with the index of the first wrong call.
        """
        encode, decode, has_checks = self._serializer.encode, self._decode, bool(self._checks)
        has_redacted = bool(self._redacted)
        payloads: list[bytes] = []
        for call in calls:
            try:
                given = self.bind_item(call)
                try:
                    payload = encode(given)
                    values = decode(payload)
                    change = self._find_change(given, values) if has_checks else None
                except _REFUSALS as error:
                    refusal, cause = self._explain(error, given)
                else:
                    if has_redacted:
                        self._refuse_markers(given)
                    if change is None:
                        payloads.append(payload)
                        continue
                    refusal, cause = self._refuse(*change), None
                raise refusal from cause
            except InvalidArguments as error:
                problem = f"item {len(payloads)} of this submit_many: {error.problem}"
                raise InvalidArguments(
                    handler=self._name, parameter=error.parameter, problem=problem, remedy=error.remedy
                ) from error
        return payloads

    def _find_change(self, given: Mapping[str, Any], values: Any) -> tuple[str, TypeChange] | None:
        """Return the first argument whose value the encoding would change where no annotation covers it; None if
        none.
        """
        for name, check in self._checks:
            if name in given:
                change = check(given[name], getattr(values, name), name)
                if change is not None:
                    return name, change
        return None

    def _refuse_markers(self, given: Mapping[str, Any]) -> None:
        """Raise `InvalidArguments` if a redacted argument is the text "[redacted]", which lists show instead of
        its value.
        """
        for name in self._redacted:
            if isinstance(given.get(name), str) and given[name] == REDACTED:
                raise InvalidArguments(
                    handler=self._name,
                    parameter=name,
                    problem=f"it is {REDACTED!r}, the text that lists show instead of its value",
                    remedy="pass the value itself",
                )

    def _refuse(self, name: str, change: TypeChange) -> InvalidArguments:
        parameter = self._signature.parameters[name]
        if name in self._redacted:
            kind = type(change.given).__qualname__
            problem = f"the handler would get a changed value, because no annotation covers a {kind} in it"
            return InvalidArguments(
                handler=self._name, parameter=name, problem=problem, remedy=_remedy(parameter, change)
            )
        return InvalidArguments(
            handler=self._name,
            parameter=name,
            problem=change.describe("the handler would get"),
            remedy=_remedy(parameter, change),
        )

    def key(self, given: Mapping[str, Any], names: Sequence[str]) -> str:
        """Return a key made of the arguments `names`, such as "user=7, day=1". Equal values have equal keys.

        An argument that is not given counts with its default, or with None if it has none.
        """
        parts = []
        for name in names:
            value = given[name] if name in given else self._default(name)
            parts.append(key_part(name, value))
        return ", ".join(parts)

    def limit_key(self, given: Mapping[str, Any], names: Sequence[str]) -> str:
        """Return the key under which a limit with `by=names` counts a job with these arguments."""
        return self.key(given, names)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the handler's parameters."""
        return self._names

    @property
    def parameters(self) -> tuple[tuple[Parameter, Any], ...]:
        """The `inspect.Parameter`s of the handler, each with its type; the type is `Any` without an annotation."""
        return tuple((p, self._hints.get(p.name, Any)) for p in self._signature.parameters.values())

    @property
    def required(self) -> tuple[str, ...]:
        """The names of the handler's parameters that have no default, without `*args` and `**kwargs`."""
        parameters = self._signature.parameters.values()
        return tuple(p.name for p in parameters if p.default is Parameter.empty and p.kind not in _VARIADIC)

    def require_parameters(self, names: Sequence[str]) -> None:
        """Raise `ValueError` if one of `names` is not the name of a parameter of the handler."""
        for name in names:
            if name not in self._names:
                question = did_you_mean(name, self._names)
                remedy = f"its signature is {self}" if question is None else question
                raise ValueError(f"handler {self._name!r} has no parameter {name!r}; {remedy}")

    def _default(self, name: str) -> Any:
        parameter = self._signature.parameters.get(name)
        return None if parameter is None or parameter.default is Parameter.empty else parameter.default

    def bind_item(self, call: Any) -> dict[str, Any]:
        """Bind the arguments of one item of a `submit_many`, a mapping or a tuple; return them by parameter name.

        Raises `InvalidArguments` if they do not match the signature. Names that are unknown or missing may be
        found only when the arguments are encoded.
        """
        if type(call) is tuple:  # asked first, because it takes a tenth of the time of asking for a mapping
            return self.bind(call, {})
        if isinstance(call, Mapping):
            return call if self._is_plain and type(call) is dict else self.bind((), call)
        if isinstance(call, tuple | list):
            return self.bind(tuple(call), {})
        raise InvalidArguments(
            handler=self._name,
            parameter=None,
            problem=(
                "each job of submit_many is a dict or a tuple of arguments, got "
                f"{f'a {type(call).__qualname__}' if self._redacted else repr(call)}"
            ),
        )

    def decode(self, payload: bytes, codec: str) -> tuple[Sequence[Any], dict[str, Any]]:
        """Decode the stored arguments of a job into positional and named arguments for a call of its handler.

        Raises `InvalidArguments` if they do not match the handler's signature, or if this process does not have
        the serializer `codec`.
        """
        decoder = self._decoders.get(codec)
        if decoder is None:
            decoder = self._decoders[codec] = self._decoder_named(codec)
        try:
            values = decoder.decode(payload)
        except (msgspec.MsgspecError, TypeError, ValueError) as error:
            refusal, cause = self._explain(error, {})
        else:
            return self._call_of(values)
        raise refusal from cause

    def decoded(self, payload: bytes, codec: str, names: Iterable[str]) -> list[Any]:
        """Return the stored arguments `names` of a job, converted as for its handler, without those that were not
        given.

        The list is empty if the stored arguments do not match the handler's signature.
        """
        try:
            values = (self._decoders.get(codec) or self._decoder_named(codec)).decode(payload)
        except (InvalidArguments, msgspec.MsgspecError, TypeError, ValueError):
            return []
        found = (getattr(values, name) for name in names)
        return [value for value in found if value is not msgspec.UNSET]

    def plain(self, payload: bytes, codec: str) -> Any:
        """Decode the stored arguments of a job to plain data, such as numbers, texts and lists; bytes that cannot
        be decoded stay bytes.
        """
        return self.serializers.decode_any(payload, codec)

    def _decoder_named(self, codec: str) -> Decoder:
        try:
            return self.serializers.get(codec).decoder(self._struct)
        except UnknownSerializer as error:
            problem, _, remedy = str(error).rpartition("; ")
            raise InvalidArguments(handler=self._name, parameter=None, problem=problem, remedy=remedy) from error

    def bind(self, positional: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
        """Bind the arguments of a call to the handler's parameters; return them by name, without defaults.

        Raises `InvalidArguments` if they do not match the signature. Names that are unknown or missing may be
        found only when the arguments are encoded.
        """
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
        """Return whether a parameter can be passed by position: all parameters before it are passed so."""
        if parameter.kind is Parameter.POSITIONAL_ONLY:
            return True
        return parameter.kind is Parameter.POSITIONAL_OR_KEYWORD and given == self._names.index(parameter.name)

    def _explain(self, error: Exception, given: Mapping[str, Any]) -> tuple[InvalidArguments, Exception | None]:
        """Return the `InvalidArguments` for the caller, and its cause: None if that may contain a redacted
        value.
        """
        refusal = self._describe(error, given)
        if not self._redacted or (refusal.parameter is not None and refusal.parameter not in self._redacted):
            return refusal, error
        text = str(error)
        if _MISSING.search(text) and not _PATH.search(text):  # it names a parameter that was not given
            return refusal, None
        found = _TYPES_ONLY.match(text)
        problem = _NO_MATCH if found is None else found[0]
        return InvalidArguments(handler=self._name, parameter=refusal.parameter, problem=problem), None

    def _describe(self, error: Exception, given: Mapping[str, Any]) -> InvalidArguments:
        text = str(error)
        for pattern in (_MISSING, _UNKNOWN):
            found = pattern.search(text)
            if found and not _PATH.search(text):
                problem = f"{text}, in a call of {self}"
                hint = option_hint(found["name"])  # an option that another system takes among the arguments
                if hint is not None and pattern is _UNKNOWN:
                    problem = f"{problem}; for the option, {hint}"
                return InvalidArguments(handler=self._name, parameter=found["name"], problem=problem)
        path = _PATH.search(text)
        if path:
            name = re.split(r"[.\[]", path["path"])[0]
            value = f" ({given[name]!r:.200})" if name in given else ""
            inside = f" at {path['path']}" if path["path"] != name else ""
            problem = text[: path.start()] + inside + value
            return InvalidArguments(handler=self._name, parameter=name, problem=problem)
        return InvalidArguments(handler=self._name, parameter=self._find_bad(given), problem=text)

    def _find_bad(self, given: Mapping[str, Any]) -> str | None:
        """Return the name of the first argument that cannot be encoded, because the encoder's error does not name
        it.

        Return None if each of them can be encoded.
        """
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
    """Return the function that a partial or a callable object calls: that function has the type annotations."""
    while isinstance(function, partial):
        function = function.func
    if isroutine(function) or isclass(function):
        return function
    return type(function).__call__


def _hints_of(name: str, function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(plain_function(function), include_extras=True)
    except NameError as error:
        raise TypeError(
            f"handler {name!r}: its annotations cannot be read: {error}; "
            "import the name at run time, not under TYPE_CHECKING only"
        ) from error


def _make_struct(name: str, hints: Mapping[str, Any], of: Signature) -> type[msgspec.Struct]:
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
        msgspec.json.Decoder(struct, dec_hook=_pass_through)
    except TypeError as error:
        raise TypeError(
            f"handler {name!r}: its parameters cannot be stored: {error}; annotate them with types that can be "
            "stored: plain data, dataclasses, msgspec structs, pydantic models"
        ) from error
    return struct


def _make_checks(hints: Mapping[str, Any], of: Signature) -> list[tuple[str, Check]]:
    """Return, by parameter, the checks for values that the encoding could change.

    These are the parameters whose annotation leaves the type of a part of the value open.
    """
    checks: list[tuple[str, Check]] = []
    for parameter in of.parameters.values():
        kind: Any = hints.get(parameter.name, Any)
        if parameter.kind is Parameter.VAR_POSITIONAL:
            kind = list.__class_getitem__(kind)
        elif parameter.kind is Parameter.VAR_KEYWORD:
            kind = dict.__class_getitem__((str, kind))
        check = check_for(kind)
        if check is not None:
            checks.append((parameter.name, check))
    return checks


def _remedy(parameter: Parameter, change: TypeChange) -> str:
    if isinstance(change.given, float):
        return "pass None or text, because JSON has no such number, or use Mainspring(serializer='msgpack')"
    given = type(change.given).__qualname__
    if change.path == parameter.name and not change.is_key:
        if parameter.annotation is Parameter.empty:
            return f"annotate the parameter ({parameter.name}: {given}), or pass plain data"
        return f"name the type in its annotation ({parameter.name}: {given}), or pass plain data"
    example = f"dict[{given}, int]" if change.is_key else f"dict[str, {given}] or list[{given}]"
    return f"annotate the parameter with the types of its content, such as {example}, or pass plain data"


def _pass_through(_kind: type[Any], data: Any) -> Any:
    return data


def _quoted(text: str) -> str | None:
    found = re.search(r"'([^']*)'", text)
    return found[1] if found else None


def single_item_function(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with one parameter, an element of the batch handler's list: the signature of a submit.

    Raises `TypeError` if the batch handler has no single list parameter.
    """
    parameters = list(signature(function).parameters.values())
    kinds = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    if len(parameters) != 1 or parameters[0].kind not in kinds:
        raise TypeError(
            f"batch handler {name!r} must have one parameter, a list with one element for each job, such as "
            f"(orders: list[int]); it has {signature(function)}"
        )
    parameter = parameters[0]
    annotation = _hints_of(name, function).get(parameter.name, Any)
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


def split_batch_results(handler: str, returned: Any, count: int) -> list[Any]:
    """Split the return value of a batch handler into one result for each of `count` jobs.

    If it is None, each result is None. An exception in the list is the failure of that job's attempt. Raises
    `TypeError` if the value is neither None nor a list or tuple of `count` results.
    """
    if returned is None:
        return [None] * count
    if not isinstance(returned, list | tuple) or len(returned) != count:
        raise TypeError(
            f"batch handler {handler!r} got {format_count(count, 'job')} and must return nothing or a list of as "
            f"many results, got {returned!r:.200}"
        )
    return list(returned)
