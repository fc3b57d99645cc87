"""Formats counts with their nouns for messages, so that none says `1 jobs`."""

from __future__ import annotations


def format_count(count: int, one: str, many: str | None = None) -> str:
    """Return a count with its noun: `1 dead letter`, `2,000 dead letters`. `many` is an irregular plural."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
