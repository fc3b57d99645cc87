"""Lists the checks of a NATS store. The checks send no requests: they compare facts that `nats_facts` has read."""

from __future__ import annotations

from mainspring.doctor import nats_network_checks as network
from mainspring.doctor import nats_server_checks as server
from mainspring.doctor import nats_stream_checks as stream
from mainspring.doctor.findings import Check
from mainspring.doctor.nats_facts import NatsFacts

FEW_MESSAGES = 20_000
"""The largest number of messages in a stream whose jobs can be copied to a projection and counted quickly."""


def checks_of_server(facts: NatsFacts, max_payload: int) -> list[Check]:
    """Return the checks of the NATS servers and the streams, without those whose facts could not be read."""
    checks = [
        Check("server", lambda: server.check_server(facts)),
        Check("rights", lambda: server.check_rights(facts)),
    ]
    if facts.monitor is not None or facts.server.get("cluster"):
        checks.append(Check("routes", lambda: network.check_routes(facts)))
    if facts.monitor is not None:
        checks.append(Check("clients", lambda: network.check_clients(facts)))
    if facts.account is None:
        return checks
    checks += [
        Check("storage", lambda: server.check_storage(facts)),
        Check("payload", lambda: server.check_payload(facts, max_payload)),
    ]
    if facts.stream is None and facts.denied:  # it is unknown whether there is a stream
        return checks
    checks.append(Check("stream", lambda: stream.check_stream(facts)))
    if facts.stream is None:
        return checks
    return [
        *checks,
        Check("activity", lambda: stream.check_activity(facts)),
        Check("replicas", lambda: stream.check_replicas(facts)),
        Check("sync", lambda: server.check_sync(facts)),
        Check("lease", lambda: stream.check_lease(facts)),
        Check("consumers", lambda: stream.check_consumers(facts)),
        Check("deliveries", lambda: server.check_deliveries(facts)),
        Check("server-clock", lambda: server.check_clock(facts)),
        Check("round-trip", lambda: server.check_distance(facts)),
    ]


def why_not_open(facts: NatsFacts) -> str | None:
    """Return why jobs, workers and schedules cannot be read without creating streams; None if they can."""
    if facts.denied:
        return "the server denies requests that are needed to read them"
    if facts.stream is None or facts.events is None:
        return "there is no stream to read them from"
    return None


def is_small(facts: NatsFacts) -> bool:
    """Return whether the stream of the jobs has at most 20,000 messages, so that its jobs are counted quickly."""
    return facts.stream is not None and int(facts.stream["state"]["messages"]) <= FEW_MESSAGES
