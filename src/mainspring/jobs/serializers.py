"""Serializers: encode arguments and results as JSON (the default) or msgpack, or in a format of one's own.

Besides plain JSON data, msgspec supports dataclasses, its own structs, datetimes, decimals, UUIDs, enums, sets and
named tuples, and decodes them by their type annotations. Pydantic models are recognised by their methods, without
importing pydantic. Mainspring never uses pickle.

A serializer of one's own (`PlainSerializer`) gets plain data and returns plain data, so it need not know types: it
may encrypt, compress, or use another format. Its name is stored with every job, and a process finds the serializer
of a job by that name.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar, runtime_checkable

import msgspec

from mainspring.errors import UnknownSerializer
from mainspring.jobs.ids import require_id

T = TypeVar("T")


class Serializer(Protocol):
    """Encodes values as bytes, and makes decoders for given types."""

    @property
    def name(self) -> str:
        """The name of the encoding. It is stored with the encoded data."""

    def encode(self, value: object) -> bytes:
        """Encode a value; raise `TypeError` if it cannot be encoded."""

    def decoder(self, kind: type[T] | Any) -> Decoder:
        """Return a decoder that returns values of the type `kind`, and raises an error for other data."""


class Decoder(Protocol):
    """Decodes bytes to values of one type."""

    def decode(self, data: bytes, /) -> Any:
        """Decode a value; raise `msgspec.ValidationError` if it is not of the decoder's type."""


@runtime_checkable
class PlainSerializer(Protocol):
    """A serializer of one's own: `Mainspring(serializer=...)` takes an object with these members.

    Plain data are None, bool, int, float, str, lists, and dicts with str keys. Annotations restore other types.
    """

    @property
    def name(self) -> str:
        """The name of the format. Give another format another name.

        It is stored with each job. A process finds the serializer that decodes the job by this name.
        """

    def encode(self, data: Any, /) -> bytes:
        """Encode plain data."""

    def decode(self, data: bytes, /) -> Any:
        """Decode bytes that `encode` has returned; raise `ValueError` for others."""


class JsonSerializer:
    """Encodes values as JSON, which people and other languages can read. The default."""

    name = "json"

    def __init__(self) -> None:
        self.encode = msgspec.json.Encoder(enc_hook=to_builtin, decimal_format="string").encode

    def decoder(self, kind: Any) -> Decoder:
        return msgspec.json.Decoder(kind, dec_hook=_from_builtin)


class MsgpackSerializer:
    """Encodes values as msgpack: smaller than JSON, and bytes need no conversion."""

    name = "msgpack"

    def __init__(self) -> None:
        self.encode = msgspec.msgpack.Encoder(enc_hook=to_builtin, decimal_format="string").encode

    def decoder(self, kind: Any) -> Decoder:
        return msgspec.msgpack.Decoder(kind, dec_hook=_from_builtin)


class AdaptedSerializer:
    """Makes a `Serializer` of a `PlainSerializer`: it converts values to plain data and back, by their types."""

    def __init__(self, plain: PlainSerializer) -> None:
        self.name = plain.name
        self._plain = plain

    def encode(self, value: object) -> bytes:
        data = msgspec.to_builtins(value, str_keys=True, enc_hook=to_builtin)
        encoded = self._plain.encode(data)
        if not isinstance(encoded, bytes):
            raise TypeError(f"encode() of the serializer {self.name!r} must return bytes, got {encoded!r:.100}")
        return encoded

    def decoder(self, kind: Any) -> Decoder:
        return _PlainDecoder(self._plain, kind)


class _PlainDecoder:
    def __init__(self, plain: PlainSerializer, kind: Any) -> None:
        self._plain = plain
        self._kind = kind

    def decode(self, data: bytes, /) -> Any:
        try:
            plain = self._plain.decode(data)
        except Exception as error:  # code of the user, which may raise anything
            raise ValueError(
                f"decode() of the serializer {self._plain.name!r} failed for stored data: "
                f"{type(error).__name__}: {error}"
            ) from error
        return msgspec.convert(plain, self._kind, str_keys=True, dec_hook=_from_builtin)


