"""NATS servers without storage: at the limit of JetStream, and with a disk that takes no more."""

from __future__ import annotations

import logging
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

from mainspring import EngineUnavailable, Mainspring, Reason
from mainspring.doctor import examine
from mainspring.engines.nats import overdue
from mainspring.engines.nats.engine import NatsEngine
from mainspring.jobs.timestamps import MICROSECONDS
from tests.nats.servers import MakeServers, Servers
from tests.support import PATIENCE, eventually

LIMIT, SIZE = 1_000_000, 100_000
TIMEOUT = 1.5


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a scheduled message count as overdue after a second."""
    monkeypatch.setattr(overdue, "OVERDUE", MICROSECONDS)


class Shop:
    """An application whose handler only records what it was called with."""

    def __init__(self, url: str) -> None:
        self.packed: list[int] = []
        self.may_end = Event()
        self.app = app = Mainspring(f"{url}?prefix=shop&timeout={TIMEOUT}", grace=0)

        @app.job(name="pack")
        def pack(order: int, padding: str = "") -> None:
            self.packed.append(order)

        @app.job(name="wait")
        def wait() -> None:
            assert self.may_end.wait(PATIENCE)
            self.packed.append(0)

        self.pack, self.wait = pack, wait


@pytest.fixture
def full(make_nats_server: MakeServers) -> Iterator[tuple[Servers, Shop]]:
    """Yield a server with little storage, and a shop without a worker."""
    servers = make_nats_server(settings={"jetstream": {"max_file_store": LIMIT}})
    shop = Shop(servers.url)
    with shop.app:
        yield servers, shop


def fill(shop: Shop) -> list[str]:
    """Submit jobs that are due in a year until the server refuses one; return their ids."""
    ids: list[str] = []

    def submit() -> None:
        while True:
            ids.append(shop.pack.after(365 * 24 * 3_600).submit(len(ids), "x" * SIZE).id)

    with pytest.raises(EngineUnavailable, match="insufficient resources"):
        submit()
    return ids


def free(shop: Shop, ids: list[str]) -> None:
    """Purge the records of jobs, as an operator can."""
    jetstream = engine_of(shop).components.jetstream
    for job_id in ids:
        jetstream.api("STREAM.PURGE.shop", {"filter": f"shop.job.{job_id}"})


def engine_of(shop: Shop) -> NatsEngine:
    engine = shop.app.manager().engine
    assert isinstance(engine, NatsEngine)
    return engine


def submit_and_fill(shop: Shop) -> tuple[str, list[str]]:
    """Submit a delayed job, let the storage be full when it is due, and wait until it is overdue.

    Return its id, and those of the jobs that fill the storage.
    """
    ids = fill(shop)
    free(shop, ids[:1])
    late = shop.pack.after(3).submit(-1).id
    ids += fill(shop)
    parts = engine_of(shop).components
    assert eventually(lambda: bool(overdue.find_overdue(parts.jetstream, parts.names, 1_000)))
    return late, ids


def findings(shop: Shop) -> dict[str, str]:
    return {
        finding.check: finding.what
        for finding in examine(shop.app).findings
        if finding.severity.value in ("warning", "error") and finding.check in ("storage", "deliveries")
    }


@pytest.mark.usefixtures("_soon")
def test_jobs_that_fall_due_at_the_limit_start_soon_after_it(
    full: tuple[Servers, Shop], caplog: pytest.LogCaptureFixture
) -> None:
    _, shop = full
    caplog.set_level(logging.WARNING, "mainspring.nats")
    with shop.app.running():
        _, ids = submit_and_fill(shop)
        assert shop.packed == []
        free(shop, ids)
        assert eventually(lambda: shop.packed == [-1])
    said = "\n".join(record.message for record in caplog.records)
    assert "stores nothing, so that jobs are neither accepted nor started: the server has no storage left" in said
    assert "stores messages again" in said
    assert "1 scheduled message was overdue, because the server did not publish it in time" in said


@pytest.mark.usefixtures("_soon")
def test_a_job_that_the_server_did_not_publish_is_explained_and_repaired(full: tuple[Servers, Shop]) -> None:
    _, shop = full
    late, ids = submit_and_fill(shop)
    assert eventually(lambda: shop.app.explain(late).reason is Reason.NOT_DELIVERED)
    explanation = shop.app.explain(late)
    assert "the server has no storage left: insufficient resources" in explanation
    assert "Give JetStream more storage" in explanation
    found = findings(shop)
    assert found["storage"].startswith("the server has no storage left")
    free(shop, ids)
    explanation = shop.app.explain(late)
    assert explanation.reason is Reason.NOT_DELIVERED
    assert "the server did not publish its message in time" in explanation
    assert findings(shop)["deliveries"].startswith("1 scheduled message is overdue, one since")
    assert engine_of(shop).repair_orphans(0) == [late]
    assert "deliveries" not in findings(shop)
    assert shop.app.explain(late).reason is Reason.NO_WORKER
    with shop.app.running():
        assert eventually(lambda: shop.packed == [-1])


# -- a disk


@pytest.fixture
def full_disk(make_nats_server: MakeServers) -> Iterator[Servers]:
    """Yield a server whose files cannot grow once `fill_disk` was called: see RLIMIT_FSIZE in getrlimit(2).

    A test can set this limit and take it away without the right to mount a small file system. The server treats a
    file that cannot grow as it treats a full disk: it takes the error of the write as critical.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGXFSZ})  # the server inherits it
    try:
        yield make_nats_server()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def fill_disk(servers: Servers) -> None:
    """Let no file grow beyond the size that the file with the messages of the stream has now."""
    set_file_limit(servers, max(path.stat().st_size for path in servers.store.rglob("streams/shop/msgs/*.blk")))


def set_file_limit(servers: Servers, limit: int) -> None:
    pid = servers.nodes[0].process.pid
    assert pid is not None
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))


def test_a_full_disk_bounds_every_call_and_the_restart_of_the_server_ends_it(
    full_disk: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    servers, shop = full_disk, Shop(full_disk.url)
    caplog.set_level(logging.WARNING)
    with shop.app, shop.app.running():
        running = shop.wait.submit()
        assert eventually(lambda: running.status().name == "RUNNING")
        number = engine_of(shop)._workers.numbers
        fill_disk(servers)
        with pytest.raises(EngineUnavailable):
            shop.pack.submit(1)
        assert eventually(lambda: engine_of(shop).components.jetstream.storage.problem is not None)
        with pytest.raises(EngineUnavailable, match="look for 'write error' in the log of the server"):
            shop.pack.submit(2)
        assert findings(shop)["storage"].startswith("the server answers reads, but confirms no message")
        set_file_limit(servers, resource.RLIM_INFINITY)
        with pytest.raises(EngineUnavailable):
            shop.pack.submit(3)
        servers.stop()
        servers.restart()
        assert eventually(lambda: shop.pack.submit(4) is not None)
        shop.may_end.set()
        assert running.result(timeout=PATIENCE) is None
        assert eventually(lambda: {0, 4} <= set(shop.packed))
        assert engine_of(shop)._workers.numbers == number

    assert shop.packed.count(0) == 1
    assert "another worker" not in caplog.text
