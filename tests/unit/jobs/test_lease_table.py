"""How many jobs a worker fetches: each kind of handler has slots of its own."""

from typing import Any

import pytest
from msgspec.structs import replace

from mainspring.jobs.handler_options import HandlerOptions
from mainspring.jobs.handlers import Handler, HandlerRegistry
from mainspring.jobs.serializers import JsonSerializer
from mainspring.jobs.worker.lease_table import LeaseTable
from tests.unit.jobs.leases import make_lease


class Shop:
    """A lease table with two threads, three coroutines and four processes, and its handlers."""

    def __init__(self) -> None:
        self.registry = HandlerRegistry()
        self.table = LeaseTable(
            self.registry, lambda *_report: None, threads=2, coroutines=3, processes=4, queues=None
        )

    def add(self, name: str, function: Any, **options: Any) -> None:
        self.registry.add(Handler(name, function, HandlerOptions(**options), JsonSerializer()))


@pytest.fixture
def shop() -> Shop:
    shop = Shop()
    shop.add("ping", lambda: None)
    return shop


def demands(shop: Shop) -> dict[tuple[str, ...], int]:
    return {demand.types: demand.starts for demand in shop.table.demands()}


async def coroutine() -> None: ...


def many(items: list[int]) -> None: ...


async def many_on_a_loop(items: list[int]) -> None: ...


def test_each_kind_of_handler_has_slots_of_its_own(shop: Shop) -> None:
    shop.add("loop", coroutine)
    shop.add("process", many, execution="process")
    shop.add("batch", many, batch=50)
    shop.add("loop batch", many_on_a_loop, batch=60)
    assert demands(shop) == {
        ("ping",): 2,
        ("loop",): 3,
        ("process",): 4,
        ("batch",): 50,
        ("loop batch",): 60,
    }


def test_a_handler_is_asked_for_under_all_its_names(shop: Shop) -> None:
    shop.add("batch", many, batch=50, aliases=("old",))
    assert demands(shop) == {("ping",): 2, ("batch", "old"): 50}


def test_a_handler_that_is_registered_later_is_asked_for(shop: Shop) -> None:
    before = demands(shop)
    shop.add("pong", coroutine)
    assert (("pong",) in before, ("pong",) in demands(shop)) == (False, True)


def test_a_call_of_a_batch_handler_uses_a_place_of_its_kind(shop: Shop) -> None:
    shop.add("batch", many, batch=50)
    for number in range(10):
        shop.table.add(replace(make_lease(b'{"items":1}'), ref=number, type="batch"), worker=1)
    assert demands(shop) == {("ping",): 1, ("batch",): 0}


def test_while_a_suspect_is_here_no_kind_of_handler_fetches_another(shop: Shop) -> None:
    shop.add("loop", coroutine)
    shop.add("batch", many, batch=50)
    before = [demand.suspects for demand in shop.table.demands()]
    suspect = shop.table.add(replace(make_lease(crashes=2), type="ping"), worker=1)
    during = [demand.suspects for demand in shop.table.demands()]
    shop.table.drop(suspect)
    after = [demand.suspects for demand in shop.table.demands()]
    assert (before, during, after) == ([True] * 3, [False] * 3, [True] * 3)


def test_started_jobs_that_run_at_most_once_are_counted_until_they_end(shop: Shop) -> None:
    shop.add("single", lambda: None, at_most_once=True, aliases=("once",))

    def room() -> tuple[tuple[str, ...], int]:
        (demand,) = shop.table.demands()
        return demand.at_most_once, demand.at_most_once_starts

    assert room() == (("single", "once"), 2)
    lease = replace(make_lease(), type="single", at_most_once=True)
    started = shop.table.add(replace(lease, ref=1, is_started=True), 1)
    held = shop.table.add(replace(lease, ref=2, is_started=False), 1)
    shop.table.add(replace(lease, ref=3, type="ping", is_started=True, at_most_once=False), 1)
    assert room()[1] == 1
    shop.table.count_as_started(held)
    assert room()[1] == 0
    shop.table.drop(started)
    shop.table.drop(held)
    assert room()[1] == 2
