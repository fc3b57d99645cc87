"""The facts that the doctor reads from real NATS servers, and that it leaves nothing behind."""

from pathlib import Path
from typing import Any

import pytest

from mainspring import Mainspring, NatsSettings
from mainspring.cli.nats_process import HOST, HeldPorts, ServerProcess, find_server, is_listening
from mainspring.clock import SystemClock
from mainspring.doctor import Report, examine
from mainspring.doctor.nats_examination import read_monitor, routes_need_password
from mainspring.doctor.nats_facts import NatsFacts, read_facts
from tests.nats.servers import MakeServers, Servers
from tests.nats.stream_edits import edit_stream
from tests.support import eventually

OF_THE_MACHINE = {"python", "open-files", "time-zones", "synchronised", "clock", "round-trip"}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def make_app(url: str, prefix: str, **settings: Any) -> Mainspring:
    app = Mainspring(f"{url}?prefix={prefix}", nats=NatsSettings(**settings), grace=0)

    @app.job(name="ping")
    def ping() -> None: ...

    return app


def look(servers: Servers, prefix: str, **settings: Any) -> NatsFacts:
    return read_facts(servers.urls, NatsSettings(prefix=prefix, **settings), SystemClock())


def bad(report: Report) -> dict[str, str]:
    """What is worse than a note, whatever this machine is like."""
    worse = [finding for finding in report.findings if finding.severity.value in ("warning", "error")]
    return {finding.check: finding.what for finding in worse if finding.check not in OF_THE_MACHINE}


def streams_of(servers: Servers) -> list[str]:
    answer = servers.nodes[0].ask("/jsz?accounts=true&streams=true") or {}
    details = [detail for account in answer["account_details"] for detail in account.get("stream_detail") or []]
    return [detail["name"] for detail in details]


def test_an_unused_server_stays_unused(nats_server: Servers, nats_prefix: str) -> None:
    facts = look(nats_server, nats_prefix)
    assert facts.stream is None
    assert facts.account is not None
    report = examine(make_app(nats_server.url, nats_prefix))
    assert bad(report) == {"stream": f"there is no stream {nats_prefix!r}"}
    assert not [name for name in streams_of(nats_server) if nats_prefix in name]


def test_thousands_of_jobs_at_the_same_instant_are_reported(nats_server: Servers, nats_prefix: str) -> None:
    app = make_app(nats_server.url, nats_prefix)
    job = app.job(name="digest")(print)
    with app, app.running():
        job.after(3_600).submit_many([()] * 1_100)
        report = examine(app)
    assert bad(report)["slots"].startswith(
        "1,100 jobs of digest in queue default become due within the same 268 ms"
    )


def test_a_store_at_work_is_in_order(nats_server: Servers, nats_prefix: str) -> None:
    app = make_app(nats_server.url, nats_prefix)
    with app, app.running():
        app.manager().submit("ping", delay=3_600)
        report = examine(app)
        facts = look(nats_server, nats_prefix)
    assert bad(report) == {}
    assert 0 < facts.round_trip < 1
    assert abs(facts.ahead) < 1
    assert all(facts.consumers.values())


def test_jobs_without_a_handler_are_found(nats_server: Servers, nats_prefix: str) -> None:
    app = make_app(nats_server.url, nats_prefix)
    other = Mainspring(app.url, grace=0)

    @other.job(name="pong")
    def pong() -> None: ...

    with app, other:
        app.manager().submit("ping")
        with other.running():
            report = examine(other)
    assert bad(report) == {"handlers": "no worker has a handler for ping, and 1 job waits for it"}


def test_settings_that_an_operator_has_changed_are_found(nats_server: Servers, nats_prefix: str) -> None:
    app = make_app(nats_server.url, nats_prefix)
    with app:
        app.manager().submit("ping", delay=3_600)
    edit_stream(nats_server, nats_prefix, max_bytes=50_000_000)
    assert bad(examine(app)) == {"stream": "the stream has limits: max_bytes=50000000"}


