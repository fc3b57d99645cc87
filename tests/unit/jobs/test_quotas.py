"""Quotas of queues: an application declares them, and submits beyond them are refused in every process."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest

from mainspring import JobFunction, LimitExceeded, Mainspring, PartialSubmit, Rate
from mainspring.jobs import submission
from mainspring.jobs.limits import Limit
from mainspring.jobs.quotas import Quota, quotas_of
from mainspring.testing import time_travel
from tests.support import PATIENCE, at_once

START = datetime(2026, 1, 5, 12, tzinfo=UTC)


class Shop:
    """An application with a job function in queue `orders` and one in the default queue."""

    def __init__(self, url: str) -> None:
        self.app = app = Mainspring(url)

        @app.job(name="ship", queue="orders")
        def ship(order_id: int) -> None: ...

        @app.job(name="mail")
        def mail(order_id: int) -> None: ...

        self.ship: JobFunction[[int], None] = ship
        self.mail: JobFunction[[int], None] = mail

    def pending(self, queue: str = "orders") -> int:
        return self.app.queue(queue).statistics().pending


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


@pytest.fixture(params=["memory", "sqlite"])
def shop(request: pytest.FixtureRequest, path: Path) -> Any:
    shop = Shop("memory://" if request.param == "memory" else f"sqlite:///{path}")
    with shop.app:
        yield shop


def refusal_of(job: Any, *arguments: Any) -> LimitExceeded:
    with pytest.raises(LimitExceeded) as refused:
        job.submit(*arguments)
    return refused.value


@pytest.mark.long
def test_two_thousand_submits_under_a_small_rate_are_refused(shop: Shop) -> None:
    shop.app.queue("orders", submit_rate=Rate(1, per=3600))
    shop.ship.submit(0)
    for number in range(1, 2_000):
        refusal = refusal_of(shop.ship, number)
        assert refusal.retry_after is not None
        assert timedelta(minutes=50) < refusal.retry_after <= timedelta(hours=1)
    assert shop.pending() == 1


def test_a_queue_without_a_worker_fills_up_to_its_depth(shop: Shop) -> None:
    shop.app.queue("orders", max_depth=3)
    for number in range(2):
        shop.ship.submit(number)
    shop.ship.after(3600).submit(2)
    refusal = refusal_of(shop.ship, 3)
    assert (refusal.retry_after, refusal.size, refusal.limit) == (None, 4, 3)
    assert str(refusal) == (
        "queue 'orders' has 3 pending jobs and takes at most 3, so a submit of 1 job was refused and stored "
        "nothing; submit again when workers have run some, or raise max_depth= of app.queue('orders', ...)"
    )
    shop.mail.submit(4)
    assert (shop.pending(), shop.pending("default")) == (3, 1)


def test_jobs_that_ran_make_room() -> None:
    shop = Shop("memory://")
    shop.app.queue("orders", max_depth=2)
    with time_travel(shop.app, start=START) as travel:
        shop.ship.after(60).submit_many([(1,), (2,)])
        refusal_of(shop.ship, 3)
        travel.fast_forward(minutes=1)
        shop.ship.after(60).submit_many([(3,), (4,)])


def test_tokens_come_back_with_time() -> None:
    shop = Shop("memory://")
    shop.app.queue("orders", submit_rate=Rate(2, per=60))
    with time_travel(shop.app, start=START) as travel:
        shop.ship.submit_many([(1,), (2,)])
        refusal = refusal_of(shop.ship, 3)
        assert refusal.retry_after == timedelta(seconds=30)
        travel.fast_forward(seconds=30)
        shop.ship.submit(3)


def test_a_coroutine_gets_the_same_refusal(shop: Shop) -> None:
    shop.app.queue("orders", max_depth=1)

    async def submit_twice() -> None:
        await shop.ship.submit_async(1)
        with pytest.raises(LimitExceeded):
            await shop.ship.submit_async(2)

    asyncio.run(submit_twice())
    assert shop.pending() == 1


# -- many jobs


@pytest.mark.parametrize("atomic", [False, True])
def test_a_bulk_submit_of_one_chunk_is_refused_as_a_whole(shop: Shop, atomic: bool) -> None:  # noqa: FBT001
    shop.app.queue("orders", max_depth=10)
    with pytest.raises(LimitExceeded, match="a submit of 11 jobs was refused and stored nothing"):
        shop.ship.submit_many([(n,) for n in range(11)], atomic=atomic)
    assert shop.pending() == 0


def test_a_bulk_submit_of_several_chunks_says_what_was_stored(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "CHUNK", 4)
    shop.app.queue("orders", max_depth=10)
    with pytest.raises(PartialSubmit, match="takes at most 10") as partial:
        shop.ship.submit_many([(n,) for n in range(12)])
    assert (len(partial.value.done), len(partial.value.failed)) == (8, 4)
    assert isinstance(partial.value.__cause__, LimitExceeded)
    assert shop.pending() == 8


def test_an_atomic_bulk_submit_of_any_size_stores_all_or_nothing(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission, "CHUNK", 4)
    shop.app.queue("orders", max_depth=10)
    with pytest.raises(LimitExceeded):
        shop.ship.submit_many([(n,) for n in range(12)], atomic=True)
    assert shop.pending() == 0


def test_submitters_at_the_same_moment_do_not_exceed_the_depth_on_sqlite(path: Path) -> None:
    shops = [Shop(f"sqlite:///{path}") for _ in range(4)]
    shops[0].app.queue("orders", max_depth=50)
    shops[0].ship.submit(0)  # stores the quota

    def submit(shop: Shop) -> int:
        stored = 0
        for number in range(40):
            try:
                shop.ship.submit(number)
            except LimitExceeded:
                continue
            stored += 1
        return stored

    assert sum(at_once(*(lambda shop=shop: submit(shop) for shop in shops))) == 49
    assert shops[1].pending() == 50
    for shop in shops:
        shop.app.close()


# -- declarations


def test_a_quota_holds_for_a_process_that_does_not_declare_it(path: Path) -> None:
    declaring, other = Shop(f"sqlite:///{path}"), Shop(f"sqlite:///{path}")
    declaring.app.queue("orders", max_depth=1)
    with declaring.app, other.app:
        declaring.ship.submit(1)
        refusal_of(other.ship, 2)


def test_a_worker_stores_the_quotas_that_it_declares(path: Path) -> None:
    declaring, other = Shop(f"sqlite:///{path}"), Shop(f"sqlite:///{path}")
    declaring.app.queue("orders", submit_rate=Rate(1, per=3600))
    with declaring.app.running():
        other.ship.submit(1)
        refusal_of(other.ship, 2)
    other.app.close()


def test_a_quota_stays_until_it_is_declared_as_none(path: Path) -> None:
    first = Shop(f"sqlite:///{path}")
    first.app.queue("orders", max_depth=1, submit_rate=Rate(1, per=3600))
    with first.app:
        first.ship.submit(1)
    silent = Shop(f"sqlite:///{path}")
    with silent.app:
        refusal_of(silent.ship, 2)
    removing = Shop(f"sqlite:///{path}")
    removing.app.queue("orders", max_depth=None, submit_rate=None)
    with removing.app:
        removing.ship.submit_many([(n,) for n in range(5)])
        assert removing.pending() == 6
        statistics = removing.app.queue("orders").statistics()
    assert (statistics.max_depth, statistics.submit_rate) == (None, None)


def test_a_quota_that_is_declared_while_the_application_runs_holds_from_the_next_submit(shop: Shop) -> None:
    shop.ship.submit(1)
    shop.app.queue("orders", max_depth=1)
    refusal_of(shop.ship, 2)
    shop.app.queue("orders", max_depth=2)
    shop.ship.submit(2)


def test_limits_of_starts_and_quotas_of_submits_are_independent(shop: Shop) -> None:
    shop.app.queue("orders", max_depth=2)
    shop.app.queue("orders", rate=Rate(10, per=1))
    shop.app.queue("orders", submit_rate=Rate(5, per=1))
    with shop.app.running():
        statistics = shop.app.queue("orders").statistics()
        assert (statistics.max_depth, statistics.submit_rate) == (2, Rate(5, per=timedelta(seconds=1)))
        assert shop.ship.submit(1).wait(timeout=PATIENCE) == "COMPLETED"


def test_quotas_are_shown_with_the_statistics_before_they_are_stored(shop: Shop) -> None:
    shop.app.queue("new", max_depth=7, submit_rate=Rate(3, per=2))
    assert "new" in [queue.name for queue in shop.app.all_queues()]
    statistics = shop.app.queue("new").statistics()
    assert (statistics.max_depth, statistics.submit_rate) == (7, Rate(3, per=timedelta(seconds=2)))


@pytest.mark.parametrize("max_depth", [0, -1, 1.5, "10", True])
def test_a_depth_that_is_no_positive_number_is_refused(max_depth: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="max_depth"):
        Mainspring("memory://").queue("orders", max_depth=max_depth)


@pytest.mark.parametrize(("rate", "word"), [(5, "submit_rate"), (Rate(5, by="tenant"), "leave by= out")])
def test_a_rate_of_submits_is_a_rate_without_keys(rate: Any, word: str) -> None:
    with pytest.raises((TypeError, ValueError), match=word):
        Mainspring("memory://").queue("orders", submit_rate=rate)


def test_quotas_are_selected_from_the_limits_of_a_store() -> None:
    limits = {
        "depth of queue a": Limit(5, None),
        "submit rate of queue a": Limit(1, 10),
        "rate of queue a": Limit(2, 10),
        "concurrency of queue b": Limit(2, None),
        "depth of queue c": Limit(6, None),
    }
    assert quotas_of(limits) == {"a": Quota(5, Limit(1, 10)), "c": Quota(6, None)}


# -- the file


def triggers(path: Path) -> list[str]:
    connection = apsw.Connection(str(path))
    names = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'")]
    connection.close()
    return [name for name in names if name.startswith("count_")]


def test_a_file_counts_pending_jobs_only_while_a_queue_has_a_depth_quota(path: Path) -> None:
    shop = Shop(f"sqlite:///{path}")
    with shop.app:
        shop.app.queue("orders", submit_rate=Rate(100, per=1))
        shop.ship.submit(1)
        assert triggers(path) == []
        shop.app.queue("orders", max_depth=5)
        shop.ship.submit(2)
        assert len(triggers(path)) == 4
        shop.app.queue("orders", max_depth=None)
        shop.ship.submit(3)
        assert triggers(path) == []


def test_the_counts_in_the_file_are_those_of_its_jobs(path: Path) -> None:
    shop = Shop(f"sqlite:///{path}")
    shop.app.queue("orders", max_depth=1_000)
    with shop.app:
        ids = shop.ship.submit_many([(n,) for n in range(20)])
        later = shop.ship.options(sequence="s", delay=3600).submit_many([(n,) for n in range(5)])
        shop.mail.submit_many([(n,) for n in range(3)])
        for job_id in (*ids[:3], *later[:2]):
            assert shop.app.cancel(job_id)
        with shop.app.running():
            for job_id in ids[3:]:
                assert shop.app.handle(job_id).wait(timeout=PATIENCE) == "COMPLETED"
        shop.ship.submit_many([(n,) for n in range(4)])
    connection = apsw.Connection(str(path))
    counted = connection.execute("SELECT sum(pending) FROM pending_counts").get
    assert counted == 3 + 4
    connection.close()
