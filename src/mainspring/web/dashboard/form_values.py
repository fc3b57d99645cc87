"""Values of form fields: checked, with errors that say which field is wrong and what to write."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import msgspec

from mainspring.errors import MainspringError
from mainspring.web.problems import Refused, problem_of

MAX_JSON = 1_000_000


class FormError(Exception):
    """A field of a form has a wrong value. The text says which field, and what to write."""


def json_object(text: str, what: str) -> dict[str, Any]:
    """Return the JSON object in a form field; an empty one if the field is empty.

    Raises `FormError` for other text; `what` names the field.
    """
    if not text.strip():
        return {}
    if len(text) > MAX_JSON:
        raise FormError(f"{what} have {len(text):,} characters, the limit is {MAX_JSON:,}; write less")
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise FormError(f'{what} are no JSON ({error}); write an object such as {{"order_id": 43}}') from None
    if not isinstance(value, dict):
        raise FormError(f'{what} are {type(value).__name__}, not an object; write one such as {{"order_id": 43}}')
    return value


def names_list(text: str) -> list[str]:
    """Return the names in a form field, which are separated by commas or spaces."""
    return [name for name in text.replace(",", " ").split() if name]


def optional_number(text: str, what: str, *, whole: bool = False) -> float | None:
    """Return the positive number in a form field; None if the field is empty.

    Raises `FormError` for other text; `what` names the field. With `whole`, the number must be an integer.
    """
    if not text.strip():
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (0 < value < math.inf) or (whole and value != int(value)):
        kind = "whole number" if whole else "number"
        raise FormError(f"{what} is {text.strip()[:40]!r}; write a positive {kind}")
    return value


def optional_instant(text: str, what: str) -> datetime | None:
    """Return the instant in a form field, in UTC unless it has an offset; None if the field is empty.

    Raises `FormError` for other text; `what` names the field.
    """
    if not text.strip():
        return None
    try:
        value = datetime.fromisoformat(text.strip())
    except ValueError:
        raise FormError(
            f"{what} is {text.strip()[:40]!r}; write a time in UTC such as 2027-03-28T00:00, or nothing"
        ) from None
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value


def sentence_of(error: Exception) -> str:
    """Return the text of an error as a sentence for a page, with a capital letter and a full stop."""
    if isinstance(error, MainspringError):
        error = Refused(problem_of(error))  # says nothing about the place of the store
    text = error.problem.detail if isinstance(error, Refused) else str(error)
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?", "!")) else ".")
