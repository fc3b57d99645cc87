"""Listing, counting and finding jobs."""

from collections.abc import Callable
from typing import Any

import pytest

from mainspring import JobFunction, JobNotFound, JobStatus, Mainspring


@pytest.fixture
def ping(app: Mainspring) -> JobFunction[[int], None]:
    @app.job(name="shop.ping")
    def ping(number: int) -> None: ...

    return ping


def test_jobs_are_listed_page_by_page_in_the_order_of_their_submit(
    app: Mainspring, ping: JobFunction[[int], None]
) -> None:
    ids = ping.submit_many([(number,) for number in range(25)])
    found: list[str] = []
    sizes: list[int] = []
    after = None
    while True:
        page = app.jobs(limit=10, after=after)
        sizes.append(len(page))
        found += [info.id for info in page]
        if page.next is None:
            break
        after = page.next
    assert (found, sizes) == (ids, [10, 10, 5])


def test_a_page_that_ends_exactly_is_the_last(app: Mainspring, ping: JobFunction[[int], None]) -> None:
    ping.submit_many([(number,) for number in range(10)])
    assert app.jobs(limit=10).next is None


def test_jobs_submitted_meanwhile_are_on_a_later_page(app: Mainspring, ping: JobFunction[[int], None]) -> None:
    ping.submit_many([(1,), (2,), (3,)])
    page = app.jobs(limit=2)
    (late,) = ping.submit_many([(4,)])
    assert [info.id for info in app.jobs(limit=10, after=page.next)][-1] == late


def test_the_newest_may_come_first(app: Mainspring, ping: JobFunction[[int], None]) -> None:
    ids = ping.submit_many([(number,) for number in range(5)])
    page = app.jobs(limit=3, newest_first=True)
    rest = app.jobs(limit=3, newest_first=True, after=page.next)
    assert [info.id for info in [*page, *rest]] == ids[::-1]
    assert rest.next is None


@pytest.mark.parametrize("status", ["PENDING", JobStatus.PENDING], ids=["name", "status"])
def test_a_status_is_given_by_name_or_as_itself(
    app: Mainspring, ping: JobFunction[[int], None], status: JobStatus | str
) -> None:
    ping.submit(1)
    assert len(app.jobs(status=status)) == 1


@pytest.mark.parametrize("status", ["DONE", "", 7], ids=repr)
def test_an_unknown_status_is_refused_with_those_that_exist(app: Mainspring, status: Any) -> None:
    with pytest.raises(ValueError, match="status must be one of PENDING, RUNNING, COMPLETED, FAILED, CANCELED"):
        app.jobs(status=status)


def test_a_status_may_be_written_in_lower_case(app: Mainspring) -> None:
    job = app.job(name="later")(lambda: None).after(3_600).submit()
    assert [info.id for info in app.jobs(status="pending")] == [job.id]


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_is_refused(app: Mainspring, limit: int) -> None:
    with pytest.raises(ValueError, match="limit must"):
        app.jobs(limit=limit)


def test_a_cursor_of_no_page_is_refused(app: Mainspring) -> None:
    with pytest.raises(ValueError, match="after must be the `next` of an earlier page, got 'x'"):
        app.jobs(after="x")


@pytest.mark.parametrize("name", ["shop.ping", "ping"])
def test_a_type_is_found_by_its_short_name(app: Mainspring, ping: JobFunction[[int], None], name: str) -> None:
    ping.submit(1)
    assert len(app.jobs(type=name)) == 1
    assert app.counts(type=name)[JobStatus.PENDING] == 1


def test_a_short_name_of_two_handlers_is_not_guessed(app: Mainspring, ping: JobFunction[[int], None]) -> None:
    app.job(name="mail.ping")(lambda: None)
    ping.submit(1)
    assert app.jobs(type="ping") == []


def test_an_unknown_type_lists_nothing(app: Mainspring, ping: JobFunction[[int], None]) -> None:
    ping.submit(1)
    assert app.jobs(type="gone") == []


def test_counts_have_every_state(app: Mainspring, ping: JobFunction[[int], None]) -> None:
    ping.submit(1)
    ping.options(queue="other").submit(2).cancel()
    assert app.counts() == {"PENDING": 1, "RUNNING": 0, "COMPLETED": 0, "FAILED": 0, "CANCELED": 1}
    assert app.counts(queue="other")["CANCELED"] == 1
    assert sum(app.counts(queue="gone").values()) == 0


@pytest.mark.parametrize("call", [Mainspring.get, Mainspring.cancel, Mainspring.retry, Mainspring.handle])
def test_an_unknown_job_is_not_found(app: Mainspring, call: Callable[[Mainspring, str], object]) -> None:
    with pytest.raises(JobNotFound):
        call(app, "order-42")


def test_a_job_is_held_again_by_its_id(app: Mainspring, ping: JobFunction[[int], None]) -> None:
    (job_id,) = ping.submit_many([(1,)])
    handle = app.handle(job_id)
    assert (handle.id, handle.status(), handle.cancel()) == (job_id, JobStatus.PENDING, True)
