"""The event hub: readers share a list, slow ones read the store, and none misses events without a reset."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest

from mainspring import Mainspring
from mainspring.engines.sqlite import event_log
from mainspring.errors import EngineUnavailable
from mainspring.jobs.event_stream import EventFollower
from mainspring.jobs.events import EventPage
from mainspring.security.http_limits import HttpLimits
from mainspring.web import event_hub
from mainspring.web.event_hub import EventHub, EventReader
from mainspring.web.problems import Refused
from tests.support import PATIENCE


@pytest.fixture
def app() -> Iterator[Mainspring]:
    with Mainspring("memory://") as app:
        yield app


@pytest.fixture
def submit(app: Mainspring) -> Callable[..., None]:
    job = app.job(name="ping")(lambda: None)

    def submit(*ids: str) -> None:
        for job_id in ids:
            job.options(id=job_id).submit()

    return submit


@pytest.fixture
def hub(app: Mainspring) -> EventHub:
    return EventHub(app, limits=HttpLimits(event_readers=10, caller_share=1))


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(PATIENCE):
            await main()

    asyncio.run(limited())


async def read(reader: EventReader, count: int) -> list[str]:
    """Wait for some events; return the ids of their jobs, and "reset" for a reset."""
    found: list[str] = []
    while len(found) < count:
        batch = await reader.next(PATIENCE)
        assert batch is not None, "the reader was ended"
        found += ["reset" if each.event is None else each.event.id for each in batch]
    assert len(found) == count
    return found


def test_readers_get_the_same_events_from_one_follower(hub: EventHub, submit: Callable[..., None]) -> None:
    async def main() -> None:
        async with hub.reader("a caller") as one, hub.reader("a caller") as two:
            assert (hub.readers, hub.followers) == (2, 1)
            submit("a", "b")
            assert await read(one, 2) == ["a", "b"]
            assert await read(two, 2) == ["a", "b"]
            assert one.position == two.position
        assert (hub.readers, hub.followers) == (0, 0)

    run(main)


def test_a_reader_that_joins_later_gets_later_events(hub: EventHub, submit: Callable[..., None]) -> None:
    async def main() -> None:
        async with hub.reader("a caller") as one:
            submit("a")
            assert await read(one, 1) == ["a"]
            async with hub.reader("a caller") as two:
                submit("b")
                assert await read(two, 1) == ["b"]

    run(main)


def test_nothing_comes_in_time_if_nothing_happens(hub: EventHub) -> None:
    async def main() -> None:
        async with hub.reader("a caller") as reader:
            assert await reader.next(0.01) == ()

    run(main)


def test_a_slow_reader_reads_the_store_and_misses_nothing(
    hub: EventHub, submit: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_hub, "KEPT", 2)
    monkeypatch.setattr(event_hub, "PAGE", 1)
    monkeypatch.setattr(event_hub, "BATCH", 3)
    ids = [f"{number}" for number in range(20)]

    async def main() -> None:
        async with hub.reader("a caller") as fast, hub.reader("a caller") as slow:
            for job_id in ids:
                submit(job_id)
                assert await read(fast, 1) == [job_id]
            assert await read(slow, 20) == ids
            submit("last")
            assert await read(slow, 1) == ["last"]

    run(main)


def test_a_slow_reader_is_reset_if_the_store_has_deleted_its_events(
    app: Mainspring, hub: EventHub, submit: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_hub, "KEPT", 2)
    monkeypatch.setattr(event_hub, "PAGE", 1)
    monkeypatch.setattr(event_log, "MAX_EVENTS", 3)
    engine = app.manager().engine

    async def main() -> None:
        async with hub.reader("a caller") as fast, hub.reader("a caller") as slow:
            for number in range(20):
                submit(f"{number}")
                await read(fast, 1)
            engine.listen(engine.now())  # which deletes old events
            assert await read(slow, 1) == ["reset"]
            submit("last")
            assert await read(slow, 1) == ["last"]
            assert await read(fast, 1) == ["last"]

    run(main)


def test_all_readers_are_reset_if_the_follower_misses_events(
    hub: EventHub, submit: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    misses = [False]
    read_page = EventFollower.read

    def read_with_gap(follower: EventFollower, limit: int) -> EventPage:
        page = read_page(follower, limit)
        if misses[0] and page.events:
            misses[0] = False
            return EventPage(page.events, page.end, page.positions, is_complete=False)
        return page

    monkeypatch.setattr(EventFollower, "read", read_with_gap)

    async def main() -> None:
        async with hub.reader("a caller") as one, hub.reader("a caller") as two:
            submit("a")
            assert await read(one, 1) == ["a"]
            before = one.position
            misses[0] = True
            submit("b")
            assert await read(one, 2) == ["reset", "b"]
            assert await read(two, 3) == ["a", "reset", "b"]
            async with hub.reader("a caller", before) as resumed:
                assert await read(resumed, 2) == ["reset", "b"]

    run(main)


def test_a_store_that_does_not_answer_is_asked_again(
    hub: EventHub,
    submit: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(event_hub, "RETRY_SECONDS", 0.01)
    failures = iter([True, True, True])
    read_page = EventFollower.read

    def read_or_fail(follower: EventFollower, limit: int) -> EventPage:
        if next(failures, False):
            raise EngineUnavailable(engine="the store", reason="it is away", remedy="wait")
        return read_page(follower, limit)

    monkeypatch.setattr(EventFollower, "read", read_or_fail)

    async def main() -> None:
        async with hub.reader("a caller") as reader:
            submit("a")
            assert await read(reader, 1) == ["a"]

    with caplog.at_level(logging.WARNING, "mainspring.events"):
        run(main)
    assert [record.message for record in caplog.records if "cannot be read" in record.message] == [
        "events cannot be read from the store, for 0 s now: the store: it is away; wait"
    ]


def test_a_follower_that_fails_ends_its_readers_and_the_next_one_has_another(
    hub: EventHub, submit: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_follower: EventFollower, _limit: int) -> EventPage:
        raise RuntimeError("a bug")

    async def main() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(EventFollower, "read", fail)
            async with hub.reader("a caller") as reader:
                assert await reader.next(PATIENCE) is None
        async with hub.reader("a caller") as reader:
            submit("a")
            assert await read(reader, 1) == ["a"]

    run(main)


def test_a_store_that_cannot_be_followed_is_reported_to_each_reader_and_tried_again(
    app: Mainspring, hub: EventHub, submit: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_until: int) -> str:
        raise EngineUnavailable(engine="the store", reason="it is away", remedy="wait")

    async def join() -> None:
        async with hub.reader("a caller"):
            pytest.fail("it must not be admitted")

    async def main() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(app.manager().engine, "listen", fail)
            found: Sequence[Any] = await asyncio.gather(join(), join(), return_exceptions=True)
            assert [type(error) for error in found] == [EngineUnavailable, EngineUnavailable]
        assert (hub.readers, hub.followers) == (0, 0)
        async with hub.reader("a caller") as reader:
            submit("a")
            assert await read(reader, 1) == ["a"]

    run(main)


def test_a_reader_that_is_canceled_while_it_joins_leaves_nothing_behind(hub: EventHub) -> None:
    async def join() -> None:
        async with hub.reader("a caller"):
            pytest.fail("it was canceled")

    async def main() -> None:
        task = asyncio.get_running_loop().create_task(join())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (hub.readers, hub.followers) == (0, 0)

    run(main)


def test_a_closed_hub_ends_its_readers_and_refuses_others_until_it_is_opened(
    hub: EventHub, submit: Callable[..., None]
) -> None:
    async def main() -> None:
        async with hub.reader("a caller") as reader:
            hub.close()
            assert await reader.next(PATIENCE) is None
        with pytest.raises(Refused, match="the server stops"):
            async with hub.reader("a caller"):
                pass
        hub.open()
        async with hub.reader("a caller") as reader:
            submit("a")
            assert await read(reader, 1) == ["a"]

    run(main)


def test_the_number_of_readers_is_limited(app: Mainspring) -> None:
    hub = EventHub(app, limits=HttpLimits(event_readers=3, caller_share=1))

    async def main() -> None:
        async with AsyncExitStack() as stack:
            for _ in range(3):
                await stack.enter_async_context(hub.reader("a caller"))
            with pytest.raises(Refused, match="3 clients read events, which is the limit"):
                await stack.enter_async_context(hub.reader("a caller"))
            assert hub.readers == 3
        assert hub.readers == 0

    run(main)


def test_readers_on_several_event_loops_get_all_events(hub: EventHub, submit: Callable[..., None]) -> None:
    async def main() -> None:
        async with hub.reader("a caller") as reader:
            submit("a")
            assert await read(reader, 1) == ["a"]
            await asyncio.to_thread(lambda: run(other))
            assert await read(reader, 1) == ["b"]

    async def other() -> None:
        async with hub.reader("a caller") as reader:
            assert hub.readers == 2
            submit("b")
            assert await read(reader, 1) == ["b"]

    run(main)
