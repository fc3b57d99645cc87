"""Lists and prunes that look into many lanes find what a plain look over all jobs would find."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random

import apsw
import pytest

from mainspring.engines.sqlite.codec import CODES
from mainspring.engines.sqlite.pruning import OLDEST_ENDED
from mainspring.engines.sqlite.reading import find
from mainspring.engines.sqlite.schema import MIGRATIONS
from mainspring.jobs.records import Query
from mainspring.jobs.status import JobStatus

pytestmark = pytest.mark.long

JOBS = 4_000


@pytest.fixture(params=[1, 7, 400], ids="{} lanes".format)
def store(request: pytest.FixtureRequest) -> Iterator[apsw.Connection]:
    """Jobs in many lanes, in all states, in no order; many lanes have few, a few have many."""
    random = Random(request.param)
    connection = apsw.Connection(":memory:")
    for migration in MIGRATIONS:
        connection.execute(migration)
    lanes = [(f"q{number % 20}", f"t{number}") for number in range(request.param)]
    connection.executemany("INSERT INTO lanes (queue, type, priority, exact) VALUES (?, ?, 1, 0)", lanes)
    rows = [
        (
            f"{number}",
            min(random.randrange(request.param), random.randrange(request.param)) + 1,
            random.randrange(5),
        )
        for number in range(JOBS)
    ]
    connection.executemany(
        "INSERT INTO jobs (id, lane, status, due, created, payload, codec) VALUES (?, ?, ?, 0, 0, '{}', 'json')",
        rows,
    )
    yield connection
    connection.close()


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("limit", [1, 30, 1_000])
def test_pages_of_many_lanes_are_those_of_a_plain_list(
    store: apsw.Connection,
    newest_first: bool,  # noqa: FBT001
    limit: int,
) -> None:
    plain = [
        *store.execute("SELECT j.id, queue, status FROM jobs AS j JOIN lanes AS l ON l.id = lane ORDER BY seq")
    ]
    failed = CODES[JobStatus.FAILED]
    for query, expected in (
        (Query(status=JobStatus.FAILED), [row[0] for row in plain if row[2] == failed]),
        (Query(queue="q0"), [row[0] for row in plain if row[1] == "q0"]),
    ):
        found: list[str] = []
        after: str | None = None
        for _ in range(3):  # pages
            page = find(
                store,
                Query(query.status, query.queue, limit=limit, after=after, newest_first=newest_first),
            )
            found += [record.id for record in page.records]
            after = page.end
            if after is None:
                break
        assert found == (expected[::-1] if newest_first else expected)[: 3 * limit]


def test_the_oldest_that_ended_go_first(store: apsw.Connection) -> None:
    while True:
        plain = [row[0] for row in store.execute("SELECT seq FROM jobs WHERE status IN (2, 4) ORDER BY seq")]
        found = json.loads(store.execute(OLDEST_ENDED, (500,)).get)
        assert found == plain[: len(found)]
        if not plain:
            break
        assert len(found) >= min(16, len(plain))
        store.execute("DELETE FROM jobs WHERE seq IN (SELECT value FROM json_each(?))", (json.dumps(found),))
    assert found == []
