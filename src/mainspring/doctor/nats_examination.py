"""Examines a store on NATS: the servers, the streams, then the jobs in them.

The monitoring port of a server has facts that clients cannot read. Modules that need the NATS client are imported
late; if it is missing, a finding says what to install.
"""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from mainspring.doctor.examination import Examination
from mainspring.doctor.findings import Check, Finding, warning
from mainspring.engines.nats.settings import NatsSettings, parse_url
from mainspring.jobs.engine import STALE
from mainspring.jobs.timestamps import MICROSECONDS

if TYPE_CHECKING:
    from mainspring.doctor.nats_facts import NatsFacts


PORT = 8222
TIMEOUT_SECONDS = 2.0
MAX_INFO = 65_536  # bytes of the line with which a server begins


def read_monitor(url: str) -> dict[str, Any]:
    """Return the reply of `/varz` at a NATS server's monitoring address.

    Raises `ConnectionError` if the address is wrong, or does not answer with a JSON object.
    """
    parts = urlsplit(_with_scheme(url))
    if not parts.hostname or parts.scheme not in ("http", "https"):
        raise ConnectionError("this address is not an http or https address such as http://127.0.0.1:8222")
    try:
        port = parts.port or PORT
    except ValueError as error:
        raise ConnectionError(f"the port of this monitoring address is wrong: {error}") from error
    make = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    with closing(make(parts.hostname, port, timeout=TIMEOUT_SECONDS)) as connection:
        try:
            connection.request("GET", f"{parts.path.rstrip('/')}/varz")
            response = connection.getresponse()
            answer = json.loads(response.read()) if response.status == http.client.OK else None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ConnectionError(str(error) or type(error).__name__) from error
    if not isinstance(answer, dict):
        raise ConnectionError(f"/varz did not answer with a JSON object (the HTTP status is {response.status})")
    return answer


def routes_need_password(monitor: dict[str, Any], url: str) -> bool | None:
    """Return whether the server asks other servers for a password; None if it has no routes, or does not say.

    `url` is the address of `monitor`. The server says it first of all, unless its routes use TLS: then it says
    nothing to a client without a certificate. This connects to the port for routes, and sends nothing.
    """
    cluster = monitor.get("cluster", {})
    if not cluster.get("cluster_port") or cluster.get("tls_required"):
        return None
    host = str(cluster.get("addr") or "")
    with suppress(ValueError):
        if ip_address(host).is_unspecified:
            host = ""
    address = host or urlsplit(_with_scheme(url)).hostname, int(cluster["cluster_port"])
    try:
        with socket.create_connection(address, timeout=TIMEOUT_SECONDS) as connection:
            line = connection.makefile("rb").readline(MAX_INFO)
        command, _, body = line.partition(b" ")
        return bool(json.loads(body).get("auth_required", False)) if command == b"INFO" else None
    except (OSError, ValueError, AttributeError):
        return None


def _with_scheme(url: str) -> str:
    return url if "//" in url else f"http://{url}"


def no_monitor(url: str, problem: ConnectionError) -> Finding:
    """Return the warning that the monitoring address of a NATS server is wrong, or does not respond."""
    return warning(
        f"the monitoring address {url!r} cannot be read: {problem}",
        "Some facts stay unknown: how often the server syncs its files, and how much storage it has.",
        "Pass the address that http: or -m of nats-server sets, as in --monitor http://127.0.0.1:8222",
    )


def examine_store(examination: Examination) -> None:
    """Examine the NATS servers and streams; then the jobs, if there are streams and the user may read them."""
    replies: list[dict[str, Any]] = []
    monitor = examination.monitor
    if monitor is not None:
        examination.carry_out([Check("monitor", lambda: _read_monitor(monitor, replies))])
    facts = examination.attempt("server", lambda: _read_facts(examination, replies[0] if replies else None))
    if facts is None:
        examination.examine_jobs("there is no connection", counts=False)
        return
    from mainspring.doctor import nats_checks  # noqa: PLC0415 - the NATS client may be missing

    examination.carry_out(nats_checks.checks_of_server(facts, examination.app.max_payload))
    examination.examine_jobs(
        nats_checks.why_not_open(facts),
        counts=examination.thorough or nats_checks.is_small(facts),
        patience=max(STALE, round(facts.settings.lease * MICROSECONDS)),
    )


def _read_facts(examination: Examination, monitor: dict[str, Any] | None) -> NatsFacts:
    app = examination.app
    # raises an error that says what to install, if the client is missing
    app.make_engine(examination.clock, read_only=True)
    from mainspring.doctor.nats_facts import read_facts  # noqa: PLC0415 - the NATS client may be missing

    servers, settings = parse_url(app.url, app.nats or NatsSettings())
    facts = read_facts(servers, settings, examination.clock, monitor)
    if monitor is None or examination.monitor is None:
        return facts
    return replace(facts, routes_need_password=routes_need_password(monitor, examination.monitor))


def _read_monitor(monitor: str, replies: list[dict[str, Any]]) -> Iterator[Finding]:
    try:
        replies.append(read_monitor(monitor))
    except ConnectionError as problem:
        yield no_monitor(monitor, problem)
