"""Rows of a SQLite file that another program has spoiled: such jobs become dead letters, and others run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from mainspring import Concurrency, JobStatus, Mainspring
from tests.blank_stores import make_blank_store
from tests.support import PATIENCE, eventually

SPOILED = {
    "a text for msgpack": (
        "payload = '[1]', codec = 'msgpack'",
        "its arguments cannot be read (the codec is msgpack",
    ),
    "a text for another codec": ("payload = '[1]', codec = 'x'", "its arguments cannot be read (the codec is x"),
    "a number": ("payload = 5", "its arguments cannot be read (the column has a value of type integer"),
    "no UTF-8": ("payload = CAST(x'5bff5d' AS TEXT)", "its arguments cannot be read ('utf-8'"),
    "no JSON in the headers": ("headers = '{bad'", "its headers cannot be read"),
    "a number in the headers": ("headers = '{\"a\": 1}'", "its headers cannot be read"),
    "no UTF-8 in the headers": ("headers = CAST(x'7bff7d' AS TEXT)", "its headers cannot be read"),
    "no plan of a follow-up job": ("follow_up = '[]'", "its follow-up job cannot be read"),
    "all of it": (
        "payload = 'x', codec = 'msgpack', headers = '{', follow_up = ''",
        (
            "its arguments cannot be read (the codec is msgpack, and the column has a text instead of a blob); "
            "its headers cannot be read"
        ),
    ),
}


class Shop(Mainspring):
    """An application whose file another program changes."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"sqlite:///{path}", durability="normal", grace=5, threads=2)
        self.calls: list[int] = []
        self.pay = self.job(name="pay")(self._pay)
        self.limited = self.job(name="limited", concurrency=Concurrency(2))(self._pay)
        self.path = path

    def _pay(self, order: int) -> None:
        self.calls.append(order)

    def spoil(self, change: str, *ids: str) -> None:
        """Change rows as another program does."""
        connection = apsw.Connection(str(self.path))
        connection.set_busy_timeout(int(PATIENCE * 1_000))
        for job_id in ids:
            connection.execute(f"UPDATE jobs SET {change} WHERE id = ?", (job_id,))
        connection.close()

    def has_ended(self, *, completed: int, failed: int) -> bool:
        """Wait until so many jobs have ended. It reads no rows: unreadable ones raise errors until then."""
        return eventually(lambda: (self.counts()["COMPLETED"], self.counts()["FAILED"]) == (completed, failed))


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(make_blank_store(tmp_path / "jobs.db"))
    with shop:
        yield shop


def test_a_spoiled_job_becomes_a_dead_letter_and_others_run(shop: Shop) -> None:
    for name, (change, _) in SPOILED.items():
        shop.pay.options(id=name).submit(1)
        shop.spoil(change, name)
    shop.pay.options(id="right").submit(2)
    with shop.running():
        assert shop.has_ended(completed=1, failed=len(SPOILED))
    assert shop.calls == [2]
    for name, (_, reason) in SPOILED.items():
        job = shop.get(name)
        assert str(job.error).startswith(f"unreadable: {reason}"), name
        assert job.starts == 0
    assert {letter.id for letter in shop.dead_letters.list()} == set(SPOILED)


@pytest.mark.parametrize("name", ["a text for msgpack", "no UTF-8", "no JSON in the headers"])
def test_spoiled_jobs_under_a_limit_hold_none_of_its_places(shop: Shop, name: str) -> None:
    with shop.running():
        shop.queue("default").pause()
        ids = shop.limited.submit_many([(order,) for order in range(12)])
        shop.spoil(SPOILED[name][0], *ids[::3])
        shop.queue("default").resume()
        assert shop.has_ended(completed=8, failed=4)
    assert sorted(shop.calls) == [order for order in range(12) if order % 3]


def test_a_spoiled_job_does_not_stop_its_sequence(shop: Shop) -> None:
    pay = shop.pay.options(sequence="customer 7")
    ids = [pay.submit(order).id for order in range(3)]
    shop.spoil(SPOILED["a text for msgpack"][0], ids[0])
    with shop.running():
        assert shop.has_ended(completed=2, failed=1)
    assert shop.calls == [1, 2]
    assert shop.get(ids[0]).status is JobStatus.FAILED


@pytest.mark.long
@pytest.mark.parametrize("name", ["a text for msgpack", "a number"])
def test_more_spoiled_jobs_than_a_worker_leases_do_not_delay_the_others(shop: Shop, name: str) -> None:
    ids = shop.pay.submit_many([(1,)] * 500)
    shop.spoil(SPOILED[name][0], *ids)
    shop.pay.options(id="right").submit(2)
    with shop.running():
        assert shop.has_ended(completed=1, failed=500)
    assert shop.calls == [2]


def test_a_spoiled_job_that_is_due_soon_does_not_stop_the_worker(shop: Shop) -> None:
    ids = [shop.pay.after(0.3).submit(order).id for order in range(2)]
    shop.spoil(SPOILED["no JSON in the headers"][0], ids[0])
    with shop.running():
        assert shop.has_ended(completed=1, failed=1)
    assert shop.calls == [1]


@pytest.mark.parametrize("name", SPOILED)
def test_a_spoiled_job_under_a_limit_keeps_no_worker_from_starting(shop: Shop, name: str) -> None:
    ids = shop.limited.submit_many([(order,) for order in range(3)])
    shop.spoil(SPOILED[name][0], ids[1])
    with shop.running():
        assert shop.has_ended(completed=2, failed=1)
    assert sorted(shop.calls) == [0, 2]
    assert str(shop.get(ids[1]).error).startswith(f"unreadable: {SPOILED[name][1]}")


@pytest.mark.parametrize("name", SPOILED)
def test_a_job_that_was_spoiled_before_its_type_had_a_limit_keeps_no_worker_from_starting(
    shop: Shop, name: str
) -> None:
    ids = shop.pay.submit_many([(order,) for order in range(3)])
    shop.spoil(SPOILED[name][0], ids[1])
    shop.job(name="pay", concurrency=Concurrency(1))(shop._pay)
    with shop.running():
        assert shop.has_ended(completed=2, failed=1)
    assert sorted(shop.calls) == [0, 2]


@pytest.mark.parametrize("name", SPOILED)
def test_a_spoiled_job_is_listed_without_what_cannot_be_read(shop: Shop, name: str) -> None:
    ids = shop.pay.options(headers={"user": "7"}).submit_many([(order,) for order in range(3)])
    shop.spoil(SPOILED[name][0], ids[1])
    jobs = {job.id: job for job in shop.jobs()}
    assert set(jobs) == set(ids)
    assert [jobs[job_id].headers for job_id in (ids[0], ids[2])] == [{"user": "7"}] * 2
    is_spoiled = "headers" in SPOILED[name][0]
    assert jobs[ids[1]].headers == shop.get(ids[1]).headers == ({} if is_spoiled else {"user": "7"})