def test_missing_rights_are_named(make_nats_server: MakeServers) -> None:
    allowed = ["$JS.API.INFO", "$JS.API.STREAM.INFO.shop", "$JS.API.STREAM.INFO.shop-events"]
    permissions = {"publish": {"allow": allowed}, "subscribe": {"allow": ["_INBOX.>", "shop.note.*"]}}
    users = [{"user": "all", "password": "a"}, {"user": "few", "password": "b", "permissions": permissions}]
    servers = make_nats_server(settings={"authorization": {"users": users}})
    with make_app(servers.url, "shop", user="all", password="a") as app:
        app.manager().submit("ping", delay=3_600)
    report = examine(make_app(servers.url, "shop", user="few", password="b"))
    assert "direct.get.shop" in bad(report)["rights"]
    assert "shop.settings" in bad(report)["rights"]
    assert "workers" not in {finding.check for finding in report.findings}


@pytest.mark.long
def test_a_cluster_is_judged_by_its_copies(make_nats_cluster: MakeServers) -> None:
    servers = make_nats_cluster()
    app = make_app(servers.url, "shop")
    with app:
        app.manager().submit("ping", delay=3_600)
        assert bad(examine(app)) == {"replicas": "one copy of each message, in cluster mainspring"}
    # Of its own: a stream that is just being copied to more servers may stay without a leader if one is killed.
    with make_app(servers.url, "copied", replicas=3) as replicated:
        replicated.manager()
        assert eventually(lambda: "replicas" not in bad(examine(replicated)))
        # A cluster that has lost a leader answers nothing until it has another one.
        leaders = servers.leader_of("copied"), servers.meta_leader()
        killed = next(node for node in servers.nodes if node not in leaders)
        servers.kill(killed)
        seen: list[dict[str, str]] = []

        def is_missed() -> bool:
            seen.append(bad(examine(replicated)))
            return f"{killed.name} " in seen[-1].get("replicas", "")

        assert eventually(is_missed), (killed.name, len(seen), seen[-1])


def test_a_monitor_says_how_often_a_server_syncs(make_nats_server: MakeServers) -> None:
    servers = make_nats_server(sync_always=True)
    app = make_app(servers.url, "shop")
    with app:
        app.manager().submit("ping", delay=3_600)
    report = examine(app, monitor=servers.nodes[0].monitor_url)
    assert {f.check: f.severity.value for f in report.findings}["sync"] == "ok"
    assert read_monitor(servers.nodes[0].monitor_url.removeprefix("http://"))["server_name"] == "mainspring"


@pytest.mark.parametrize("address", ["ftp://127.0.0.1", "http://127.0.0.1:1", "http://127.0.0.1:99999", ""])
def test_a_monitor_that_does_not_answer_is_a_warning_and_hides_nothing(
    nats_server: Servers, nats_prefix: str, address: str
) -> None:
    app = make_app(nats_server.url, nats_prefix)
    with app, app.running():
        report = examine(app, monitor=address)
    assert list(bad(report)) == ["monitor"]
    assert "workers" in {finding.check for finding in report.findings}


def test_routes_that_any_server_can_use_are_reported(make_nats_cluster: MakeServers) -> None:
    servers = make_nats_cluster()
    report = examine(make_app(servers.url, "shop"), monitor=servers.nodes[0].monitor_url)
    found = [finding.what for finding in report.findings if finding.check == "routes"]
    assert [what.partition(" have ")[2] or what.partition(" need ")[2] for what in found] == [
        "no TLS",
        "no password",
    ]
    assert {finding.severity.value for finding in report.findings if finding.check == "routes"} == {"warning"}


@pytest.mark.parametrize("authorization", [{}, {"authorization": {"user": "route", "password": "s3cret"}}])
def test_a_server_is_asked_whether_others_need_a_password_to_join(
    authorization: dict[str, Any], tmp_path: Path
) -> None:
    with HeldPorts() as held:
        monitor, port = held.choose(), held.choose()
        cluster = {"name": "lab", "listen": f"0.0.0.0:{port}", **authorization}
        listen = {"listen": f"{HOST}:{held.choose()}", "http": f"{HOST}:{monitor}"}
        process = ServerProcess(find_server(), tmp_path, {**listen, "cluster": cluster})
        url = f"http://{HOST}:{monitor}"
        process.start()
        try:
            assert eventually(lambda: is_listening(monitor) and is_listening(port))
            assert routes_need_password(read_monitor(url), url) is bool(authorization)
            said = process.log.read_text()
        finally:
            process.kill()
        assert routes_need_password({"cluster": {"addr": HOST, "cluster_port": port}}, url) is None
        assert "[ERR]" not in said
