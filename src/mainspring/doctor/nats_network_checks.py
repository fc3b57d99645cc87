"""Checks who can reach and join NATS servers: TLS and passwords of routes and clients; the end of certificates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from ipaddress import ip_address
from typing import Any

from mainspring.doctor.findings import Finding, error, info, ok, warning
from mainspring.doctor.nats_facts import NatsFacts

MANUAL = "docs/nats.md, 'TLS and routes': mainspring nats certificates makes the files."
EXPIRES_SOON = timedelta(days=30)


def check_routes(facts: NatsFacts) -> Iterator[Finding]:
    """Report routes of a cluster without TLS or without a password, and the end of their certificate.

    At a loopback address open routes are a warning, elsewhere an error.
    """
    if facts.monitor is None:
        yield info(
            "a client cannot read how the routes of the cluster are protected",
            "A server that joins through an open port for routes can read and change everything.",
            "Pass --monitor http://HOST:8222 (http: or -m of nats-server).",
        )
        return
    cluster = facts.monitor.get("cluster", {})
    if not cluster.get("cluster_port"):
        yield ok("the server has no routes")
        return
    place = f"{cluster.get('addr') or 'all addresses'}:{cluster['cluster_port']}"
    severity = warning if _is_loopback(cluster.get("addr")) else error
    if cluster.get("tls_required"):
        yield ok(f"routes at {place} use TLS and verify each other; whether they need a password cannot be seen")
        yield from _check_certificate("routes", facts.monitor, cluster)
        return
    why = "A server that joins can read and change everything, whatever passwords clients have."
    yield severity(f"routes at {place} have no TLS", why, f"Give them certificates; see {MANUAL}")
    if facts.routes_need_password is None:
        yield info(
            f"whether routes at {place} need a password is unknown, because the port does not answer this machine",
            why,
            "Run this command on a machine that can reach the port.",
        )
    elif not facts.routes_need_password:
        yield severity(
            f"routes at {place} need no password",
            why,
            "Set cluster { authorization { user, password } } on every server, and both in the URLs of routes.",
        )


def check_clients(facts: NatsFacts) -> Iterator[Finding]:
    """Report an error if clients need no password, a warning if they need no TLS, and the end of the certificate.

    Clients at a loopback address need neither.
    """
    monitor = facts.monitor or {}
    place = f"{monitor.get('host') or 'all addresses'}:{monitor.get('port', '')}"
    is_local = _is_loopback(monitor.get("host"))
    if not monitor.get("auth_required") and not is_local:
        yield error(
            f"clients at {place} need no password",
            "All who can reach this address can read and change everything.",
            f"mainspring nats permissions --prefix {facts.settings.prefix} prints users for the configuration.",
        )
    if monitor.get("tls_required"):
        yield ok(f"clients at {place} need TLS{' and a certificate' if monitor.get('tls_verify') else ''}")
        yield from _check_certificate("clients", monitor, monitor)
    elif is_local:
        yield ok(f"clients at {place} are on the machine of the server")
    else:
        yield warning(
            f"clients at {place} need no TLS",
            "Others in the network can read passwords and jobs, and change them.",
            f"Give the server a certificate; see {MANUAL}",
        )


def _check_certificate(whom: str, monitor: Mapping[str, Any], part: Mapping[str, Any]) -> Iterator[Finding]:
    """Report a certificate that ends within 30 days, or has ended, by the clock of the server."""
    now, end = _to_time(monitor.get("now")), _to_time(part.get("tls_cert_not_after"))
    if now is not None and end is not None and end - now < EXPIRES_SOON:
        severity, verb = (error, "expired") if end <= now else (warning, "expires")
        yield severity(
            f"the certificate of {monitor.get('server_name')} for {whom} {verb} at {end:%Y-%m-%d %H:%M} UTC",
            f"{whom.capitalize()} do not connect when it has expired.",
            f"Remove its folder, make it again and reload the server; see {MANUAL}",
        )


def _is_loopback(address: str | None) -> bool:
    try:
        return ip_address(address or "").is_loopback
    except ValueError:
        return address == "localhost"


def _to_time(text: str | None) -> datetime | None:
    return None if not text else datetime.fromisoformat(f"{text[:19]}+00:00")  # the server's times are in UTC
