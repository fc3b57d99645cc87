"""Checks the keys of signed jobs: which keys stored jobs and schedules need, and which jobs will not run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mainspring.doctor.findings import Finding, info, ok, some, warning
from mainspring.jobs.engine import Engine
from mainspring.jobs.job_policies import SIGNATURE
from mainspring.jobs.records import Query
from mainspring.jobs.recurrence.schedule_records import ScheduleRecord
from mainspring.jobs.signing import count_keys
from mainspring.jobs.status import JobStatus
from mainspring.plurals import format_count
from mainspring.security.keys import KeyRing

PAGE = 1_000
COUNTED = 100_000
"""At most this many jobs of one status are counted."""

KeyCounts = Mapping[str | None, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SignatureFacts:
    """How many jobs and schedules of a store each key has signed.

    The key None counts those without a signature.
    """

    ring: KeyRing | None = None
    """The keys of the application; None if it has none, or if no application is known."""
    pending: KeyCounts = field(default_factory=dict)
    """The number of jobs that have not ended, by the id of the key that signed them."""
    letters: KeyCounts = field(default_factory=dict)
    """The number of dead letters, by the id of the key that signed them."""
    schedules: KeyCounts = field(default_factory=dict)
    is_complete: bool = True
    """False if there are more jobs than were counted."""

    @property
    def is_used(self) -> bool:
        """Whether the application signs jobs, or a stored job or schedule is signed."""
        counts = (self.pending, self.letters, self.schedules)
        return self.ring is not None or any(key is not None for each in counts for key in each)


def read_signatures(engine: Engine, schedules: Sequence[ScheduleRecord], ring: KeyRing | None) -> SignatureFacts:
    """Count the stored jobs and schedules by the keys that have signed them.

    At most 100,000 jobs of a status are read. If the application has no keys (`ring` is None) and none of the
    first thousand jobs of a status is signed, no more jobs of this status are read.
    """
    pending, has_all_pending = _count(engine, ring, JobStatus.PENDING, JobStatus.RUNNING)
    letters, has_all_letters = _count(engine, ring, JobStatus.FAILED)
    return SignatureFacts(
        ring=ring,
        pending=pending,
        letters=letters,
        schedules=count_keys({SIGNATURE: record.signature or ""} for record in schedules),
        is_complete=has_all_pending and has_all_letters,
    )


def _count(engine: Engine, ring: KeyRing | None, *statuses: JobStatus) -> tuple[dict[str | None, int], bool]:
    counts: dict[str | None, int] = {}
    is_complete = True
    for status in statuses:
        after: str | None = None
        for _ in range(COUNTED // PAGE):
            is_replayed = False if status is JobStatus.FAILED else None
            page = engine.find(Query(status=status, is_replayed=is_replayed, limit=PAGE, after=after))
            for key, number in count_keys(record.headers for record in page.records).items():
                counts[key] = counts.get(key, 0) + number
            after = page.end
            if after is None or (ring is None and set(counts) <= {None}):
                break
        is_complete &= after is None
    return counts, is_complete


def check_signatures(facts: SignatureFacts | None) -> Iterator[Finding]:
    """Report the keys that stored jobs and schedules need, and warn about jobs that will not run.

    `facts` is None if they were not counted.
    """
    if facts is None:
        yield info("the keys of signed jobs were not counted", "", "To count them:", ("doctor", "--thorough"))
        return
    if not facts.is_used:
        yield ok("jobs are not signed")
        return
    ring = facts.ring
    if ring is not None:
        yield from _about_jobs_that_will_not_run(facts, ring)
        yield from _about_unused_keys(facts, ring)
    yield info(
        f"{_describe('pending', facts.pending)}; {_describe('dead letters', facts.letters)}; "
        f"{_describe('schedules', facts.schedules)}"
        + ("" if facts.is_complete else f"; more than {COUNTED:,} jobs, which were not all counted"),
        "A key must stay in the key rings of workers until no pending job and no schedule is signed with it.",
    )


def _describe(what: str, counts: KeyCounts) -> str:
    parts = [f"{counts[key]:,} by {key!r}" for key in sorted(key for key in counts if key is not None)]
    parts += [f"{counts[None]:,} without a signature"] if None in counts else []
    return f"{what}: {', '.join(parts) or 'none'}"


def _about_jobs_that_will_not_run(facts: SignatureFacts, ring: KeyRing) -> Iterator[Finding]:
    unknown = sorted({key for each in (facts.pending, facts.schedules) for key in each if key and key not in ring})
    if unknown:
        number = sum(facts.pending.get(key, 0) for key in unknown)
        yield warning(
            f"{format_count(number, 'pending job')} or schedules are signed with a key that this application does "
            f"not have: {some(unknown)}",
            "Workers with these keys do not run such jobs: they become dead letters.",
            "Add the key to the key ring of the workers, or sign the schedules again with another key.",
        )
    unsigned = facts.pending.get(None, 0), facts.schedules.get(None, 0)
    if any(unsigned) and not ring.accept_unsigned:
        yield warning(
            f"{format_count(unsigned[0], 'pending job')} and {format_count(unsigned[1], 'schedule')} have no "
            "signature",
            "Workers with a key ring do not run such jobs: they become dead letters.",
            "If you begin to sign jobs now, use KeyRing(..., accept_unsigned=True) until none is left. Else find "
            "out who stores jobs without a key.",
        )


def _about_unused_keys(facts: SignatureFacts, ring: KeyRing) -> Iterator[Finding]:
    counts = (facts.pending, facts.schedules)
    unused = [key for key in ring.ids if key != ring.sign_with and not any(each.get(key) for each in counts)]
    if unused and facts.is_complete:
        letters = sum(facts.letters.get(key, 0) for key in unused)
        kept = f", apart from {format_count(letters, 'dead letter')}" if letters else ""
        yield info(
            f"no pending job and no schedule is signed with {some(unused)}{kept}",
            "Such a key verifies nothing that is stored.",
            "Remove the key from all key rings, if no process signs with it any more.",
        )
