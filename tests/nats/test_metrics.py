"""Metrics of a store on NATS: the numbers of the projection, and a server that is gone."""

from __future__ import annotations

from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from mainspring import Mainspring, NatsSettings
from mainspring.monitoring import PrometheusCollector
from tests.nats.servers import MakeServers, Servers
from tests.support import PATIENCE, eventually


def make_app(servers: Servers, prefix: str, folder: Path) -> Mainspring:
    settings = NatsSettings(prefix=prefix, projection=str(folder / "jobs.projection"), timeout=1)
    return Mainspring(servers.url, nats=settings, grace=0)


def register(app: Mainspring, *, timeout: float = PATIENCE) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(PrometheusCollector(app, store=True, timeout=timeout))
    return registry


def test_a_worker_on_nats_exports_what_it_did_and_what_the_store_holds(
    nats_server: Servers, nats_prefix: str, tmp_path: Path
) -> None:
    with make_app(nats_server, nats_prefix, tmp_path) as app:
        send = app.job(name="send", queue="mail")(lambda: None)
        registry = register(app)
        send.submit()
        send.after(3600).submit()
        value = registry.get_sample_value
        with app.running():
            labels = {"queue": "mail", "type": "send", "outcome": "completed"}
            assert eventually(lambda: value("mainspring_attempts_total", labels) == 1)
            assert value("mainspring_workers", {"kind": "alive"}) == 1
        assert value("mainspring_jobs", {"queue": "mail", "state": "scheduled"}) == 1
        assert value("mainspring_jobs", {"queue": "mail", "state": "due"}) == 0
        assert value("mainspring_jobs_submitted_total", {"queue": "mail", "type": "send"}) == 2
        assert (value("mainspring_store_commit_seconds_count", {"engine": "nats"}) or 0) > 0


def test_without_a_server_the_process_is_still_exported(make_nats_server: MakeServers, tmp_path: Path) -> None:
    servers = make_nats_server()
    with make_app(servers, "shop", tmp_path) as app:
        app.job(name="send", queue="mail")(lambda: None).submit()
        registry = register(app)
        assert registry.get_sample_value("mainspring_store_up") == 1
        servers.kill_all()
        assert eventually(lambda: registry.get_sample_value("mainspring_store_up") == 0)
        text = generate_latest(registry).decode()
        assert 'mainspring_jobs_submitted_total{queue="mail",type="send"} 1.0' in text
