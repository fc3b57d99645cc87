"""Messages that come twice, or not for a long time: a job that a living worker has is not started again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mainspring import JobStatus, Mainspring
from tests.nats.apps import mixed
from tests.nats.chaos_workers import ChaosWorkers, projection_in
from tests.nats.servers import MakeServers, Servers
from tests.processes.run_log import work_for
from tests.processes.sandbox import Sandbox
from tests.support import PATIENCE

pytestmark = pytest.mark.long

LEASE = 3.0  # seconds, more than a busy machine keeps a worker waiting; the server waits as long for an answer
OPTIONS = f"lease={LEASE}&timeout=60"


@pytest.fixture
def servers(make_nats_server: MakeServers) -> Servers:
    return make_nats_server()


@pytest.fixture
def app(sandbox: Sandbox, servers: Servers) -> Iterator[Mainspring]:
    mixed.app.url = f"{servers.url}?{OPTIONS}&{projection_in(sandbox.folder)}"
    with mixed.app as app:
        yield app


@pytest.fixture
def workers(sandbox: Sandbox, servers: Servers, app: Mainspring) -> ChaosWorkers:
    workers = ChaosWorkers(sandbox, servers, options=OPTIONS, workers=2, proxied=1)
    workers.start()
    return workers


def starts_of(sandbox: Sandbox) -> dict[str, int]:
    starts: dict[str, int] = {}
    for entry in sandbox.run_log():
        if entry.event == "start":
            starts[entry.job] = starts.get(entry.job, 0) + 1
    return starts


def test_a_job_that_takes_several_times_the_ack_wait_is_started_once(
    sandbox: Sandbox, workers: ChaosWorkers
) -> None:
    handles = [mixed.plain.submit(f"long/{number}", 3 * LEASE) for number in range(4)]
    assert {handle.wait(PATIENCE) for handle in handles} == {JobStatus.COMPLETED}
    workers.stop()
    assert starts_of(sandbox) == {handle.id: 1 for handle in handles}
    assert {(job.starts, job.crashes) for job in (handle.info() for handle in handles)} == {(1, 0)}


def test_messages_that_a_restarted_server_delivers_again_start_nothing_that_a_living_worker_has(
    sandbox: Sandbox, workers: ChaosWorkers
) -> None:
    handles = [mixed.plain.submit(f"long/{number}", 4 * LEASE) for number in range(8)]
    held = [mixed.plain.after(3 * LEASE).submit(f"held/{number}", 0.0) for number in range(8)]
    workers.wait_for_lines(8)
    for _ in range(2):
        workers.restart_the_server()
        work_for(LEASE)  # long enough for a message to come again
    assert {handle.wait(PATIENCE) for handle in [*handles, *held]} == {JobStatus.COMPLETED}
    workers.stop()
    assert starts_of(sandbox) == {handle.id: 1 for handle in [*handles, *held]}


def test_jobs_whose_worker_comes_back_within_its_lease_are_not_started_again(
    sandbox: Sandbox, workers: ChaosWorkers
) -> None:
    handles = [mixed.plain.submit(f"long/{number}", 3 * LEASE) for number in range(8)]
    workers.wait_for_lines(8)
    for _ in range(4):
        workers.drop_a_connection()
        work_for(LEASE / 2)
    assert {handle.wait(PATIENCE) for handle in handles} == {JobStatus.COMPLETED}
    workers.stop()
    assert starts_of(sandbox) == {handle.id: 1 for handle in handles}


def test_jobs_of_a_killed_worker_start_again_once(sandbox: Sandbox, workers: ChaosWorkers) -> None:
    handles = [mixed.plain.submit(f"long/{number}", LEASE) for number in range(8)]
    workers.wait_for_lines(8)
    victim = workers.workers[0]
    workers.kill(victim)
    assert {handle.wait(PATIENCE) for handle in handles} == {JobStatus.COMPLETED}
    del workers.workers[0]
    workers.stop()
    starts = [entry for entry in sandbox.run_log() if entry.event == "start"]
    again = [entry for entry in starts if entry.token == 2]
    assert {entry.job for entry in again} == {entry.job for entry in starts if entry.process == victim.pid}
    assert len(again) == 4


def test_jobs_of_a_killed_worker_that_run_at_most_once_are_dead_letters(
    sandbox: Sandbox, workers: ChaosWorkers
) -> None:
    handles = [mixed.single.submit(f"single/{number}", LEASE) for number in range(8)]
    workers.wait_for_lines(8)
    victim = workers.workers.pop(0)
    workers.kill(victim)
    statuses = {handle.id: handle.wait(PATIENCE) for handle in handles}
    workers.stop()
    processes = {entry.job: entry.process for entry in sandbox.run_log() if entry.event == "start"}
    assert starts_of(sandbox) == {handle.id: 1 for handle in handles}
    assert {job_id for job_id, status in statuses.items() if status is JobStatus.FAILED} == {
        job_id for job_id, process in processes.items() if process == victim.pid
    }
    assert set(statuses.values()) == {JobStatus.FAILED, JobStatus.COMPLETED}


def test_workers_that_were_full_and_are_idle_again_still_rescue_each_other(
    sandbox: Sandbox, workers: ChaosWorkers
) -> None:
    full = [mixed.plain.submit(f"full/{place}", 0.0) for place in range(4)]  # as many as a worker has threads
    assert {handle.wait(PATIENCE) for handle in full} == {JobStatus.COMPLETED}
    handles = [mixed.plain.submit(f"long/{number}", LEASE / 2) for number in range(2)]
    workers.wait_for_lines(2 * len(full) + 2)
    processes = {entry.process for entry in sandbox.run_log() if entry.job in {handle.id for handle in handles}}
    place = next(place for place, worker in enumerate(workers.workers) if worker.pid in processes)
    workers.kill(workers.workers.pop(place))
    assert {handle.wait(PATIENCE) for handle in handles} == {JobStatus.COMPLETED}
    workers.stop()


def test_the_late_word_of_a_worker_that_stood_still_is_refused(sandbox: Sandbox, workers: ChaosWorkers) -> None:
    handles = [mixed.plain.submit(f"long/{number}", LEASE / 2) for number in range(8)]
    workers.wait_for_lines(8)
    workers.stop_a_worker(3 * LEASE)
    assert {handle.wait(PATIENCE) for handle in handles} == {JobStatus.COMPLETED}
    stopped = workers.faults[0].processes
    zombie = next(worker for worker in workers.workers if worker.pid in stopped)
    zombie.expect_all("counts as dead")
    workers.stop()
    for handle in handles:
        info = handle.info()
        ends = {
            entry.token: entry.process
            for entry in sandbox.run_log()
            if (entry.job, entry.event) == (info.id, "end")
        }
        assert info.fencing_token == max(ends), f"{info} was completed by one who had lost it: {ends}"
        assert (info.starts, info.crashes) == (info.fencing_token, info.fencing_token - 1)
    assert {handle.info().fencing_token for handle in handles} == {1, 2}


def test_a_dead_letter_comes_to_be_though_every_worker_is_idle(sandbox: Sandbox, workers: ChaosWorkers) -> None:
    letter = mixed.doomed.submit("doomed/0")
    assert letter.wait(PATIENCE) is JobStatus.FAILED
    assert [job.id for job in mixed.app.dead_letters.list()] == [letter.id]
    assert letter.info().failures == mixed.ATTEMPTS
    workers.stop()
    assert starts_of(sandbox) == {letter.id: mixed.ATTEMPTS}


def test_a_job_that_kills_each_worker_becomes_a_dead_letter(sandbox: Sandbox, workers: ChaosWorkers) -> None:
    letter = mixed.deadly.submit("deadly/0")
    for crashes in range(3):
        victim = _wait_for_the_dead(workers)
        workers.killed[workers.workers[victim].pid] = crashes
        if crashes < 2:
            workers.workers[victim] = workers.start_at(victim)
        else:
            del workers.workers[victim]  # the other one buries the job
    assert letter.wait(PATIENCE) is JobStatus.FAILED
    assert letter.info().crashes == 3
    workers.stop()


def _wait_for_the_dead(workers: ChaosWorkers) -> int:
    """Return the place of the worker that has died."""
    for _ in range(round(PATIENCE * 20)):
        for place, worker in enumerate(workers.workers):
            if worker.is_at_end:
                return place
        work_for(0.05)
    raise AssertionError("no worker has died")
