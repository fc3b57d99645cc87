"""TaskFuture: a `concurrent.futures.Future` in every respect that shows, made cheaply."""

import asyncio
import concurrent.futures
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, FIRST_EXCEPTION, CancelledError, Future, as_completed, wait
from threading import Barrier, Event, Thread, get_ident
from typing import NoReturn
from weakref import ref

import pytest

from mainspring.runners import TaskFuture, ThreadPool
from mainspring.testing import ManualClock
from tests.pools import running
from tests.support import PATIENCE, Gate, frequent_thread_switches, occupied, without_collector


@pytest.fixture
def pool(clock: ManualClock) -> Iterator[ThreadPool]:
    with running(ThreadPool(1, max_workers=1, clock=clock)) as pool:
        yield pool


def fail() -> NoReturn:
    raise ValueError("as expected")


# -- what it takes from the standard library


def test_the_standard_future_still_has_the_private_parts_that_this_one_replaces() -> None:
    """TaskFuture leaves `Future.__init__` out. If this fails, a new Python has changed what is behind it."""
    assert set(vars(Future())) == {
        "_condition",
        "_state",
        "_result",
        "_exception",
        "_waiters",
        "_done_callbacks",
    }
    for state in ("PENDING", "RUNNING", "CANCELLED", "CANCELLED_AND_NOTIFIED", "FINISHED"):
        assert hasattr(concurrent.futures._base, state)
    assert hasattr(Future, "_invoke_callbacks")


def test_a_task_future_has_all_that_a_standard_one_has(pool: ThreadPool) -> None:
    future = pool.submit(int)
    future.result(PATIENCE)
    assert isinstance(future, Future)
    assert all(hasattr(future, name) for name in vars(Future()))


# -- the life of a future


def test_the_states_of_a_future(pool: ThreadPool) -> None:
    hold = Gate()
    with occupied(pool):
        future = pool.submit(hold)
        assert (future.done(), future.running(), future.cancelled()) == (False, False, False)
    hold.wait_until_entered()
    assert (future.done(), future.running(), future.cancelled()) == (False, True, False)
    assert not future.cancel()
    hold.open()
    assert future.result(PATIENCE) is None
    assert (future.done(), future.running(), future.cancelled()) == (True, False, False)
    assert not future.cancel()


def test_a_future_that_no_thread_waited_for_has_its_result(pool: ThreadPool) -> None:
    future = pool.submit(divmod, 7, 2)
    pool.wait_idle()
    assert future.done()
    assert future.result() == (3, 1)
    assert future.exception() is None


