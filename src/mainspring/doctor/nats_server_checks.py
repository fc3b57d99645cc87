"""Checks NATS servers: version, storage, fsync, clock, round trip, message size and permissions."""

from __future__ import annotations

from collections.abc import Iterator

from mainspring.doctor.findings import Finding, error, in_bytes, in_seconds, info, ok, some, warning
from mainspring.doctor.nats_facts import NatsFacts
from mainspring.engines.nats.engine import CLUSTER_START_LEAD, START_LEAD
from mainspring.engines.nats.streams import MINIMUM_VERSION, NANOSECONDS
from mainspring.engines.nats.submitting import RESERVED_BYTES
from mainspring.jobs.timestamps import MICROSECONDS, to_datetime
from mainspring.plurals import format_count

WARNING_SHARE = 0.8  # the share of the storage limit from which a warning is given
ERROR_SHARE = 0.95
MAX_SKEW_SECONDS = 1.0
SAFE_SYNC_SECONDS = 1.0  # seconds between two syncs: a power failure may lose the messages of that time


def check_server(facts: NatsFacts) -> Finding:
    """Report an error if the NATS server is too old, or JetStream is not enabled."""
    version = str(facts.server.get("version", ""))
    numbers = [int(part) for part in version.split(".")[:2] if part.isdigit()]
    floor = ".".join(map(str, MINIMUM_VERSION))
    if tuple(numbers) < MINIMUM_VERSION:
        return error(
            f"the version of the NATS server is {version or 'unknown'}, and {floor} or later is needed",
            "Older servers cannot schedule messages, which deliver jobs that are due later.",
            "Update nats-server.",
        )
    if facts.account is None and not facts.denied:
        return error(
            "JetStream is not enabled for this account",
            "Without JetStream a server stores no messages.",
            "Start nats-server with -js, or enable jetstream in the account.",
        )
    where = f"in cluster {facts.server['cluster']}" if facts.server.get("cluster") else "alone"
    return ok(f"NATS server {facts.server.get('server_name', '')} {version}, {where}")


def check_storage(facts: NatsFacts) -> Iterator[Finding]:
    """Report an error if the server stores no messages.

    Report a warning if JetStream has used 80 % of its storage, and an error from 95 % on. The storage of the
    account is checked, and with a monitoring address that of the server.
    """
    if facts.storage_problem is not None:
        yield error(
            facts.storage_problem.text,
            "Submits fail, no job starts, and no outcome can be stored. Jobs that are due meanwhile start late.",
            facts.storage_problem.advice,
        )
    account = facts.account or {}
    uses = [("this account", account.get("storage", 0), account.get("limits", {}).get("max_storage", -1))]
    if facts.monitor is not None:
        jetstream = facts.monitor.get("jetstream", {})
        used, limit = (
            jetstream.get("stats", {}).get("storage", 0),
            jetstream.get("config", {}).get("max_storage", -1),
        )
        uses.append(("this server", used, limit))
    for whose, used, limit in uses:
        text = f"JetStream of {whose} has {in_bytes(used)} in use"
        if limit <= 0:
            yield ok(f"{text}, without a limit of its own")
        elif used < WARNING_SHARE * limit:
            yield ok(f"{text}, of {in_bytes(limit)}")
        else:
            severity = error if used >= ERROR_SHARE * limit else warning
            yield severity(
                f"{text}, of only {in_bytes(limit)}",
                "When the storage is full, submits fail, and no outcome of a job can be stored.",
                "Give JetStream more storage (max_file_store of the server, max_storage of the account), or keep "
                "ended jobs for a shorter time: Keep(completed=...).",
            )


def check_deliveries(facts: NatsFacts) -> Finding:
    """Warn if the server has not published scheduled messages that were due."""
    if not facts.overdue:
        return ok("no scheduled message is overdue")
    number = format_count(len(facts.overdue), "scheduled message is", "scheduled messages are")
    return warning(
        f"{number} overdue, one since {to_datetime(min(facts.overdue)):%Y-%m-%d %H:%M:%S} UTC",
        "The server did not publish them, for example because its storage was full when they were due: delayed "
        "jobs and retries do not start.",
        "A worker stores them again within a minute; if none runs, start one.",
    )


