"""Posting while a shutdown goes on: each task ran, was counted as skipped, or its post raised."""

from collections.abc import Callable
from concurrent.futures import CancelledError
from itertools import count
from threading import Event, Thread
from typing import Self

import pytest

from mainspring import RunnerClosed
from mainspring.runners import ShutdownBehavior, TaskFuture, TaskRunner, TaskTraits, ThreadPool
from tests.pools import each_kind, running
from tests.support import PATIENCE, amount, frequent_thread_switches

pytestmark = pytest.mark.stress

ROUNDS = amount(16, thorough=32)
BLOCK = TaskTraits(shutdown=ShutdownBehavior.BLOCK)
SKIP = TaskTraits(shutdown=ShutdownBehavior.SKIP, category="not the plain way")


class Posting:
    """Threads that post until they are refused, and count."""

    def __init__(self, runner: TaskRunner, traits: TaskTraits | None, count: int = 4) -> None:
        self._runner = runner
        self._traits = traits
        self.ran: list[int] = []
        self.accepted: list[list[int]] = [[] for _ in range(count)]
        self.refused = 0
        self.has_begun = Event()
        self._threads = [Thread(target=self._post, args=(who,), daemon=True) for who in range(count)]

    def _post(self, who: int) -> None:
        number = who
        while True:
            try:
                self._runner.post(self.ran.append, number, traits=self._traits)
            except RunnerClosed:
                return
            self.accepted[who].append(number)
            number += len(self._threads)
            self.has_begun.set()

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        assert self.has_begun.wait(PATIENCE)
        return self

    def __exit__(self, *error: object) -> None:
        for thread in self._threads:
            thread.join(PATIENCE)
        assert not any(thread.is_alive() for thread in self._threads)


@each_kind
@pytest.mark.parametrize("traits", [None, SKIP, BLOCK], ids=["plain", "skip", "block"])
def test_posting_races_with_the_end_of_the_pool(
    make: Callable[[ThreadPool], TaskRunner], traits: TaskTraits | None
) -> None:
    with frequent_thread_switches(1e-5):
        for _ in range(ROUNDS // 2):
            with running(ThreadPool(2)) as pool:
                with Posting(make(pool), traits) as posting:
                    report = pool.shutdown()
                accepted = sorted(number for numbers in posting.accepted for number in numbers)
                assert report.abandoned == 0
                assert len(posting.ran) + report.skipped == len(accepted)
                assert set(posting.ran) <= set(accepted)
                assert len(set(posting.ran)) == len(posting.ran)
                assert pool.statistics().skipped == report.skipped
                assert pool.statistics().rejected == len(posting.accepted)  # each thread was refused once
                if traits is BLOCK:
                    assert report.skipped == 0


@each_kind
def test_posting_races_with_the_end_of_its_runner(make: Callable[[ThreadPool], TaskRunner]) -> None:
    with running(ThreadPool(2)) as pool, frequent_thread_switches(1e-5):
        for _ in range(ROUNDS // 2):
            runner = make(pool)
            if runner is pool:
                return  # the test above
            with Posting(runner, None) as posting:
                report = runner.shutdown()
            accepted = sum(map(len, posting.accepted))
            assert len(posting.ran) + report.skipped == accepted
            assert runner.statistics().skipped == report.skipped
        pool.wait_idle(PATIENCE)
        assert pool.statistics().queued == 0
        assert pool.submit(int).result(PATIENCE) == 0  # the others live on


class DelayedPosting(Posting):
    """Threads that post with a delay until they are refused, and cancel every third task at once."""

    def __init__(self, runner: TaskRunner, delay: float) -> None:
        super().__init__(runner, None)
        self._delay = delay
        self.canceled: list[int] = []

    def _post(self, who: int) -> None:
        for number in count(who, len(self._threads)):
            try:
                handle = self._runner.post(self.ran.append, number, delay=self._delay)
            except RunnerClosed:
                return
            self.accepted[who].append(number)
            if number % 3 == 0 and handle.cancel():
                self.canceled.append(number)
            self.has_begun.set()


@each_kind
@pytest.mark.parametrize("delay", [0.0005, 60.0], ids=["due soon", "due later"])
def test_delayed_posts_and_cancels_race_with_the_end_of_the_pool(
    make: Callable[[ThreadPool], TaskRunner], delay: float
) -> None:
    """The timer, the cancels and the shutdown all want the same tasks: one of them gets each."""
    for _ in range(ROUNDS // 4):
        with running(ThreadPool(2)) as pool, frequent_thread_switches(1e-5):
            with DelayedPosting(make(pool), delay) as posting:
                report = pool.shutdown()
            statistics = pool.statistics()
        assert not set(posting.ran) & set(posting.canceled)
        assert len(set(posting.ran)) == len(posting.ran)
        accepted = sum(map(len, posting.accepted))
        assert len(posting.ran) + len(posting.canceled) + report.skipped == accepted
        assert (statistics.cancelled, statistics.delayed, statistics.queued) == (len(posting.canceled), 0, 0)


def test_every_future_ends_whatever_a_shutdown_does() -> None:
    for _ in range(ROUNDS // 2):
        futures: list[TaskFuture[int]] = []
        with running(ThreadPool(2)) as pool, frequent_thread_switches(1e-5):
            sequence = pool.sequenced()
            begun = Event()

            def submit(
                futures: list[TaskFuture[int]] = futures, sequence: TaskRunner = sequence, begun: Event = begun
            ) -> None:
                while True:
                    try:
                        futures.append(sequence.submit(int))
                        futures.append(sequence.submit(int, delay=60))
                    except RunnerClosed:
                        return
                    begun.set()

            threads = [Thread(target=submit, daemon=True) for _ in range(2)]
            for thread in threads:
                thread.start()
            assert begun.wait(PATIENCE)
            report = pool.shutdown()
            for thread in threads:
                thread.join(PATIENCE)
        results = 0
        for future in futures:
            try:
                results += future.result(PATIENCE) == 0
            except CancelledError:
                continue
        assert results + report.skipped == len(futures)


def test_a_pool_ends_while_its_workers_block_and_unblock() -> None:
    """Growing, shrinking and stopping at once: the end comes, and no thread stays behind."""
    for number in range(ROUNDS // 4):
        name = f"ending-{number}"
        with running(ThreadPool(1, name, max_workers=6)) as pool, frequent_thread_switches(1e-5):
            traits = TaskTraits(may_block=True)
            with Posting(pool, traits) as posting:
                report = pool.shutdown()
            assert len(posting.ran) + report.skipped == sum(map(len, posting.accepted))
            for worker in pool._group.workers():
                assert worker.thread is not None
                worker.thread.join(PATIENCE)
                assert not worker.thread.is_alive()
