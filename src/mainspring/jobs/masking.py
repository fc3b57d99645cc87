"""Masks secret values in texts: errors of attempts, progress notes and keys of jobs with redacted arguments.

`TextMask` collects the forms in which a text may contain a value: what `str()` and `repr()` return, JSON, numbers
with separators, bytes as hexadecimal and base64. It does the same for each part of a value: items of containers,
keys of dicts, fields of objects, lines of a long text.

Invariants
- Every occurrence of a form is masked, also where two of them overlap.
- A form of three characters is masked only where no letter or digit is beside it, and a shorter one only inside of
  the text of its container. Otherwise a parameter with the value 1 would mask every line number.
- If a value has more than `MAX_PARTS` parts, the whole text is masked.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import msgspec

REDACTED = "[redacted]"
"""The text that takes the place of a redacted value."""
MIN_LENGTH = 3
"""The shortest form of a value, in characters, that is masked. Shorter ones appear in too many texts by chance."""
MIN_LENGTH_INSIDE_WORDS = 4
"""The length from which a form is masked also inside of a word or a number."""
MIN_LINE_LENGTH = 8
"""The shortest line, in characters, that is masked by itself if the value is a text of several lines."""
MAX_PARTS = 10_000
"""How many parts of values a mask collects at most. If there are more, it masks whole texts."""


class TextMask:
    """Replaces each occurrence of some secret values in a text by "[redacted]". Other texts stay the same.

    Forms of fewer than three characters are not masked by themselves. If the values have more than `MAX_PARTS`
    parts, every text becomes "[redacted]".
    """

    def __init__(self, values: Iterable[Any]) -> None:
        forms: set[str] = set()
        self._masks_everything = False
        for count, part in enumerate(_parts_of(values)):
            if count == MAX_PARTS:
                self._masks_everything = True
                break
            forms.update(_forms_of(part))
        self._forms = [form for form in forms if len(form) >= MIN_LENGTH]

    def __call__(self, text: str) -> str:
        """Return a text with `REDACTED` in place of each occurrence of a value.

        Return only `REDACTED` if the values have more than `MAX_PARTS` parts.
        """
        if self._masks_everything:
            return REDACTED
        spans = sorted(span for form in self._forms for span in _occurrences(form, text))
        if not spans:
            return text
        pieces: list[str] = []
        position = 0
        for start, end in _merged(spans):
            pieces += (text[position:start], REDACTED)
            position = end
        return "".join([*pieces, text[position:]])

    def optional(self, text: str | None) -> str | None:
        """Return a text with the values masked; None if the text is None."""
        return None if text is None else self(text)


def _occurrences(form: str, text: str) -> Iterator[tuple[int, int]]:
    start = text.find(form)
    while start >= 0:
        end = start + len(form)
        if len(form) >= MIN_LENGTH_INSIDE_WORDS or _is_word(text, start, end):
            yield start, end
        start = text.find(form, start + 1)


def _is_word(text: str, start: int, end: int) -> bool:
    """Return whether no letter or digit is directly before `start` or after `end` in a text."""
    return not text[start - 1 : start].isalnum() and not text[end : end + 1].isalnum()


def _merged(spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Join spans that overlap or touch. The spans must be sorted."""
    joined: tuple[int, int] | None = None
    for start, end in spans:
        if joined is not None and start <= joined[1]:
            joined = (joined[0], max(joined[1], end))
        else:
            if joined is not None:
                yield joined
            joined = (start, end)
    if joined is not None:
        yield joined


def _parts_of(values: Iterable[Any]) -> Iterator[Any]:
    """Yield the values and all their parts, at any depth, each object once. None, True and False are left out."""
    waiting = list(values)
    seen: dict[int, Any] = {}  # keeps the objects alive, so that no other object gets the same id
    while waiting:
        value = waiting.pop()
        if value is None or isinstance(value, bool) or id(value) in seen:
            continue
        seen[id(value)] = value
        yield value
        with suppress(Exception):  # the attributes of an object of the application may raise any exception
            waiting.extend(_children_of(value))


def _children_of(value: Any) -> Iterable[Any]:
    if isinstance(value, Enum):
        return (value.value, value.name)
    if isinstance(value, str | bytes | bytearray | memoryview | int | float | Decimal | date | time | UUID):
        return ()
    if isinstance(value, Mapping):
        return (*value.keys(), *value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return tuple(value)
    if isinstance(value, msgspec.Struct):
        return tuple(getattr(value, name) for name in value.__struct_fields__)
    if is_dataclass(value) and not isinstance(value, type):
        return tuple(getattr(value, field.name) for field in fields(value))
    return tuple(getattr(value, "__dict__", {}).values())


def _forms_of(value: Any) -> Iterator[str]:
    """Yield the texts by which a value may appear in another text: `str`, `repr`, JSON and the usual formats."""
    if isinstance(value, str):
        yield from _forms_of_text(str(value))
        return
    if isinstance(value, bytes | bytearray | memoryview):
        yield from _forms_of_bytes(bytes(value))
        return
    for convert in (str, repr, _to_json):
        with suppress(Exception):  # an object of the application may raise any exception
            text = convert(value)
            yield text
            yield _storable(text)
    if isinstance(value, int | float | Decimal):
        with suppress(Exception):  # NaN has no sign, and infinity no digits
            size = abs(value)
            yield from (str(size), f"{size:,}", f"{size:f}")
    elif isinstance(value, datetime | date | time):
        yield value.isoformat()
    elif isinstance(value, UUID):
        yield value.hex


def _forms_of_text(text: str) -> Iterator[str]:
    lines = [line.strip() for line in text.splitlines()]
    long = [line for line in lines if len(line) >= MIN_LINE_LENGTH] if len(lines) > 1 else []
    for each in (text, text.strip(), *long):
        yield each
        yield _storable(each)
        yield repr(each)[1:-1]
        yield json.dumps(each)[1:-1]
        yield json.dumps(each, ensure_ascii=False)[1:-1]


def _forms_of_bytes(data: bytes) -> Iterator[str]:
    yield from (repr(data)[2:-1], data.hex(), b64encode(data).decode())
    with suppress(UnicodeDecodeError):
        yield from _forms_of_text(data.decode())


def _to_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _storable(text: str) -> str:
    """Return a text as the store has it, with lone surrogates escaped: see
    `worker.error_text.to_storable_text`.
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
