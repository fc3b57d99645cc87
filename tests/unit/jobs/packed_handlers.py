"""A handler for child processes in an application with a serializer of its own."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from typing import Any

from mainspring import Mainspring


class Packed:
    """Compressed JSON."""

    name = "packed"

    def encode(self, data: Any) -> bytes:
        return zlib.compress(json.dumps(data).encode())

    def decode(self, data: bytes) -> Any:
        return json.loads(zlib.decompress(data))


app = Mainspring("memory://", serializer=Packed())


@dataclass
class Number:
    value: int


@app.job(execution="process")
def double(number: Number) -> Number:
    return Number(2 * number.value)
