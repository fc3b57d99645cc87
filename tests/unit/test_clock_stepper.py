"""`find_all` reads every page of a query, and keeps all of its conditions on each."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from mainspring import Mainspring
from mainspring.jobs.records import Query
from mainspring.jobs.status import JobStatus
from mainspring.testing.clock_stepper import find_all

QUERIES = {
    "all": Query(),
    "status": Query(status=JobStatus.CANCELED),
    "queue": Query(queue="mail"),
    "type": Query(type="send"),
    "due": Query(due_until=0),
    "not replayed": Query(is_replayed=False),
    "limited": Query(is_limited=True),
    "bound": Query(is_bound=True),
    "newest first": Query(newest_first=True),
}


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_pages_of_two_bring_what_one_page_brings(query: Query) -> None:
    with Mainspring("memory://") as app:
        send = app.job(name="send", queue="mail")(print)
        wait = app.job(name="wait", sequence_by="order")(lambda order: None)
        for number in range(5):
            send.after(timedelta(hours=number)).submit()
            wait.after(timedelta(hours=1)).submit(number).cancel() if number % 2 else wait.submit(number)
        manager = app.manager()
        if query.due_until is not None:
            query = replace(query, due_until=manager.engine.now() + 5_400_000_000)
        expected = manager.engine.find(replace(query, limit=100)).records
        found = list(find_all(manager, replace(query, limit=2)))
        assert [record.id for record in found] == [record.id for record in expected]
