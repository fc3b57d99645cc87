"""Dead letters are grouped by the fingerprint of their error, within a bounded scan."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from mainspring import Mainspring, Retry
from mainspring.jobs.records import JobRecord, Page, Query
from mainspring.jobs.timestamps import MICROSECONDS
from mainspring.security.permissions import ALL_PERMISSIONS, Permissions, Scope
from mainspring.web.dashboard.bounded_scan import FIRST_PAGE, BoundedScan
from mainspring.web.dashboard.letter_groups import LetterGroups, scan_letters
from mainspring.web.dashboard.time_bins import DAY, HOUR, MINUTE, bins_for, describe_length
from tests.support import PATIENCE

ONCE = Retry(max_attempts=1)


@pytest.fixture
def app() -> Iterator[Mainspring]:
    with Mainspring("memory://", grace=0) as app:

        @app.job(name="shop.charge", queue="orders", retry=ONCE, redact=("card",))
        def charge(order: int, card: str = "-") -> None:
            raise ConnectionError(f"order {order}: card {card} has no answer")

        @app.job(name="shop.mail", queue="mail", retry=ONCE)
        def mail(to: str) -> None:
            raise ValueError(f"no mailbox {to}")

        handles = [charge.submit(number, card="4111-1111") for number in range(5)]
        handles += [mail.submit("nowhere") for _ in range(2)]
        with app.running():
            for handle in handles:
                assert handle.wait(PATIENCE) == "FAILED"
        yield app


def groups_of(app: Mainspring, permissions: Permissions = ALL_PERMISSIONS, **options: object) -> LetterGroups:
    return scan_letters(app.manager(), permissions, **options)  # type: ignore[arg-type]


def test_groups_have_counts_types_and_an_example(app: Mainspring) -> None:
    found = groups_of(app)
    assert [(group.count, group.fingerprint.type) for group in found.groups] == [
        (5, "ConnectionError"),
        (2, "ValueError"),
    ]
    first = found.groups[0]
    assert first.types == {"shop.charge": 5}
    assert first.queues == {"orders": 5}
    assert len(set(first.ids)) == 5
    assert first.failed == sorted(first.failed, reverse=True)
    assert first.first <= first.last <= found.now
    assert (found.scanned, found.is_complete) == (7, True)
    assert sum(found.bins.counts(first.failed)) == 5
    assert first.shown == []
    assert found.get("0" * 16) is None


def test_redacted_values_appear_in_no_group(app: Mainspring) -> None:
    group = groups_of(app, show=groups_of(app).groups[0].fingerprint.key).groups[0]
    assert "4111" not in group.error
    assert "4111" not in group.fingerprint.title
    assert len(group.shown) == 5
    assert {job.arguments["card"] for job in group.shown} == {"[redacted]"}


def test_filters_and_rights_are_part_of_the_scan(app: Mainspring) -> None:
    assert [group.count for group in groups_of(app, queue="mail").groups] == [2]
    assert [group.count for group in groups_of(app, type="shop.charge").groups] == [5]
    own = Permissions(scopes=frozenset({Scope.READ}), types=frozenset({"shop.mail"}))
    found = groups_of(app, own)
    assert ([group.count for group in found.groups], found.scanned) == ([2], 2)
    assert groups_of(app, own, type="shop.charge").groups == []


def test_failures_after_the_page_was_shown_are_left_out(app: Mainspring) -> None:
    last = groups_of(app).groups[0].last
    earlier = groups_of(app, until=last - 1)
    assert sum(group.count for group in earlier.groups) < 7


def test_a_scan_says_how_far_it_looked(app: Mainspring) -> None:
    found = groups_of(app, limit=3)
    assert (found.scanned, found.is_complete) == (3, False)
    assert found.reached == min(group.first for group in found.groups)


def test_a_replayed_dead_letter_leaves_its_group(app: Mainspring) -> None:
    app.dead_letters.replay(type="shop.mail")
    assert [group.count for group in groups_of(app).groups] == [5]


def _record(payload: bytes) -> JobRecord:
    with Mainspring("memory://") as app:

        @app.job(name="job")
        def job() -> None: ...

        return replace(app.manager().record(job.submit().id), payload=payload)


def test_a_scan_of_large_jobs_reads_few_at_a_time_and_stops_by_size() -> None:
    large, asked = _record(b"x" * 1_000_000), []

    def find(query: Query) -> Page:
        asked.append(query.limit)
        return Page([large] * query.limit, "more")

    scan = BoundedScan(find, Query(), 5_000, max_bytes=30_000_000)
    assert len(list(scan)) == scan.scanned
    assert not scan.is_complete
    assert asked[0] == FIRST_PAGE
    assert max(asked[1:]) <= 4
    assert scan.scanned <= 36


def test_a_scan_of_small_jobs_reads_up_to_its_limit() -> None:
    small = _record(b"{}")
    scan = BoundedScan(lambda query: Page([small] * query.limit, "more"), Query(), 450)
    assert len(list(scan)) == 450
    whole = BoundedScan(lambda query: Page([small] * 3, None), Query(), 450)
    assert len(list(whole)) == 3
    assert whole.is_complete


NOW = 1_800_000_000 * MICROSECONDS


@pytest.mark.parametrize(
    ("ago", "length"), [(0, MINUTE), (29 * MINUTE, MINUTE), (HOUR, 5 * MINUTE), (DAY, HOUR), (20 * DAY, DAY)]
)
def test_bins_contain_the_first_and_the_last_instant(ago: int, length: int) -> None:
    bins = bins_for(NOW - ago, NOW)
    assert bins.length == length
    assert sum(bins.counts([NOW - ago, NOW])) == 2
    assert bins.counts([NOW])[-1] == 1
    assert bins.counts([NOW + length, bins.start - 1]) == [0] * bins.count
    assert len(bins.starts()) == bins.count
    assert bins.starts()[-1] <= NOW < bins.starts()[-1] + length


def test_lengths_are_named() -> None:
    assert [describe_length(each) for each in (MINUTE, 5 * MINUTE, HOUR, 7 * DAY)] == [
        "minute",
        "5 minutes",
        "hour",
        "7 days",
    ]
