"""SQLite files of version 0.1: opened by this code, every job in them ends as it should."""

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from shutil import rmtree
from typing import Literal, TypeAlias

import pytest

from mainspring import JobStatus
from mainspring.testing import ManualClock, time_travel
from tests.old_stores.contents import (
    AFTERWARDS,
    AT_REST,
    HELD,
    LATER,
    Job,
    check_afterwards,
    check_as_made,
    check_calls,
    check_from_outside,
    check_history,
    jobs,
    operate,
    read,
    submit_again,
    unpack,
    unpack_store,
    wait_for,
)
from tests.old_stores.shop import FAR, Shop

LONG_AFTER = datetime(2030, 6, 1, 12, tzinfo=UTC)


Serializer: TypeAlias = Literal["json", "msgpack"]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(LONG_AFTER)


@pytest.fixture(params=["json", "msgpack"])
def serializer(request: pytest.FixtureRequest, tmp_path: Path) -> Serializer:
    """The serializer of the store in this folder."""
    unpack_store(request.param, tmp_path)
    return "json" if request.param == "json" else "msgpack"


@pytest.fixture
def shop(serializer: Serializer, tmp_path: Path, clock: ManualClock) -> Iterator[Shop]:
    """The store, opened long after it was made."""
    shop = Shop(f"sqlite:///{tmp_path / 'jobs.db'}", serializer=serializer, clock=clock, counts_running=True)
    with shop.app:
        yield shop


def require(shop: Shop, wanted: Counter[Job]) -> None:
    found = read(shop.app)
    assert (found - wanted, wanted - found) == (Counter(), Counter())


def test_all_is_there_that_was_stored(shop: Shop) -> None:
    check_as_made(shop.app, HELD[0])


def test_each_job_ends_as_expected(shop: Shop, clock: ManualClock) -> None:
    with shop.app.running():
        clock.advance(minutes=1)
        require(shop, AT_REST + HELD[1])
    check_calls(shop, HELD[1])
    check_history(shop.app)
    assert shop.ledger.most_at_once == {"charge a": 1, "charge b": 1, "charge c": 1, "ship": 2}


def test_a_copy_without_the_locks_of_workers_is_worked_on_when_they_were_silent(
    shop: Shop, clock: ManualClock, tmp_path: Path
) -> None:
    rmtree(tmp_path / "jobs.db-workers")
    with shop.app.running():
        clock.advance(minutes=1)
        require(shop, AT_REST + HELD[1])
    check_calls(shop, HELD[1])


def test_jobs_of_limits_letters_and_unique_keys_go_on(shop: Shop, clock: ManualClock) -> None:
    with shop.app.running():
        clock.advance(minutes=1)
        submit_again(shop)
        operate(shop)
        clock.advance(minutes=1)
        require(shop, AFTERWARDS + HELD[1])
        check_afterwards(shop)


def test_a_rate_gives_a_token_after_the_other(shop: Shop, clock: ManualClock) -> None:
    with shop.app.running():
        clock.advance(minutes=1)
    with time_travel(shop.app, start=clock.now(), isolated=False) as travel:
        travel.fast_forward(minutes=3)  # a token after 200 seconds, and another one after 400
        assert (shop.app.get("call-a-7").status, shop.app.get("call-a-8").status) == ("COMPLETED", "PENDING")
        travel.fast_forward(minutes=4)
        assert shop.app.get("call-a-8").status == "COMPLETED"
        assert [number for customer, number in shop.ledger.of("call") if customer == "a"] == [4, 5, 6, 7, 8]


def test_what_is_due_far_in_the_future_runs_then(shop: Shop, clock: ManualClock) -> None:
    with shop.app.running():
        clock.advance(minutes=1)
    calls = len(shop.ledger.calls)
    with time_travel(shop.app, start=FAR - timedelta(minutes=1), isolated=False) as travel:
        travel.fast_forward(seconds=59)
        assert shop.ledger.ids[calls:] == ["call-a-7", "call-a-8"]
        travel.fast_forward(minutes=11)
        assert len(shop.ledger.of("sync")) == 3
        shop.app.schedules.pause("sync")
        travel.fast_forward(hours=24)
        assert shop.app.schedules.resume("resting")
        travel.fast_forward(hours=1)
        later = Counter(job_id for job_id in shop.ledger.ids[calls:] if "far" in job_id)
        assert later == Counter(unpack(*LATER))
        reports = Counter(about for (about,) in shop.ledger.of("report"))
        assert [reports[name] for name in ("all", "working days", "resting")] == [1, 1, 1]
        counts = shop.app.counts()
        assert (counts[JobStatus.PENDING], counts[JobStatus.RUNNING]) == (2, 0)  # those of the paused queue


def test_each_job_ends_as_expected_in_real_time(tmp_path: Path) -> None:
    unpack_store("json", tmp_path)
    shop = Shop(f"sqlite:///{tmp_path / 'jobs.db'}")
    with shop.app, shop.app.running():
        wait_for(AT_REST + HELD[1], shop.app)
        check_calls(shop, HELD[1])
        check_history(shop.app)
        submit_again(shop)
        operate(shop)
        wait_for(AFTERWARDS + HELD[1], shop.app)
        check_afterwards(shop)
        check_from_outside(shop.app.url, AFTERWARDS + HELD[1], tmp_path)


def test_a_file_of_the_first_schema_is_migrated(tmp_path: Path, clock: ManualClock) -> None:
    unpack_store("first-schema", tmp_path)
    shop = Shop(f"sqlite:///{tmp_path / 'jobs.db'}", clock=clock)
    with shop.app, shop.app.running():
        clock.advance(minutes=1)
        require(
            shop,
            jobs("COMPLETED", 1, "due", "msgpack", "held", "import", "completed")
            + jobs("COMPLETED", 2, "running", "retried")
            + jobs("COMPLETED", 3, "suspect")
            + jobs("CANCELED", 1, "stopped")
            + jobs("CANCELED", 0, "canceled")
            + jobs("FAILED", 1, "letter")
            + jobs("PENDING", 0, "far"),
        )
        names = ("due", "msgpack", "held", "import", "running", "retried", "suspect")
        assert Counter(shop.ledger.ids) == Counter(names)
        assert shop.ledger.of("import") == [("old.csv", 3)]
        assert ("msgpack", 1) in shop.ledger.of("greet")
        assert shop.app.get("far").due == FAR
        shop.app.retry("letter")
        clock.advance(seconds=1)
        assert shop.app.get("letter").status == "COMPLETED"
