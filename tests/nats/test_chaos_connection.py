"""A connection that is lost: callers are told in time or wait, workers start nothing and go on by themselves."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from mainspring import EngineUnavailable, JobStatus, Mainspring
from mainspring.engines.nats import NatsSettings
from tests.nats.apps import mixed
from tests.nats.chaos_workers import ChaosWorkers, projection_in
from tests.nats.proxy import Proxy
from tests.nats.servers import MakeServers, Servers
from tests.processes.run_log import now_ns, work_for
from tests.processes.sandbox import Sandbox
from tests.support import PATIENCE, eventually

pytestmark = pytest.mark.long

LEASE = 2.0


@pytest.fixture
def servers(make_nats_server: MakeServers) -> Servers:
    return make_nats_server()


@pytest.fixture
def proxy(servers: Servers) -> Proxy:
    return servers.proxy()


@pytest.fixture
def app(servers: Servers, tmp_path: Path) -> Iterator[Mainspring]:
    """Reaches the server without the proxy, and waits for it as long as any test."""
    with Mainspring(f"{servers.url}?timeout={PATIENCE}&{projection_in(tmp_path)}") as app:
        yield app


@pytest.fixture
def impatient(proxy: Proxy, tmp_path: Path) -> Iterator[Mainspring]:
    """Reaches the server through the proxy, and gives up after a second."""
    with Mainspring(f"{proxy.url}?lease={LEASE}&timeout=1&{projection_in(tmp_path)}") as app:
        yield app


def echo(number: int) -> int:
    return number


@pytest.mark.parametrize("how", [Proxy.cut, Proxy.freeze])
def test_a_submit_without_a_server_raises_after_its_deadline_and_works_when_it_is_back(
    how: object, app: Mainspring, impatient: Mainspring, proxy: Proxy
) -> None:
    assert callable(how)
    before = app.job(name="echo")(echo).submit(1)
    _submit_when_it_is_back(impatient)  # it is connected now
    job = impatient.job(name="echo")(echo)
    how(proxy)
    begin = now_ns()
    with pytest.raises(EngineUnavailable, match=r"NATS at 127\.0\.0\.1") as error:
        job.submit(2)
    seconds = (now_ns() - begin) / 1e9
    assert seconds > 0.9, f"{error.value} after {seconds} s, before the deadline"
    proxy.heal()
    after = _submit_when_it_is_back(impatient)
    assert app.get(before.id).status is JobStatus.PENDING
    ids = {findings_of.id for findings_of in app.jobs()}
    assert {before.id, after} <= ids
    failed = [findings_of for findings_of in app.jobs() if findings_of.arguments == {"number": 2}]
    assert len(failed) <= 1, "the submit that raised may have come through, once"


def _submit_when_it_is_back(app: Mainspring) -> str:
    """Submit, and as a caller would, again if that raises."""
    ids: list[str] = []

    def is_back() -> bool:
        with suppress(EngineUnavailable):
            ids.append(app.job(name="echo")(echo).submit(3).id)
        return bool(ids)

    assert eventually(is_back), "it did not come back"
    return ids[0]


def test_a_submit_without_a_deadline_waits_until_the_server_is_back(proxy: Proxy, tmp_path: Path) -> None:
    settings = NatsSettings(timeout=None, projection=str(tmp_path / "copy.db"))
    with Mainspring(proxy.url, nats=settings) as app, ThreadPoolExecutor(1) as other:
        job = app.job(name="echo")(echo)
        job.submit(1)
        proxy.cut()
        waiting = other.submit(lambda: job.submit(2).id)
        with pytest.raises(TimeoutError):
            waiting.result(2)
        proxy.heal()
        job_id = waiting.result(PATIENCE)
        assert app.get(job_id).arguments == {"number": 2}
        assert app.counts()["PENDING"] == 2, "nothing is lost or doubled"


def test_a_submit_during_the_restart_of_a_server_is_stored_once(servers: Servers, tmp_path: Path) -> None:
    settings = NatsSettings(timeout=PATIENCE, projection=str(tmp_path / "copy.db"))
    with Mainspring(servers.url, nats=settings) as app, ThreadPoolExecutor(4) as others:
        job = app.job(name="echo")(echo)
        submits = [others.submit(job.submit, number) for number in range(400)]
        for _ in range(3):
            servers.kill()
            servers.restart()
            work_for(0.3)
        ids = {submit.result(PATIENCE).id for submit in submits}
        assert len(ids) == 400
        assert {findings_of.id for findings_of in app.jobs(limit=1_000)} == ids


def test_a_worker_that_is_cut_off_starts_nothing_and_goes_on_by_itself(servers: Servers, tmp_path: Path) -> None:
    options = f"lease={LEASE}&timeout=5"
    mixed.app.url = f"{servers.url}?{options}&{projection_in(tmp_path)}"
    with Sandbox(tmp_path) as site, mixed.app:
        workers = ChaosWorkers(site, servers, options=options, workers=1, proxied=1)
        workers.start()
        (proxy,) = workers.proxies[0]
        first = mixed.plain.submit("first/0", 0.0)
        assert first.wait(PATIENCE) is JobStatus.COMPLETED
        held = mixed.plain.after(1).submit("held/0", 0.0)
        work_for(0.5)
        proxy.cut()
        cut = now_ns()
        waiting = mixed.plain.submit("waiting/0", 0.0)
        work_for(LEASE + 1)
        healed = now_ns()
        proxy.heal()
        assert {handle.wait(PATIENCE) for handle in (held, waiting)} == {JobStatus.COMPLETED}
        workers.stop()
        starts = [entry.instant_ns for entry in site.run_log() if entry.event == "start"]
    assert len(starts) == 3
    assert [start for start in starts if cut < start < healed] == []
