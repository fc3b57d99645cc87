"""Serializers: encode arguments and results as JSON (the default) or msgpack, never as pickle.

Besides plain JSON data, msgspec supports dataclasses, its own structs, datetimes, decimals, UUIDs, enums, sets and
named tuples, and decodes them by their type annotations. Pydantic models are recognised by their methods, without
importing pydantic.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import msgspec

T = TypeVar("T")


class Serializer(Protocol):
    """Encodes values as bytes, and makes decoders for given types."""

    @property
    def name(self) -> str:
        """The name of the encoding. It is stored with the encoded data."""

    def encode(self, value: object) -> bytes:
        """Encode a value; raise `TypeError` if it cannot be encoded."""

    def decoder(self, kind: type[T] | Any) -> Decoder:
        """Return a decoder that accepts only data of the type `kind`."""


class Decoder(Protocol):
    """Decodes bytes to values of one type."""

    def decode(self, data: bytes, /) -> Any:
        """Decode a value; raise `msgspec.ValidationError` if it is not of the type."""


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


SERIALIZERS: dict[str, type[JsonSerializer] | type[MsgpackSerializer]] = {
    JsonSerializer.name: JsonSerializer,
    MsgpackSerializer.name: MsgpackSerializer,
}


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
        raise TypeError(f"{kind!r} cannot be read from the store")
    return validate(data)  # msgspec adds the path of the value to a ValueError, such as pydantic's
