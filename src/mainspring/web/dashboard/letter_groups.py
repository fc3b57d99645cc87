"""Dead letters grouped by the fingerprint of their error, with counts over time.

Invariants
- A scan reads the latest failures up to a bound, and the answer says how many it has read and how far back.
- Only dead letters that the caller may read are read: the rights are part of the query.
- Texts of errors are masked as everywhere: values of redacted parameters do not appear in a group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from mainspring.jobs.info import JobInfo
from mainspring.jobs.manager import JobManager
from mainspring.jobs.records import JobRecord, Query
from mainspring.jobs.status import JobStatus
from mainspring.security.permissions import Permissions
from mainspring.web.dashboard.bounded_scan import BoundedScan
from mainspring.web.dashboard.error_fingerprints import Fingerprint, fingerprint_of
from mainspring.web.dashboard.time_bins import TimeBins, bins_for

SCANNED_LETTERS = 5_000
"""The largest number of dead letters that a scan reads."""
SHOWN_LETTERS = 50
"""The largest number of dead letters of a group that are shown with their arguments."""


@dataclass(slots=True)
class LetterGroup:
    """Dead letters with the same fingerprint, among those that a scan has read. The latest failure is first."""

    fingerprint: Fingerprint
    ids: list[str] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    """The instants of failure, in microseconds, in the order of `ids`."""
    types: Counter[str] = field(default_factory=Counter)
    queues: Counter[str] = field(default_factory=Counter)
    error: str = ""
    """The text of the latest error."""
    shown: list[JobInfo] = field(default_factory=list)
    """The latest dead letters of the group, as users may see them; empty unless `show` of the scan names it."""

    @property
    def count(self) -> int:
        """How many dead letters with this error the scan has found."""
        return len(self.ids)

    @property
    def last(self) -> int:
        """The instant of the latest failure, in microseconds."""
        return self.failed[0]

    @property
    def first(self) -> int:
        """The instant of the earliest failure that was read, in microseconds."""
        return self.failed[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterGroups:
    """The dead letters that a scan has found, in groups with the same error, the largest group first."""

    groups: list[LetterGroup]
    scanned: int
    is_complete: bool
    """Whether the scan has read all dead letters that match."""
    reached: int | None
    """The earliest failure that the scan has read, in microseconds since 1970; None if it has read none."""
    now: int
    bins: TimeBins
    """The bins for the counts over time."""

    def get(self, key: str) -> LetterGroup | None:
        """Return the group of dead letters whose error has this key; None if the scan has found none."""
        return next((group for group in self.groups if group.fingerprint.key == key), None)


def scan_letters(
    manager: JobManager,
    permissions: Permissions,
    *,
    queue: str | None = None,
    type: str | None = None,
    until: int | None = None,
    ids: Collection[str] | None = None,
    show: str | None = None,
    limit: int = SCANNED_LETTERS,
) -> LetterGroups:
    """Read the latest dead letters that the caller may read, up to a bound, and group them by their error (its
    fingerprint).

    - `queue`, `type`: only those of this queue and job type
    - `until`: group only those that failed at this instant or before
    - `ids`: group only those with these ids, as far as they are within the bound
    - `show`: the key of a group whose first dead letters are wanted with their arguments
    - `limit`: the bound, the largest number of dead letters that are read
    """
    query = Query(
        status=JobStatus.FAILED,
        is_replayed=False,
        by_failure=True,
        newest_first=True,
        queue=queue,
        type=None if type is None else manager.registry.full_name(type),
        types=_names(permissions.types),
        queues=_names(permissions.queues),
    )
    scan = BoundedScan(manager.engine.find, query, limit)
    records = list(scan)
    mask = _mask_with(manager)  # after the jobs were read: see `jobs/redaction.py`
    groups: dict[Fingerprint, LetterGroup] = {}
    reached: int | None = None
    known: dict[str, Fingerprint] = {}
    for record in records:
        failed = record.finished or record.created
        reached = failed
        if (until is not None and failed > until) or (ids is not None and record.id not in ids):
            continue
        text = mask(record)
        fingerprint = known.get(text)
        if fingerprint is None:
            fingerprint = fingerprint_of(text)
            if len(known) < limit:
                known[text] = fingerprint
        group = groups.get(fingerprint)
        if group is None:
            group = groups[fingerprint] = LetterGroup(fingerprint, error=text)
        group.ids.append(record.id)
        group.failed.append(failed)
        group.types[record.type] += 1
        group.queues[record.queue] += 1
        if show == fingerprint.key and len(group.shown) < SHOWN_LETTERS:
            group.shown += manager.infos([record])
    now = manager.engine.now()
    return LetterGroups(
        groups=sorted(groups.values(), key=lambda group: (-group.count, -group.last)),
        scanned=scan.scanned,
        is_complete=scan.is_complete,
        reached=reached,
        now=now,
        bins=bins_for(now if reached is None else min(reached, now), now),
    )


def _names(names: Collection[str] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(sorted(names))


def _mask_with(manager: JobManager) -> Callable[[JobRecord], str]:
    """Return a function that returns the error of a dead letter without the values of redacted parameters."""
    redactions, serializers = manager.redactions(), manager.serializers

    def mask(record: JobRecord) -> str:
        text = record.error or ""
        found = redactions.mask_of(record, serializers)
        return text if found is None else found(text)

    return mask
