"""Parses the times that users write into forms: `10m`, `1h30m`, `2026-11-17T12:30Z`."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

from mainspring.web.problems import refuse

TIME_HINT = "10m, 2h, 1d, or 2026-11-17T12:30Z"
_DURATION = re.compile(r"(?:in\s+)?(?P<parts>(?:[0-9]{1,9}(?:\.[0-9]{1,6})?\s*(?:ms|min|[smhdw])\s*)+)", re.ASCII)
_PART = re.compile(r"(?P<number>[0-9.]+)\s*(?P<unit>ms|min|[smhdw])", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_NUMBER = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,6})?", re.ASCII)


def to_past(text: str) -> str:
    """Convert the time in a filter's field to the form that the API takes: an instant without a zone is UTC.

    Other text, such as `2h ago`, is returned without spaces and `ago`; the API explains what is wrong with it.
    """
    try:
        at = datetime.fromisoformat(text.strip().removesuffix(" ago"))
    except ValueError:
        return text.strip().removesuffix(" ago").replace(" ", "")
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return at.isoformat().replace("+00:00", "Z")


def parse_due(text: str, name: str = "when") -> dict[str, Any]:
    """Return the field `delay` or `at` of an API request for the text in a form; `{}` for an empty text or `now`.

    A number without a unit is a delay in seconds. An instant without a time zone is UTC, as all times on pages
    are. Raises `Refused` for other text; `name` is the field, for the error.
    """
    text = text.strip()
    if text.lower() in ("", "now"):
        return {}
    found = _DURATION.fullmatch(text)
    if found is not None:
        parts = _PART.finditer(found["parts"])
        return {"delay": sum(float(part["number"]) * _SECONDS[part["unit"]] for part in parts)}
    if _NUMBER.fullmatch(text):
        return {"delay": float(text)}
    try:
        at = datetime.fromisoformat(text.removesuffix(" UTC"))
    except ValueError:
        raise refuse(
            422, "invalid-value", f"{name} is {text[:100]!r}, which is no time; write {TIME_HINT}"
        ) from None
    return {"at": at if at.tzinfo is not None else at.replace(tzinfo=UTC)}
