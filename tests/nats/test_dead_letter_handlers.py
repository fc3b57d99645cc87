"""Dead-letter handlers on NATS: the jobs that they get are stored in one batch with the dead letter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring import JobStatus, Mainspring
from mainspring.jobs.commands import PutDeadLetterHandler
from mainspring.jobs.dead_letter_jobs import DeadLetterHandler
from mainspring.jobs.records import Cause, FollowUp, Outcome, OutcomeKind
from tests.nats.chaos_workers import ChaosWorkers, projection_in
from tests.nats.fault_bench import FaultBench, MakeBench, fault_benches
from tests.nats.servers import MakeServers, Servers
from tests.processes.apps import alerted
from tests.processes.sandbox import Sandbox
from tests.support import PATIENCE, eventually

OPTIONS = "lease=3&timeout=60"
HANDLER = DeadLetterHandler(FollowUp("alert", "alerts", 1, argument="letter"))
MANY = 400


@pytest.fixture
def make_bench(nats_server: Servers, nats_prefix: str, tmp_path: Path) -> Iterator[MakeBench]:
    with fault_benches(nats_server, nats_prefix, tmp_path, lease=2.0) as make:
        yield make


@pytest.fixture
def bench(make_bench: MakeBench) -> FaultBench:
    return make_bench()


def test_an_outcome_whose_reply_was_lost_makes_one_job(bench: FaultBench) -> None:
    assert bench.arrange(PutDeadLetterHandler(HANDLER))
    worker, lease = bench.begin()
    bench.lose_reply("job")
    assert bench.settle(worker, lease, OutcomeKind.FAILED, error="no", cause=Cause.FAILURE)
    assert bench.lost
    assert len(bench.find_ids(type="alert")) == 1


def test_another_process_learns_of_a_handler_before_it_gives_a_job_up(
    bench: FaultBench, make_bench: MakeBench
) -> None:
    other = make_bench()
    worker, lease = other.begin()
    assert bench.arrange(PutDeadLetterHandler(HANDLER))
    assert eventually(lambda: other.nats.components.settings_cache.must_refresh)
    assert other.settle(worker, lease, OutcomeKind.FAILED, error="no", cause=Cause.FAILURE)
    assert len(bench.find_ids(type="alert")) == 1


def test_more_dead_letters_than_fit_into_one_batch_all_make_jobs(bench: FaultBench) -> None:
    assert bench.arrange(PutDeadLetterHandler(HANDLER))
    other = DeadLetterHandler(FollowUp("record", "alerts", 1, argument="job_id"), passes_id=True)
    assert bench.arrange(PutDeadLetterHandler(other))
    bench.submit(*[f"job-{number}" for number in range(MANY)])
    worker = bench.enroll()
    leases = bench.take_when_there(worker, MANY, starts=MANY)
    outcomes = [Outcome(lease, OutcomeKind.FAILED, error="no", cause=Cause.FAILURE) for lease in leases]
    assert bench.engine.settle(worker, outcomes) == [True] * MANY
    assert len(bench.find_ids(type="alert", limit=2 * MANY)) == MANY
    assert len(bench.find_ids(type="record", limit=2 * MANY)) == MANY


# -- processes


@pytest.fixture
def servers(make_nats_server: MakeServers) -> Servers:
    return make_nats_server()


@pytest.fixture
def app(sandbox: Sandbox, servers: Servers) -> Iterator[Mainspring]:
    alerted.app.url, before = f"{servers.url}?{OPTIONS}&{projection_in(sandbox.folder)}", alerted.app.url
    with alerted.app as app:
        yield app
    alerted.app.url = before


class AlertedWorkers(ChaosWorkers):
    """Workers of the application that hears of its dead letters."""

    apps = "tests.processes.apps"


@pytest.mark.long
def test_jobs_of_a_killed_worker_reach_the_handler_of_another(
    sandbox: Sandbox, servers: Servers, app: Mainspring
) -> None:
    workers = AlertedWorkers(sandbox, servers, options=OPTIONS, module="alerted", workers=2, proxied=0)
    workers.start()
    handles = [alerted.charge.submit(number, 5.0) for number in range(8)]
    workers.wait_for_lines(8)
    failing = [alerted.fail.submit(number) for number in range(20)]
    workers.kill(workers.workers.pop(0))
    statuses = {handle.id: handle.wait(PATIENCE) for handle in [*handles, *failing]}
    letters = {job_id for job_id, status in statuses.items() if status is JobStatus.FAILED}
    assert letters > {handle.id for handle in failing}

    def told() -> set[str]:
        path = Path(alerted.ALERTS)
        return {line.split()[0] for line in path.read_text().splitlines()} if path.exists() else set()

    assert eventually(lambda: told() == letters)
    assert len(app.jobs(type=alerted.alert.name, limit=1_000)) == len(letters)
    workers.stop()
