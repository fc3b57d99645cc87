"""A task: claimed by exactly one, released at once, and able to say what it is and where it came from."""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from threading import Barrier, Event, Thread
from typing import Any, NoReturn
from unittest.mock import Mock
from weakref import ref

import pytest

from mainspring.runners import TaskFailure, TaskTraits, ThreadPool
from mainspring.runners.task import Task, describe_function
from mainspring.runners.worker import WorkerThread
from mainspring.testing import ManualClock
from tests.pools import running
from tests.support import PATIENCE, frequent_thread_switches, occupied, without_collector

TRACED = TaskTraits(category="a task of the longer kind")


class Thing:
    """Something that can be watched while it is released."""

    def __call__(self) -> None:
        pass


def nothing(*arguments: object) -> None:
    pass


@pytest.fixture
def pool() -> Iterator[ThreadPool]:
    with running(ThreadPool(1, clock=ManualClock())) as pool:
        yield pool


@pytest.fixture
def unstarted() -> ThreadPool:
    """A runner for tasks that are never queued."""
    return ThreadPool(1)


def make_task(runner: ThreadPool, function: Callable[..., object], *arguments: object) -> Task:
    task = Task()
    task.append(arguments)
    task.runner = runner
    task.origin = sys._getframe().f_code
    task.context = None
    task.function = function
    return task


# -- claiming


def test_a_task_is_claimed_once(unstarted: ThreadPool) -> None:
    task = make_task(unstarted, nothing)
    assert task.is_live()
    assert task.claim()
    assert not task.is_live()
    assert not task.claim()
    assert not task.cancel()
    assert not task.run_on(WorkerThread(None, unstarted))


def test_a_task_that_ran_cannot_be_canceled(unstarted: ThreadPool) -> None:
    worker, ran = WorkerThread(None, unstarted), list[int]()
    task = make_task(unstarted, ran.append, 1)
    assert task.run_on(worker)
    assert (task.cancel(), task.claim(), task.run_on(worker)) == (False, False, False)
    assert ran == [1]
    assert worker.completed == 1


def test_of_many_who_claim_run_and_cancel_a_task_exactly_one_wins(unstarted: ThreadPool) -> None:
    runs: list[int] = []
    tasks = [make_task(unstarted, runs.append, number) for number in range(10_000)]
    starting_line = Barrier(9)
    wins: dict[int, list[int]] = {}

    def compete(who: int, attempt: Callable[[Task], bool]) -> None:
        starting_line.wait(PATIENCE)
        wins[who] = [number for number, task in enumerate(tasks) if attempt(task)]

    def run_on(worker: WorkerThread, task: Task) -> bool:
        return task.run_on(worker)

    workers = [WorkerThread(None, unstarted) for _ in range(3)]
    attempts = [*(partial(run_on, worker) for worker in workers), *[Task.cancel] * 3, *[Task.claim] * 3]
    threads = [Thread(target=compete, args=each, daemon=True) for each in enumerate(attempts)]
    with frequent_thread_switches():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
    assert len(wins) == 9
    assert sorted(number for won in wins.values() for number in won) == list(range(len(tasks)))
    assert sorted(runs) == sorted(number for who in range(3) for number in wins[who])
    assert sum(worker.completed for worker in workers) == len(runs)


def test_a_cancel_that_says_true_is_never_followed_by_a_run(pool: ThreadPool) -> None:
    ran: list[int] = []
    with frequent_thread_switches():
        canceled = [number for number in range(3_000) if pool.post(ran.append, number).cancel()]
        pool.wait_idle()
    assert sorted(ran + canceled) == list(range(3_000))
    statistics = pool.statistics()
    assert (statistics.completed, statistics.cancelled, statistics.queued) == (len(ran), len(canceled), 0)


# -- what it keeps alive


@pytest.mark.parametrize("traits", [None, TRACED], ids=["plain", "traced"])
@pytest.mark.parametrize("delay", [None, 60], ids=["now", "later"])
def test_a_canceled_task_releases_its_callable_and_arguments_at_once(
    pool: ThreadPool, traits: TaskTraits | None, delay: float | None
) -> None:
    thing, argument = Thing(), Thing()
    references = ref(thing), ref(argument)
    with without_collector(), occupied(pool):
        handle = pool.post(partial(nothing, thing), argument, delay=delay, traits=traits)
        del thing, argument
        assert all(reference() is not None for reference in references)
        assert handle.cancel()
        assert [reference() for reference in references] == [None, None]
    assert not handle.cancel()


@pytest.mark.parametrize("traits", [None, TRACED], ids=["plain", "traced"])
def test_a_task_that_has_run_releases_its_callable_and_arguments_although_its_handle_is_kept(
    pool: ThreadPool, traits: TaskTraits | None
) -> None:
    thing, argument = Thing(), Thing()
    references = ref(thing), ref(argument)
    with without_collector():
        handle = pool.post(partial(nothing, thing), argument, traits=traits)
        del thing, argument
        pool.wait_idle()
        assert [reference() for reference in references] == [None, None]
    assert not handle.cancel()


