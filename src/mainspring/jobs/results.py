"""The result of a handler: decodes it by the return annotation, and finds results that do not match it.

A handler that has returned has done its work, so a result that does not match never fails the job: a retry would
repeat the work. The job completes, and a warning is logged and stored in its record.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Never, NoReturn, get_type_hints

import msgspec

from mainspring.jobs.serializers import BUILT_IN, Serializer, Serializers
from mainspring.jobs.type_changes import Check, check_for

_EXACT = frozenset({bool, bytes, int, str})  # the types that both encodings and their decoders keep
_PLAIN: dict[type, tuple[type, ...]] = {
    bool: (bool,),
    bytes: (bytes,),
    float: (float, int),
    int: (int,),
    str: (str,),
}


class ResultType:
    """The type of a handler's result, from its return annotation; any type if it has none or decoders do not know
    it.
    """

    def __init__(
        self, function: Callable[..., Any], *, is_batch: bool, serializers: Serializers = BUILT_IN
    ) -> None:
        self._serializers = serializers
        self._type: Any = Any if is_batch else _return_type(function)
        is_class = isinstance(self._type, type)
        self._exact = self._type if is_class and self._type in _EXACT else None
        self._plain = _PLAIN.get(self._type) if is_class else None
        self._check: Check | None = check_for(self._type)
        self._decode: dict[str, Callable[[bytes], Any]] = {}
        self.none_warning = None if self._accepts_none() else self._mismatch("the handler returned None")
        """The warning for a handler that returned None; None if its annotation allows that."""

    def decode(self, data: bytes, codec: str) -> Any:
        """Decode a stored result to the type of the annotation, or to plain data if it does not match that type.

        Raises `UnknownSerializer` if this process does not have the serializer of the result.
        """
        serializer = self._serializers.get(codec)
        try:
            return serializer.decoder(self._type).decode(data)
        except (msgspec.MsgspecError, TypeError):
            return serializer.decoder(Any).decode(data)

    def warning(self, value: Any, encoded: bytes, serializer: Serializer) -> str | None:
        """Return a warning if a result does not match the annotation, or would be changed by the encoding; else
        None.
        """
        if self._exact is not None and type(value) is self._exact:
            return None
        if self._plain is not None and not isinstance(value, self._plain):
            return self._mismatch(f"the handler returned {_shown(value)}")
        decode = self._decode.get(serializer.name)
        if decode is None:
            decode = self._decode[serializer.name] = serializer.decoder(self._type).decode
        try:
            decoded = decode(encoded)
            change = None if self._check is None else self._check(value, decoded, "the result")
        except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
            return self._mismatch(f"{error}; the handler returned {_shown(value)}")
        if change is None:
            return None
        return (
            f"the result changes in the store: {change.describe('its readers get')}; "
            f"annotate the return type of the handler, or return plain data"
        )

    def _accepts_none(self) -> bool:
        try:
            msgspec.convert(None, self._type)
        except (msgspec.MsgspecError, TypeError):
            return False
        return True

    def _mismatch(self, problem: str) -> str:
        name = getattr(self._type, "__qualname__", None) if isinstance(self._type, type) else None
        return (
            f"the result does not match the return annotation {name or self._type}: {problem}; "
            "correct the annotation or the return value"
        )


def _return_type(function: Callable[..., Any]) -> Any:
    """Return the return annotation of a function; `Any` if there is none, or if no decoder supports it."""
    kind = get_type_hints(function, include_extras=True).get("return", Any)
    if kind is object or kind is NoReturn or kind is Never:
        return Any
    try:
        msgspec.json.Decoder(kind, dec_hook=lambda _kind, data: data)
    except TypeError:
        return Any
    return kind


def _shown(value: Any) -> str:
    return f"{value!r:.100} ({type(value).__qualname__})"
