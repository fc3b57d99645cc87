"""Judgements about who can reach and join NATS servers, on what a monitor says; `tests/nats` has real ones."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring import NatsSettings
from mainspring.doctor.findings import Check, Severity
from mainspring.doctor.nats_checks import checks_of_server
from mainspring.doctor.nats_facts import NatsFacts
from mainspring.doctor.nats_network_checks import check_clients, check_routes
from tests.unit.doctor.finding_assertions import assert_finding, findings_of, is_all_ok

EVERYWHERE = "0.0.0.0"


def facts(*, routes_need_password: bool | None = None, **monitor: Any) -> NatsFacts:
    said = {"server_name": "n1", "host": "10.0.0.1", "port": 4222, "now": "2026-11-19T12:00:00.123456789Z"}
    return NatsFacts(
        settings=NatsSettings(prefix="shop"),
        server={"cluster": "lab"},
        monitor=said | monitor,
        routes_need_password=routes_need_password,
    )


def routes(address: str, **changes: Any) -> dict[str, Any]:
    return {"cluster": {"name": "lab", "addr": address, "cluster_port": 6222} | changes}


@pytest.mark.parametrize(
    ("address", "severity"),
    [
        (EVERYWHERE, "error"),
        ("10.0.0.1", "error"),
        ("nats-1", "error"),
        ("::1", "warning"),
        ("127.0.0.1", "warning"),
    ],
)
def test_routes_that_any_server_can_use_are_reported(address: str, severity: str) -> None:
    open_routes, no_password = findings_of(check_routes(facts(routes_need_password=False, **routes(address))))
    assert open_routes.severity == no_password.severity == Severity(severity)
    assert open_routes.what == f"routes at {address}:6222 have no TLS"
    assert no_password.what == f"routes at {address}:6222 need no password"
    assert "can read and change everything" in open_routes.reason


def test_a_password_alone_does_not_protect_routes() -> None:
    found = check_routes(facts(routes_need_password=True, **routes(EVERYWHERE)))
    assert_finding(found, Severity.ERROR, "have no TLS")


def test_a_port_that_does_not_answer_is_not_called_safe() -> None:
    found = findings_of(check_routes(facts(routes_need_password=None, **routes(EVERYWHERE))))
    assert [finding.severity for finding in found] == [Severity.ERROR, Severity.INFO]
    assert "is unknown" in found[1].what


def test_routes_with_tls_are_in_order() -> None:
    assert is_all_ok(check_routes(facts(**routes(EVERYWHERE, tls_required=True, tls_verify=True))))


def test_a_server_without_routes_is_in_order() -> None:
    assert is_all_ok(check_routes(facts(cluster={})))


def test_without_a_monitor_a_cluster_is_told_that_its_routes_are_unknown() -> None:
    def checks(**server: str) -> dict[str, Check]:
        unknown = NatsFacts(settings=NatsSettings(), server=server)
        return {check.name: check for check in checks_of_server(unknown, 1 << 20)}

    assert_finding(checks(cluster="lab")["routes"].run(), Severity.INFO, "a client cannot read")
    assert "clients" not in checks(cluster="lab")
    assert "routes" not in checks()


def test_clients_without_tls_or_a_password_are_reported_unless_all_are_on_this_machine() -> None:
    open_to_all = facts(host=EVERYWHERE)
    no_password, no_tls = findings_of(check_clients(open_to_all))
    assert (no_password.severity, no_tls.severity) == (Severity.ERROR, Severity.WARNING)
    assert no_password.what == f"clients at {EVERYWHERE}:4222 need no password"
    assert_finding(
        check_clients(facts(auth_required=True)), Severity.WARNING, "clients at 10.0.0.1:4222 need no TLS"
    )
    assert_finding(check_clients(facts(tls_required=True)), Severity.ERROR, "need no password")
    assert is_all_ok(check_clients(facts(auth_required=True, tls_required=True, tls_verify=True)))
    assert is_all_ok(check_clients(facts(host="127.0.0.1")))


@pytest.mark.parametrize(
    ("end", "severity", "word"),
    [
        ("2026-11-19T11:59:00Z", Severity.ERROR, "expired at 2026-11-19 11:59 UTC"),
        ("2026-12-19T11:59:00Z", Severity.WARNING, "expires at 2026-12-19 11:59 UTC"),
    ],
)
def test_a_certificate_that_ends_is_reported(end: str, severity: Severity, word: str) -> None:
    server = facts(auth_required=True, tls_required=True, tls_cert_not_after=end)
    assert_finding(check_clients(server), severity, "of n1 for clients", word)
    cluster = routes(EVERYWHERE, tls_required=True, tls_cert_not_after=end)
    assert_finding(check_routes(facts(**cluster)), severity, "of n1 for routes", word)


def test_a_certificate_that_is_valid_for_long_is_in_order() -> None:
    end = "2026-12-19T12:01:00Z"
    assert is_all_ok(check_clients(facts(auth_required=True, tls_required=True, tls_cert_not_after=end)))
