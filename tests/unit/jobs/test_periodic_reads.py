"""Periodic reads: what belongs to them, what they cost, and what they share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from threading import get_ident
from unittest.mock import Mock

import pytest

from mainspring import Mainspring
from mainspring.clock import thread_ns
from mainspring.jobs.engine import Engine
from mainspring.jobs.off_loop import OffLoop
from mainspring.jobs.periodic_reads import REMEMBERED, PeriodicReads, computing, periodic_reads
from mainspring.testing import ManualClock
from tests.unit.jobs.manager_fixture import running_manager

MS = 1_000_000


@pytest.fixture
def off_loop() -> Iterator[OffLoop]:
    off_loop = OffLoop()
    yield off_loop
    off_loop.close()


def compute(nanoseconds: int) -> int:
    """Use processor time, and return the number of the thread."""
    began = thread_ns()
    while thread_ns() - began < nanoseconds:
        pass
    return get_ident()


def test_reads_on_other_threads_belong_to_the_round_that_awaits_them(off_loop: OffLoop) -> None:
    reads = PeriodicReads()

    async def main() -> None:
        with reads.round():
            found = await asyncio.gather(*(off_loop.read(periodic_reads) for _ in range(3)))
            assert found == [reads] * 3
        assert await off_loop.read(periodic_reads) is None

    asyncio.run(main())
    assert periodic_reads() is None


def test_the_processor_time_of_other_threads_is_counted(off_loop: OffLoop) -> None:
    reads = PeriodicReads()

    async def main() -> None:
        await off_loop.read(compute, 5 * MS)
        assert reads.take_spent() == 0
        with reads.round():
            threads = await asyncio.gather(off_loop.read(compute, 5 * MS), off_loop.write(compute, 5 * MS))
        assert get_ident() not in threads

    asyncio.run(main())
    assert reads.take_spent() >= 10 * MS
    assert reads.take_spent() == 0, "it is taken once"


def test_the_processor_time_of_a_call_that_fails_is_counted(off_loop: OffLoop) -> None:
    reads = PeriodicReads()

    def fail() -> None:
        compute(5 * MS)
        raise LookupError

    with pytest.raises(LookupError):
        reads.measure(fail)
    assert reads.take_spent() >= 5 * MS


def test_a_round_asks_the_same_question_once() -> None:
    reads = PeriodicReads()
    asked: list[str] = []

    def ask() -> int:
        asked.append("?")
        return len(asked)

    with reads.round():
        assert [reads.once("count", ask), reads.once("count", ask), reads.once("other", ask)] == [1, 1, 2]
    with reads.round():
        assert reads.once("count", ask) == 3


def test_a_round_has_the_age_of_its_oldest_answer() -> None:
    reads = PeriodicReads()
    with reads.round():
        reads.note_age(5)
        reads.note_age(3)
        assert reads.age_ns == 5
    with reads.round():
        assert reads.age_ns == 0


def test_computations_show_how_much_of_a_processor_the_process_gets() -> None:
    reads = PeriodicReads()
    assert reads.availability == 1.0
    with reads.round():
        reads.note_computed(100 * MS, 20 * MS)
        assert reads.availability == 0.2
    with reads.round():
        assert reads.availability == 0.2, "nothing was computed in this round"
        reads.note_computed(1 * MS, 1 * MS)
        assert reads.availability == 0.2, "it was not interrupted by chance"
    for _ in range(REMEMBERED):
        assert reads.availability == 0.2
        with reads.round():
            reads.note_computed(100 * MS, 80 * MS)
    with reads.round():
        assert reads.availability == 0.8
        with computing():
            compute(1 * MS)
        assert 0 < reads.availability <= 0.8
    with computing():  # belongs to no periodic reads
        compute(1)


def test_statistics_are_counted_once_in_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    with Mainspring("memory://") as app:
        manager = app.manager()
        counted = Mock(wraps=manager.engine.statistics)
        monkeypatch.setattr(manager.engine, "statistics", counted)
        reads = PeriodicReads()

        async def main() -> None:
            with reads.round():
                await asyncio.gather(*(app.statistics_async() for _ in range(5)))

        asyncio.run(main())
        assert counted.call_count == 1
        app.statistics()
        app.statistics()
        assert counted.call_count == 3, "other reads see the present state"


def test_the_pruning_of_a_worker_is_a_periodic_read_until_it_finds_jobs(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_manager(clock, has_maintenance=True) as shop:
        were_periodic: list[bool] = []
        engine: Engine = shop.manager.engine
        prune = engine.prune

        def note(retention: object) -> object:
            were_periodic.append(periodic_reads() is not None)
            return prune(retention)  # type: ignore[arg-type]

        monkeypatch.setattr(engine, "prune", note)
        shop.manager.register("ping", lambda: None)
        shop.manager.start()
        clock.advance(121)
        assert were_periodic == [True, True]
