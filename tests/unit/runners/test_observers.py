"""What observers are told, measured by the manual clock."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from inspect import currentframe
from threading import Event
from typing import Any, NoReturn

import pytest

from mainspring import (
    QueueFull,
    RunnerClosed,
    TaskEvent,
    TaskFailure,
    TaskObserver,
    TaskRunner,
    TaskTraits,
    ThreadPool,
)
from tests.pools import MakePool
from tests.support import PATIENCE, Gate, WatchedClock, occupied, within


class Recorder(TaskObserver):
    """Keeps everything it is told."""

    def __init__(self) -> None:
        self.events: list[tuple[str, TaskEvent]] = []
        self.runs_long = Event()

    def task_started(self, event: TaskEvent) -> None:
        self.events.append(("started", event))

    def task_finished(self, event: TaskEvent) -> None:
        self.events.append(("finished", event))

    def task_failed(self, event: TaskEvent) -> None:
        self.events.append(("failed", event))

    def task_rejected(self, event: TaskEvent) -> None:
        self.events.append(("rejected", event))

    def task_runs_long(self, event: TaskEvent) -> None:
        self.events.append(("runs long", event))
        self.runs_long.set()

    def of(self, what: str, task: str = "") -> list[TaskEvent]:
        return [event for kind, event in self.events if kind == what and event.task.endswith(task)]


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def pool(make_pool: MakePool, recorder: Recorder) -> ThreadPool:
    return make_pool(2, name="main", observer=recorder)


@pytest.fixture(params=["pool", "sequenced", "parallel", "single_thread", "asyncio"])
def runner(request: pytest.FixtureRequest, pool: ThreadPool) -> TaskRunner:
    kinds: dict[str, Callable[[], TaskRunner]] = {
        "pool": lambda: pool,
        "sequenced": pool.sequenced,
        "parallel": lambda: pool.parallel(2),
        "single_thread": pool.single_thread,
        "asyncio": pool.asyncio,
    }
    return kinds[request.param]()


def test_start_and_end_of_a_task_with_their_times(
    runner: TaskRunner, recorder: Recorder, clock: WatchedClock
) -> None:
    traits = TaskTraits(category="billing")

    def work() -> None:
        clock.jump(3)

    places = 2 if runner.name == "main" or "parallel" in runner.name else 1
    with occupied(runner, places):
        runner.post(work, traits=traits)
        clock.jump(5)
    runner.wait_idle()
    (started,) = recorder.of("started", "work")
    (finished,) = recorder.of("finished", "work")
    assert (started.queue_seconds, started.run_seconds, started.error) == (5, None, None)
    assert (finished.queue_seconds, finished.run_seconds, finished.error) == (5, 3, None)
    assert started.runner == runner.name
    assert started.traits == traits
    assert recorder.events.index(("started", started)) < recorder.events.index(("finished", finished))


def test_failure_of_a_task(
    runner: TaskRunner, recorder: Recorder, clock: WatchedClock, failures: list[TaskFailure]
) -> None:
    error = ValueError("no")

    def work() -> NoReturn:
        clock.jump(3)
        raise error

    runner.post(work)
    runner.wait_idle()
    (failed,) = recorder.of("failed")
    assert failed.error is error
    assert failed.run_seconds == 3
    assert recorder.of("finished") == []
    assert [failure.error for failure in failures] == [error]
    assert failures[0].task.endswith("work")


def test_a_submitted_task_is_observed_like_a_posted_one(runner: TaskRunner, recorder: Recorder) -> None:
    runner.submit(int, "1").result(PATIENCE)
    runner.submit(int, "x").exception(PATIENCE)
    runner.wait_idle()
    assert len(recorder.of("started", "int")) == 2
    assert len(recorder.of("finished", "int")) == 1
    assert [type(event.error) for event in recorder.of("failed", "int")] == [ValueError]


def test_the_time_in_the_queue_of_a_delayed_task_begins_when_it_is_due(
    runner: TaskRunner, recorder: Recorder, clock: WatchedClock
) -> None:
    runner.post(int, delay=60)
    clock.advance(60)
    (started,) = recorder.of("started", "int")
    assert started.queue_seconds == 0


def test_each_run_of_a_repeated_task_is_observed(
    runner: TaskRunner, recorder: Recorder, clock: WatchedClock
) -> None:
    beat = runner.repeat(int, every=1)
    clock.advance(3)
    beat.stop()
    assert len(recorder.of("started", "int")) == len(recorder.of("finished", "int")) == 3


def test_task_and_reply_are_observed(runner: TaskRunner, pool: ThreadPool, recorder: Recorder) -> None:
    def read() -> int:
        return 1

    def show(number: int) -> None: ...

    interface = pool.sequenced("interface")
    runner.post_and_reply(read, show, reply_to=interface)
    runner.wait_idle()
    interface.wait_idle()
    assert [event.runner for event in recorder.of("finished", "read")] == [runner.name]
    assert [event.runner for event in recorder.of("finished", "show")] == ["interface"]


def test_refused_tasks_are_told(pool: ThreadPool, recorder: Recorder) -> None:
    narrow = pool.sequenced("narrow", capacity=1)
    with occupied(narrow):
        narrow.post(int)
        with pytest.raises(QueueFull):
            narrow.post(str)
    narrow.wait_idle()
    narrow.shutdown()
    with pytest.raises(RunnerClosed):
        narrow.submit(float)
    full, closed = recorder.of("rejected")
    assert (full.task, full.runner, type(full.error)) == ("builtins.str", "narrow", QueueFull)
    assert (closed.task, closed.runner, type(closed.error)) == ("builtins.float", "narrow", RunnerClosed)
    assert len(recorder.of("started")) == len(recorder.of("finished")) == 2


def test_a_canceled_task_is_not_told(runner: TaskRunner, recorder: Recorder) -> None:
    runner.post(int, delay=60).cancel()
    runner.wait_idle()
    assert recorder.events == []


def test_a_coroutine_ends_when_it_has_been_awaited(
    pool: ThreadPool, recorder: Recorder, clock: WatchedClock
) -> None:
    loop = pool.asyncio()
    leave = asyncio.Event()
    begun = Event()

    async def work() -> None:
        begun.set()
        await leave.wait()

    async def fail() -> None:
        raise ValueError("no")

    future = loop.submit(work)
    assert begun.wait(PATIENCE)
    clock.jump(7)
    assert recorder.of("finished") == []
    loop.post(leave.set)
    future.result(PATIENCE)
    loop.submit(fail).exception(PATIENCE)
    loop.wait_idle()
    assert len(recorder.of("started", "work")) == 1
    assert [event.run_seconds for event in recorder.of("finished", "work")] == [7]
    assert [str(event.error) for event in recorder.of("failed", "fail")] == ["no"]


def test_an_event_is_frozen(pool: ThreadPool, recorder: Recorder) -> None:
    pool.post(int)
    pool.wait_idle()
    with pytest.raises(FrozenInstanceError):
        setattr(recorder.events[0][1], "task", "x")  # noqa: B010 - mypy refuses the plain assignment


@pytest.mark.parametrize("kind", [RuntimeError, SystemExit, KeyboardInterrupt])
def test_an_observer_that_fails_is_logged_and_harms_no_task(
    make_pool: MakePool, caplog: pytest.LogCaptureFixture, failures: list[TaskFailure], kind: type[BaseException]
) -> None:
    class Broken(TaskObserver):
        def task_started(self, event: TaskEvent) -> None:
            raise kind("observer")

        task_finished = task_failed = task_rejected = task_started

    pool = make_pool(2, observer=Broken(), capacity=1)
    assert pool.submit(int, "1").result(PATIENCE) == 1
    pool.wait_idle()
    pool.post(int, "x")
    pool.wait_idle()
    assert [type(failure.error) for failure in failures] == [ValueError]
    pool.shutdown()
    with pytest.raises(RunnerClosed):
        pool.post(int)
    logged = [record.args[1] for record in caplog.records if isinstance(record.args, tuple)]
    assert logged == ["task_started", "task_finished", "task_started", "task_failed", "task_rejected"]


# -- long tasks


def test_a_long_task_is_told_while_it_still_runs(
    make_pool: MakePool, recorder: Recorder, clock: WatchedClock, caplog: pytest.LogCaptureFixture
) -> None:
    pool = make_pool(1, name="main", observer=recorder, long_task=10)
    gate = Gate()

    def slow() -> None:
        gate()

    pool.post(slow)
    gate.wait_until_entered()
    clock.jump(9)
    assert not recorder.runs_long.is_set()
    clock.jump(2)
    assert recorder.runs_long.wait(PATIENCE)
    assert pool.statistics().active == 1
    (event,) = recorder.of("runs long", "slow")
    assert event.run_seconds == 11
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    message = record.getMessage()
    assert "slow" in message
    assert "'main'" in message
    assert "11.000 s" in message
    assert __file__ in message  # the stack shows where it is now
    gate.open()
    pool.wait_idle()
    clock.advance(60)
    assert len(recorder.of("runs long")) == 1


def test_a_short_task_is_not_told(make_pool: MakePool, recorder: Recorder, clock: WatchedClock) -> None:
    pool = make_pool(1, observer=recorder, long_task=10)
    pool.submit(int).result(PATIENCE)
    pool.submit(int, "x").exception(PATIENCE)
    clock.advance(60)
    assert recorder.of("runs long") == []
    assert clock.monotonic_ns() == 60 * 10**9


def test_a_long_coroutine_is_told(make_pool: MakePool, recorder: Recorder, clock: WatchedClock) -> None:
    loop = make_pool(1, observer=recorder, long_task=10).asyncio()
    leave = asyncio.Event()
    begun = Event()

    async def slow() -> None:
        begun.set()
        await leave.wait()

    loop.post(slow)
    assert begun.wait(PATIENCE)
    clock.jump(10)
    assert recorder.runs_long.wait(PATIENCE)
    loop.post(leave.set)
    loop.wait_idle()
    assert [event.run_seconds for event in recorder.of("runs long", "slow")] == [10]


@pytest.mark.parametrize("kind", [RuntimeError, SystemExit])
def test_an_observer_that_fails_over_a_long_task_does_not_stop_the_timer(
    make_pool: MakePool, clock: WatchedClock, caplog: pytest.LogCaptureFixture, kind: type[BaseException]
) -> None:
    told = Event()

    class Broken(TaskObserver):
        def task_runs_long(self, event: TaskEvent) -> None:
            told.set()
            raise kind("observer")

    pool = make_pool(2, observer=Broken(), long_task=1)
    with occupied(pool):
        clock.jump(1)
        assert told.wait(PATIENCE)
    seen = Event()
    pool.post(seen.set, delay=1)
    clock.jump(1)
    assert seen.wait(PATIENCE)


def test_long_tasks_are_logged_without_an_observer(
    make_pool: MakePool, clock: WatchedClock, caplog: pytest.LogCaptureFixture
) -> None:
    pool = make_pool(2, long_task=1)
    with occupied(pool) as gate:
        clock.jump(1)
        within(lambda: pool.services.delays.settle(PATIENCE))
        assert ["has been running for 1.000 s" in record.getMessage() for record in caplog.records] == [True]
        gate.open()


# -- where tasks come from


def line() -> int:
    frame = currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


def raising(*_: Any) -> NoReturn:
    raise ValueError("no")


def test_with_trace_posts_a_failure_names_the_exact_line(make_pool: MakePool, failures: list[TaskFailure]) -> None:
    pool = make_pool(1, trace_posts=True)
    loop = pool.asyncio()
    expected = []
    for runner in (pool, pool.sequenced(), pool.single_thread(), loop):
        expected.append(line() + 1)
        runner.post(raising)
        expected.append(line() + 1)
        runner.post_and_reply(raising, print, reply_to=pool)
        runner.wait_idle()
    places = [failure.posted_from for failure in failures]
    assert [place.line for place in places if place is not None] == expected
    assert {place.file for place in places if place is not None} == {__file__}


def test_without_trace_posts_a_failure_names_the_function(
    make_pool: MakePool, failures: list[TaskFailure]
) -> None:
    pool = make_pool(1)
    pool.post(raising)
    pool.wait_idle()
    place = failures[0].posted_from
    assert place is not None
    assert place.function == "test_without_trace_posts_a_failure_names_the_function"
    assert place.file == __file__
    assert place.line is None
    assert str(place) == f"{__file__} in {place.function}"


def test_an_event_names_the_line_of_every_way_to_post(
    runner: TaskRunner, pool: ThreadPool, recorder: Recorder, clock: WatchedClock
) -> None:
    expected = []

    async def await_it() -> None:
        await runner.run(int)

    expected.append(line() + 1)
    runner.post(int)
    runner.wait_idle()
    expected.append(line() + 1)
    runner.submit(int)
    runner.wait_idle()
    expected.append(line() + 1)
    runner.post_and_reply(int, str, reply_to=pool)
    runner.wait_idle()
    expected += [line() + 1] * 2
    beat = runner.repeat(int, every=1)
    clock.advance(2)
    beat.stop()
    asyncio.run(await_it())
    expected.append(await_it.__code__.co_firstlineno + 1)
    pool.wait_idle()
    places = [event.posted_from for event in recorder.of("started", "int")]
    assert [(place.line, place.file) for place in places if place is not None] == [
        (number, __file__) for number in expected
    ]
