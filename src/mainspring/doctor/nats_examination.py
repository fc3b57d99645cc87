"""Examines a store on NATS: the servers, the streams, then the jobs in them.

The monitoring port of a server gives facts that clients cannot read. Modules that need the NATS client are
imported late; if it is missing, a finding says what to install.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import closing
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
PATIENCE = 2.0


def ask_monitor(url: str) -> dict[str, Any]:
    """Return the answer of `/varz` of a server's monitoring; raises `ConnectionError` if there is none."""
    parts = urlsplit(url if "//" in url else f"http://{url}")
    if not parts.hostname or parts.scheme not in ("http", "https"):
        raise ConnectionError("it is no address")
    make = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    with closing(make(parts.hostname, parts.port or PORT, timeout=PATIENCE)) as connection:
        try:
            connection.request("GET", f"{parts.path.rstrip('/')}/varz")
            response = connection.getresponse()
            answer = json.loads(response.read()) if response.status == http.client.OK else None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ConnectionError(str(error) or type(error).__name__) from error
    if not isinstance(answer, dict):
        raise ConnectionError(f"it answered with status {response.status}")
    return answer


def no_monitor(url: str, problem: ConnectionError) -> Finding:
    """Return the finding for a monitoring address that does not respond."""
    return warning(
        f"there is no monitor of a NATS server at {url!r}: {problem}",
        "What only the server itself tells stays unknown: how often it syncs, how much room it has.",
        "Give the address that http: or -m of nats-server names, as in --monitor http://127.0.0.1:8222",
    )


def examine_store(examination: Examination) -> None:
    """Examine the servers and streams, and the jobs if this user may read them."""
    answers: list[dict[str, Any]] = []
    monitor = examination.monitor
    if monitor is not None:
        examination.carry_out([Check("monitor", lambda: _ask(monitor, answers))])
    facts = examination.attempt("server", lambda: _visit(examination, answers[0] if answers else None))
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


def _visit(examination: Examination, monitor: dict[str, Any] | None) -> NatsFacts:
    app = examination.app
    app.make_engine(examination.clock, read_only=True)  # raises, with what to install, if the client is missing
    from mainspring.doctor.nats_facts import visit  # noqa: PLC0415 - the NATS client may be missing

    servers, settings = parse_url(app.url, app.nats or NatsSettings())
    return visit(servers, settings, examination.clock, monitor)


def _ask(monitor: str, answers: list[dict[str, Any]]) -> Iterator[Finding]:
    try:
        answers.append(ask_monitor(monitor))
    except ConnectionError as problem:
        yield no_monitor(monitor, problem)
