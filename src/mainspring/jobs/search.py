"""Finds jobs by their arguments and by text, in a scan that ends after `MAX_SCANNED` jobs.

The engine lists jobs by status, queue, job type and time, with its indexes, and leaves out jobs that `search=` has
indexed under other values. This module reads that list, a few hundred jobs at a time, and keeps the jobs whose
arguments and texts match. If the scan stops before its page is full, the page has `is_complete` False, and
`reached` tells how far the scan went.

An argument matches by the text of its stored value. An argument that a submit left to its default is not stored,
so it does not match. Redacted arguments match nothing, and errors match as users see them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from mainspring.jobs.arguments import key_part, search_key
from mainspring.jobs.info import JobPage, to_info
from mainspring.jobs.records import JobRecord, Page, Query, SearchTerm
from mainspring.jobs.redaction import Redactions
from mainspring.jobs.serializers import BUILT_IN, Serializers
from mainspring.jobs.timestamps import to_datetime

MAX_SCANNED = 10_000
"""How many jobs a search reads at most for one page. If it stops there, the next page continues behind them."""
SCAN_PAGE = 500
NO_REDACTIONS = Redactions()


class OneOf(Struct, frozen=True):
    """A filter for an argument that may have one of several values: `42` on a command line is 42 or "42"."""

    values: tuple[Any, ...]


class JobFilter:
    """The filters of a search by arguments and text. `matches` compares them with a job.

    An engine's search index applies at most a part of them.
    """

    def __init__(
        self, arguments: Mapping[str, Any] | None, text: str | None, serializers: Serializers = BUILT_IN
    ) -> None:
        if text is not None and not isinstance(text, str):
            raise TypeError(f"text must be a string to look for, got {text!r}")
        if arguments is not None and not isinstance(arguments, Mapping):
            raise TypeError(f"arguments must be a dict such as {{'order_id': 42}}, got {arguments!r}")
        self._keys = {name: _keys_of(name, value) for name, value in (arguments or {}).items()}
        self._text = (text or "").casefold()
        self.serializers = serializers

    @property
    def is_empty(self) -> bool:
        """Whether there is no filter, so that every job matches."""
        return not self._keys and not self._text

    @property
    def terms(self) -> tuple[SearchTerm, ...]:
        """The arguments to look for, for the search index of an engine."""
        return tuple(SearchTerm(name, tuple(sorted(keys))) for name, keys in self._keys.items())

    def matches(self, record: JobRecord, redactions: Redactions = NO_REDACTIONS) -> bool:
        """Return whether a job has all wanted arguments, and the wanted text in its id, type, error or arguments.

        Redacted arguments match nothing.
        """
        arguments = searchable_arguments(record, self.serializers)
        mask = redactions.mask_of(record, self.serializers)
        if mask is not None:
            hidden = redactions.names(record.type)
            arguments = {name: value for name, value in arguments.items() if name not in hidden}
            record = replace(record, error=mask.optional(record.error))
        for name, keys in self._keys.items():
            if name not in arguments or search_key(name, arguments[name]) not in keys:
                return False
        return not self._text or any(self._text in text.casefold() for text in _texts_of(record, arguments))


def searchable_arguments(record: JobRecord, serializers: Serializers = BUILT_IN) -> Mapping[str, Any]:
    """Return the decoded arguments of a job by name; empty if they cannot be decoded."""
    arguments = serializers.decode_any(record.payload, record.codec)
    return arguments if isinstance(arguments, Mapping) else {}


def _keys_of(name: str, value: Any) -> frozenset[str]:
    values = value.values if isinstance(value, OneOf) else (value,)
    return frozenset(search_key(name, each) for each in values)


def _texts_of(record: JobRecord, arguments: Mapping[str, Any]) -> tuple[str, ...]:
    shown = [key_part(name, value) for name, value in arguments.items()]
    return (record.id, record.type, record.error or "", *shown)


def search(
    find: Callable[[Query], Page],
    query: Query,
    wanted: JobFilter,
    *,
    redactions: Callable[[], Redactions] = Redactions,
) -> JobPage:
    """Return a page of the jobs that match a query and a filter. The scan reads at most `MAX_SCANNED` jobs.

    If the scan ends before the page is full and before the last job, the page has `is_complete` False.
    `redactions` is called after each read, and returns the redacted parameters.
    """
    query = replace(query, search=wanted.terms)
    page_of = partial(_to_page, wanted.serializers, redactions)
    found: list[JobRecord] = []
    scanned = 0
    after = query.after
    size = query.limit  # with an index, nearly all jobs match
    while True:
        page = find(replace(query, after=after, limit=min(size, SCAN_PAGE, MAX_SCANNED - scanned)))
        size *= 2
        known = redactions()
        for record, position in zip(page.records, page.positions, strict=True):
            scanned += 1
            after = position
            if wanted.matches(record, known):
                found.append(record)
                if len(found) == query.limit:
                    is_last = page.end is None and record is page.records[-1]
                    return page_of(found, None if is_last else position, record, scanned=scanned)
        last = page.records[-1] if page.records else None
        if page.end is None:
            return page_of(found, None, last, scanned=scanned)
        if scanned >= MAX_SCANNED:
            return page_of(found, page.end, last, scanned=scanned, is_complete=False)


def _to_page(
    serializers: Serializers,
    redactions: Callable[[], Redactions],
    found: list[JobRecord],
    end: str | None,
    last: JobRecord | None,
    *,
    scanned: int,
    is_complete: bool = True,
) -> JobPage:
    reached = None if last is None else to_datetime(last.created)
    known = redactions()
    jobs = [known.show_info(to_info(record, serializers)) for record in found]
    return JobPage(jobs, end, is_complete=is_complete, scanned=scanned, reached=reached)