def test_a_result_may_be_none_or_an_exception_object(pool: ThreadPool) -> None:
    assert pool.submit(list[int]().clear).result(PATIENCE) is None
    assert isinstance(pool.submit(ValueError, "returned, not raised").result(PATIENCE), ValueError)


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt, CancelledError])
def test_whatever_a_task_raises_reaches_who_waits(
    pool: ThreadPool, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    def raise_it() -> NoReturn:
        raise error("as expected")

    future = pool.submit(raise_it)
    with pytest.raises(error, match="as expected"):
        future.result(PATIENCE)
    assert isinstance(future.exception(), error)
    pool.wait_idle()
    assert pool.statistics().failed == 1
    assert caplog.records == []  # delivered to the waiting one, and so not reported as well


def test_the_traceback_shows_where_it_was_raised(pool: ThreadPool) -> None:
    with pytest.raises(ValueError, match="as expected") as caught:
        pool.submit(fail).result(PATIENCE)
    assert caught.traceback[-1].name == "fail"


def test_time_outs(pool: ThreadPool) -> None:
    with occupied(pool):
        future = pool.submit(int)
        with pytest.raises(TimeoutError):
            future.result(0.001)
        with pytest.raises(TimeoutError):
            future.exception(timeout=0)
        assert not future.done()
    assert future.result(PATIENCE) == 0


def test_many_wait_for_one(pool: ThreadPool) -> None:
    results: list[int] = []
    with occupied(pool):
        future = pool.submit(int, "42")
        waiting = [Thread(target=lambda: results.append(future.result(PATIENCE)), daemon=True) for _ in range(8)]
        for thread in waiting:
            thread.start()
    for thread in waiting:
        thread.join(PATIENCE)
    assert results == [42] * 8


def test_a_future_says_what_it_is(pool: ThreadPool) -> None:
    with occupied(pool):
        future = pool.submit(int)
        assert "TaskFuture" in repr(future)
        assert "pending" in repr(future)
    future.result(PATIENCE)
    assert "finished returned int" in repr(future)


# -- cancelling


def test_cancelling_an_unstarted_task(pool: ThreadPool) -> None:
    ran: list[int] = []
    with occupied(pool):
        future = pool.submit(ran.append, 1)
        assert future.cancel()
        assert (future.cancelled(), future.done(), future.running()) == (True, True, False)
        assert future.cancel()  # again: it is canceled, as before
        with pytest.raises(CancelledError):
            future.result()
        with pytest.raises(CancelledError):
            future.exception()
    pool.wait_idle()
    assert ran == []
    assert pool.statistics().cancelled == 1


def test_cancelling_wakes_those_who_wait(pool: ThreadPool) -> None:
    outcome: list[type[BaseException]] = []

    def wait_for(future: TaskFuture[int]) -> None:
        try:
            future.result(PATIENCE)
        except CancelledError as error:
            outcome.append(type(error))

    with occupied(pool):
        future = pool.submit(int)
        waiting = Thread(target=wait_for, args=(future,), daemon=True)
        waiting.start()
        assert future.cancel()
        waiting.join(PATIENCE)
    assert outcome == [CancelledError]


def test_cancelling_a_delayed_task(pool: ThreadPool, clock: ManualClock) -> None:
    future = pool.submit(int, delay=10)
    assert pool.statistics().delayed == 1
    assert future.cancel()
    assert pool.statistics().delayed == 0
    clock.advance(20)
    assert future.cancelled()


def test_of_many_who_cancel_all_agree(pool: ThreadPool) -> None:
    """A thread that asks while another cancels must not hear that the task runs or has ended."""
    answers: list[list[bool]] = [[] for _ in range(4)]
    line = Barrier(4)
    with occupied(pool):
        futures = [pool.submit(int) for _ in range(2_000)]

        def cancel_all(mine: list[bool]) -> None:
            line.wait(PATIENCE)
            mine.extend(future.cancel() for future in futures)

        threads = [Thread(target=cancel_all, args=(mine,), daemon=True) for mine in answers]
        with frequent_thread_switches():
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(PATIENCE)
    wrong = sum(not all(given) for given in zip(*answers, strict=True))
    assert (wrong, len(answers[0])) == (0, 2_000)


def test_a_coroutine_can_be_canceled_twice(pool: ThreadPool, caplog: pytest.LogCaptureFixture) -> None:
    loop = pool.asyncio()
    entered, lingers, ended = Event(), Event(), Event()
    go: list[asyncio.Event] = []

    async def linger() -> None:
        go.append(asyncio.Event())
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            lingers.set()
            await go[0].wait()
        finally:
            ended.set()

    future = loop.submit(linger)
    assert entered.wait(PATIENCE)
    assert future.cancel()
    assert lingers.wait(PATIENCE)
    try:
        assert future.cancel()
    finally:
        loop.loop.call_soon_threadsafe(go[0].set)
    assert ended.wait(PATIENCE)
    assert future.cancelled()
    assert [record for record in caplog.records if record.levelno == logging.CRITICAL] == []


# -- shutdown


@pytest.mark.parametrize("delay", [None, 60], ids=["queued", "delayed"])
def test_the_future_of_a_task_that_a_shutdown_skips_is_canceled(delay: float | None) -> None:
    with running(ThreadPool(1, max_workers=1)) as pool, occupied(pool) as hold:
        future = pool.submit(int, delay=delay)
        told = Event()
        future.add_done_callback(lambda _: told.set())
        closing = Thread(target=pool.shutdown, daemon=True)
        closing.start()
        try:
            with pytest.raises(CancelledError):
                future.result(PATIENCE)  # a wait for what never comes has an end
            assert told.is_set()
        finally:
            hold.open()
            closing.join(PATIENCE)


# -- together with concurrent.futures


def test_wait_for_all(pool: ThreadPool) -> None:
    with occupied(pool):
        futures = [pool.submit(int, str(n)) for n in range(5)]
        done, pending = wait(futures, timeout=0.001)
        assert (len(done), len(pending)) == (0, 5)
    done, pending = wait(futures, timeout=PATIENCE)
    assert (done, pending) == (set(futures), set())


def test_wait_for_the_first(pool: ThreadPool) -> None:
    hold = Gate()
    futures = [pool.submit(list[int]().clear), pool.submit(hold)]
    done, pending = wait(futures, timeout=PATIENCE, return_when=FIRST_COMPLETED)
    assert (done, pending) == ({futures[0]}, {futures[1]})
    hold.open()
    assert wait(futures, timeout=PATIENCE).not_done == set()


def test_wait_for_the_first_failure(pool: ThreadPool) -> None:
    hold = Gate()
    futures = [pool.submit(function) for function in (list[int]().clear, fail, hold)]
    done, pending = wait(futures, timeout=PATIENCE, return_when=FIRST_EXCEPTION)
    assert (done, pending) == (set(futures[:2]), set(futures[2:]))
    hold.open()


def test_wait_sees_canceled_ones(pool: ThreadPool) -> None:
    with occupied(pool):
        futures = [pool.submit(int) for _ in range(3)]
        waiting = Event()
        seen: list[int] = []

        def wait_for_all() -> None:
            waiting.set()
            seen.append(len(wait(futures, timeout=PATIENCE).done))

        thread = Thread(target=wait_for_all, daemon=True)
        thread.start()
        assert waiting.wait(PATIENCE)
        assert all(future.cancel() for future in futures)
        thread.join(PATIENCE)
    assert seen == [3]


def test_as_completed_yields_every_one_once_and_in_order_of_completion(pool: ThreadPool) -> None:
    finished_before = pool.submit(int)
    pool.wait_idle()
    with occupied(pool):
        waiting = [pool.submit(int, str(n)) for n in range(4)]
        canceled = pool.submit(int)
        canceled.cancel()
        futures: list[Future[int]] = [*waiting, finished_before, canceled]
        results = as_completed(futures, timeout=PATIENCE)
        assert {next(results), next(results)} == {finished_before, canceled}
    assert [future.result() for future in results] == [0, 1, 2, 3]


def test_as_completed_times_out(pool: ThreadPool) -> None:
    with occupied(pool):
        futures: list[Future[int]] = [pool.submit(int)]
        with pytest.raises(TimeoutError):
            list(as_completed(futures, timeout=0.001))


def test_standard_futures_and_ours_mix(pool: ThreadPool) -> None:
    futures: list[Future[int]] = [pool.submit(int), Future()]
    futures[1].set_result(1)
    assert {future.result() for future in as_completed(futures, timeout=PATIENCE)} == {0, 1}


def test_asyncio_can_await_one(pool: ThreadPool) -> None:
    async def use() -> int:
        return await asyncio.wait_for(asyncio.wrap_future(pool.submit(int, "7")), PATIENCE)

    assert asyncio.run(use()) == 7


# -- callbacks


def test_callbacks_are_called_once_in_order_on_the_thread_that_finishes(pool: ThreadPool) -> None:
    called: list[tuple[int, int]] = []
    with occupied(pool):
        future = pool.submit(get_ident)
        future.add_done_callback(lambda _: called.append((0, get_ident())))
        future.add_done_callback(lambda _: called.append((1, get_ident())))
    worker = future.result(PATIENCE)
    pool.wait_idle()
    assert called == [(0, worker), (1, worker)]


def test_a_callback_on_a_finished_future_is_called_at_once(pool: ThreadPool) -> None:
    future = pool.submit(int)
    pool.wait_idle()
    called: list[object] = []
    future.add_done_callback(called.append)
    assert called == [future]


def test_a_callback_that_raises_is_logged_and_affects_no_other(
    pool: ThreadPool, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[object] = []

    def fail_again(future: Future[int]) -> NoReturn:
        raise ValueError("in the callback")

    with occupied(pool):
        future = pool.submit(int)
        future.add_done_callback(fail_again)
        future.add_done_callback(called.append)
    assert future.result(PATIENCE) == 0
    pool.wait_idle()
    assert called == [future]
    assert pool.statistics().completed == 2
    assert "in the callback" in caplog.text


def test_a_callback_on_cancellation(pool: ThreadPool) -> None:
    called: list[object] = []
    with occupied(pool):
        future = pool.submit(int)
        future.add_done_callback(called.append)
        future.cancel()
        assert called == [future]


def test_a_callback_may_post_and_wait(pool: ThreadPool) -> None:
    after: list[int] = []
    with occupied(pool):
        future = pool.submit(int)
        future.add_done_callback(lambda _: after.append(pool.submit(int, "5").result()))
    future.result(PATIENCE)
    pool.wait_idle()
    assert after == [5]


# -- finishing against looking


def look_by_result(future: TaskFuture[int]) -> int:
    return future.result(PATIENCE)


def look_by_wait(future: TaskFuture[int]) -> int:
    assert wait([future], timeout=PATIENCE).done == {future}
    return future.result(0)


def look_by_callback(future: TaskFuture[int]) -> int:
    told = Event()
    future.add_done_callback(lambda _: told.set())
    assert told.wait(PATIENCE)
    return future.result(0)


def look_by_iterating(future: TaskFuture[int]) -> int:
    futures: list[Future[int]] = [future]
    return next(as_completed(futures, timeout=PATIENCE)).result(0)


def look_twice(future: TaskFuture[int]) -> int:
    assert not future.cancelled()
    return future.result(PATIENCE)


@pytest.mark.parametrize("look", [look_by_result, look_by_wait, look_by_callback, look_by_iterating, look_twice])
def test_no_thread_misses_the_end_of_a_task_however_it_looks(look: Callable[[TaskFuture[int]], int]) -> None:
    """The condition is made when a thread first looks, perhaps at the very moment when the task ends."""
    wrong: list[object] = []

    def use(pool: ThreadPool, start: int) -> None:
        try:
            wrong.extend(n for n in range(start, start + 400) if look(pool.submit(int, str(n))) != n)
        except BaseException as error:
            wrong.append(error)

    with running(ThreadPool(2, max_workers=2)) as pool, frequent_thread_switches():
        users = [Thread(target=use, args=(pool, start), daemon=True) for start in (0, 1000, 2000)]
        for user in users:
            user.start()
        for user in users:
            user.join(PATIENCE)
        assert not any(user.is_alive() for user in users)
    assert wrong == []


def test_several_look_while_the_task_ends(pool: ThreadPool) -> None:
    wrong: list[object] = []
    line = Barrier(5)
    current: list[TaskFuture[int]] = []

    def look_at_each() -> None:
        try:
            for turn in range(200):
                line.wait(PATIENCE)
                future = current[turn]
                if future.result(PATIENCE) != 7:
                    wrong.append("result")
                called: list[object] = []
                future.add_done_callback(called.append)
                if not called:
                    wrong.append("callback")
        except BaseException as error:
            wrong.append(error)

    with frequent_thread_switches():
        lookers = [Thread(target=look_at_each, daemon=True) for _ in range(4)]
        for looker in lookers:
            looker.start()
        for _ in range(200):
            current.append(pool.submit(int, "7"))
            line.wait(PATIENCE)
        for looker in lookers:
            looker.join(PATIENCE)
    assert wrong == []


# -- what it keeps alive


class Thing:
    """Something that can be watched while it is released."""


def test_a_finished_future_keeps_its_result_and_not_the_arguments(pool: ThreadPool) -> None:
    argument = Thing()
    reference = ref(argument)
    with without_collector():
        future = pool.submit(id, argument)
        del argument
        pool.wait_idle()
        assert reference() is None
    assert future.done()


def test_a_canceled_future_keeps_nothing(pool: ThreadPool) -> None:
    argument = Thing()
    reference = ref(argument)
    with without_collector(), occupied(pool):
        future = pool.submit(id, argument)
        del argument
        assert future.cancel()
        assert reference() is None


def test_a_failed_future_that_is_dropped_is_released_without_the_collector(pool: ThreadPool) -> None:
    argument = Thing()
    reference = ref(argument)

    def refuse(argument: Thing) -> NoReturn:
        raise ValueError("as expected")

    with without_collector():
        future = pool.submit(refuse, argument)
        pool.wait_idle()
        del argument
        assert future.done()
        del future
        assert reference() is None