def test_a_task_that_has_failed_releases_its_arguments() -> None:
    argument = Thing()
    reference = ref(argument)

    def fail(argument: Thing) -> NoReturn:
        raise ValueError

    with running(ThreadPool(1, on_error=nothing)) as pool:
        handle = pool.post(fail, argument)
        del argument
        pool.wait_idle(PATIENCE)
        assert reference() is None
        assert not handle.cancel()


# -- the handle as an object


def test_a_handle_is_equal_to_itself_only_and_can_be_kept_in_a_set(pool: ThreadPool) -> None:
    with occupied(pool):
        handles = [pool.post(nothing) for _ in range(3)]
        assert len(set(handles)) == 3
        assert handles[0] != handles[1]
        before = hash(handles[0])
        handles[0].cancel()
        assert hash(handles[0]) == before
        assert all(handles)  # also the one whose contents are gone
        assert handles.index(handles[2]) == 2


def test_a_handle_says_what_it_is_and_whether_it_waits(unstarted: ThreadPool) -> None:
    task = make_task(unstarted, nothing)
    assert task.name.endswith("test_task.nothing")
    assert repr(task) == f"<Task {task.name} waiting>"
    task.claim()
    assert task.name == "(finished)"
    assert repr(task) == "<Task (finished) claimed>"


def test_a_task_knows_the_function_it_was_posted_from(pool: ThreadPool) -> None:
    with occupied(pool):
        handle = pool.post(nothing)
        assert isinstance(handle, Task)
        place = handle.posted_from()
    code = test_a_task_knows_the_function_it_was_posted_from.__code__
    assert place == (__file__, None, code.co_qualname)
    assert str(place) == f"{__file__} in {code.co_qualname}"


def test_a_pool_that_traces_posts_knows_the_line() -> None:
    with running(ThreadPool(1, trace_posts=True)) as pool, occupied(pool):
        handle, line = pool.post(nothing), sys._getframe().f_lineno
        assert isinstance(handle, Task)
        assert handle.posted_from().line == line


@pytest.mark.parametrize("submit", ["submit", "post_and_reply", "repeat"])
def test_every_way_to_post_names_its_caller(submit: str) -> None:
    failures: list[TaskFailure] = []

    def fail() -> NoReturn:
        raise ValueError

    with running(ThreadPool(1, on_error=failures.append, clock=(clock := ManualClock()))) as pool:
        if submit == "post_and_reply":
            pool.post_and_reply(fail, nothing, reply_to=pool)
        elif submit == "repeat":
            repetition = pool.repeat(fail, every=1)
            clock.advance(1)
            repetition.stop()
        else:
            handle = pool.submit(fail)
            assert isinstance(handle.exception(PATIENCE), ValueError)
        pool.wait_idle()
    # A future delivers its exception itself; the others reach the hook.
    expected = [] if submit == "submit" else [test_every_way_to_post_names_its_caller.__qualname__]
    assert [failure.posted_from.function for failure in failures if failure.posted_from] == expected


# -- names


class Nameless:
    def __call__(self, *arguments: object) -> NoReturn:
        raise ValueError("as expected")


class Unspeakable(Nameless):
    def __repr__(self) -> str:
        raise RuntimeError("no representation")


class Obliging(Nameless):
    """Has every attribute one asks for, as a mock or a proxy has."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Obliging()


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (nothing, "test_task.nothing"),
        (print, "builtins.print"),
        (Thing, "test_task.Thing"),
        (partial(nothing, 1), "nothing"),
        (Nameless(), "Nameless"),
        ([].append, "list.append"),
        (str.upper, "str.upper"),
        ("a".__add__, "str.__add__"),
        (int.__add__, "int.__add__"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_callable_has_a_readable_name(function: Callable[..., object], name: str) -> None:
    assert name in describe_function(function)
    assert "None" not in describe_function(function)


@pytest.mark.parametrize("function", [Mock(), Obliging(), Unspeakable()], ids=["mock", "obliging", "unspeakable"])
def test_naming_a_strange_callable_does_not_fail(function: Callable[..., object]) -> None:
    assert describe_function(function)


@pytest.mark.parametrize(
    "function",
    [str.upper, Nameless(), Obliging(), Unspeakable(), Mock(side_effect=ValueError)],
    ids=["descriptor", "nameless", "obliging", "unspeakable", "mock"],
)
def test_no_failing_callable_kills_its_worker(function: Callable[[int], object]) -> None:
    failures: list[TaskFailure] = []
    reached = Event()
    with running(ThreadPool(1, max_workers=1, on_error=failures.append)) as pool:
        pool.post(function, 1)
        pool.post(reached.set)
        assert reached.wait(PATIENCE)
    assert len(failures) == 1
