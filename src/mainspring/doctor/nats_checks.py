"""The checks of a NATS store, put together: one visit, then judgements."""

from __future__ import annotations

from mainspring.doctor import nats_server as server
from mainspring.doctor import nats_stream as stream
from mainspring.doctor.findings import Check
from mainspring.doctor.nats_facts import NatsFacts

FEW_MESSAGES = 20_000
"""A stream with no more can be copied, to count its jobs, in a second or two."""


def checks_of_server(facts: NatsFacts, max_payload: int) -> list[Check]:
    """Return what can be judged of the servers and of the stream."""
    checks = [
        Check("server", lambda: server.check_server(facts)),
        Check("rights", lambda: server.check_rights(facts)),
    ]
    if facts.account is None:
        return checks
    checks += [
        Check("storage", lambda: server.check_storage(facts)),
        Check("payload", lambda: server.check_payload(facts, max_payload)),
    ]
    if facts.stream is None and facts.denied:  # whether there is one is not known
        return checks
    checks.append(Check("stream", lambda: stream.check_stream(facts)))
    if facts.stream is None:
        return checks
    return [
        *checks,
        Check("replicas", lambda: stream.check_replicas(facts)),
        Check("sync", lambda: server.check_sync(facts)),
        Check("lease", lambda: stream.check_lease(facts)),
        Check("consumers", lambda: stream.check_consumers(facts)),
        Check("server-clock", lambda: server.check_clock(facts)),
        Check("round-trip", lambda: server.check_distance(facts)),
    ]


def why_not_open(facts: NatsFacts) -> str | None:
    """Say why the engine is better not opened; None if all is well."""
    if facts.denied:
        return "this user has not the rights to read them"
    if facts.stream is None or facts.events is None:
        return "there is no stream to read them from"
    return None


def is_small(facts: NatsFacts) -> bool:
    """Answer whether counting jobs takes no time."""
    return facts.stream is not None and int(facts.stream["state"]["messages"]) <= FEW_MESSAGES
