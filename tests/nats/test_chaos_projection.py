"""The local copy that lists are made from, built again while jobs come and go."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from threading import Event

import pytest

from mainspring import JobStatus
from mainspring.engines.nats.engine import NatsEngine
from tests.nats.apps import mixed
from tests.nats.chaos_workers import ChaosWorkers, projection_in
from tests.nats.scenario_chaos import submit_all_kinds
from tests.nats.servers import MakeServers, Servers
from tests.processes.sandbox import Sandbox
from tests.support import PATIENCE, amount

pytestmark = pytest.mark.long

ROUNDS = amount(3, thorough=6)


def rebuild_under_load(tmp_path: Path, servers: Servers) -> None:
    options = f"lease=10&timeout=60&replicas={len(servers.nodes)}"
    mixed.app.url = f"{servers.url}?{options}&{projection_in(tmp_path)}"
    is_over = Event()
    rebuilt = 0
    with Sandbox(tmp_path) as site, mixed.app as app, ThreadPoolExecutor(1) as other:
        workers = ChaosWorkers(site, servers, options=options, workers=2, proxied=0)
        workers.start()
        engine = app.manager().engine
        assert isinstance(engine, NatsEngine)

        def submit() -> list[str]:
            chance = Random(41)
            return [job_id for number in range(ROUNDS) for job_id in submit_all_kinds(f"{number}", chance)]

        load = other.submit(submit)
        load.add_done_callback(lambda _: is_over.set())
        while not is_over.is_set() or rebuilt < 3:
            before = app.counts()
            engine.projector.rebuild()
            rebuilt += 1
            after = app.counts()
            assert sum(after.values()) >= sum(before.values()), (
                "a list shows what was stored before it was asked for"
            )
        ids = load.result(PATIENCE)
        for job_id in ids:
            assert app.handle(job_id).wait(PATIENCE) is JobStatus.COMPLETED
        findings_of = {job.id: job for job in app.jobs(limit=10_000)}
        assert findings_of == {job_id: app.get(job_id) for job_id in ids}
        engine.projector.rebuild()
        assert {job.id: job for job in app.jobs(limit=10_000)} == findings_of
        assert app.counts() == {status.value: 0 for status in JobStatus} | Counter(
            job.status.value for job in findings_of.values()
        )
        workers.stop()


def test_lists_equal_the_records_after_the_copy_was_built_again_under_load(
    tmp_path: Path, make_nats_server: MakeServers
) -> None:
    rebuild_under_load(tmp_path, make_nats_server())


def test_lists_equal_the_records_on_every_server_of_a_cluster(
    tmp_path: Path, make_nats_cluster: MakeServers
) -> None:
    rebuild_under_load(tmp_path, make_nats_cluster())
