"""Decompresses the bodies of requests with `Content-Encoding: gzip`, up to the limits of the server.

A few kilobytes can become gigabytes. So no call decompresses more than the rest of `max_body`, and a body that
becomes more than `max_ratio` times as large is refused, long before it is complete.
"""

from __future__ import annotations

import zlib

from mainspring.security.http_limits import HttpLimits
from mainspring.web.problems import Refused, refuse

GZIP = 31  # zlib: the largest window, with the header and the checksum of gzip
ALWAYS_ALLOWED = 65_536
"""Up to this size of the decompressed body, in bytes, `max_ratio` does not apply."""
ENCODINGS = frozenset({"gzip", "x-gzip"})


def inflater_for(encoding: str | None, limits: HttpLimits) -> Inflater | None:
    """Return an inflater for the value of `Content-Encoding`; None if the body is not compressed.

    Raises `Refused` for an encoding that the server does not support.
    """
    name = "" if encoding is None else encoding.strip().lower()
    if name in ("", "identity"):
        return None
    if name in ENCODINGS:
        return Inflater(limits)
    raise refuse(
        415,
        "content-encoding",
        f"the content encoding of the request is {name[:100]!r}; send gzip, or an uncompressed body",
        accept_encoding="gzip",
    )


class Inflater:
    """Decompresses the body of one request, part by part."""

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._stream = zlib.decompressobj(GZIP)
        self._received = 0
        self._size = 0

    def inflate(self, part: bytes, *, is_last: bool) -> bytes:
        """Decompress and return the next part of the body.

        Raises `Refused` if the body is no gzip or becomes too large; with `is_last`, also if it is not complete.
        """
        self._received += len(part)
        if self._stream.eof and part:
            raise _invalid("data follow the end of the compressed data")
        allowed = min(self._limits.max_body, max(ALWAYS_ALLOWED, round(self._received * self._limits.max_ratio)))
        try:
            data = self._stream.decompress(part, allowed - self._size + 1)
        except zlib.error:
            raise _invalid("it is damaged, or is not compressed") from None
        self._size += len(data)
        if self._size > allowed:
            raise self._too_large()
        if self._stream.unused_data:
            raise _invalid("data follow the end of the compressed data")
        if is_last and not self._stream.eof:
            raise _invalid("it is not complete")
        return data

    def _too_large(self) -> Refused:
        if self._size > self._limits.max_body:
            return refuse(
                413,
                "body-too-large",
                f"the decompressed body has more than {self._limits.max_body:,} bytes, which is the limit; send "
                "smaller requests",
            )
        return refuse(
            413,
            "body-ratio",
            f"the body becomes more than {self._limits.max_ratio:g} times as large when it is decompressed, which "
            "is the limit; send it uncompressed, or in smaller requests",
        )


def _invalid(problem: str) -> Refused:
    return refuse(400, "body-not-gzip", f"the body cannot be decompressed as gzip: {problem}; check the client")
