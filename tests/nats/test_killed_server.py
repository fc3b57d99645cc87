"""After `kill -9`, a server finds old messages of purged subjects again; no job waits because of an old limiter.

The server reads its files when it starts again. They say which messages were purged, but not which messages were
replaced by others of the same subject. So if the last message of a subject was purged, the message before it is
there again. The same holds if the last message has expired.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mainspring.engines.nats import limiters
from mainspring.engines.nats.limiters import sequence_limiter
from mainspring.jobs.limits import bucket_of, family_of
from tests.nats.fault_bench import FaultBench, fault_benches
from tests.nats.servers import MakeServers, Servers

pytestmark = pytest.mark.long

TENANT = bucket_of("by tenant", "a")
OPTIONS: dict[str, dict[str, Any]] = {"sequence": {"sequence": "key"}, "limit": {"limits": (TENANT,)}}
NAMES = {"sequence": sequence_limiter("key"), "limit": TENANT}

kinds = pytest.mark.parametrize("kind", ["sequence", "limit"])


@pytest.fixture
def server(make_nats_server: MakeServers) -> Servers:
    return make_nats_server()


@pytest.fixture
def bench(server: Servers, tmp_path: Path) -> Iterator[FaultBench]:
    with fault_benches(server, "killed", tmp_path, lease=120) as make:
        bench = make()
        bench.limit("by tenant", 2)
        yield bench


def subject(bench: FaultBench, kind: str) -> str:
    return bench.names.limiter(family_of(NAMES[kind]), NAMES[kind])


def run(bench: FaultBench, worker: int, *job_ids: str) -> None:
    leases = bench.take_when_there(worker, len(job_ids))
    assert sorted(lease.id for lease in leases) == sorted(job_ids)
    bench.complete(worker, *leases)


def kill_and_restart(bench: FaultBench, server: Servers) -> None:
    bench.submit("other", type="other")  # a last message, of a job that no worker takes
    bench.wait_until_processed()
    server.kill()
    server.restart()
    assert bench.eventually(lambda: bench.jetstream.is_connected)


@kinds
def test_a_limiter_without_jobs_is_still_without_jobs_after_the_kill(
    bench: FaultBench, server: Servers, kind: str
) -> None:
    worker = bench.enroll()
    bench.submit("first", **OPTIONS[kind])
    run(bench, worker, "first")
    bench.submit("second", **OPTIONS[kind])
    run(bench, worker, "second")
    kill_and_restart(bench, server)
    assert bench.jetstream.read_one(subject(bench, kind)).data == b""


@kinds
@pytest.mark.parametrize("is_expired", [False, True])
def test_a_job_starts_after_the_kill_although_others_had_all_places_before(
    bench: FaultBench, server: Servers, kind: str, monkeypatch: pytest.MonkeyPatch, *, is_expired: bool
) -> None:
    if is_expired:
        monkeypatch.setitem(limiters.CLEARED, "Nats-TTL", "1s")
    worker = bench.enroll()
    ended = ["first"] if kind == "sequence" else ["first", "second"]
    bench.submit(*ended, **OPTIONS[kind])
    run(bench, worker, *ended)
    assert not is_expired or bench.eventually(lambda: not bench.has_message(subject(bench, kind)))
    kill_and_restart(bench, server)
    bench.submit("next", **OPTIONS[kind])
    run(bench, worker, "next")
