"""No wake-up is lost, and none happens for nothing."""

import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Barrier, BrokenBarrierError, Event
from threading import enumerate as all_threads
from typing import Any

import pytest

from mainspring.runners import FuncQueue, Priority, TaskRunner, TaskTraits, ThreadPool, blocking
from tests.pools import each_kind, running
from tests.support import PATIENCE, amount, eventually, frequent_thread_switches, occupied

pytestmark = pytest.mark.stress

TIMES = amount(5_000, thorough=20_000)


moods = pytest.mark.parametrize(
    "mood", [nullcontext, frequent_thread_switches], ids=["calm", "frequent_thread_switches"]
)


@each_kind
@moods
def test_a_task_for_a_sleeping_runner_is_run(
    make: Callable[[ThreadPool], TaskRunner], mood: Callable[[], Any]
) -> None:
    """Each task comes just when the worker that ran the one before goes to sleep."""
    answers: SimpleQueue[int] = SimpleQueue()
    traits = [None, None, TaskTraits(priority=Priority.USER_BLOCKING), TaskTraits(may_block=True)]
    with running(ThreadPool(2, max_workers=4)) as pool, mood():
        runner = make(pool)
        for number in range(TIMES // 2):
            runner.post(answers.put, number, traits=traits[number % 4])
            try:
                assert answers.get(timeout=PATIENCE) == number
            except Empty:
                pytest.fail(f"task {number} was never woken for")


@moods
def test_an_item_for_a_sleeping_queue_is_handled(mood: Callable[[], Any]) -> None:
    answers: SimpleQueue[int] = SimpleQueue()
    with running(ThreadPool(2)) as pool, mood():
        queue: FuncQueue[int] = FuncQueue(answers.put, pool)
        for number in range(TIMES // 2):
            queue.dispatch(number)
            try:
                assert answers.get(timeout=PATIENCE) == number
            except Empty:
                pytest.fail(f"item {number} was never woken for")


@moods
def test_sequences_play_ping_pong(mood: Callable[[], Any]) -> None:
    over = Event()
    with running(ThreadPool(2)) as pool, mood():
        players = [pool.sequenced(), pool.single_thread(), pool.sequenced(), pool.parallel(limit=1), pool]

        def hit(left: int) -> None:
            if left:
                players[left % len(players)].post(hit, left - 1)
            else:
                over.set()

        hit(TIMES)
        assert over.wait(PATIENCE)


@moods
def test_two_tasks_that_meet_are_given_two_workers(mood: Callable[[], Any]) -> None:
    """The first worker that wakes up must wake the second."""
    lost: list[str] = []
    with running(ThreadPool(3)) as pool, mood():
        for number in range(TIMES // 10):
            meeting = Barrier(3)

            def meet(meeting: Barrier = meeting) -> None:
                try:
                    meeting.wait(PATIENCE)
                except BrokenBarrierError:
                    lost.append("no wake-up came")

            for _ in range(3):
                pool.post(meet)
            if number % 2:
                pool.wait_idle(2 * PATIENCE)
            assert lost == []
        pool.wait_idle(2 * PATIENCE)
    assert lost == []


@moods
def test_blocked_tasks_that_wait_for_others_get_their_substitutes(mood: Callable[[], Any]) -> None:
    lost: list[str] = []
    with running(ThreadPool(1, max_workers=8)) as pool, mood():
        for _ in range(TIMES // 20):
            meeting = Barrier(4)

            def meet(meeting: Barrier = meeting) -> None:
                with blocking():
                    try:
                        meeting.wait(PATIENCE)
                    except BrokenBarrierError:
                        lost.append("no wake-up came")

            for _ in range(4):
                pool.post(meet)
            assert lost == []
        pool.wait_idle(2 * PATIENCE)
        assert pool._group._blocked == 0
        assert pool._group._active == 1
        assert pool.submit(int).result(PATIENCE) == 0
    assert lost == []


@moods
def test_wait_idle_never_misses_the_end(mood: Callable[[], Any]) -> None:
    with running(ThreadPool(2)) as pool, mood():
        sequence = pool.sequenced()
        for number in range(TIMES // 10):
            runner: TaskRunner = sequence if number % 2 else pool
            runner.post(int)
            runner.wait_idle(PATIENCE)
            assert runner.statistics().queued == 0
            assert runner.statistics().active == 0
        pool.wait_idle(PATIENCE)
        assert pool.statistics().completed == TIMES // 10


# -- rest


def switches(names: str) -> dict[str, int]:
    """How often each thread with such a name has gone to sleep so far."""
    counts = {}
    for thread in all_threads():
        if thread.name.startswith(names):
            status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
            line = next(line for line in status.splitlines() if line.startswith("voluntary_ctxt_switches"))
            counts[thread.name] = int(line.split()[1])
    return counts


def all_asleep(names: str) -> bool:
    """Whether every thread with such a name waits, by the word of the kernel."""
    states = [
        Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rpartition(")")[2].split()[0]
        for thread in all_threads()
        if thread.name.startswith(names)
    ]
    return set(states) == {"S"}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_an_idle_pool_never_wakes_up() -> None:
    never = Event()
    with running(ThreadPool(4, "idle")) as pool:
        runners = [
            pool.sequenced(),
            pool.parallel(limit=2),
            pool.single_thread("idle.thread"),
            pool.asyncio("idle.loop"),
        ]
        queue: FuncQueue[int] = FuncQueue(id, pool)
        for runner in runners:
            runner.post(int)
        queue.dispatch(1)
        pool.post(int, delay=0.001)
        pool.post(int, delay=3600)
        with occupied(pool, traits=TaskTraits(may_block=True)):
            pool.submit(int).result(PATIENCE)  # and a substitute goes to the reserve
        pool.submit(int, delay=0.05).result(PATIENCE)
        pool.wait_idle(PATIENCE)
        assert eventually(lambda: all_asleep("idle"))
        before = switches("idle")
        never.wait(0.5)
        after = switches("idle")
    assert len(before) >= 7  # four workers, a thread, a loop, a timer
    assert after == before
