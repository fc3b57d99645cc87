"""Checks the NATS stream that stores the jobs, its replicas, and the consumers that deliver jobs to workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mainspring.doctor.findings import Finding, error, in_seconds, info, ok, some, warning
from mainspring.doctor.nats_facts import NatsFacts
from mainspring.engines.nats.streams import ACTIVITY_BYTES, ACTIVITY_KEPT, NANOSECONDS
from mainspring.plurals import format_count

LIMITS = ("max_age", "max_bytes", "max_msgs")
LOCKS = ("sealed", "deny_delete", "deny_purge")
COPIES = ("mirror", "sources")
SILENCE_SECONDS = 5.0
"""Seconds after which a server of the cluster that sends nothing counts as offline.

A live server sends the others a heartbeat every second; they report it as offline only after ten.
"""
ELECTION_SECONDS = 7.0
"""The longest pause while three servers elected a leader: 6.7 seconds were measured."""


def check_stream(facts: NatsFacts) -> Iterator[Finding]:
    """Report an error if there is no stream of jobs, and findings about its unsuitable settings.

    Unsuitable are limits that delete jobs, locks that forbid changes, copies from other streams, and settings of
    another version of Mainspring. Also warn if the stream of events is missing.
    """
    stream = facts.stream
    if stream is None:
        yield error(
            f"there is no stream {facts.settings.prefix!r}",
            "The stream stores the jobs. This prefix was never used, or the URL has the wrong prefix.",
            "Check ?prefix= in the URL; the first submit or worker creates it, unless it has prepared=True or a "
            "role: then an operator does, with mainspring queues list.",
        )
        return
    config = stream["config"]
    found = [*_limited(config), *_locked(config), *_outdated(facts, config), *_without_events(facts)]
    state = stream["state"]
    messages = format_count(state["messages"], "message")
    yield from found or [ok(f"stream {config['name']} keeps {messages}, without a limit")]


def _limited(config: dict[str, Any]) -> Iterator[Finding]:
    limits = [f"{name}={config[name]}" for name in LIMITS if config.get(name, 0) > 0]
    if limits:
        yield error(
            f"the stream has limits: {some(limits)}",
            "When a limit is reached, the server deletes the oldest messages, which are jobs.",
            "Remove the limits: nats stream edit --max-age=0 --max-bytes=-1 --max-msgs=-1. Give the account more "
            "storage instead.",
        )


def _locked(config: dict[str, Any]) -> Iterator[Finding]:
    locks = [name for name in LOCKS if config.get(name)]
    if locks:
        yield error(
            f"the stream does not allow changes: {some(locks)}",
            "Jobs that have ended cannot be removed, nor can heartbeats and the states of limits.",
            "These settings cannot be undone: use another prefix, and move the jobs there.",
        )
    copies = [name for name in COPIES if config.get(name)]
    if copies:
        yield warning(
            f"the stream has {some(copies)}",
            "Schedules of a stream that copies another one were lost (nats-server#8423).",
            "Copy from this stream, not into it.",
        )


def _outdated(facts: NatsFacts, config: dict[str, Any]) -> Iterator[Finding]:
    unchecked = set() if facts.settings.replicas else {"num_replicas"}
    # A stream of an earlier version has new subjects behind its own, and one of a newer version has more of them.
    if set(facts.wanted.get("subjects", ())) <= set(config.get("subjects", ())):
        unchecked.add("subjects")
    differing = [
        name for name, value in facts.wanted.items() if name not in unchecked and config.get(name) != value
    ]
    if differing:
        yield warning(
            f"the configuration of the stream differs from that of this version of Mainspring: {some(differing)}",
            "Another version of Mainspring or another program has created or changed the stream.",
            "A process with permission to update the stream does so when it starts"
            + ("; this one has prepared=True, and does not." if facts.settings.prepared else "."),
        )


def _without_events(facts: NatsFacts) -> Iterator[Finding]:
    if facts.events is None:
        yield warning(
            f"there is no stream {facts.settings.prefix}-events",
            "Processes create this stream when they start; those with prepared=True do not start without it.",
            "Start a worker with permission to create streams.",
        )


def check_activity(facts: NatsFacts) -> Finding:
    """Warn if the stream of the activity counts, which `app.activity()` reads, is missing or has wrong limits.

    Jobs do not need the stream.
    """
    name = f"{facts.settings.prefix}-activity"
    if not facts.may_read_activity:
        return info(f"stream {name} was not checked: this user may not read its settings")
    if facts.activity is None:
        return warning(
            f"there is no stream {name}",
            "The counts of all processes are dropped, so that app.activity() and charts are empty. Jobs do not "
            "need the stream.",
            "An operator creates it with permission to create streams:",
            ("queues", "list"),
        )
    config = facts.activity["config"]
    if config.get("discard", "old") != "old":
        return warning(
            f"stream {name} refuses new messages when it is full (discard={config['discard']})",
            "Then new counts are dropped, and the history ends.",
            f"nats stream edit {name} --discard=old",
        )
    if config.get("max_age", 0) <= 0 and config.get("max_bytes", -1) <= 0:
        return warning(
            f"stream {name} has no limit of age and no limit of size",
            "Every process that works adds a message about every 15 s, so that the stream grows for ever.",
            f"nats stream edit {name} --max-age=8d --max-bytes={ACTIVITY_BYTES}",
        )
    kept = config.get("max_age", 0) / NANOSECONDS
    if 0 < kept < ACTIVITY_KEPT:
        return info(
            f"stream {name} keeps the counts of {in_seconds(kept)}; {in_seconds(ACTIVITY_KEPT)} would be usual",
            "A process that reads the history for the first time sees no older counts.",
        )
    messages = format_count(facts.activity["state"]["messages"], "message")
    return ok(f"stream {name} keeps counts: {messages}")


def check_replicas(facts: NatsFacts) -> Iterator[Finding]:
    """Report a stream without a leader, with an unsuitable number of copies, or with lagging or offline servers.

    Unsuitable are one copy in a cluster, an even number, and another number than the settings request.
    """
    stream = facts.stream or {}
    replicas = int(stream.get("config", {}).get("num_replicas", 1))
    cluster = stream.get("cluster", {})
    peers = cluster.get("replicas") or []
    found = [*_leaderless(cluster, replicas), *_too_few(facts, replicas), *_lagging(peers)]
    yield from found or [ok(f"{format_count(replicas, 'copy', 'copies')} of each message")]


def _leaderless(cluster: dict[str, Any], replicas: int) -> Iterator[Finding]:
    if not cluster.get("leader"):
        yield error(
            f"the stream has no leader among its servers ({replicas})",
            "Nothing can be stored, and no job starts.",
            "Restart the servers: more than half of them must run.",
        )


def _too_few(facts: NatsFacts, replicas: int) -> Iterator[Finding]:
    if facts.server.get("cluster") and replicas == 1:
        yield warning(
            f"one copy of each message, in cluster {facts.server['cluster']}",
            "If the server that has the copy stops, no job starts; if its disk is lost, all jobs are lost.",
            "replicas=3: ?replicas=3 in the URL, or NatsSettings(replicas=3).",
        )
    if replicas > 1 and replicas % 2 == 0:
        yield warning(
            f"{replicas} copies of each message",
            "A majority must agree: an even number survives no more failures than one copy less, and costs more.",
            "Use 3 or 5.",
        )
    wanted = facts.settings.replicas
    if wanted is not None and wanted != replicas:
        yield warning(
            f"{format_count(replicas, 'copy', 'copies')} of each message, and the settings request {wanted}",
            "No worker has started with these settings, or the cluster has too few servers.",
            "Start a worker, and read its log.",
        )


def _lagging(peers: list[dict[str, Any]]) -> Iterator[Finding]:
    offline = [
        peer["name"]
        for peer in peers
        if peer.get("offline") or peer.get("active", 0) > SILENCE_SECONDS * NANOSECONDS
    ]
    behind = [peer["name"] for peer in peers if peer["name"] not in offline and not peer.get("current", True)]
    if offline or behind:
        has_majority = 2 * len(offline + behind) < len(peers) + 1
        severity = warning if has_majority else error
        states = [
            f"{some(offline)} offline" if offline else "",
            f"{some(behind)} not up to date" if behind else "",
        ]
        yield severity(
            f"of the {len(peers) + 1} servers of the stream: {', '.join(filter(None, states))}",
            "With one copy less, the next failure may stop all jobs."
            if has_majority
            else "Less than a majority is online: nothing can be stored, and no job starts.",
            "Restart these servers, and check their disks and network; remove one that is lost with "
            "nats server cluster peer-remove.",
        )


def check_lease(facts: NatsFacts) -> Finding:
    """Warn if the lease, after which a worker without a heartbeat is declared dead, is shorter than an election.

    This matters only for a stream with several replicas.
    """
    lease = facts.settings.lease
    replicas = int((facts.stream or {}).get("config", {}).get("num_replicas", 1))
    if replicas > 1 and lease < ELECTION_SECONDS:
        return warning(
            f"the lease is {in_seconds(lease)}",
            "An election of a leader took up to 6.7 s: all workers would be declared dead, and their jobs "
            "would run again.",
            "lease=20, the default.",
        )
    return ok(
        f"a worker is declared dead after {in_seconds(lease)} without a heartbeat, however long its handlers take"
    )


def check_consumers(facts: NatsFacts) -> Iterator[Finding]:
    """Report consumers, which deliver jobs to workers, that are missing, paused, limited or have another lease."""
    if not facts.consumers:
        yield info("the consumers were not checked: they cannot be read, perhaps for lack of permission")
        return
    existing = {subject: info for subject, info in facts.consumers.items() if info is not None}
    found = [*_missing(facts), *_with_other_lease(facts, existing), *_limiting(existing)]
    what = "one for each queue, job type and priority, and one for reminders"
    yield from found or [ok(f"{format_count(len(existing), 'consumer')}, {what}")]


def _missing(facts: NatsFacts) -> Iterator[Finding]:
    missing = [subject for subject, found in facts.consumers.items() if found is None]
    if not missing:
        return
    what = f"no consumer yet for {some(missing)}"
    if facts.settings.prepared:
        yield error(
            what,
            "The jobs of this queue, type and priority wait: processes with prepared=True create no consumers.",
            "Start a worker with permission to create consumers once.",
        )
    else:
        yield info(what, "The first worker that has the handler creates the consumer.")


def _with_other_lease(facts: NatsFacts, existing: dict[str, Any]) -> Iterator[Finding]:
    lease = round(facts.settings.lease * NANOSECONDS)
    others = [
        found["config"]["ack_wait"] for found in existing.values() if found["config"].get("ack_wait") != lease
    ]
    if others:
        yield warning(
            f"{format_count(len(others), 'consumer waits', 'consumers wait')} "
            f"{in_seconds(others[0] / NANOSECONDS)} for a heartbeat, and the lease of this application is "
            f"{in_seconds(facts.settings.lease)}",
            "Workers send four heartbeats in each lease. If a consumer waits for a shorter time, it delivers "
            "jobs again that still run; if for a longer time, jobs of dead workers are rescued later.",
            "Give all processes of this prefix the same lease=, and restart a worker.",
        )


def _limiting(existing: dict[str, Any]) -> Iterator[Finding]:
    limited = [subject for subject, found in existing.items() if found["config"].get("max_deliver", -1) > 0]
    if limited:
        yield error(
            f"the consumer of {some(limited)} delivers a message only a limited number of times (max_deliver)",
            "After that the job is never delivered again.",
            "nats consumer edit --max-deliver=-1; Mainspring counts attempts itself.",
        )
    paused = [subject for subject, found in existing.items() if found.get("paused")]
    if paused:
        yield error(
            f"the consumer of {some(paused)} is paused on the server",
            "The jobs of this queue, type and priority are not delivered to any worker.",
            "nats consumer resume",
        )
