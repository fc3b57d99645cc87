"""Event streams: the events of jobs in order, with `for` and with `async for`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from mainspring import (
    Cancel,
    EventKind,
    EventStream,
    JobEvent,
    JobFunction,
    Mainspring,
    Retry,
    Snooze,
    Unique,
    current_job,
)
from mainspring.engines.sqlite.memory import MemoryEngine
from mainspring.jobs import event_stream
from mainspring.jobs.records import NewJob
from mainspring.testing import TimeTravel, time_travel
from tests.support import PATIENCE, Background, WatchedClock, within
from tests.unit.jobs.call_log import START


def fail() -> None:
    raise ValueError("no such order\nat all")


def snooze() -> None:
    raise Snooze(5)


def cancel() -> None:
    raise Cancel("not needed")


def progress() -> None:
    current_job().progress(1, 2)


DEEDS: dict[str, Callable[[], None]] = {"fail": fail, "snooze": snooze, "cancel": cancel, "progress": progress}


@pytest.fixture
def work(app: Mainspring) -> JobFunction[..., None]:
    @app.job(name="shop.work", queue="orders", retry=Retry(max_attempts=2, base=10, jitter=0))
    def work(deed: str = "", times: int = 9) -> None:
        if deed and app.get(current_job().id).starts <= times:
            DEEDS[deed]()

    return work


@pytest.fixture
def travel(app: Mainspring, work: JobFunction[..., None]) -> Iterator[TimeTravel]:
    with time_travel(app, start=START) as travel:
        yield travel


def kinds(events: list[JobEvent]) -> list[str]:
    return [event.kind.value for event in events]


# -- what is told


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), ["submitted", "started", "completed"]),
        (("fail", 1), ["submitted", "started", "retried", "started", "completed"]),
        (("fail",), ["submitted", "started", "retried", "started", "failed"]),
        (("snooze", 1), ["submitted", "started", "snoozed", "started", "completed"]),
        (("cancel",), ["submitted", "started", "canceled"]),
        (("progress",), ["submitted", "started", "progress", "completed"]),
    ],
)
def test_the_life_of_a_job_is_told_in_order(
    app: Mainspring,
    travel: TimeTravel,
    work: JobFunction[..., None],
    arguments: tuple[Any, ...],
    expected: list[str],
) -> None:
    events = app.events()
    handle = work.submit(*arguments)
    travel.fast_forward(60)
    told = events.pending()
    assert kinds(told) == expected
    assert {(event.job_id, event.type, event.queue) for event in told} == {(handle.id, "shop.work", "orders")}


def test_an_event_says_when_it_was_and_why(
    app: Mainspring, travel: TimeTravel, work: JobFunction[..., None]
) -> None:
    events = app.events()
    work.submit("fail")
    travel.fast_forward(60)
    last = events.pending()[-1]
    assert (last.kind, last.at) == (EventKind.FAILED, START + timedelta(seconds=10))
    assert last.note == "ValueError: no such order"


def test_what_users_and_operators_do_is_told(
    app: Mainspring, travel: TimeTravel, work: JobFunction[..., None]
) -> None:
    events = app.events()
    job = work.options(delay=60, unique="key")
    handle = job.submit()
    assert job.submit().id == handle.id
    work.options(delay=90, unique=Unique("key", on_conflict="replace")).submit()
    assert app.reschedule(handle.id, delay=30)
    assert handle.cancel()
    told = events.pending()
    assert kinds(told) == ["submitted", "deduplicated", "rescheduled", "rescheduled", "canceled"]
    assert {event.job_id for event in told} == {handle.id}


def test_a_letter_that_is_opened_again_and_one_that_expires_are_told(
    app: Mainspring, travel: TimeTravel, work: JobFunction[..., None]
) -> None:
    letter = work.submit("fail")
    travel.fast_forward(60)
    app.queue("orders").pause()
    events = app.events()
    app.retry(letter.id)
    work.options(expires=5).submit()
    travel.fast_forward(10)
    told = events.pending()
    assert kinds(told) == ["reopened", "submitted", "failed"]
    assert told[-1].note == "expired: it did not start within its time"


def test_an_occurrence_that_makes_no_job_names_its_schedule(app: Mainspring) -> None:
    @app.every(60, name="sync")
    def sync() -> None: ...

    with time_travel(app, start=START) as travel:
        app.queue("default").pause()
        events = app.events()
        told: list[JobEvent] = []
        for _ in range(4):
            travel.fast_forward(30)
            told += events.pending()  # which renews the promise to listen
    assert kinds(told) == ["submitted", "skipped"]
    assert told[-1].job_id == "sync"
    assert "has not ended" in (told[-1].note or "")


def test_what_follows_a_job_is_told_with_it(app: Mainspring) -> None:
    @app.job(name="second")
    def second() -> None: ...

    @app.job(name="first", then=second)
    def first() -> None: ...

    with time_travel(app, start=START) as travel:
        events = app.events()
        first.submit()
        travel.settle()
        told = [(event.kind.value, event.type) for event in events.pending()]
    assert sorted(told[2:4]) == [("completed", "first"), ("submitted", "second")]
    assert told[4:] == [("started", "second"), ("completed", "second")]


# -- followers


def test_what_happened_before_is_not_told(
    app: Mainspring, travel: TimeTravel, work: JobFunction[..., None]
) -> None:
    work.submit()
    travel.settle()
    events = app.events()
    assert events.pending() == []
    work.submit()
    travel.settle()
    assert kinds(events.pending()) == ["submitted", "started", "completed"]
    assert events.pending() == []


def test_no_event_is_written_when_no_process_follows(
    app: Mainspring, travel: TimeTravel, work: JobFunction[..., None]
) -> None:
    app.events()  # followed, and forgotten
    travel.fast_forward(event_stream.LISTEN_FOR / 1_000_000 + 1)
    work.submit()
    travel.settle()
    late = app.events()
    engine = app.manager().engine
    assert late.pending() == []
    assert engine.events("0", 100).events == []


def test_a_follower_that_reads_now_and_then_misses_nothing(
    app: Mainspring, travel: TimeTravel, work: JobFunction[..., None]
) -> None:
    events = app.events()
    told = 0
    for _ in range(10):
        travel.fast_forward(20)  # all in all far longer than one promise to listen lasts
        work.submit()
        travel.settle()
        told += len(events.pending())
    assert told == 30


def test_a_follower_that_did_not_read_for_too_long_is_warned(
    app: Mainspring, travel: TimeTravel, work: JobFunction[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    events = app.events()
    travel.fast_forward(event_stream.LISTEN_FOR / 1_000_000)
    events.pending()
    assert not caplog.records
    travel.fast_forward(event_stream.LISTEN_FOR / 1_000_000 + 5)
    work.submit()
    travel.settle()
    assert events.pending() == []
    (warning,) = caplog.messages
    assert "not read for more than 60 s; events of the last 5.0 s may be missing" in warning


def test_followers_are_independent(app: Mainspring, travel: TimeTravel, work: JobFunction[..., None]) -> None:
    one = app.events()
    work.submit()
    two = app.events()
    work.submit()
    travel.settle()
    assert kinds(one.pending()).count("submitted") == 2
    assert kinds(two.pending()).count("submitted") == 1


def test_more_events_than_a_page_are_all_told_in_order(
    app: Mainspring, travel: TimeTravel, work: JobFunction[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "PAGE", 7)
    events = app.events(timeout=PATIENCE)
    ids = work.after(3_600).submit_many([()] * 50)
    told = [next(events).job_id for _ in range(50)]
    assert told == ids


# -- iterating


@pytest.fixture
def watched() -> WatchedClock:
    return WatchedClock()


@pytest.fixture
def engine(watched: WatchedClock) -> MemoryEngine:
    engine = MemoryEngine(clock=watched)
    engine.open(lambda: None)
    return engine


def submit(engine: MemoryEngine, *ids: str) -> None:
    engine.submit([NewJob(job_id, "t", "q", 1, 0, b"{}", "json") for job_id in ids])


def test_an_iteration_waits_for_the_next_event(engine: MemoryEngine, watched: WatchedClock) -> None:
    stream = EventStream(engine, watched)
    waiting = Background(lambda: next(stream), watched)
    watched.wait_until_asleep(waiting)
    submit(engine, "a")
    watched.jump(1)
    assert waiting.result().job_id == "a"


def test_an_iteration_ends_at_its_timeout(engine: MemoryEngine, watched: WatchedClock) -> None:
    stream = EventStream(engine, watched, timeout=5)
    submit(engine, "a", "b")
    assert [next(stream).job_id, next(stream).job_id] == ["a", "b"]
    waiting = Background(lambda: list(stream), watched)
    for _ in range(60):
        watched.wait_until_asleep(waiting)
        watched.jump(0.1)
    assert waiting.result() == []


def test_events_are_followed_by_a_coroutine(app: Mainspring, work: JobFunction[..., None]) -> None:
    async def follow() -> list[str]:
        found = []
        async for event in app.events(timeout=PATIENCE):
            found.append(event.kind.value)
            if event.kind is EventKind.COMPLETED:
                break
        return found

    async def main() -> list[str]:
        task = asyncio.create_task(follow())
        await asyncio.sleep(0)
        work.submit()
        return await task

    with app.running():
        assert within(lambda: asyncio.run(main())) == ["submitted", "started", "completed"]


def test_an_async_iteration_ends_at_its_timeout(app: Mainspring) -> None:
    async def main() -> list[JobEvent]:
        return [event async for event in app.events(timeout=0)]

    assert within(lambda: asyncio.run(main())) == []


def test_an_async_iteration_can_be_canceled_while_it_waits(app: Mainspring) -> None:
    async def follow() -> None:
        async for _ in app.events():
            pytest.fail("nothing happens")

    async def main() -> None:
        task = asyncio.create_task(follow())
        await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    within(lambda: asyncio.run(main()))


def test_a_timeout_that_makes_no_sense_is_refused(app: Mainspring) -> None:
    with pytest.raises(ValueError, match="timeout must not be negative, got -1"):
        app.events(timeout=-1)
