"""What becomes of tasks when the interpreter exits and the pool was not shut down."""

from __future__ import annotations

from textwrap import dedent

import pytest

from tests.programs import run_python

pytestmark = pytest.mark.long

PRELUDE = """
import asyncio
import logging
import sys
import threading
from mainspring.errors import RunnerClosed
from mainspring.runners import ShutdownBehavior, TaskTraits, ThreadPool, blocking  # no need to load the rest

# On a busy machine the development mode of asyncio reports that a callback took long.
logging.getLogger("asyncio").addFilter(lambda record: not record.msg.startswith("Executing"))

BLOCK = TaskTraits(shutdown=ShutdownBehavior.BLOCK)
SKIP = TaskTraits(shutdown=ShutdownBehavior.SKIP)
CONTINUE = TaskTraits(shutdown=ShutdownBehavior.CONTINUE)
say = lambda text: print(f"{text}\\n", end="", flush=True)
started = threading.Event()

def wait_for_exit():
    started.set()
    threading.main_thread().join()  # ends when the main thread has begun to exit

def wait_until_dropped(runner):
    wait_for_exit()
    while runner.statistics().queued:  # else it may end before the shutdown begins, and the next task starts
        threading.Event().wait(0.001)

def stay():
    started.set()
    threading.Event().wait()

pool = ThreadPool(1, name="main").start()
"""

SCRIPTS = {
    "a BLOCK task that waits is run": (
        """
        pool.post(wait_for_exit)
        started.wait()
        for runner in (pool, pool.sequenced(), pool.parallel(2), pool.single_thread(), pool.asyncio()):
            runner.post(say, "block", traits=BLOCK)
        """,
        ["block"] * 5,
    ),
    "a SKIP task that waits is dropped": (
        """
        for runner in (pool, pool.single_thread(), pool.asyncio()):
            started.clear()
            runner.post(wait_until_dropped, runner)
            started.wait()
            runner.post(say, "skip", traits=SKIP)
            runner.post(say, "continue", traits=CONTINUE)
        """,
        [],
    ),
    "a SKIP task that runs is waited for": (
        """
        def work():
            wait_for_exit()
            say("finished")

        for runner in (pool, pool.single_thread(), pool.asyncio()):
            started.clear()
            runner.post(work)
            started.wait()
        """,
        ["finished"] * 3,
    ),
    "a CONTINUE task that runs is not waited for": (
        """
        pool.sequenced().post(stay, traits=CONTINUE)
        started.wait()
        """,
        [],
    ),
    "a CONTINUE task of a single thread is not waited for": (
        """
        pool.single_thread().post(stay, traits=CONTINUE)
        started.wait()
        """,
        [],
    ),
    "a CONTINUE task of an event loop is not waited for": (
        """
        pool.asyncio().post(stay, traits=CONTINUE)
        started.wait()
        """,
        [],
    ),
    "a CONTINUE coroutine is cancelled": (
        """
        async def work():
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                say("cancelled")

        pool.asyncio().post(work, traits=CONTINUE)
        started.wait()
        """,
        ["cancelled"],
    ),
    "a SKIP coroutine that runs is waited for": (
        """
        async def work():
            started.set()
            while threading.main_thread().is_alive():
                await asyncio.sleep(0)
            say("finished")

        pool.asyncio().post(work)
        started.wait()
        """,
        ["finished"],
    ),
    "delayed tasks and repetitions are dropped": (
        """
        pool.post(say, "delayed", delay=3600, traits=BLOCK)
        pool.repeat(say, "repeated", every=3600)
        """,
        [],
    ),
    "a blocked task does not keep a BLOCK task from running": (
        """
        release = threading.Event()

        def work():
            wait_for_exit()
            with blocking():
                release.wait()
            say("released")

        pool.post(work)
        started.wait()
        pool.post(release.set, traits=BLOCK) if sys.version_info < (3, 12) else release.set()
        """,
        ["released"],
    ),
    "a BLOCK task may post another one": (
        """
        def more(left):
            say(left)
            if left:
                pool.post(more, left - 1, traits=BLOCK)

        pool.post(wait_for_exit)
        started.wait()
        pool.post(more, 3, traits=BLOCK)
        """,
        ["3", "2", "1", "0"],
    ),
    "everything else is refused": (
        """
        def work():
            wait_for_exit()
            while not pool._state.name == "CLOSING":
                pass
            try:
                pool.post(say, "no")
            except RunnerClosed:
                say("refused")

        pool.post(work)
        started.wait()
        """,
        ["refused"],
    ),
    "a with block that an exception leaves": (
        """
        try:
            with pool:
                pool.post(wait_for_exit, traits=CONTINUE)
                started.wait()
                pool.post(say, "skip")
                raise KeyError
        except KeyError:
            say("left")
        """,
        ["left"],
    ),
    "a pool that was never started": ("ThreadPool(2, name='unused')", []),
    "a pool that started with its first task": ("ThreadPool(2).post(say, 'block', traits=BLOCK)", ["block"]),
    "a pool that was shut down": ("pool.post(say, 'ran', traits=BLOCK); pool.shutdown()", ["ran"]),
    "a loop that was shut down before": (
        """
        loop = pool.asyncio()
        loop.post(say, "ran", traits=BLOCK)
        loop.shutdown()
        """,
        ["ran"],
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_at_exit(name: str) -> None:
    script, expected = SCRIPTS[name]
    result = run_python("-X", "dev", "-W", "error", "-c", PRELUDE + dedent(script))
    assert result.stderr == ""
    assert result.stdout.split() == expected
    assert result.returncode == 0
