"""Finds the names that a user may have meant by a mistyped one: a handler, a queue, a schedule, a time zone."""

from __future__ import annotations

from collections.abc import Iterable

MOST_NAMES = 3
CUTOFF = 0.7


def find_similar(name: str, known: Iterable[str], *, separator: str = ".") -> list[str]:
    """Return known names that are spelt like `name`, the most similar first, at most three.

    Upper and lower case, spaces and hyphens do not matter. The part of a known name after its last `separator` is
    compared, too, so `cancel_ordr` is similar to `shop.cancel_order`. If several names have the same last part, it
    stands for the first of them. `name` itself is never returned.
    """
    from difflib import get_close_matches  # noqa: PLC0415 - needed only to explain an error

    spelt: dict[str, str] = {}
    for each in known:
        for text in (each, each.rpartition(separator)[2]):
            spelt.setdefault(_normalize(text), each)
    close = get_close_matches(_normalize(name), spelt, n=MOST_NAMES, cutoff=CUTOFF)
    return [found for found in dict.fromkeys(spelt[text] for text in close) if found != name]


def did_you_mean(name: str, known: Iterable[str], *, separator: str = ".") -> str | None:
    """Return the question `did you mean 'orders'?` with known names similar to `name`; None if there are none."""
    found = find_similar(name, known, separator=separator)
    quoted = (repr(str(each)) for each in found)  # a member of an enumeration has another representation
    return f"did you mean {', '.join(quoted)}?" if found else None


def _normalize(text: str) -> str:
    return text.strip().replace(" ", "_").replace("-", "_").casefold()
