"""The statements of the hot path find their rows by an index, however many jobs there are."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import apsw
import pytest

from mainspring.engines.sqlite import (
    dead_letters,
    explain,
    pruning,
    quotas,
    rescue,
    schedules,
    statements,
    statistics,
    upcoming_jobs,
    upcoming_slots,
    waiting_statements,
)
from mainspring.engines.sqlite.reading import find, statement_of
from mainspring.jobs.records import Query, SearchTerm
from mainspring.jobs.status import JobStatus
from mainspring.testing.conformance.bench import Bench

pytestmark = pytest.mark.long

MODULES = (
    statements,
    waiting_statements,
    schedules,
    rescue,
    pruning,
    explain,
    dead_letters,
    quotas,
    statistics,
    upcoming_slots,
    upcoming_jobs,
)
STATEMENTS = {name: value for module in MODULES for name, value in vars(module).items()}
LANES = "[[1, 0], [2, 0]]"
LEASES = "[[1, 1, 0, null, null, 0, 0, 0, 0, 1, null, null], [2, 1, 0, null, null, 0, 0, 0, 0, 1, null, null]]"
IDS = '["a", "b"]'

# Each with bindings, and the indexes that it may use on jobs: the primary key is always fine.
HOT: dict[str, tuple[tuple[Any, ...], set[str]]] = {
    "DUE_LANES": ((LANES, 1), {"claimable", "suspects"}),
    "PICK_DUE_OF_LANE": ((1, 8, 1), {"claimable"}),
    "PICK_DUE": ((LANES, 8, 1), {"claimable"}),
    "PICK_SUSPECTS": ((LANES, 1, 1), {"suspects"}),
    "PICK_BETWEEN": ((LANES, 8, 1, 2), {"claimable"}),
    "NEXT_TIMES": ((), {"expiring"}),
    "DUE_TIMES": ((1, 0, 9, 8), {"claimable"}),
    "COUNT_PERIOD": ((1, 0, 9, 8), {"claimable"}),
    "HELD_TIMES": ((0, 9), {"jobs_by_owner"}),
    "EXPIRED": ((1,), {"expiring"}),
    "HOLDERS": ((IDS,), {"unique_keys"}),
    "COMPLETE_WITH_MORE": ((LEASES, 1, 1), set()),
    "SEQUENCE_HEADS": ((IDS,), {"sequence_heads", "sequences"}),
    "GROUP_HEADS": ((IDS,), {"group_heads", "members", "moved_members", "suspects_of_groups"}),
    "PROMOTE_NEXT": ((IDS, 1), {"members", "moved_members"}),
    "GROUPS_WITH_DUE_JOBS": ((IDS, 1), {"members", "moved_members", "suspects_of_groups"}),
    "PICK_OF_GROUPS": ((IDS, 8, 1), {"members"}),
    "GROUPS_WITH_MOVED": ((IDS,), {"moved_members"}),
    "PICK_MOVED_OF_GROUPS": ((IDS, 8, 1), {"moved_members"}),
    "PARKED_FOR": (("bucket", 8, 1), {"members", "moved_members", "suspects_of_groups"}),
    "RELEASE_HELD_OF_QUEUE": (("queue",), {"jobs_by_owner"}),
    "ALIVE": ((IDS,), {"alive_of_schedules"}),
    "KNOWN": (('[["nightly", 1]]',), {"occurrences_of_schedules"}),
    "NEXT_DUE": ((LANES, 1), {"claimable", "suspects"}),
    "MARK_STARTED": (("[1, 2]", 1, 1, None), set()),
    "MARK_HELD": (("[1, 2]", 1), set()),
    "START": ((LEASES, 1, 1), set()),
    "COMPLETE": ((LEASES, 1, 1), set()),
    "SETTLE": ((LEASES, 1, 1), set()),
    "CURRENT": ((LEASES, 1, 1), set()),
    "STOP_REQUESTS": ((1,), {"stops"}),
    "STATUSES_OF": ((IDS,), {"jobs_by_id"}),
    "LETTERS": ((IDS,), {"jobs_by_id"}),
    "CANCEL": ((IDS, 1), {"jobs_by_id"}),
    "REQUEST_STOP": ((IDS, 1), {"jobs_by_id"}),
    "EXISTING_IDS": ((IDS, 1), {"jobs_by_id"}),
    "RESCUE": (("[1, 2]", 3, 1), {"jobs_by_owner"}),
    "RESCUED": (("[1, 2]", 3), {"jobs_by_owner"}),
    "QUARANTINED": (("[1, 2]", 3), {"jobs_by_owner"}),
    "RELEASE_HELD_OF_DEAD": (("[1, 2]",), {"jobs_by_owner"}),
    "RELEASE_HELD_OF_WORKER": ((1,), {"jobs_by_owner"}),
    "HAS_OWNER": ((1,), {"jobs_by_owner"}),
    "PLAIN": ((1, 100, 0), {"claimable", "suspects"}),
    "BOUND": ((1, 100, 0), {"claimable", "suspects"}),
    "CIRCUMSTANCES": ((1,), {"claimable", "suspects", "jobs_by_owner"}),
    "HOLDERS_OF": (("bucket",), {"jobs_by_owner"}),
    "RECOUNT": (("bucket", "bucket"), {"jobs_by_owner"}),
    "OLDEST_ENDED": ((8,), {"jobs_by_lane"}),
    "ENDED": ((), {"jobs_by_lane"}),
    "BACKLOG": ((1,), {"claimable", "suspects"}),
    "QUEUES": ((), {"jobs_by_lane"}),
    "COUNT_LANES": (("queue",), {"jobs_by_lane"}),
    "LANE_COUNTS": ((1, 9), {"claimable", "suspects", "waiting_in_sequences", "jobs_by_lane", "unreplayed"}),
    "HELD_JOBS": ((1,), {"jobs_by_owner"}),
    "PENDING_OF_LANES": (("[1, 2]", 9), {"jobs_by_lane"}),
    "DUE_HEADS": (("[1, 2]", 1, 9), {"claimable", "suspects"}),
    "LIMITED_GROUPS": (("[1, 2]", 1, 9), {"members", "moved_members", "suspects_of_groups"}),
    "LANES_WITH_JOBS": ((1,), {"claimable"}),
    "NEXT_AFTER_SKIP": ((1, 1, 9), {"claimable"}),
    "COUNT_SLOT": ((1, 1, 9, 9), {"claimable"}),
    "REST": ((1, 1, 9), {"claimable"}),
    "AT_ONCE": ((1, 1, 9, 9), {"claimable"}),
}


@pytest.fixture
def connection(bench: Bench, path: Path) -> apsw.Connection:
    """A connection to a file with enough jobs for the planner to have a choice."""
    bench.submit(*(f"{number}" for number in range(500)), after=-1)
    bench.submit(*(f"pong {number}" for number in range(500)), type="pong", after=60)
    bench.take(bench.enroll(), starts=100)
    return apsw.Connection(str(path))


@pytest.mark.parametrize("name", HOT)
@pytest.mark.parametrize("is_analyzed", [False, True], ids=["as it is", "analyzed"])
def test_jobs_are_searched_never_scanned(
    connection: apsw.Connection,
    name: str,
    is_analyzed: bool,  # noqa: FBT001
) -> None:
    bindings, allowed = HOT[name]
    with connection:
        if is_analyzed:
            connection.execute("ANALYZE")
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {STATEMENTS[name]}", bindings)]
    on_jobs = [step for step in plan if is_about_jobs(step)]
    connection.close()
    assert on_jobs
    assert [step for step in on_jobs if not step.startswith("SEARCH")] == [], plan
    used = {step.split("INDEX ")[1].split()[0] for step in on_jobs if " INDEX " in step}
    assert used <= allowed, plan


QUERIES = {
    "all": Query(),
    "newest": Query(newest_first=True),
    "status": Query(status=JobStatus.FAILED, newest_first=True),
    "oldest of status": Query(status=JobStatus.FAILED, after="900"),
    "queue": Query(queue="default", newest_first=True, after="900"),
    "letters": Query(queue="default", type="ping", status=JobStatus.FAILED, is_replayed=False, newest_first=True),
    "failures": Query(status=JobStatus.FAILED, by_failure=True, newest_first=True, after="1.900"),
    "search": Query(search=(SearchTerm("order_id", ("order_id=42",)),), newest_first=True, after="900"),
    "drained": Query(queue="default", status=JobStatus.PENDING, due_until=1, limit=1),
    "time": Query(queue="default", created_since=1, created_until=2, newest_first=True),
    "ids": Query(ids=("a", "b"), queue="default", status=JobStatus.FAILED, newest_first=True),
}


@pytest.mark.parametrize("name", QUERIES)
@pytest.mark.parametrize("is_analyzed", [False, True], ids=["as it is", "analyzed"])
def test_a_page_is_read_in_the_order_of_an_index(
    connection: apsw.Connection,
    name: str,
    is_analyzed: bool,  # noqa: FBT001
) -> None:
    query = QUERIES[name]
    with connection:
        if is_analyzed:
            connection.execute("ANALYZE")
        bounds = {"first": 1, "last": 2} if query.created_since is not None else {}
        statement, bindings = statement_of(query, **bounds)
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", bindings)]
    connection.close()
    on_jobs = [step for step in plan if is_about_jobs(step)]
    if name in ("all", "newest"):
        assert (on_jobs, "USE TEMP B-TREE FOR ORDER BY" in plan) == (
            ["SCAN j"],
            False,
        )  # from its end, to the limit
        return
    assert [step for step in on_jobs if not step.startswith("SEARCH")] == [], plan
    if query.ids is None:
        index = "dead_letters (lane=?" if query.by_failure else "jobs_by_lane (lane=? AND status=?"
        assert any(index in step for step in on_jobs), plan


@pytest.mark.parametrize("newest_first", [False, True])
def test_a_page_of_a_rare_queue_looks_at_no_other_jobs(
    connection: apsw.Connection,
    newest_first: bool,  # noqa: FBT001
) -> None:
    with connection:
        connection.execute("INSERT INTO lanes (queue, type, priority, exact) VALUES ('rare', 'ping', 1, 0)")
        connection.execute("UPDATE jobs SET lane = last_insert_rowid() WHERE seq IN (3, 7)")
    steps = count()
    connection.set_progress_handler(lambda: next(steps) < 0, 1)
    found = connection.execute(*statement_of(Query(queue="rare", newest_first=newest_first))).fetchall()
    connection.close()
    assert len(found) == 2
    assert next(steps) < 1_000  # less than one for each job


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("status", [None, JobStatus.PENDING])
def test_a_search_by_an_indexed_argument_looks_at_no_other_jobs(
    bench: Bench,
    path: Path,
    status: JobStatus | None,
    newest_first: bool,  # noqa: FBT001
) -> None:
    jobs = [bench.job(f"{number}", after=60, search=(f"order_id={number // 3}",)) for number in range(3_000)]
    bench.engine.submit(jobs)
    connection = apsw.Connection(str(path))
    steps = count()
    connection.set_progress_handler(lambda: next(steps) < 0, 1)
    term = SearchTerm("order_id", ("order_id=500", 'order_id="500"'))
    page = find(connection, Query(search=(term,), status=status, newest_first=newest_first, limit=2))
    connection.close()
    ids = ["1500", "1501", "1502"]
    assert [record.id for record in page.records] == (ids[:0:-1] if newest_first else ids[:2])
    assert next(steps) < 1_000  # less than one for each job


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("queue", [None, "default"])
def test_a_list_by_time_looks_at_no_jobs_of_other_times(
    connection: apsw.Connection,
    queue: str | None,
    newest_first: bool,  # noqa: FBT001
) -> None:
    with connection:
        connection.execute("UPDATE jobs SET created = 1000000 * seq")
    steps = count()
    connection.set_progress_handler(lambda: next(steps) < 0, 1)
    wanted = Query(created_since=500_000_000, created_until=502_000_000, queue=queue, newest_first=newest_first)
    page = find(connection, wanted)
    connection.close()
    assert [record.created for record in page.records] == sorted([500_000_000, 501_000_000], reverse=newest_first)
    assert next(steps) < 2_000  # two for each job: it reads about forty


def is_about_jobs(step: str) -> bool:
    words = step.split()
    return words[0] in ("SEARCH", "SCAN") and words[1] in ("jobs", "j")
