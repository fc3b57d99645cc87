"""fork() after use, preloading, and many threads: a submit that returned is a job, in parent and child."""

from tests.processes.sandbox import Child, Sandbox


def submitted(child: Child) -> list[str]:
    """Wait for the end of a process and of its children, and return the jobs that they submitted."""
    lines = child.expect_end_of_output()
    assert [line for line in lines if "failed" in line or "Error" in line] == []
    return [line.removeprefix("submitted ") for line in lines if line.startswith("submitted ")]


def stored(sandbox: Sandbox) -> list[str]:
    """Return all jobs of the file."""
    return sorted(job.id for job in sandbox.app.jobs(limit=100_000))


def test_parent_and_child_both_submit_after_a_fork(sandbox: Sandbox) -> None:
    child = sandbox.start_app("forking", "after_submit")
    ids = submitted(child)
    assert child.wait() == 0
    assert len(ids) == 4
    assert stored(sandbox) == sorted(ids)


def test_a_preloaded_application_serves_and_runs_in_forked_children(sandbox: Sandbox) -> None:
    master = sandbox.start_app("forking", "preload")
    master.expect("children ended with [0, 0, 0]")
    last = master.expect("submitted").removeprefix("submitted ")
    sandbox.wait(last)
    master.close_stdin()
    master.expect("children ended with [0]")
    ids = submitted(master)
    assert len(ids) == 32
    assert stored(sandbox) == sorted(ids)
    assert {sandbox.wait(job_id).starts for job_id in ids} == {1}


def test_a_child_of_a_worker_submits_and_the_worker_runs_on(sandbox: Sandbox) -> None:
    worker = sandbox.start_app("forking", "beside_a_worker")
    worker.expect("children ended with [0]")
    last = worker.expect("submitted").removeprefix("submitted ")
    sandbox.wait(last)
    worker.close_stdin()
    ids = submitted(worker)
    assert worker.wait() == 0
    assert len(ids) == 3
    jobs = [sandbox.wait(job_id) for job_id in ids]
    assert [(job.starts, job.crashes, job.interruptions) for job in jobs] == [(1, 0, 0)] * 3
    assert {entry.process for entry in sandbox.run_log()} == {worker.pid}


def test_a_child_forked_in_the_middle_of_submits_can_submit(sandbox: Sandbox) -> None:
    child = sandbox.start_app("forking", "while_threads_submit")
    ids = submitted(child)
    assert child.wait() == 0
    assert [line for line in child.lines if "ended" in line] == ["children ended with [0]"] * 10
    assert stored(sandbox) == sorted(ids)


def test_an_orphan_loses_no_submit_when_others_close_the_file(sandbox: Sandbox) -> None:
    child = sandbox.start_app("forking", "orphan")
    child.expect("done")
    ids = submitted(child)
    assert len(ids) == 4
    assert stored(sandbox) == sorted(ids)


def test_a_killed_parent_is_found_dead_by_its_lock_though_its_child_lives(sandbox: Sandbox) -> None:
    parent = sandbox.start_app("forking", "parent_to_be_killed")
    parent.expect_all("forked", "start 1")
    parent.kill()
    worker = sandbox.start_worker("worker", "told")  # for which only a lock tells of a death
    worker.expect("start 1")
    (job,) = sandbox.app.jobs()
    assert (job.starts, job.crashes) == (2, 1)
    assert not parent.is_at_end, "the child has gone as well, and this shows nothing"


def test_32_threads_submit_at_once(sandbox: Sandbox) -> None:
    child = sandbox.start_app("forking", "many_threads")
    ids = submitted(child)
    assert child.wait() == 0
    assert len(ids) == 320
    assert stored(sandbox) == sorted(ids)


FORK_DURING_AN_IMPORT = """
import os
from threading import Event, Thread
from mainspring.jobs import manager

begun, forked, done = Event(), Event(), Event()

def import_worker():
    with manager._importing_worker:
        begun.set()
        done.wait()

def fork():
    child = os.fork()
    if child == 0:
        os._exit(0 if manager._importing_worker.acquire(blocking=False) else 1)
    print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    forked.set()

threads = [Thread(target=import_worker), Thread(target=fork)]
threads[0].start()
begun.wait()
threads[1].start()
print("forked during the import:", forked.wait(0.5), flush=True)
done.set()
for thread in threads:
    thread.join()
"""


def test_a_fork_waits_until_the_worker_is_imported(sandbox: Sandbox) -> None:
    child = sandbox.start("-W", "ignore::DeprecationWarning", "-c", FORK_DURING_AN_IMPORT)
    assert child.expect_end_of_output() == ["forked during the import: False", "child 0"]
    assert child.wait() == 0
