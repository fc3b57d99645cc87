"""Splits the path of a request into decoded parts, and matches them with patterns such as `/jobs/{id}`.

Invariant: a part is decoded once, after the path was split. So an id may contain a slash, sent as `%2F`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote_to_bytes

from mainspring.web.guard import route_path
from mainspring.web.problems import refuse


def path_segments(scope: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return the decoded parts of a request's path, without the mount path and a prefix such as `/api/v1`.

    Raises `Refused` if the path is not UTF-8. The parts of `/` are one empty text.
    """
    below = route_path(scope)
    raw = scope.get("raw_path") or b""
    try:
        sent = [unquote_to_bytes(part).decode() for part in raw.partition(b"?")[0].split(b"/")]
    except UnicodeDecodeError:
        raise refuse(
            400, "invalid-path", "the path is not UTF-8 in percent-encoding; encode it as UTF-8"
        ) from None
    if "/".join(sent) not in (scope["path"], below):  # another server, or a proxy, has changed the path
        sent = str(scope["path"]).split("/")
    mounted = str(scope["path"]).removesuffix(below).count("/") if "/".join(sent) == scope["path"] else 0
    return sent[mounted + 1 + prefix.count("/") :] or [""]


def split_pattern(pattern: str) -> tuple[str, ...]:
    """Return the parts of a pattern: `("jobs", "{id}")` for `/jobs/{id}`."""
    return tuple(pattern.split("/")[1:])


def match_segments(pattern: Sequence[str], segments: Sequence[str]) -> dict[str, str] | None:
    """Return the values of the parameters if the parts of a path match those of a pattern; None if they do not.

    An empty part does not match a parameter.
    """
    if len(pattern) != len(segments):
        return None
    values: dict[str, str] = {}
    for wanted, given in zip(pattern, segments, strict=True):
        if wanted.startswith("{"):
            if not given:
                return None
            values[wanted[1:-1]] = given
        elif wanted != given:
            return None
    return values
