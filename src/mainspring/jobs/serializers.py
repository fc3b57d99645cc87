"""How arguments and results become bytes: JSON by default, msgpack by choice, never pickle.

Beyond what JSON knows, msgspec carries dataclasses, its own structs, datetimes, decimals, UUIDs, enums, sets
and named tuples by their type annotations. Pydantic models are recognised by their methods, without importing
pydantic.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import msgspec

T = TypeVar("T")


class Serializer(Protocol):
    """Turns values into bytes and back into a given type."""

    @property
    def name(self) -> str:
        """The name that is stored with what it encoded."""

    def encode(self, value: object) -> bytes:
        """Encode; TypeError for what it cannot carry."""

    def decoder(self, kind: type[T] | Any) -> Decoder:
        """Make a decoder that accepts only what fits `kind`."""


class Decoder(Protocol):
    """Turns bytes into values of one type."""

    def decode(self, data: bytes, /) -> Any:
        """Decode; `msgspec.ValidationError` for what does not fit."""


class JsonSerializer:
    """JSON: readable in the store and by other languages. The default."""

    name = "json"

    def __init__(self) -> None:
        self.encode = msgspec.json.Encoder(enc_hook=to_builtin, decimal_format="string").encode

    def decoder(self, kind: Any) -> Decoder:
        return msgspec.json.Decoder(kind, dec_hook=_from_builtin)


class MsgpackSerializer:
    """msgpack: smaller, and carries bytes as they are."""

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
    """Turn what msgspec does not know into plain data; TypeError if there is no way."""
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
    return validate(data)  # a ValueError, such as pydantic's, is passed on with the place of the value
