"""Prepares texts of jobs for pages: arguments, results, errors. They may be hostile, huge or invisible.

These functions cut texts and make invisible characters visible. Templates escape what the functions return.

Invariants
- A text is cut to a limit before anything else is done with it, and the page says how long it was.
- Control characters, and those that change the direction of text, are shown as code points, and have no effect.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

LINE = 160
"""How many characters a row of a table shows of a text."""
BLOCK = 20_000
"""How many characters a page shows of a value, or of an error."""
_TAB_AND_LINE_FEED = "\t\n"
_INVISIBLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u115f\u1160\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0"
    "\ufff0-\ufffb\U000e0000-\U000e0fff\ud800-\udfff]"
)
_STRING_OR_MARK = re.compile(r'("(?:[^"\\]|\\.)*(?:"|$))|([,:])')  # of JSON


@dataclass(frozen=True, slots=True)
class Shown:
    """A text as a page shows it: cut, and with visible characters only."""

    text: str
    size: int
    """How many characters the whole text has."""
    is_cut: bool = False

    @property
    def rest(self) -> str:
        """A note that the text was cut, with the number of all characters; empty if all is shown."""
        return f"cut: {self.size:,} characters in all" if self.is_cut else ""

    def __bool__(self) -> bool:
        return bool(self.text)


def visible(text: str, *, keeps_lines: bool = True) -> str:
    """Return a text in which invisible characters are shown by code point: a right-to-left override as ⟨U+202E⟩.

    With `keeps_lines`, tabs and line feeds stay as they are.
    """

    def show(found: re.Match[str]) -> str:
        character = found[0]
        if keeps_lines and character in _TAB_AND_LINE_FEED:
            return character
        return f"⟨U+{ord(character):04X}⟩"

    return _INVISIBLE.sub(show, text)


def line(text: str | None, limit: int = LINE) -> Shown:
    """Return the first line of a text, cut to `limit` characters, for a row of a table; empty for None."""
    first, _, more = (text or "")[: limit + 1].partition("\n")
    is_cut = len(text or "") > limit or bool(more)
    return Shown(visible(first[:limit], keeps_lines=False), len(text or ""), is_cut)


def block(text: str | None, limit: int = BLOCK) -> Shown:
    """Return a text with its line breaks, cut to `limit` characters; empty for None."""
    whole = text or ""
    return Shown(visible(whole[:limit]), len(whole), len(whole) > limit)


def json_line(raw: Any, limit: int = LINE) -> Shown:
    """Return a JSON value for one line, cut; an object without braces: `"order_id": 42, "reason": "unpaid"`."""
    text = _raw_text(raw)
    size = len(text)
    is_object = text.startswith("{") and text.endswith("}")
    inner = text[1 : min(size - 1, limit + 1)] if is_object else text[:limit]
    spaced = _STRING_OR_MARK.sub(lambda found: found[1] or f"{found[2]} ", inner)
    is_cut = size > limit + 2 or len(spaced) > limit
    return Shown(visible(spaced[:limit], keeps_lines=False), size, is_cut)


def json_block(raw: Any, limit: int = BLOCK) -> Shown:
    """Return a JSON value with line breaks and indents, cut.

    A value of more than twice `limit` characters gets neither.
    """
    text = _raw_text(raw)
    if len(text) <= 2 * limit:
        try:
            text = msgspec.json.format(text, indent=2)
        except (msgspec.DecodeError, RecursionError):
            return block(text, limit)
    return block(text, limit)


def editable_json(raw: Any) -> str:
    """Return a whole JSON value with line breaks and indents, for a field that a form sends back unchanged.

    Invisible characters become escapes of JSON, such as `\\u202e`.
    """
    text = _raw_text(raw)
    with suppress(msgspec.DecodeError, RecursionError):
        text = msgspec.json.format(text, indent=2)
    return _INVISIBLE.sub(lambda found: found[0] if found[0] == "\n" else json.dumps(found[0])[1:-1], text)


def _raw_text(raw: Any) -> str:
    """Return a value of an answer of the API as JSON text; a `msgspec.Raw` is JSON already."""
    if isinstance(raw, msgspec.Raw):
        return bytes(raw).decode("utf-8", "replace")
    return msgspec.json.encode(raw).decode()


def visible_line(text: str | None, limit: int = LINE) -> str:
    """Return the first line of a text for a template, cut to `limit` characters; empty for None.

    It ends with `…` if the line was cut or more lines follow. Invisible characters are shown as code points.
    """
    shown = line(text, limit)
    return f"{shown.text}…" if shown.is_cut else shown.text


def is_empty(raw: Any) -> bool:
    """Return whether a JSON value is null or an empty object."""
    return _raw_text(raw) in ("null", "{}")


FILTERS: dict[str, Any] = {"visible_line": visible_line, "visible_block": block}
"""The filters for texts that templates can use, by name."""
