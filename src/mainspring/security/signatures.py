"""Signatures: their text, and the bytes that are signed.

    1j.2026-11.660a1c8a20000.93a80.<32 hexadecimal digits; 128 for ed25519>

The parts are the version and the form (what is signed, see `FORMS`), the id of the key, the instant of the
signature in microseconds since 1970, for how many seconds it is valid (0 for ever), and the signature itself.
Numbers are hexadecimal. The form `r` has one more part before the signature, the signed id.

Invariants
- The signed bytes are one MessagePack array. Its first element is the text of the signature up to its last part,
  and the signed fields come after it. MessagePack has the type and the length of each element, so that no two
  lists of fields have the same bytes.
- Signatures are compared in constant time. A right signature has one text only.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from mainspring.security.keys import KeyRing

VERSION = "1"
JOB, REPLACING, SCHEDULE, LETTER_HANDLER, OCCURRENCE = FORMS = ("j", "r", "d", "h", "s")
"""What is signed: a job; a job that may replace another one; the definition of a schedule; a dead-letter handler.

The last form is no signature of its own: a job of a schedule refers to the signature of the schedule."""
SECOND = 1_000_000
MAX_DIGITS = 16
_PARTS = {JOB: 5, REPLACING: 6, SCHEDULE: 5, LETTER_HANDLER: 5}

_encode = msgspec.msgpack.Encoder().encode


class Stamp(Struct, frozen=True, gc=False):
    """The parts of the text of a signature. Reading the text does not verify the signature."""

    form: str
    key: str
    signed: int
    """The instant of the signature, in microseconds since 1970."""
    until: int
    """The instant after which the signature is not valid any more, in microseconds; 0 if it stays valid."""
    prefix: str
    """The text up to its last part, which is the signature itself."""
    signature: str
    alias: str | None = None
    """For a job that may replace another one: the id that was signed, which need not be the id of the job."""

    def is_expired(self, now: int) -> bool:
        """Return whether the time until which the signature is valid is over; False if it stays valid for ever."""
        return bool(self.until) and now > self.until


def sign(
    ring: KeyRing, form: str, fields: tuple[Any, ...], *, signed: int, until: int = 0, alias: str | None = None
) -> str:
    """Sign fields, and return the text of the signature. Raises `NoSigningKey` if the ring cannot sign.

    `signed` is the instant of the signature, and `until` its end, in microseconds since 1970; with `until=0`, it
    stays valid. `alias` is the id of a new job with `on_conflict="replace"`, and None for everything else. The
    text contains it, because an existing job may get the signature of the new job, and keeps its own id.
    """
    prefix = begin(ring, form, signed=signed, until=until)
    if alias is not None:
        prefix = f"{prefix}.{alias.encode().hex()}"
    return complete(ring, prefix, fields)


def begin(ring: KeyRing, form: str, *, signed: int, until: int) -> str:
    """Return the beginning of the text of a signature: version, form, id of the key, and times.

    The jobs of a bulk submit share it.
    """
    seconds = -((signed - until) // SECOND) if until else 0
    return f"{VERSION}{form}.{ring.sign_with}.{signed:x}.{seconds:x}"


def complete(ring: KeyRing, prefix: str, fields: tuple[Any, ...]) -> str:
    """Sign the beginning of a signature's text together with fields, and return the whole text."""
    return f"{prefix}.{ring.sign(_encode((prefix, *fields)))}"


def read(text: str) -> Stamp | None:
    """Split the text of a signature into its parts, without verifying it; return None for any other text."""
    prefix, _, signature = text.rpartition(".")
    parts = prefix.split(".")
    form = parts[0].removeprefix(VERSION)
    if len(parts[0]) != 2 or _PARTS.get(form) != len(parts) + 1:
        return None
    signed, seconds = to_number(parts[2]), to_number(parts[3])
    if signed is None or seconds is None:
        return None
    try:
        alias = bytes.fromhex(parts[4]).decode() if form == REPLACING else None
    except ValueError:
        return None
    until = signed + seconds * SECOND if seconds else 0
    return Stamp(form, parts[1], signed, until, prefix, signature, alias)


def to_number(digits: str) -> int | None:
    """Parse hexadecimal digits; return None if the text is no such number, or has more than 16 digits."""
    if not digits.isascii() or not digits.isalnum() or len(digits) > MAX_DIGITS:
        return None
    try:
        return int(digits, 16)
    except ValueError:
        return None


def find_problem(ring: KeyRing, stamp: Stamp, fields: tuple[Any, ...]) -> str | None:
    """Return why a signature does not match these fields; None if it does.

    The expiry of the signature is not checked.
    """
    if stamp.key not in ring:
        return f"its signature is of the unknown key {stamp.key!r}"
    if not is_right(ring, stamp.key, stamp.prefix, stamp.signature, fields):
        return f"its signature with the key {stamp.key!r} is wrong: it was changed, or signed with another secret"
    return None


def is_right(ring: KeyRing, key: str, prefix: str, signature: str, fields: tuple[Any, ...]) -> bool:
    """Return whether `signature` is that of the key for this beginning of its text and these fields.

    Return False if the ring does not have the key.
    """
    try:
        data = _encode((prefix, *fields))
    except (msgspec.MsgspecError, ValueError, OverflowError, TypeError):  # such a value cannot have been signed
        return False
    return ring.verify(key, data, signature)
