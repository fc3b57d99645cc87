"""The life of child processes: at work side by side, stopped, killed, dead, recycled, gone."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mainspring.jobs.processes.child_process import ChildDied, RunningRequest
from mainspring.jobs.processes.pool import ProcessPool
from tests.support import PATIENCE, Background, eventually, within
from tests.unit.jobs import process_handlers as handlers
from tests.unit.jobs.process_requests import request_for, run, watched


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPool]:
    """Children that no test kills."""
    pool = ProcessPool(2)
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def pool_of_one() -> Iterator[ProcessPool]:
    pool = ProcessPool(1)
    yield pool
    pool.close(0)


@pytest.fixture
def lone_pool(pool_of_one: ProcessPool) -> ProcessPool:
    """A child that a test may kill: the next request has to go to another one, and so has the next test."""
    assert eventually(lambda: not pool_of_one._busy), "the test before has left a request"
    return pool_of_one


@pytest.fixture
def own_pool() -> Iterator[ProcessPool]:
    """Children for one test."""
    pool = ProcessPool(2)
    yield pool
    pool.close(0)


@pytest.fixture
def fifo(tmp_path: Path) -> str:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return str(path)


# -- at once


def test_two_children_run_at_the_same_time(pool: ProcessPool, tmp_path: Path) -> None:
    one, other = str(tmp_path / "one"), str(tmp_path / "other")
    os.mkfifo(one)
    os.mkfifo(other)
    first = run(pool, handlers.meet, mine=one, other=other, goes_first=True)
    second = run(pool, handlers.meet, mine=other, other=one, goes_first=False)
    assert first.result() != second.result()


def test_more_requests_than_processes_are_refused(fifo: str) -> None:
    pool = ProcessPool(1)
    try:
        attempt = run(pool, handlers.wait_for, path=fifo)
        attempt.started()
        with pytest.raises(RuntimeError, match="the process of this pool is busy"):
            run(pool, handlers.process_id).reply()
        Path(fifo).write_bytes(b"go")
        attempt.reply()
    finally:
        pool.close(0)


# -- stopping and killing


def test_a_request_to_stop_is_seen_by_the_handler(pool: ProcessPool) -> None:
    attempt = run(pool, handlers.until_canceled)
    attempt.started().stop()
    assert attempt.result() == {"stopping": False, "cancelled": True}


def test_a_request_to_stop_holds_for_one_job_only(lone_pool: ProcessPool) -> None:
    attempt = run(lone_pool, handlers.until_canceled)
    before = attempt.started()
    before.stop()
    attempt.reply()
    before.stop()
    assert run(lone_pool, handlers.introduce_itself).result()["cancelled"] is False


def test_a_handler_sees_that_its_worker_shuts_down(pool: ProcessPool) -> None:
    attempt = run(pool, handlers.until_stopping)
    attempt.started().announce_shutdown()
    assert attempt.result() == {"stopping": True, "cancelled": False}


def test_a_busy_child_is_killed_at_once_and_replaced(lone_pool: ProcessPool) -> None:
    attempt = run(lone_pool, handlers.spin)
    running = attempt.started()
    assert running.kill()
    with pytest.raises(ChildDied, match="was killed") as death:
        attempt.reply()
    assert death.value.was_killed
    assert run(lone_pool, handlers.process_id).result() != running.pid


def test_killing_a_request_that_is_over_does_not_hit_the_next(lone_pool: ProcessPool, fifo: str) -> None:
    before = run(lone_pool, handlers.process_id)
    before.reply()
    attempt = run(lone_pool, handlers.wait_for, path=fifo)
    assert attempt.started().pid == before.started().pid
    assert not before.started().kill()
    Path(fifo).write_bytes(b"go")
    assert attempt.result() == before.started().pid


def test_a_kill_that_meets_the_answer_on_its_way_spoils_neither_it_nor_the_next(lone_pool: ProcessPool) -> None:
    def kill_when_answered(running: RunningRequest) -> None:
        assert running._child._connection.poll(PATIENCE), "no answer has come"
        assert running.kill()

    request = request_for(handlers.square, number=3)
    reply = within(lambda: lone_pool.run(request, on_start=kill_when_answered, on_note=print))
    assert reply.answers[0].result == b"9"
    assert run(lone_pool, handlers.square, number=4).result() == 16


def test_what_a_handler_has_started_is_killed_with_it(lone_pool: ProcessPool, fifo: str) -> None:
    attempt = run(lone_pool, handlers.start_another, path=fifo)
    assert attempt.has_spoken.wait(PATIENCE)
    with watched(int(attempt.notes[0].done)) as wait_for_end:
        attempt.started().kill()
        wait_for_end()
    with pytest.raises(ChildDied, match="was killed"):
        attempt.reply()


def test_ctrl_c_is_left_to_the_worker(lone_pool: ProcessPool, fifo: str) -> None:
    attempt = run(lone_pool, handlers.wait_for, path=fifo)
    os.kill(attempt.started().pid, signal.SIGINT)
    Path(fifo).write_bytes(b"go")
    assert attempt.result() == attempt.started().pid


def test_an_error_of_the_caller_ends_the_child_and_is_passed_on(lone_pool: ProcessPool) -> None:
    def refuse(_running: RunningRequest) -> None:
        raise OSError("the store is gone")

    request = request_for(handlers.spin)
    with pytest.raises(OSError, match="the store is gone"):
        within(lambda: lone_pool.run(request, on_start=refuse, on_note=print))
    assert run(lone_pool, handlers.square, number=2).result() == 4


# -- deaths


@pytest.mark.parametrize(
    ("function", "arguments", "text"),
    [
        (handlers.leave, {"code": 7}, "ended with exit code 7"),
        (handlers.raise_signal, {"number": int(signal.SIGKILL)}, "was killed by SIGKILL; out of memory?"),
        (handlers.follow_a_null_pointer, {}, "was killed by SIGSEGV"),
    ],
)
def test_a_child_that_dies_at_work_says_how_and_is_replaced(
    lone_pool: ProcessPool, function: Callable[..., Any], arguments: dict[str, Any], text: str
) -> None:
    attempt = run(lone_pool, function, **arguments)
    with pytest.raises(ChildDied, match=text) as death:
        attempt.reply()
    assert not death.value.was_killed
    assert not death.value.was_asked_to_end
    assert run(lone_pool, handlers.process_id).result() != attempt.started().pid


def test_a_death_harms_no_other_child(own_pool: ProcessPool, fifo: str) -> None:
    neighbour = run(own_pool, handlers.wait_for, path=fifo)
    neighbour.started()
    with pytest.raises(ChildDied):
        run(own_pool, handlers.leave, code=1).reply()
    Path(fifo).write_bytes(b"go")
    assert neighbour.result() == neighbour.started().pid


def test_a_child_ended_by_sigterm_was_asked_to_end(lone_pool: ProcessPool, fifo: str) -> None:
    attempt = run(lone_pool, handlers.wait_for, path=fifo)
    os.kill(attempt.started().pid, signal.SIGTERM)
    with pytest.raises(ChildDied, match="SIGTERM") as death:
        attempt.reply()
    assert death.value.was_asked_to_end


def test_a_child_that_dies_idle_harms_no_job(lone_pool: ProcessPool) -> None:
    before = run(lone_pool, handlers.process_id).result()
    with watched(before) as wait_for_end:
        os.kill(before, signal.SIGKILL)
        wait_for_end()
    assert run(lone_pool, handlers.process_id).result() != before


def test_a_process_forked_by_a_handler_does_not_hide_its_death(lone_pool: ProcessPool, fifo: str) -> None:
    with pytest.raises(ChildDied, match="exit code 3"):
        run(lone_pool, handlers.fork_and_leave, path=fifo).reply()


# -- recycling and closing


def test_a_child_is_replaced_after_so_many_jobs(tmp_path: Path) -> None:
    pool = ProcessPool(1, max_jobs=2)
    pids = [run(pool, handlers.process_id).result() for _ in range(4)]
    pool.close()
    assert pids[0] == pids[1] != pids[2] == pids[3]
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_child_that_has_grown_is_replaced(pool: ProcessPool) -> None:
    usual = run(pool, handlers.process_id).reply().memory
    own = ProcessPool(1, max_memory=usual + 40 * 2**20)
    pids = [run(own, handlers.keep, megabytes=size).result() for size in (1, 80, 1)]
    own.close()
    assert pids[0] == pids[1] != pids[2]


def test_closing_leaves_no_process_and_no_file_behind(pool: ProcessPool) -> None:
    run(pool, handlers.process_id).reply()  # what multiprocessing itself opens once is open now
    before = open_files()
    own = ProcessPool(2, max_jobs=3)
    pids = {run(own, handlers.process_id).result() for _ in range(4)}
    with pytest.raises(ChildDied):
        run(own, handlers.leave, code=1).reply()
    own.close()
    assert open_files() == before
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def open_files() -> int:
    gc.collect()  # pipes of earlier tests may be garbage that would be closed at any time
    return len(list(Path("/proc/self/fd").iterdir()))


def test_closing_waits_for_a_handler(fifo: str) -> None:
    pool = ProcessPool(1)
    attempt = run(pool, handlers.wait_for, path=fifo)
    attempt.started()
    closing = Background(pool.close)
    Path(fifo).write_bytes(b"go")
    closing.result()
    assert attempt.result() == attempt.started().pid


def test_closing_kills_what_does_not_end_in_time() -> None:
    pool = ProcessPool(1)
    attempt = run(pool, handlers.spin)
    attempt.started()
    within(lambda: pool.close(0))
    with pytest.raises(ChildDied) as death:
        attempt.reply()
    assert death.value.was_killed
    assert not Path(f"/proc/{attempt.started().pid}").exists()


def test_a_closed_pool_runs_nothing() -> None:
    pool = ProcessPool(1)
    pool.close()
    pool.close()
    with pytest.raises(RuntimeError, match="closed"):
        run(pool, handlers.process_id).reply()
