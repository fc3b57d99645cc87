"""Processes that fork: each function is one way in which applications do it."""

import os
import subprocess
import sys
from collections.abc import Callable
from threading import Barrier, Event, Thread

from tests.processes.apps.jobs import app, speak, work
from tests.processes.run_log import say

OTHER_PROCESS = "from tests.processes.apps.jobs import app; app.counts(); app.close()"


def submit(number: int) -> None:
    """Submit a job and say its id when the submit has returned."""
    say(f"submitted {work.submit(number).id}")


def fork(in_child: Callable[[], object]) -> int:
    """Call something in a forked child, which ends with it."""
    child = os.fork()
    if child:
        return child
    try:
        in_child()
        os._exit(0)
    except BaseException as error:
        say(f"child failed: {error!r}")
        raise
    finally:
        os._exit(1)


def wait_for(*children: int) -> None:
    """Wait for children; all must end well."""
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    say(f"children ended with {codes}")


def wait_to_be_let_go() -> None:
    """Wait until the test closes our stdin."""
    sys.stdin.read()


def after_submit() -> None:
    """Submit, fork, submit on both sides."""
    submit(1)
    child = fork(lambda: submit(2))
    submit(3)
    wait_for(child)
    submit(4)


def preload() -> None:
    """Do what gunicorn does with `preload_app`: use the application, then fork all processes from there."""
    submit(0)

    def serve(first: int) -> None:
        for number in range(first, first + 10):
            submit(number)

    def run() -> None:
        with app.running():
            say("running")
            wait_to_be_let_go()

    servers = [fork(lambda first=first: serve(first)) for first in (100, 200, 300)]  # type: ignore[misc]
    runner = fork(run)
    wait_for(*servers)
    submit(1)
    wait_for(runner)


def beside_a_worker() -> None:
    """Fork a process that runs jobs: the child submits, the parent's worker runs it."""
    with app.running():
        submit(1)
        wait_for(fork(lambda: submit(2)))
        submit(3)
        wait_to_be_let_go()


def while_threads_submit() -> None:
    """Fork again and again while other threads are in the middle of their submits."""
    is_over = Event()

    def submit_all_the_time() -> None:
        while not is_over.is_set():
            submit(1)

    threads = [Thread(target=submit_all_the_time) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(10):
        wait_for(fork(lambda: submit(2)))
    is_over.set()
    for thread in threads:
        thread.join()


def orphan() -> None:
    """Submit and become a daemon: the parent is gone, others open and close the file, the child goes on."""
    submit(1)
    reading, writing = os.pipe()
    if os.fork():
        os._exit(0)
    os.close(writing)
    os.read(reading, 1)  # ends when the parent has
    for number in (2, 3, 4):
        submit(number)
        subprocess.run([sys.executable, "-c", OTHER_PROCESS], check=True)
    say("done")


def parent_to_be_killed() -> None:
    """Run a job that hangs, and fork a child that outlives us."""
    with app.running():
        speak.submit(1, 1_000)
        fork(wait_to_be_let_go)
        say("forked")
        wait_to_be_let_go()


def many_threads() -> None:
    """Submit from 32 threads at once, as the first thing that happens to the application."""
    barrier = Barrier(32)

    def run(number: int) -> None:
        barrier.wait()
        for _ in range(10):
            submit(number)

    threads = [Thread(target=run, args=(number,)) for number in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    {
        function.__name__: function
        for function in (
            after_submit,
            preload,
            beside_a_worker,
            while_threads_submit,
            orphan,
            parent_to_be_killed,
            many_threads,
        )
    }[sys.argv[1]]()