SERIALIZERS: dict[str, type[JsonSerializer] | type[MsgpackSerializer]] = {
    JsonSerializer.name: JsonSerializer,
    MsgpackSerializer.name: MsgpackSerializer,
}


def make_serializer(chosen: object) -> Serializer:
    """Return the serializer for a value of `Mainspring(serializer=...)`: a name, or a serializer object.

    Raises `ValueError` for an unknown name, or for a serializer of one's own with the name of a built-in one, and
    `TypeError` for an object that is no serializer.
    """
    if isinstance(chosen, str):
        if chosen not in SERIALIZERS:
            known = ", ".join(SERIALIZERS)
            raise ValueError(f"serializer must be one of {known}, or a serializer of your own, got {chosen!r}")
        return SERIALIZERS[chosen]()
    if isinstance(chosen, JsonSerializer | MsgpackSerializer):
        return chosen
    has_members = hasattr(chosen, "name") and hasattr(chosen, "encode")
    can_decode = hasattr(chosen, "decode") or hasattr(chosen, "decoder")
    if isinstance(chosen, type) or not has_members or not can_decode:
        raise TypeError(
            "serializer must be 'json', 'msgpack' or an object with name, encode(data) and decode(data); an "
            f"instance, not its class; got {chosen!r}"
        )
    name = require_id(chosen.name, "the name of a serializer")  # type: ignore[attr-defined]
    if name in SERIALIZERS:
        raise ValueError(f"{name!r} is the name of a serializer of Mainspring; give {chosen!r} another name")
    if hasattr(chosen, "decoder"):
        return chosen  # type: ignore[return-value]
    return AdaptedSerializer(chosen)  # type: ignore[arg-type]


def keeps_raw(serializer: Serializer) -> bool:
    """Return whether a serializer accepts `msgspec.Raw`, data that it has encoded before, inside of a value."""
    return isinstance(serializer, JsonSerializer | MsgpackSerializer)


class Serializers:
    """The serializers whose data this process can decode, by name: JSON, msgpack, and the application's own."""

    def __init__(self, own: Serializer | None = None) -> None:
        self._known: dict[str, Serializer] = {name: make() for name, make in SERIALIZERS.items()}
        if own is not None:
            self._known[own.name] = own
        self._decoders: dict[str, Decoder] = {}  # to plain data

    def get(self, name: str) -> Serializer:
        """Return a serializer by its name. Raises `UnknownSerializer` if this process does not have it."""
        found = self._known.get(name)
        if found is None:
            raise UnknownSerializer(name=name, known=tuple(self._known))
        return found

    def decode_any(self, data: bytes, name: str) -> Any:
        """Decode bytes to plain data. Bytes that this process cannot decode are returned as they are."""
        decoder = self._decoders.get(name)
        if decoder is None:
            if name not in self._known:
                return data
            decoder = self._decoders[name] = self._known[name].decoder(Any)
        try:
            return decoder.decode(data)
        except (msgspec.MsgspecError, ValueError):
            return data


def to_builtin(value: Any) -> Any:
    """Convert a pydantic model to plain data; raise `TypeError` for any other value, which cannot be stored."""
    dump = getattr(type(value), "model_dump", None)
    if dump is None:
        raise TypeError(
            f"a {type(value).__qualname__} cannot be stored; pass plain data, a dataclass, a msgspec Struct or a "
            "pydantic model"
        )
    return dump(value, mode="json")


def _from_builtin(kind: type[Any], data: Any) -> Any:
    validate = getattr(kind, "model_validate", None)
    if validate is None:
        raise TypeError(
            f"{kind!r} cannot be read from the store; annotate with plain data, a dataclass, a msgspec Struct or "
            "a pydantic model"
        )
    return validate(data)  # msgspec adds the path of the value to a ValueError, such as pydantic's


BUILT_IN = Serializers()
"""JSON and msgpack, for code that knows no application."""
