"""A worker is woken at once by submits of other processes, and sleeps when there is nothing to do."""

import os
import time
from pathlib import Path

from tests.processes.apps import jobs
from tests.processes.harness import Site

AT_ONCE_NS = 300_000_000  # on a loaded machine; the safety net, a look once a second, would take 500 ms on average
SAFETY_NET = 5.0  # seconds: one, and the patience that a loaded machine needs
ROUNDS = 20


def test_a_submit_of_another_process_starts_at_once(site: Site) -> None:
    worker = site.start_worker()
    waits = []
    for number in range(ROUNDS):
        before = time.monotonic_ns()  # noqa: TID251 - compared with the ledger of the worker
        jobs.speak.submit(number)
        worker.expect(f"end {number}")
        (start,) = (entry for entry in site.ledger() if entry.event == "start" and entry.argument == str(number))
        waits.append(start.instant_ns - before)
    assert max(waits) < AT_ONCE_NS


def test_a_job_is_found_without_a_wake_up_by_the_look_once_a_second(site: Site) -> None:
    worker = site.start_worker()
    for number in range(3):
        for pipe in site.folder.glob("jobs.db-workers/*.wake"):
            pipe.unlink()
        jobs.speak.submit(number)
        worker.expect(f"end {number}", timeout=SAFETY_NET)


def test_all_workers_are_woken_for_jobs_that_are_due_soon(site: Site) -> None:
    workers = [site.start_worker() for _ in range(2)]
    ids = [jobs.work.after(0.2).submit(number, 0.3).id for number in range(16)]  # eight threads each: just enough
    lateness = [site.wait(job_id).lateness for job_id in ids]
    assert {entry.process for entry in site.ledger()} == {worker.pid for worker in workers}
    assert [late for late in lateness if late is None or not 0 <= late * 1e9 < AT_ONCE_NS] == []


def test_cancelling_from_another_process_reaches_a_handler_at_once(site: Site) -> None:
    worker = site.start_worker()
    handle = jobs.wait.submit(1)
    worker.expect("start 1")
    before = time.monotonic_ns()  # noqa: TID251 - compared with the ledger of the worker
    assert not handle.cancel()
    worker.expect("cancelled 1")
    assert site.ledger()[-1].instant_ns - before < AT_ONCE_NS
    assert site.wait(handle.id).status.name == "CANCELED"


def test_an_idle_worker_uses_almost_no_processor_time(site: Site) -> None:
    jobs.work.after(3_600).submit(1)
    worker = site.start_worker()
    marks = [jobs.speak.after(seconds).submit(seconds).id for seconds in (1, 4)]
    worker.expect("end 1")
    before = processor_seconds(worker.pid)
    worker.expect("end 4")
    assert processor_seconds(worker.pid) - before < 0.15  # of three seconds, with the two jobs at its ends
    assert [site.wait(job_id).starts for job_id in marks] == [1, 1]


def processor_seconds(process: int) -> float:
    """Return what a process has used of the processors."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
