"""Statistics of a projection, compared with a scan of the changes that were applied."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from tempfile import TemporaryDirectory

import hypothesis.strategies as st
import pytest
from hypothesis import given
from msgspec.structs import replace

from mainspring.engines.sqlite import projection
from mainspring.engines.sqlite.projection import SqliteProjection
from mainspring.engines.sqlite.statistics import count_jobs
from mainspring.jobs.limits import bucket_of
from mainspring.jobs.projection import ProjectedJob, Wait
from mainspring.jobs.status import JobStatus
from mainspring.jobs.store_statistics import LOOKAHEAD, JobGroup, StoreStatistics
from tests.support import amount
from tests.unit.engines.projected_jobs import put

pytestmark = pytest.mark.long

NOW = 1_000
LIMITS = ((), (bucket_of("one"),), (bucket_of("two"), bucket_of("one")), (bucket_of("three", "key"),))


@st.composite
def changes(draw: st.DrawFn, number: int) -> ProjectedJob:
    limits = draw(st.sampled_from(LIMITS))
    wait = draw(st.sampled_from(Wait))
    status = draw(st.sampled_from([JobStatus.PENDING] * 4 + list(JobStatus)))
    if status is not JobStatus.PENDING or (wait is Wait.LIMITS and not limits):
        wait = Wait.NOTHING
    is_held = wait is Wait.NOTHING and not limits and draw(st.booleans())
    change = put(
        number,
        f"job {draw(st.integers(0, 15))}",
        queue=draw(st.sampled_from(["default", "mail"])),
        type=draw(st.sampled_from(["ping", "pong"])),
        status=status,
        due=draw(st.sampled_from([1, 500, NOW, NOW + 1, NOW + 500])),
        limits=limits,
        sequence="s" if wait is Wait.SEQUENCE else None,
        crashes=draw(st.sampled_from([0, 0, 0, 2])),
        replayed_as="other" if status is JobStatus.FAILED and draw(st.booleans()) else None,
        owner=7 if is_held or status is JobStatus.RUNNING else None,
    )
    return replace(change, wait=wait)


batches = st.integers(0, 30).flatmap(lambda size: st.tuples(*(changes(number) for number in range(1, size + 1))))


def scan(jobs: Collection[ProjectedJob], full: Collection[tuple[str, ...]], paused: str) -> list[JobGroup]:
    found: dict[tuple[str, str], JobGroup] = {}
    for job in jobs:
        record = job.record
        assert record is not None
        key = (record.queue, record.type)
        group = found.get(key, JobGroup(*key, 0, 0, 0, 0, 0, None, None, is_exact=True))
        if record.status is JobStatus.RUNNING:
            group = replace(group, running=group.running + 1)
        elif record.status is JobStatus.FAILED and record.replayed_as is None:
            group = replace(group, dead_letters=group.dead_letters + 1)
        elif record.status is JobStatus.PENDING and record.due > NOW:
            group = replace(group, scheduled=group.scheduled + 1)
        elif record.status is JobStatus.PENDING:
            waits = job.wait is Wait.SEQUENCE or (job.wait is Wait.LIMITS and record.limits in full)
            if waits or record.queue == paused:
                oldest = min(record.due, group.oldest_blocked or record.due)
                group = replace(group, blocked=group.blocked + 1, oldest_blocked=oldest)
            else:
                oldest = min(record.due, group.oldest_due or record.due)
                group = replace(group, due=group.due + 1, oldest_due=oldest)
        found[key] = group
    return [
        group
        for _, group in sorted(found.items())
        if group.due or group.blocked or group.scheduled or group.running or group.dead_letters
    ]


def statistics_of(
    path: Path, jobs: Collection[ProjectedJob], full: Collection[tuple[str, ...]]
) -> StoreStatistics:
    copy = SqliteProjection(path)
    copy.open("stream")
    try:
        copy.apply(list(jobs), 1)
        return copy.statistics(
            NOW,
            paused={"mail"},
            find_full=lambda asked: [limits for limits in asked if limits in full],
            lookahead=LOOKAHEAD,
        )
    finally:
        copy.close()


@given(jobs=batches, full=st.sets(st.sampled_from(LIMITS)))
def test_the_counts_are_those_of_a_scan(jobs: tuple[ProjectedJob, ...], full: set[tuple[str, ...]]) -> None:
    with TemporaryDirectory() as folder:
        found = statistics_of(Path(folder) / "projection.db", jobs, full)
    assert (found.at, found.paused) == (NOW, ("mail",))
    assert list(found.groups) == scan({job.id: job for job in jobs}.values(), full, "mail")


def test_jobs_under_limits_are_counted_up_to_a_bound(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = LIMITS[1]
    jobs = [put(n, f"{n}", due=NOW - n if n < 9 else NOW + n, limits=limits) for n in range(1, 20)]
    monkeypatch.setattr(
        projection, "count_jobs", lambda connection, now, limited: count_jobs(connection, now, limited, 5)
    )
    (group,) = statistics_of(path, [replace(job, wait=Wait.LIMITS) for job in jobs], {limits}).groups
    assert (group.due, group.blocked, group.scheduled, group.is_exact) == (0, 5, 5, False)


def test_the_fullest_slot_is_found(path: Path) -> None:
    jobs = [put(n, f"{n}", due=NOW + 50_000_000) for n in range(1, amount(400, thorough=4_000))]
    slot = statistics_of(path, jobs, ()).fullest_slot
    assert slot is not None
    assert (slot.queue, slot.type, slot.count, slot.at_once) == ("default", "ping", len(jobs), len(jobs))
