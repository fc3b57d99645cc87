"""Accounts of roles: an installation changes to them while it works, and processes know their account."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from mainspring import JobStatus, Mainspring, NatsSettings
from mainspring.cli.nats_permissions import make_grant
from mainspring.clock import SystemClock
from mainspring.doctor.nats_facts import read_facts
from mainspring.doctor.nats_server_checks import check_rights
from mainspring.engines.nats import queueing
from mainspring.engines.nats.presence import Presence
from mainspring.engines.nats.settings import ROLES, parse_url
from mainspring.errors import EngineUnavailable
from tests.nats.restricted_servers import PASSWORD, RestrictedServers, run_program
from tests.nats.servers import MakeServers
from tests.support import PATIENCE, eventually

pytestmark = pytest.mark.long


def one_account_for_all() -> str:
    """Return a configuration as earlier versions printed it: the users share the account of the data."""
    users = [f'{{ user: "shop-{role}", password: {PASSWORD} }}' for role in ROLES]
    return f"accounts {{ SHOP {{ jetstream: enabled, users: [ {', '.join(users)} ] }} }}"


def engine_of(app: Mainspring) -> Any:
    return app.manager().engine


def test_jobs_go_on_when_the_servers_get_accounts_for_roles(
    make_nats_server: MakeServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for role in ROLES:
        monkeypatch.setenv(make_grant("shop", role).password_variable, PASSWORD)
    file = tmp_path / "accounts.conf"
    file.write_text(one_account_for_all())
    place = RestrictedServers(make_nats_server(include=file), tmp_path)
    submitter, worker = place.app("submitter"), place.app("worker")
    with place.app("operator") as operator:
        operator.manager()
    with submitter, worker, worker.running():
        assert submitter.plain.submit().wait(PATIENCE) is JobStatus.COMPLETED
        assert not engine_of(worker).components.jetstream.has_imported_api
        file.write_text(run_program("nats", "permissions", "--prefix", "shop"))
        place.servers.stop()  # not a reload: the first one leaves new imports without effect
        place.servers.restart()
        with place.app("operator") as operator:
            operator.manager()  # creates the guarded stream in its account
        assert eventually(lambda: engine_of(submitter).components.jetstream.has_imported_api)
        assert eventually(lambda: engine_of(worker).components.jetstream.has_imported_api)
        handles = []

        def is_submitted() -> bool:
            try:
                handles.append(submitter.plain.after(0.1).submit())
            except EngineUnavailable:  # the connection may be lost once more
                return False
            return True

        assert eventually(is_submitted)
        assert handles[0].wait(PATIENCE) is JobStatus.COMPLETED


def test_a_worker_is_watched_only_by_processes_of_its_account(
    make_nats_server: MakeServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Probes and lists of connections do not pass from one account to another: a living worker would look dead."""
    for role in ROLES:
        monkeypatch.setenv(make_grant("shop", role).password_variable, PASSWORD)
    file = tmp_path / "accounts.conf"
    file.write_text(run_program("nats", "permissions", "--prefix", "shop"))
    place = RestrictedServers(make_nats_server(include=file), tmp_path)
    with place.app("operator") as operator:
        operator.manager()
    with place.app("worker") as app, app.running():
        engine = engine_of(app)
        (record,) = engine._workers.read_all().values()
        assert record.record.presence.account == "SHOP_WORKER"
        watching = engine.components.monitor._own
        assert watching.is_observable(Presence("other", "server", 1, "SHOP_WORKER"))
        for account in ("SHOP", "SHOP_OPERATOR", ""):
            assert not watching.is_observable(Presence("other", "server", 1, account))
        assert not watching.is_observable(record.record.presence)  # itself


