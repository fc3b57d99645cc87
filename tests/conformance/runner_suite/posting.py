"""Posting: where tasks run, what a handle can do, futures, replies, context."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import FrozenInstanceError
from threading import Event, get_ident, local
from typing import Any
from weakref import ref

import pytest

from mainspring import (
    MainspringError,
    QueueFull,
    TaskFailure,
    TaskHandle,
    TaskRunner,
    ThreadPool,
    current_runner,
)
from tests.conformance.runner_suite.base import MakeRunner, RunnerBase
from tests.support import PATIENCE, Background, WatchedClock, occupied, within


class Payload:
    """An argument that can be watched for its release."""


COLOUR: ContextVar[str] = ContextVar("COLOUR", default="none")


class Posting(RunnerBase):
    def test_a_task_runs_on_another_thread(self, runner: TaskRunner) -> None:
        assert runner.submit(get_ident).result(PATIENCE) != get_ident()

    def test_a_task_gets_its_arguments(self, runner: TaskRunner) -> None:
        seen: list[tuple[int, str]] = []
        runner.post(lambda number, text: seen.append((number, text)), 1, "a")
        runner.wait_idle()
        assert seen == [(1, "a")]

    def test_a_task_posted_by_a_task_never_runs_inline(self, runner: TaskRunner) -> None:
        here = local()
        inline: list[bool] = []
        done = Event()

        def inner() -> None:
            inline.append(getattr(here, "is_posting", False))
            if len(inline) == 50:
                done.set()

        def outer() -> None:
            here.is_posting = True
            for _ in range(50):
                runner.post(inner)
            here.is_posting = False

        runner.post(outer)
        assert done.wait(PATIENCE)
        assert inline == [False] * 50

    def test_every_task_runs_exactly_once(self, runner: TaskRunner) -> None:
        seen: list[int] = []
        for number in range(500):
            runner.post(seen.append, number)
        runner.wait_idle()
        assert sorted(seen) == list(range(500))

    # -- cancelling

    def test_cancel_is_true_exactly_once_and_then_the_task_never_runs(self, runner: TaskRunner) -> None:
        seen: list[str] = []
        with occupied(runner, self.places):
            handle = runner.post(seen.append, "cancelled")
            runner.post(seen.append, "kept")
            assert [handle.cancel() for _ in range(3)] == [True, False, False]
            assert runner.statistics().queued == 1
        runner.wait_idle()
        assert seen == ["kept"]
        assert runner.statistics().cancelled == 1

    @pytest.mark.parametrize("delay", [None, 10])
    def test_cancel_releases_the_arguments_at_once(self, runner: TaskRunner, delay: int | None) -> None:
        payload = Payload()
        watched = ref(payload)
        with occupied(runner, self.places):
            handle = runner.post(repr, payload, delay=delay)
            del payload
            assert watched() is not None
            assert handle.cancel()
            assert watched() is None

    @pytest.mark.parametrize("delay", [None, 10])
    def test_cancel_releases_the_callable_at_once(self, runner: TaskRunner, delay: int | None) -> None:
        def function() -> None: ...

        watched = ref(function)
        with occupied(runner, self.places):
            handle = runner.post(function, delay=delay)
            del function
            assert watched() is not None
            assert handle.cancel()
            assert watched() is None

    def test_a_finished_task_keeps_nothing_alive(self, runner: TaskRunner) -> None:
        payload = Payload()
        watched = ref(payload)
        handle = runner.post(repr, payload)
        del payload
        runner.wait_idle()
        assert watched() is None
        assert not handle.cancel()

    def test_a_delayed_task_is_canceled(self, runner: TaskRunner, clock: WatchedClock) -> None:
        seen: list[str] = []
        handle = runner.post(seen.append, "cancelled", delay=10)
        assert runner.statistics().delayed == 1
        assert handle.cancel()
        assert not handle.cancel()
        assert runner.statistics().delayed == 0
        clock.advance(20)
        assert seen == []
        assert runner.statistics().cancelled == 1

    def test_a_running_task_cannot_be_canceled(self, runner: TaskRunner) -> None:
        with occupied(runner, self.places - 1) as gate:
            handle = runner.post(gate)
            gate.wait_until_entered()
            assert not handle.cancel()
        runner.wait_idle()
        assert runner.statistics().completed == self.places

    def test_a_task_is_either_run_or_canceled(self, runner: TaskRunner) -> None:
        seen: list[int] = []
        handles: list[TaskHandle] = [runner.post(seen.append, number) for number in range(300)]
        canceled = [number for number, handle in enumerate(handles) if handle.cancel()]
        runner.wait_idle()
        assert sorted(seen + canceled) == list(range(300))
        assert runner.statistics().cancelled == len(canceled)
        assert runner.statistics().completed == len(seen)

    def test_a_task_may_cancel_itself_in_vain(self, runner: TaskRunner) -> None:
        answers: list[bool] = []
        handles: list[TaskHandle] = []
        with occupied(runner, self.places):
            handles.append(runner.post(lambda: answers.append(handles[0].cancel())))
        runner.wait_idle()
        assert answers == [False]

    # -- futures

    def test_submit_gives_the_result(self, runner: TaskRunner) -> None:
        assert runner.submit(divmod, 7, 2).result(PATIENCE) == (3, 1)

    def test_submit_gives_the_exception_and_does_not_report_it_to_the_hook(
        self, runner: TaskRunner, failures: list[TaskFailure]
    ) -> None:
        error = ValueError("no")

        def fail() -> None:
            raise error

        future = runner.submit(fail)
        assert future.exception(PATIENCE) is error
        with pytest.raises(ValueError, match="no"):
            future.result()
        runner.wait_idle()
        assert failures == []
        assert runner.statistics().failed == 1

    def test_a_future_cancels_its_task(self, runner: TaskRunner) -> None:
        seen: list[int] = []
        with occupied(runner, self.places):
            future = runner.submit(seen.append, 1)
            assert future.cancel()
            assert future.cancelled()
            assert future.done()
        runner.wait_idle()
        assert seen == []

    def test_the_future_of_a_delayed_task(self, runner: TaskRunner, clock: WatchedClock) -> None:
        future = runner.submit(clock.monotonic_ns, delay=5)
        clock.advance(4)
        assert not future.done()
        clock.advance(1)
        assert future.result(PATIENCE) == 5 * 10**9

    def test_callbacks_of_a_future_are_called(self, runner: TaskRunner) -> None:
        seen: list[int] = []
        with occupied(runner, self.places):
            future = runner.submit(int, "7")
            future.add_done_callback(lambda done: seen.append(done.result()))
        runner.wait_idle()
        assert seen == [7]

    def test_run_can_be_awaited_in_another_loop(self, runner: TaskRunner) -> None:
        async def main() -> int:
            return await runner.run(int, "42")

        assert asyncio.run(main()) == 42

    @pytest.mark.parametrize("kind", [ValueError, KeyError, StopIteration, SystemExit, KeyboardInterrupt])
    def test_run_raises_what_the_task_raised(self, runner: TaskRunner, kind: type[BaseException]) -> None:
        def fail() -> None:
            raise kind("no")

        async def main() -> BaseException | None:
            try:
                await runner.run(fail)
            except BaseException as error:
                return error
            return None

        error = within(lambda: asyncio.run(main()))
        # A StopIteration cannot leave a coroutine: Python turns it into a RuntimeError.
        assert isinstance(error, kind) or isinstance(getattr(error, "__cause__", None), kind)

    def test_cancelling_the_awaiting_coroutine_cancels_the_task(self, runner: TaskRunner) -> None:
        seen: list[int] = []

        async def main() -> None:
            waiting = asyncio.create_task(runner.run(seen.append, 1))
            await asyncio.sleep(0)
            assert runner.statistics().queued == 1
            waiting.cancel()
            await asyncio.wait([waiting])
            assert waiting.cancelled()
            assert runner.statistics().queued == 0

        with occupied(runner, self.places):
            asyncio.run(main())
        runner.wait_idle()
        assert seen == []
        assert runner.statistics().cancelled == 1

    # -- replies

    def test_the_reply_gets_the_result_on_its_runner(self, runner: TaskRunner, pool: ThreadPool) -> None:
        interface = pool.sequenced(name="interface")
        seen: list[tuple[TaskRunner | None, TaskRunner | None]] = []
        replied = Event()

        def reply(there: TaskRunner | None) -> None:
            seen.append((there, current_runner()))
            replied.set()

        runner.post_and_reply(current_runner, reply, reply_to=interface)
        assert replied.wait(PATIENCE)
        assert seen == [(runner, interface)]

    def test_the_reply_goes_to_the_runner_of_the_caller(self, runner: TaskRunner, pool: ThreadPool) -> None:
        interface = pool.sequenced(name="interface")
        seen: list[TaskRunner | None] = []
        replied = Event()

        def reply(result: int) -> None:
            seen.append(current_runner())
            replied.set()

        interface.post(lambda: runner.post_and_reply(int, reply))
        assert replied.wait(PATIENCE)
        assert seen == [interface]

    def test_a_reply_outside_of_every_task_needs_a_runner(self, runner: TaskRunner) -> None:
        with pytest.raises(ValueError, match="reply_to"):
            runner.post_and_reply(int, print)

    def test_an_error_reaches_the_hook_and_no_reply_runs(
        self, runner: TaskRunner, pool: ThreadPool, failures: list[TaskFailure]
    ) -> None:
        interface = pool.sequenced(name="interface")
        seen: list[object] = []

        def read_file() -> str:
            raise OSError("gone")

        runner.post_and_reply(read_file, seen.append, reply_to=interface)
        runner.wait_idle()
        interface.wait_idle()
        assert seen == []
        assert [str(failure.error) for failure in failures] == ["gone"]
        assert failures[0].runner == runner.name
        assert "read_file" in failures[0].task

    def test_an_error_in_a_reply_reaches_the_hook(
        self, runner: TaskRunner, pool: ThreadPool, failures: list[TaskFailure]
    ) -> None:
        interface = pool.sequenced(name="interface")

        def show(result: int) -> None:
            raise OSError("no screen")

        runner.post_and_reply(int, show, reply_to=interface)
        runner.wait_idle()
        interface.wait_idle()
        assert [(failure.runner, str(failure.error)) for failure in failures] == [("interface", "no screen")]
        assert failures[0].posted_from is not None
        assert "test_an_error_in_a_reply_reaches_the_hook" in failures[0].posted_from.function

    def test_a_reply_to_a_closed_runner_is_reported(
        self, runner: TaskRunner, pool: ThreadPool, failures: list[TaskFailure]
    ) -> None:
        interface = pool.sequenced(name="interface")
        interface.shutdown()
        runner.post_and_reply(int, print, reply_to=interface)
        runner.wait_idle()
        assert ["'interface' is shut down" in str(failure.error) for failure in failures] == [True]

    def test_cancelling_the_task_cancels_the_reply(self, runner: TaskRunner, pool: ThreadPool) -> None:
        interface = pool.sequenced(name="interface")
        seen: list[int] = []
        with occupied(runner, self.places):
            assert runner.post_and_reply(int, seen.append, reply_to=interface).cancel()
        runner.wait_idle()
        interface.wait_idle()
        assert seen == []

    # -- context

    def test_context_variables_are_those_of_the_moment_of_posting(self, runner: TaskRunner) -> None:
        seen: list[str] = []
        token = COLOUR.set("red")
        try:
            with occupied(runner, self.places):
                runner.post(lambda: seen.append(COLOUR.get()))
                COLOUR.set("green")
            runner.wait_idle()
        finally:
            COLOUR.reset(token)
        assert seen == ["red"]

    @pytest.mark.parametrize("delay", [None, 1])
    def test_context_variables_are_isolated_between_tasks(
        self, runner: TaskRunner, clock: WatchedClock, delay: int | None
    ) -> None:
        seen: list[str] = []

        def paint(color: str) -> None:
            seen.append(COLOUR.get())
            COLOUR.set(color)

        for color in ("red", "green", "blue"):
            runner.post(paint, color, delay=delay)
        clock.advance(1)
        assert seen == ["none"] * 3
        assert COLOUR.get() == "none"

    def test_runs_of_a_repeated_task_do_not_see_each_others_context(
        self, runner: TaskRunner, clock: WatchedClock
    ) -> None:
        seen: list[str] = []

        def paint() -> None:
            seen.append(COLOUR.get())
            COLOUR.set("red")

        beat = runner.repeat(paint, every=1)
        clock.advance(3)
        beat.stop()
        assert seen == ["none"] * 3

    def test_the_current_runner_is_known_inside_a_task_only(self, runner: TaskRunner) -> None:
        assert runner.submit(current_runner).result(PATIENCE) is runner
        assert current_runner() is None

    def test_a_runner_knows_its_own_tasks(self, runner: TaskRunner, pool: ThreadPool) -> None:
        other = pool.sequenced()
        asked = runner.runs_tasks_in_current_sequence
        assert runner.submit(asked).result(PATIENCE)
        assert not other.submit(asked).result(PATIENCE)
        assert not asked()

    # -- names and counts

    def test_name_and_metadata(self, make: MakeRunner) -> None:
        given: dict[str, object] = {"team": "billing"}
        runner = make(name="invoices", metadata=given)
        given["team"] = "changed"
        assert runner.name == "invoices"
        assert runner.metadata == {"team": "billing"}
        assert "invoices" in repr(runner)
        assert runner.statistics().name == "invoices"

    def test_metadata_is_empty_and_not_shared_by_default(self, make: MakeRunner) -> None:
        first, second = make(name="first"), make(name="second")
        first.metadata["seen"] = True
        assert second.metadata == {}

    def test_statistics_are_frozen(self, runner: TaskRunner) -> None:
        with pytest.raises(FrozenInstanceError):
            setattr(runner.statistics(), "queued", 5)  # noqa: B010 - mypy refuses the plain assignment

    def test_statistics_are_exact_at_rest(
        self, make: MakeRunner, clock: WatchedClock, failures: list[TaskFailure]
    ) -> None:
        runner = make(capacity=10)
        for text in ("1", "2", "x"):
            runner.post(int, text)
        runner.submit(int, "y")
        runner.wait_idle()
        runner.post(int, delay=5)
        runner.post(int, delay=5).cancel()
        with occupied(runner, self.places):
            for _ in range(9):
                runner.post(int)
            with pytest.raises(QueueFull):
                runner.post(int)
            now = runner.statistics()
            assert (now.queued, now.active, now.delayed) == (9, self.places, 1)
        runner.wait_idle()
        now = runner.statistics()
        assert (now.queued, now.active, now.delayed) == (0, 0, 1)
        assert (now.completed, now.failed) == (2 + self.places + 9, 2)
        assert (now.rejected, now.cancelled, now.skipped) == (1, 1, 0)
        assert now.workers >= 1
        clock.advance(5)
        assert runner.statistics().delayed == 0
        assert runner.statistics().completed == now.completed + 1

    def test_counts_are_exact_whenever_wait_idle_returns(self, runner: TaskRunner, owner: ThreadPool) -> None:
        for turn in range(1, 41):
            for _ in range(5):
                runner.post(int)
            runner.post(int, "x")
            runner.wait_idle()
            for now in (runner.statistics(), owner.statistics()):
                assert (now.queued, now.active) == (0, 0)
                assert (now.completed, now.failed) == (5 * turn, turn)

    # -- bounds

    def test_a_full_queue_refuses(self, make: MakeRunner) -> None:
        runner = make(name="narrow", capacity=2)
        with occupied(runner, self.places):
            first = runner.post(int)
            runner.post(int, delay=60)
            with pytest.raises(QueueFull, match=r"'narrow'.* 2") as raised:
                runner.submit(int)
            assert (raised.value.name, raised.value.capacity) == ("narrow", 2)
            assert isinstance(raised.value, MainspringError)
            first.cancel()
            runner.post(int)
        runner.wait_idle()
        assert runner.statistics().rejected == 1

    @pytest.mark.parametrize(
        ("capacity", "error"), [(0, ValueError), (-3, ValueError), (True, TypeError), ("7", TypeError)]
    )
    def test_an_impossible_capacity_is_refused(
        self, make: MakeRunner, capacity: Any, error: type[Exception]
    ) -> None:
        with pytest.raises(error, match=f"capacity .*{capacity!r}"):
            make(capacity=capacity)

    @pytest.mark.parametrize(
        ("value", "error"),
        [
            (-1, ValueError),
            (-0.5, ValueError),
            (float("nan"), ValueError),
            (float("inf"), ValueError),
            ("5", TypeError),
            (True, TypeError),
        ],
    )
    def test_an_impossible_duration_is_refused_by_name_and_value(
        self, runner: TaskRunner, value: Any, error: type[Exception]
    ) -> None:
        calls: list[tuple[str, Callable[[], object]]] = [
            ("delay", lambda: runner.post(int, delay=value)),
            ("delay", lambda: runner.submit(int, delay=value)),
            ("delay", lambda: runner.post_and_reply(int, print, reply_to=runner, delay=value)),
            ("delay", lambda: runner.repeat(int, every=1, delay=value)),
            ("every", lambda: runner.repeat(int, every=value)),
            ("timeout", lambda: runner.wait_idle(timeout=value)),
            ("timeout", lambda: runner.flush(timeout=value)),
            ("timeout", lambda: runner.shutdown(timeout=value)),
        ]
        for name, call in calls:
            with pytest.raises(error, match=f"{name} must .*{value!r}"):
                call()
        assert runner.submit(int, "1").result(PATIENCE) == 1

    def test_a_repetition_without_an_interval_is_refused(self, runner: TaskRunner) -> None:
        with pytest.raises(ValueError, match=r"every .* 0"):
            runner.repeat(int, every=0)

    @pytest.mark.parametrize("delay", [None, 5])
    def test_what_cannot_be_called_is_refused_at_once(self, runner: TaskRunner, delay: int | None) -> None:
        thing: Any = 42
        calls: list[Callable[[], object]] = [
            lambda: runner.post(thing, delay=delay),
            lambda: runner.submit(thing, delay=delay),
            lambda: runner.post_and_reply(thing, print, reply_to=runner, delay=delay),
            lambda: runner.post_and_reply(int, thing, reply_to=runner, delay=delay),
            lambda: runner.repeat(thing, every=1, delay=delay),
        ]
        for call in calls:
            with pytest.raises(TypeError, match=r"callable.* 42"):
                call()

    def test_zero_delay_means_now(self, runner: TaskRunner) -> None:
        assert runner.submit(int, "3", delay=0).result(PATIENCE) == 3
        assert runner.statistics().delayed == 0

    def test_posting_does_not_wait_for_a_busy_runner(self, runner: TaskRunner) -> None:
        with occupied(runner, self.places):
            posting = Background(lambda: [runner.post(int) for _ in range(1000)])
            assert len(posting.result()) == 1000
            assert runner.statistics().queued == 1000
        runner.wait_idle()
