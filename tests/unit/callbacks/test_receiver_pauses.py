"""When receivers of callbacks are paused: probes, hosts, several workers, and stores that cannot be reached."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from mainspring import EngineUnavailable
from mainspring.callbacks.pauses import (
    FIRST_PAUSE,
    LONGEST_OWN,
    PACE,
    PROBE_WAIT,
    PutOff,
    Receiver,
    ReceiverPauses,
)
from mainspring.jobs.callback_pauses import CallbackPauseRecord, replace_pause
from mainspring.jobs.timestamps import MICROSECONDS

T = TypeVar("T")

HOST = "hooks.example.com"
PAID = Receiver(HOST, "paid")
SHIPPED = Receiver(HOST, "shipped")
FIVE_MINUTES = 300 * MICROSECONDS
PROBE_TIME = 30 * MICROSECONDS


class Store:
    """The records of pauses in memory, with a clock that the test moves."""

    def __init__(self) -> None:
        self.records: tuple[CallbackPauseRecord, ...] = ()
        self.time = 1_000 * MICROSECONDS
        self.reads = self.changes = 0
        self.is_there = True

    def now(self) -> int:
        return self.time

    def advance(self, microseconds: int) -> None:
        self.time += microseconds

    async def read(self) -> tuple[CallbackPauseRecord, ...]:
        self.reads += 1
        await asyncio.sleep(0)
        self._require_there()
        return self.records

    async def change(self, before: CallbackPauseRecord | None, after: CallbackPauseRecord | None) -> bool:
        self._require_there()
        changed = replace_pause(self.records, before, after)
        if changed is not None:
            self.changes += 1
            self.records = changed
        return changed is not None

    def _require_there(self) -> None:
        if not self.is_there:
            raise EngineUnavailable(engine="the store", reason="it is gone", remedy="wait")

    def worker(self) -> ReceiverPauses:
        """Return the pauses as one worker sees them."""
        return ReceiverPauses(self, lambda: self.time * 1_000, longest=FIVE_MINUTES, probe_time=PROBE_TIME)


def run(work: Callable[[Store], Awaitable[T]]) -> T:
    async def main() -> T:
        return await work(Store())

    return asyncio.run(main())


async def delay_of(pauses: ReceiverPauses, receiver: Receiver) -> int | None:
    """Return how long a request is put off; None if it may be sent, as no probe."""
    found = await pauses.enter(receiver)
    if isinstance(found, PutOff):
        return found.delay
    assert found == ()
    return None


def test_a_pause_holds_back_one_job_type_of_the_host() -> None:
    async def work(store: Store) -> None:
        pauses = store.worker()
        assert await pauses.fail(PAID, (), 503, 30) == 30 * MICROSECONDS
        assert await delay_of(pauses, PAID) == 30 * MICROSECONDS + PACE
        assert await delay_of(pauses, PAID) == 30 * MICROSECONDS + 2 * PACE
        assert await delay_of(pauses, SHIPPED) is None
        assert await delay_of(pauses, Receiver("other.example.com", "paid")) is None

    run(work)


def test_a_pause_concerns_one_url_if_it_is_an_argument() -> None:
    async def work(store: Store) -> None:
        pauses = store.worker()
        first, second = (Receiver(HOST, "mainspring.http", f"https://{HOST}/{name}") for name in "ab")
        await pauses.fail(first, (), 429, 30)
        assert await delay_of(pauses, first) is not None
        assert await delay_of(pauses, second) is None

    run(work)


def test_three_paused_urls_pause_their_type_and_not_their_host() -> None:
    async def work(store: Store) -> None:
        pauses = store.worker()
        urls = [Receiver(HOST, "mainspring.http", f"https://{HOST}/{name}") for name in "abcde"]
        for url in urls[:3]:
            assert await delay_of(pauses, urls[3]) is None
            await pauses.fail(url, (), 503, 30)
        assert await delay_of(pauses, urls[3]) == 30 * MICROSECONDS + PACE
        assert await delay_of(pauses, PAID) is None
        for url in urls:  # answers to requests that were sent before
            assert await pauses.fail(url, (), 503, 60) == 30 * MICROSECONDS
        assert [(record.type, record.url is None) for record in store.records] == [
            ("mainspring.http", True),
            *[("mainspring.http", False)] * 3,
        ]
        store.advance(30 * MICROSECONDS)
        probes = await pauses.enter(urls[0])
        assert not isinstance(probes, PutOff)
        assert [probe.url for probe in probes] == [None, urls[0].url]
        assert isinstance(await pauses.enter(urls[3]), PutOff)
        await pauses.succeed(probes)
        assert await delay_of(pauses, urls[3]) is None

    run(work)


def test_three_paused_types_pause_their_host() -> None:
    async def work(store: Store) -> None:
        pauses = store.worker()
        other = Receiver(HOST, "other")
        for number, name in enumerate(("a", "b", "c")):
            assert await delay_of(pauses, other) is None, number
            await pauses.fail(Receiver(HOST, name), (), 503, 30)
        assert await delay_of(pauses, other) == 30 * MICROSECONDS + PACE
        assert await delay_of(pauses, Receiver("other.example.com", "a")) is None
        assert [record.type for record in store.records] == [None, "a", "b", "c"]

    run(work)


def test_a_pause_is_not_longer_than_the_policy_allows() -> None:
    async def work(store: Store) -> int:
        return await store.worker().fail(PAID, (), 503, 86_400)

    assert run(work) == FIVE_MINUTES


def test_all_workers_share_a_pause_and_its_end() -> None:
    async def work(store: Store) -> None:
        one, other = store.worker(), store.worker()
        assert await delay_of(other, PAID) is None
        await one.fail(PAID, (), 503, 30)
        assert await delay_of(other, PAID) is None, "its records may be a second old"
        store.advance(MICROSECONDS)
        assert await delay_of(other, PAID) == 29 * MICROSECONDS + PACE
        store.records = ()  # an operator has lifted the pause
        assert await delay_of(other, PAID) is None, "a request is put off by new records only"

    run(work)


def test_one_request_probes_after_a_pause_and_ends_it() -> None:
    async def work(store: Store) -> None:
        one, other = store.worker(), store.worker()
        await one.fail(PAID, (), 503, 30)
        store.advance(30 * MICROSECONDS)
        probes = await one.enter(PAID)
        assert not isinstance(probes, PutOff)
        assert len(probes) == 1
        for worker in (one, other):
            assert await delay_of(worker, PAID) == PROBE_WAIT + PACE
        await one.succeed(probes)
        assert store.records == ()
        assert await delay_of(other, PAID) is None

    run(work)


def test_two_workers_send_one_probe() -> None:
    async def work(store: Store) -> None:
        workers = [store.worker() for _ in range(5)]
        await workers[0].fail(PAID, (), 503, 30)
        store.advance(31 * MICROSECONDS)
        answers = await asyncio.gather(*(worker.enter(PAID) for worker in workers for _ in range(4)))
        assert sum(not isinstance(answer, PutOff) for answer in answers) == 1

    run(work)


def test_each_failed_probe_doubles_the_pause() -> None:
    async def work(store: Store) -> list[int]:
        pauses = store.worker()
        found = [await pauses.fail(PAID, (), 503)]
        for _ in range(7):
            store.advance(found[-1])
            probes = await pauses.enter(PAID)
            assert not isinstance(probes, PutOff)
            found.append(await pauses.fail(PAID, probes, 503))
        return found

    assert run(work) == [FIRST_PAUSE * factor for factor in (1, 2, 4, 8, 16, 32, 60, 60)]
    assert LONGEST_OWN == 60 * FIRST_PAUSE


def test_a_probe_without_an_answer_is_a_failure() -> None:
    async def work(store: Store) -> None:
        pauses = store.worker()
        assert await pauses.fail(PAID, (), None) == 0
        assert store.records == (), "a usual request without an answer pauses no receiver"
        await pauses.fail(PAID, (), 503)
        store.advance(FIRST_PAUSE)
        probes = await pauses.enter(PAID)
        assert not isinstance(probes, PutOff)
        assert await pauses.fail(PAID, probes, None) == 2 * FIRST_PAUSE

    run(work)


def test_a_probe_of_a_worker_that_died_is_sent_by_another() -> None:
    async def work(store: Store) -> None:
        one, other = store.worker(), store.worker()
        await one.fail(PAID, (), 503)
        store.advance(FIRST_PAUSE)
        assert not isinstance(await one.enter(PAID), PutOff)
        store.advance(PROBE_TIME - 1)
        assert isinstance(await other.enter(PAID), PutOff)
        store.advance(1)
        assert not isinstance(await other.enter(PAID), PutOff)

    run(work)


def test_a_probe_that_was_not_sent_can_be_taken_over_at_once() -> None:
    async def work(store: Store) -> None:
        one, other = store.worker(), store.worker()
        await one.fail(PAID, (), 503)
        store.advance(FIRST_PAUSE)
        probes = await one.enter(PAID)
        assert not isinstance(probes, PutOff)
        await one.release(probes)
        assert not isinstance(await other.enter(PAID), PutOff)

    run(work)


def test_a_probe_of_a_host_is_one_request_of_any_type() -> None:
    async def work(store: Store) -> None:
        pauses = store.worker()
        for name in ("a", "b", "c"):
            await pauses.fail(Receiver(HOST, name), (), 503, 30)
        store.advance(30 * MICROSECONDS)
        probes = await pauses.enter(Receiver(HOST, "a"))
        assert not isinstance(probes, PutOff)
        assert [probe.type for probe in probes] == [None, "a"]
        for name in ("a", "b", "d"):
            assert await delay_of(pauses, Receiver(HOST, name)) is not None
        await pauses.succeed(probes)
        assert [record.type for record in store.records] == ["b", "c"]
        assert await delay_of(pauses, Receiver(HOST, "d")) is None

    run(work)


def test_answers_to_requests_of_before_the_pause_count_once() -> None:
    async def work(store: Store) -> None:
        pauses = store.worker()
        for _ in range(5):
            assert await pauses.fail(PAID, (), 429) == FIRST_PAUSE
        await pauses.succeed(())
        assert store.changes == 1
        (record,) = store.records
        assert record.strikes == 1

    run(work)


def test_requests_that_wait_share_reads() -> None:
    async def work(store: Store) -> None:
        pauses = store.worker()
        await pauses.fail(PAID, (), 503, 30)
        before = store.reads
        await asyncio.gather(*(pauses.enter(PAID) for _ in range(100)))
        assert store.reads - before <= 2

    run(work)


def test_receivers_that_are_not_paused_cost_one_read_a_second() -> None:
    async def work(store: Store) -> None:
        pauses = store.worker()
        for _ in range(100):
            assert await delay_of(pauses, PAID) is None
            store.advance(MICROSECONDS // 50)
        assert store.reads == 2

    run(work)


def test_a_pause_holds_in_this_process_if_the_store_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    async def work(store: Store) -> None:
        pauses = store.worker()
        store.is_there = False
        assert await delay_of(pauses, PAID) is None
        await pauses.fail(PAID, (), 503, 30)
        assert await delay_of(pauses, PAID) == 30 * MICROSECONDS + PACE

    with caplog.at_level(logging.WARNING):
        run(work)
    assert "it holds in this process only" in caplog.text
    assert "could not be read" in caplog.text