def check_sync(facts: NatsFacts) -> Finding:
    """Report whether a power failure may lose confirmed jobs: by the number of replicas and the sync interval."""
    replicas = int((facts.stream or {}).get("config", {}).get("num_replicas", 1))
    ways = "jetstream { sync_interval: always } on one server, or replicas=3 on three with separate power"
    if replicas >= 3:
        return ok(f"a job is confirmed when a majority of {replicas} servers have it")
    if facts.monitor is None:
        return info(
            "a client cannot read how often the server syncs its files",
            "There are fewer than three copies, and by default a server syncs its files every two minutes: a "
            "power failure may lose jobs that were confirmed in between.",
            f"Pass --monitor http://HOST:8222 (http: or -m of nats-server). Safe settings: {ways}.",
        )
    leader = (facts.stream or {}).get("cluster", {}).get("leader")
    if facts.monitor.get("server_name") != leader:
        return warning(
            f"the monitor is that of server {facts.monitor.get('server_name')}, and {leader} stores the jobs",
            "How often that server syncs its files is unknown.",
            f"Pass --monitor the address of {leader}.",
        )
    config = facts.monitor.get("jetstream", {}).get("config", {})
    seconds = config.get("sync_interval", 0) / NANOSECONDS
    if config.get("sync_always"):
        return ok("the server syncs each message before it confirms it")
    severity = info if seconds <= SAFE_SYNC_SECONDS else warning
    return severity(
        f"the server syncs its files every {in_seconds(seconds)}, and there are fewer than three copies",
        "A power failure may lose jobs that were confirmed in between; a crash of the process does not.",
        f"Safe settings: {ways}.",
    )


def check_clock(facts: NatsFacts) -> Finding:
    """Warn if the local clock and the clock of the NATS server differ by a second or more."""
    by = f"{in_seconds(abs(facts.ahead))} {'behind' if facts.ahead > 0 else 'ahead of'}"
    if abs(facts.ahead) < MAX_SKEW_SECONDS:
        return ok(f"the local clock is {by} the clock of the server")
    return warning(
        f"the local clock is {by} the clock of the server",
        "Jobs follow the server's clock, so delays and schedules are right; a due time for at= that your code "
        "computes with the local clock is not.",
        "Synchronize both machines: chrony or systemd-timesyncd.",
    )


def check_distance(facts: NatsFacts) -> Finding:
    """Warn if a round trip to the NATS server takes so long that jobs start late."""
    is_replicated = int((facts.stream or {}).get("config", {}).get("num_replicas", 1)) > 1
    lead = (CLUSTER_START_LEAD if is_replicated else START_LEAD) / MICROSECONDS
    text = f"a round trip takes {in_seconds(facts.round_trip)}"
    if facts.round_trip < lead / 2:
        return ok(text)
    return warning(
        text,
        f"The start of a job is stored {in_seconds(lead)} before it is due, which takes two round trips: jobs "
        "start later than they are due.",
        "Run workers near the servers; check the load of the servers and the network.",
    )


def check_payload(facts: NatsFacts, max_payload: int) -> Finding:
    """Warn if the largest message of the NATS server is smaller than the arguments that the application allows.

    Otherwise the finding is OK, and says how large arguments may be. This may be a little less than the
    application allows, because the engine reserves a part of each message for headers and errors.
    """
    limit = int(facts.server.get("max_payload", 0))
    if limit >= max_payload:
        most = min(max_payload, limit - RESERVED_BYTES)
        return ok(f"a message may have {in_bytes(limit)}, and the arguments of a job {in_bytes(most)}")
    return warning(
        f"a message may have {in_bytes(limit)}, and the application allows arguments of {in_bytes(max_payload)}",
        "A job is one message, with arguments, result and errors: a submit of a larger one is refused, and a "
        "result that does not fit is not kept.",
        f"max_payload: {max_payload} in the configuration of the server, or a smaller max_payload= of Mainspring.",
    )


def check_rights(facts: NatsFacts) -> Iterator[Finding]:
    """Report errors with the requests that the NATS server denied, and with what it publishes beyond the rights.

    Report a warning if the JetStream API accepts unknown fields and this user has a role.
    """
    prefix, role = facts.settings.prefix, facts.settings.role
    if facts.server_writes:
        yield error(
            f"the server publishes for the {role} what it may not publish itself: by {some(facts.server_writes)}",
            "So this user can write tokens, and send any request of JetStream, such as to delete a stream.",
            f"Replace the accounts of the servers by those that mainspring nats permissions --prefix {prefix} "
            "prints: docs/nats.md, Rights",
        )
    if role is not None and not facts.is_strict:
        yield warning(
            "the JetStream API accepts requests with unknown fields",
            "A submitter can let the server send the confirmation of a message as a request, such as to purge a "
            "stream.",
            "Remove strict: false from the jetstream block of the servers.",
        )
    if not facts.denied:
        yield ok("the server has denied nothing")
        return
    yield error(
        f"the server denies requests that a process needs: {some(sorted(set(facts.denied)))}",
        "Workers and submitters with these permissions fail.",
        f"Grant this user what mainspring nats permissions --prefix {prefix} prints, and name "
        "the role in the URL, such as ?role=worker",
    )
