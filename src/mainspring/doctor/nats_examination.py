"""Examines a store on NATS: the servers, the streams, then the jobs in them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mainspring.doctor.examination import Examination
from mainspring.doctor.findings import Check, Finding
from mainspring.doctor.nats_monitor import ask_monitor, no_monitor
from mainspring.engines.nats.settings import NatsSettings, parse_url
from mainspring.jobs.engine import STALE
from mainspring.jobs.instants import MICROSECONDS

if TYPE_CHECKING:  # it needs the client of NATS
    from mainspring.doctor.nats_facts import NatsFacts


def examine_store(examination: Examination) -> None:
    """Examine servers and streams, and the jobs if this user may read them."""
    answers: list[dict[str, Any]] = []
    monitor = examination.monitor
    if monitor is not None:
        examination.carry_out([Check("monitor", lambda: _ask(monitor, answers))])
    facts = examination.attempt("server", lambda: _visit(examination, answers[0] if answers else None))
    if facts is None:
        examination.examine_jobs("there is no connection", counts=False)
        return
    from mainspring.doctor import nats_checks  # noqa: PLC0415 - only with the extra

    examination.carry_out(nats_checks.checks_of_server(facts, examination.app.max_payload))
    examination.examine_jobs(
        nats_checks.why_not_open(facts),
        counts=examination.thorough or nats_checks.is_small(facts),
        patience=max(STALE, round(facts.settings.lease * MICROSECONDS)),
    )


def _visit(examination: Examination, monitor: dict[str, Any] | None) -> NatsFacts:
    app = examination.app
    app.make_engine(examination.clock, read_only=True)  # says what to install, if the client is missing
    from mainspring.doctor.nats_facts import visit  # noqa: PLC0415 - only with the extra

    servers, settings = parse_url(app.url, app.nats or NatsSettings())
    return visit(servers, settings, examination.clock, monitor)


def _ask(monitor: str, answers: list[dict[str, Any]]) -> Iterator[Finding]:
    try:
        answers.append(ask_monitor(monitor))
    except ConnectionError as problem:
        yield no_monitor(monitor, problem)
