"""Checks the NATS stream that stores the jobs, its replicas, and the consumers that deliver jobs to workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mainspring.doctor.findings import Finding, count, error, in_seconds, info, ok, some, warning
from mainspring.doctor.nats_facts import NatsFacts
from mainspring.engines.nats.streams import NANOSECONDS

LIMITS = ("max_age", "max_bytes", "max_msgs")
LOCKS = ("sealed", "deny_delete", "deny_purge")
COPIES = ("mirror", "sources")
SILENCE = 5.0
"""Seconds. A live server sends the others a heartbeat every second; they report it as offline only after ten."""
ELECTION = 7.0
"""Seconds. The longest pause measured while three servers elected a leader was 6.7."""


def check_stream(facts: NatsFacts) -> Iterator[Finding]:
    """Check the settings of the stream: those it must not have, and those it must have."""
    stream = facts.stream
    if stream is None:
        yield error(
            f"there is no stream {facts.settings.prefix!r}",
            "It keeps the jobs. This prefix was never used, or another one is meant.",
            "Check ?prefix= in the URL; the first submit or worker makes it, unless it is prepared=True or has a "
            "role: then an operator does, with mainspring queues list.",
        )
        return
    config = stream["config"]
    found = [*_limited(config), *_locked(config), *_outdated(facts, config), *_without_events(facts)]
    state = stream["state"]
    yield from found or [ok(f"stream {config['name']} keeps {state['messages']:,} messages, without a limit")]


def _limited(config: dict[str, Any]) -> Iterator[Finding]:
    limits = [f"{name}={config[name]}" for name in LIMITS if config.get(name, 0) > 0]
    if limits:
        yield error(
            f"the stream has limits: {some(limits)}",
            "When one is reached, the server drops the oldest messages, and those are jobs.",
            "Take them off: nats stream edit --max-age=0 --max-bytes=-1 --max-msgs=-1. Give the account room "
            "instead.",
        )


def _locked(config: dict[str, Any]) -> Iterator[Finding]:
    locks = [name for name in LOCKS if config.get(name)]
    if locks:
        yield error(
            f"the stream is closed to changes: {some(locks)}",
            "Jobs that have ended cannot be removed, signs of life and gates cannot be taken back.",
            "These settings cannot be undone: make another prefix, and move there.",
        )
    copies = [name for name in COPIES if config.get(name)]
    if copies:
        yield warning(
            f"the stream has {some(copies)}",
            "Schedules of a stream that copies another one were lost (nats-server#8423).",
            "Copy from it, not into it.",
        )


def _outdated(facts: NatsFacts, config: dict[str, Any]) -> Iterator[Finding]:
    kept_as_it_is = set() if facts.settings.replicas else {"num_replicas"}
    differing = [
        name for name, value in facts.wanted.items() if name not in kept_as_it_is and config.get(name) != value
    ]
    if differing:
        yield warning(
            f"the stream is not as this Mainspring makes it: {some(differing)}",
            "Another version of Mainspring or another program has changed it.",
            "A worker with the right to do so sets it right when it starts"
            + ("; this one has prepared=True, and does not." if facts.settings.prepared else "."),
        )


def _without_events(facts: NatsFacts) -> Iterator[Finding]:
    if facts.events is None:
        yield warning(
            f"there is no stream {facts.settings.prefix}-events",
            "Processes make it when they start; those with prepared=True do not start without it.",
            "Start a worker with the right to create streams.",
        )


def check_replicas(facts: NatsFacts) -> Iterator[Finding]:
    """Check how many servers store each message, and whether they are up to date."""
    stream = facts.stream or {}
    replicas = int(stream.get("config", {}).get("num_replicas", 1))
    cluster = stream.get("cluster", {})
    peers = cluster.get("replicas") or []
    found = [*_leaderless(cluster, replicas), *_too_few(facts, replicas), *_lagging(peers)]
    yield from found or [ok(f"{count(replicas, 'copy', 'copies')} of each message")]


def _leaderless(cluster: dict[str, Any], replicas: int) -> Iterator[Finding]:
    if not cluster.get("leader"):
        yield error(
            f"the stream has no leader among its {replicas} servers",
            "Nothing can be stored, and no job starts.",
            "Bring the servers back: more than half of them must be there.",
        )


def _too_few(facts: NatsFacts, replicas: int) -> Iterator[Finding]:
    if facts.server.get("cluster") and replicas == 1:
        yield warning(
            f"one copy of each message, in cluster {facts.server['cluster']}",
            "If the server that has it is away, all jobs stand still; if its disk is lost, they are, too.",
            "replicas=3: ?replicas=3 in the URL, or NatsSettings(replicas=3).",
        )
    if replicas > 1 and replicas % 2 == 0:
        yield warning(
            f"{replicas} copies of each message",
            "A majority must agree: an even number survives no more failures than one less, and costs more.",
            "Use 3 or 5.",
        )
    wanted = facts.settings.replicas
    if wanted is not None and wanted != replicas:
        yield warning(
            f"{count(replicas, 'copy', 'copies')} of each message, and the settings ask for {wanted}",
            "No worker with these settings has started since, or the cluster has too few servers.",
            "Start one, and look at its log.",
        )


def _lagging(peers: list[dict[str, Any]]) -> Iterator[Finding]:
    away = [peer["name"] for peer in peers if peer.get("offline") or peer.get("active", 0) > SILENCE * NANOSECONDS]
    behind = [peer["name"] for peer in peers if peer["name"] not in away and not peer.get("current", True)]
    if away or behind:
        has_majority = 2 * len(away + behind) < len(peers) + 1
        judge = warning if has_majority else error
        states = [f"{some(away)} away" if away else "", f"{some(behind)} not up to date" if behind else ""]
        yield judge(
            f"of its {len(peers) + 1} servers: {', '.join(filter(None, states))}",
            "With one copy less, the next failure may stop everything."
            if has_majority
            else "Less than a majority is there: nothing can be stored, and no job starts.",
            "Bring them back, and look at their disks and network; one that is gone for good is removed with "
            "nats server cluster peer-remove.",
        )


def check_lease(facts: NatsFacts) -> Finding:
    """Check the lease: the silence after which a worker is presumed dead."""
    lease = facts.settings.lease
    replicas = int((facts.stream or {}).get("config", {}).get("num_replicas", 1))
    if replicas > 1 and lease < ELECTION:
        return warning(
            f"the lease is {in_seconds(lease)}",
            "An election of a leader took up to 6.7 s: all workers would be taken for dead, and what they run "
            "would run again.",
            "lease=20, the default.",
        )
    return ok(f"a worker is taken for dead after {in_seconds(lease)} of silence, however long its handlers take")


def check_consumers(facts: NatsFacts) -> Iterator[Finding]:
    """Check the consumers of all lanes."""
    if not facts.consumers:
        yield info("left out: which consumers there are; this user may not look")
        return
    there = {subject: info for subject, info in facts.consumers.items() if info is not None}
    found = [*_missing(facts), *_of_another_lease(facts, there), *_limiting(there)]
    yield from found or [ok(f"{count(len(there), 'consumer')}, one for each lane and one for chores")]


def _missing(facts: NatsFacts) -> Iterator[Finding]:
    missing = [subject for subject, found in facts.consumers.items() if found is None]
    if not missing:
        return
    what = f"no consumer yet for {some(missing)}"
    if facts.settings.prepared:
        yield error(
            what,
            "Its jobs wait: processes with prepared=True make none.",
            "Start a worker of the operator once, which makes it.",
        )
    else:
        yield info(what, "The first worker that knows the handler makes it.")


def _of_another_lease(facts: NatsFacts, there: dict[str, Any]) -> Iterator[Finding]:
    lease = round(facts.settings.lease * NANOSECONDS)
    others = [found["config"]["ack_wait"] for found in there.values() if found["config"].get("ack_wait") != lease]
    if others:
        yield warning(
            f"{count(len(others), 'consumer')} wait {in_seconds(others[0] / NANOSECONDS)} for a sign of a "
            f"worker, and the lease of this application is {in_seconds(facts.settings.lease)}",
            "Workers give four signs in their lease. If the consumer waits for a shorter time, it delivers "
            "what they still run, again and again; if for a longer one, jobs of the dead are found later.",
            "Give all processes of this prefix the same lease=, and start a worker anew.",
        )


def _limiting(there: dict[str, Any]) -> Iterator[Finding]:
    bounded = [subject for subject, found in there.items() if found["config"].get("max_deliver", -1) > 0]
    if bounded:
        yield error(
            f"the consumer of {some(bounded)} delivers a message a few times only (max_deliver)",
            "After that its job is never delivered again.",
            "nats consumer edit --max-deliver=-1; attempts are counted by Mainspring.",
        )
    paused = [subject for subject, found in there.items() if found.get("paused")]
    if paused:
        yield error(
            f"the consumer of {some(paused)} is paused on the server",
            "Its jobs do not come to any worker.",
            "nats consumer resume",
        )