def test_single_submits_do_not_cut_off_the_jobs_behind_them(
    make_nats_server: MakeServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message without data and headers would end the deliveries to a fetch from another account."""
    for role in ROLES:
        monkeypatch.setenv(make_grant("shop", role).password_variable, PASSWORD)
    file = tmp_path / "accounts.conf"
    file.write_text(run_program("nats", "permissions", "--prefix", "shop"))
    place = RestrictedServers(make_nats_server(include=file), tmp_path)
    with place.app("operator") as operator:
        operator.manager()
    submitter, worker = place.app("submitter"), place.app("worker")
    with submitter, worker:
        handles = [submitter.plain.submit() for _ in range(60)]
        deliveries = engine_of(worker).components.jetstream.pulls
        with worker.running():
            for handle in handles:
                assert handle.wait(PATIENCE) is JobStatus.COMPLETED
        assert not deliveries._cut  # each fetch got all that the consumer had


def test_messages_of_earlier_versions_that_cut_off_others_only_delay_them(
    make_nats_server: MakeServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for role in ROLES:
        monkeypatch.setenv(make_grant("shop", role).password_variable, PASSWORD)
    file = tmp_path / "accounts.conf"
    file.write_text(run_program("nats", "permissions", "--prefix", "shop"))
    place = RestrictedServers(make_nats_server(include=file), tmp_path)
    with place.app("operator") as operator:
        operator.manager()
    monkeypatch.setattr(queueing, "APART", None)
    submitter, worker = place.app("submitter"), place.app("worker")
    with submitter, worker:
        handles = [submitter.plain.submit() for _ in range(20)]
        with worker.running():
            for handle in handles:
                assert handle.wait(PATIENCE) is JobStatus.COMPLETED
        assert engine_of(worker).components.jetstream.pulls._cut


def test_a_notification_of_each_role_reaches_all_others(
    make_nats_server: MakeServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for role in ROLES:
        monkeypatch.setenv(make_grant("shop", role).password_variable, PASSWORD)
    file = tmp_path / "accounts.conf"
    file.write_text(run_program("nats", "permissions", "--prefix", "shop"))
    place = RestrictedServers(make_nats_server(include=file), tmp_path)
    with ExitStack() as stack:
        engines = {role: engine_of(stack.enter_context(place.app(role))) for role in ("operator", *ROLES[:2])}
        heard: dict[str, set[str]] = {role: set() for role in engines}
        for role, engine in engines.items():
            monkeypatch.setattr(engine.components.stop_requests, "add", heard[role].add)

        def all_hear_all() -> bool:
            for role, engine in engines.items():  # again, as long as a subscription may be on its way
                engine.components.jetstream.send([("shop.note.stop", role.encode())])
            return all(roles == set(ROLES) for roles in heard.values())

        assert eventually(all_hear_all)
    assert place.violations() == []


def test_the_doctor_tries_what_the_server_publishes_for_a_role(
    make_nats_server: MakeServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for role in ROLES:
        monkeypatch.setenv(make_grant("shop", role).password_variable, PASSWORD)
    file = tmp_path / "accounts.conf"
    file.write_text(one_account_for_all())
    place = RestrictedServers(make_nats_server(include=file), tmp_path)
    with place.app("operator") as operator:
        operator.manager()
    servers, settings = parse_url(place.url("submitter"), NatsSettings())
    facts = read_facts(servers, settings, SystemClock())
    assert facts.server_writes == ("reply",)
    (error, _) = check_rights(facts)
    assert error.what == "the server publishes for the submitter what it may not publish itself: by reply"
    assert facts.is_strict

    file.write_text(run_program("nats", "permissions", "--prefix", "shop"))
    place.servers.stop()
    place.servers.restart()
    with place.app("operator") as operator:
        operator.manager()
    for role in ROLES:
        servers, settings = parse_url(place.url(role), NatsSettings())
        facts = read_facts(servers, settings, SystemClock())
        assert [finding.severity.value for finding in check_rights(facts)] == ["ok"], role
    assert place.violations() == []


def test_the_doctor_tries_the_streams_of_an_earlier_version(make_nats_server: MakeServers, tmp_path: Path) -> None:
    file = tmp_path / "accounts.conf"
    file.write_text(one_account_for_all())
    place = RestrictedServers(make_nats_server(include=file), tmp_path)
    with place.app("operator") as operator:
        jetstream = engine_of(operator).components.jetstream
        jetstream.api("STREAM.DELETE.shop-guarded")
    servers, settings = parse_url(place.url("submitter"), NatsSettings())
    assert read_facts(servers, settings, SystemClock()).server_writes == ("reply", "schedule")


def test_the_doctor_warns_of_an_api_that_is_not_strict(make_nats_server: MakeServers, tmp_path: Path) -> None:
    file = tmp_path / "accounts.conf"
    file.write_text(one_account_for_all())
    servers = make_nats_server(include=file, settings={"jetstream": {"strict": False}})
    place = RestrictedServers(servers, tmp_path)
    with place.app("operator") as operator:
        operator.manager()
    servers_, settings = parse_url(place.url("submitter"), NatsSettings())
    facts = read_facts(servers_, settings, SystemClock())
    assert "the JetStream API accepts requests with unknown fields" in [f.what for f in check_rights(facts)]
