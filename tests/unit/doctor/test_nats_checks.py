"""Judgements about NATS servers, on what servers say; `tests/nats` lets real ones say it."""

from copy import deepcopy
from typing import Any

import pytest

from mainspring import NatsSettings
from mainspring.doctor import nats_server_checks as server
from mainspring.doctor import nats_stream_checks as stream
from mainspring.doctor.findings import Severity, ok
from mainspring.doctor.nats_checks import FEW_MESSAGES, checks_of_server, is_small, why_not_open
from mainspring.doctor.nats_facts import NatsFacts
from mainspring.engines.nats.storage import silent_problem
from mainspring.engines.nats.streams import NANOSECONDS
from tests.unit.doctor.finding_assertions import assert_finding, is_all_ok

LANE = "shop.ready.default.ping.1.*"
CONSUMER: dict[str, Any] = {"config": {"ack_wait": 20 * NANOSECONDS, "max_deliver": -1}, "num_pending": 0}
SOUND: dict[str, Any] = {
    "settings": NatsSettings(prefix="shop"),
    "server": {"version": "2.15.1", "server_name": "n1", "max_payload": 1 << 20},
    "account": {"storage": 1_000, "limits": {"max_storage": -1}},
    "stream": {
        "config": {"name": "shop", "num_replicas": 1, "max_age": 0, "max_bytes": -1, "max_msgs": -1},
        "state": {"messages": 3},
        "cluster": {"leader": "n1"},
    },
    "events": {},
    "activity": {
        "config": {"max_age": 8 * 86_400 * NANOSECONDS, "max_bytes": 1 << 28, "discard": "old"},
        "state": {"messages": 7},
    },
    "wanted": {"name": "shop", "num_replicas": 1},
    "consumers": {LANE: CONSUMER},
    "round_trip": 0.001,
    "ahead": 0.002,
}


def facts(**changes: Any) -> NatsFacts:
    """A sound server, but for something: `stream__config={...}` changes a part of it."""
    values = deepcopy(SOUND)
    for name, value in changes.items():
        outer, _, inner = name.partition("__")
        if inner:
            values[outer][inner] |= value
        else:
            values[outer] = value
    return NatsFacts(**values)


def varz(**config: Any) -> dict[str, Any]:
    return {"server_name": "n1", "host": "127.0.0.1", "jetstream": {"config": config, "stats": {"storage": 0}}}


def cluster(**changes: Any) -> dict[str, Any]:
    peers = [{"name": "n2", "current": True}, {"name": "n3", "current": True}]
    return {"name": "lab", "leader": "n1", "replicas": peers} | changes


# -- servers


def test_a_sound_server_is_in_order() -> None:
    sound = facts(monitor=varz(sync_always=True))
    for check in checks_of_server(sound, 1 << 20):
        assert is_all_ok(check.run()), check.name
    assert why_not_open(sound) is None
    assert is_small(sound)


@pytest.mark.parametrize("version", ["2.9.10", "2.12.8", ""])
def test_an_old_server_is_an_error(version: str) -> None:
    assert_finding(
        server.check_server(facts(server={"version": version})), Severity.ERROR, version or "unknown", "2.14"
    )


def test_a_server_needs_jetstream() -> None:
    assert_finding(server.check_server(facts(account=None)), Severity.ERROR, "JetStream is not enabled")


@pytest.mark.parametrize(("used", "severity"), [(85, Severity.WARNING), (99, Severity.ERROR)])
def test_room_runs_out(used: int, severity: Severity) -> None:
    full = {"storage": used << 20, "limits": {"max_storage": 100 << 20}}
    assert_finding(server.check_storage(facts(account=full)), severity, "this account", f"{used} MiB")
    monitor = varz(max_storage=100 << 20)
    monitor["jetstream"]["stats"]["storage"] = used << 20
    assert_finding(server.check_storage(facts(monitor=monitor)), severity, "this server", f"{used} MiB")


def test_a_server_that_stores_nothing_is_an_error() -> None:
    silent = facts(storage_problem=silent_problem())
    assert_finding(
        server.check_storage(silent), Severity.ERROR, "the server answers reads, but confirms no message"
    )


def test_scheduled_messages_that_were_not_published_are_found() -> None:
    assert is_all_ok(server.check_deliveries(facts()))
    late = facts(overdue=(1_700_000_060_000_000, 1_700_000_000_000_000))
    assert_finding(
        server.check_deliveries(late),
        Severity.WARNING,
        "2 scheduled messages are overdue, one since 2023-11-14 22:13:20 UTC",
    )


def test_how_often_a_server_syncs_is_not_claimed_unless_it_was_seen() -> None:
    assert_finding(server.check_sync(facts()), Severity.INFO, "a client cannot read")
    seldom = facts(monitor=varz(sync_interval=120 * NANOSECONDS))
    assert_finding(server.check_sync(seldom), Severity.WARNING, "every 2 min")
    assert_finding(server.check_sync(facts(monitor=varz(sync_interval=NANOSECONDS // 2))), Severity.INFO, "500 ms")
    assert is_all_ok(server.check_sync(facts(stream__config={"num_replicas": 3})))


def test_the_monitor_of_another_server_says_nothing_about_the_jobs() -> None:
    other = varz(sync_always=True) | {"server_name": "n2"}
    assert_finding(server.check_sync(facts(monitor=other)), Severity.WARNING, "n2, and n1 stores the jobs")


@pytest.mark.parametrize(("ahead", "words"), [(5.0, "5 s behind"), (-90.0, "90 s ahead of")])
def test_clocks_that_differ_are_a_warning(ahead: float, words: str) -> None:
    assert_finding(
        server.check_clock(facts(ahead=ahead)),
        Severity.WARNING,
        f"the local clock is {words} the clock of the server",
    )


def test_a_server_that_is_far_away_makes_jobs_late() -> None:
    assert_finding(server.check_distance(facts(round_trip=0.04)), Severity.WARNING, "40 ms")
    assert is_all_ok(server.check_distance(facts(round_trip=0.04, stream__config={"num_replicas": 3})))


def test_arguments_may_be_larger_than_messages() -> None:
    assert_finding(server.check_payload(facts(), 2 << 20), Severity.WARNING, "1 MiB", "2 MiB")
    assert server.check_payload(facts(), 1 << 20) == ok(
        "a message may have 1 MiB, and the arguments of a job 960 KiB"
    )
    assert server.check_payload(facts(), 1 << 10) == ok(
        "a message may have 1 MiB, and the arguments of a job 1 KiB"
    )


def test_what_is_forbidden_is_told() -> None:
    denied = facts(denied=("Permissions Violation for Publish to shop.settings",))
    (finding,) = server.check_rights(denied)
    assert_finding(finding, Severity.ERROR, "shop.settings")
    assert why_not_open(denied) == "the server denies requests that are needed to read them"
    unseen = facts(denied=("Permissions Violation for Publish to $JS.API.STREAM.INFO.shop",), stream=None)
    assert "stream" not in [check.name for check in checks_of_server(unseen, 1)]


# -- the stream


def test_a_stream_that_is_not_there_hides_the_rest() -> None:
    missing = facts(stream=None)
    assert_finding(stream.check_stream(missing), Severity.ERROR, "there is no stream 'shop'")
    assert "replicas" not in [check.name for check in checks_of_server(missing, 1)]
    assert why_not_open(missing) == "there is no stream to read them from"
    assert [check.name for check in checks_of_server(facts(account=None), 1)] == ["server", "rights"]


@pytest.mark.parametrize("limit", ["max_age", "max_bytes", "max_msgs"])
def test_limits_of_the_stream_lose_jobs(limit: str) -> None:
    assert_finding(stream.check_stream(facts(stream__config={limit: 1_000})), Severity.ERROR, f"{limit}=1000")


def test_settings_of_the_stream_that_do_harm() -> None:
    assert_finding(stream.check_stream(facts(stream__config={"sealed": True})), Severity.ERROR, "sealed")
    assert_finding(stream.check_stream(facts(stream__config={"sources": [{}]})), Severity.WARNING, "sources")
    assert_finding(stream.check_stream(facts(events=None)), Severity.WARNING, "shop-events")


def test_the_stream_of_counts_is_missed_only_by_the_history() -> None:
    assert is_all_ok([stream.check_activity(facts())])
    missing = facts(activity=None)
    assert_finding([stream.check_activity(missing)], Severity.WARNING, "no stream shop-activity")
    assert why_not_open(missing) is None
    unknown = facts(activity=None, may_read_activity=False)
    assert_finding([stream.check_activity(unknown)], Severity.INFO, "was not checked")


@pytest.mark.parametrize(
    ("config", "severity", "words"),
    [
        ({"discard": "new"}, Severity.WARNING, "discard=new"),
        ({"max_age": 0, "max_bytes": -1}, Severity.WARNING, "no limit of age and no limit of size"),
        ({"max_age": 3_600 * NANOSECONDS}, Severity.INFO, "counts of 1 h"),
    ],
)
def test_limits_of_the_stream_of_counts(config: dict[str, Any], severity: Severity, words: str) -> None:
    assert_finding([stream.check_activity(facts(activity__config=config))], severity, words)
    unlimited_age = facts(activity__config={"max_age": 0})
    assert is_all_ok([stream.check_activity(unlimited_age)])


def test_a_stream_of_another_version_is_named() -> None:
    finding = assert_finding(
        stream.check_stream(facts(wanted={"allow_atomic": True})), Severity.WARNING, "allow_atomic"
    )
    assert "prepared" not in finding.remedy
    prepared = facts(wanted={"allow_atomic": True}, settings=NatsSettings(prefix="shop", prepared=True))
    assert "prepared" in assert_finding(stream.check_stream(prepared), Severity.WARNING).remedy
    assert is_all_ok(stream.check_stream(facts(stream__config={"num_replicas": 3})))


# -- replicas


def test_one_copy_in_a_cluster_is_a_warning() -> None:
    one = facts(server={"version": "2.15.1", "cluster": "lab"})
    assert_finding(stream.check_replicas(one), Severity.WARNING, "one copy", "lab")


def test_copies_in_a_cluster() -> None:
    three = {"stream__config": {"num_replicas": 3}, "stream__cluster": cluster()}
    assert is_all_ok(stream.check_replicas(facts(**three)))
    two = three | {"stream__config": {"num_replicas": 2}}
    assert_finding(stream.check_replicas(facts(**two)), Severity.WARNING, "2 copies")
    asked = three | {"settings": NatsSettings(prefix="shop", replicas=5)}
    assert_finding(stream.check_replicas(facts(**asked)), Severity.WARNING, "3 copies", "request 5")


def test_servers_that_are_away_or_behind() -> None:
    config = {"stream__config": {"num_replicas": 3}}
    away = {"name": "n2", "current": True, "active": 6 * NANOSECONDS}
    behind = {"name": "n3", "current": False, "lag": 3}
    found = stream.check_replicas(facts(**config, stream__cluster=cluster(replicas=[away, {"name": "n3"}])))
    assert_finding(found, Severity.WARNING, "n2 offline")
    found = stream.check_replicas(
        facts(**config, stream__cluster=cluster(replicas=[away, {"name": "n3", "offline": True}]))
    )
    assert_finding(found, Severity.ERROR, "n2, n3 offline")
    assert_finding(
        stream.check_replicas(facts(**config, stream__cluster=cluster(replicas=[{"name": "n2"}, behind]))),
        Severity.WARNING,
        "n3",
    )
    found = stream.check_replicas(facts(**config, stream__cluster=cluster(leader=None)))
    assert_finding(found, Severity.ERROR, "no leader")


# -- leases and consumers


def test_a_lease_outlasts_an_election() -> None:
    short = {"settings": NatsSettings(prefix="shop", lease=3.0)}
    assert is_all_ok(stream.check_lease(facts(**short)))
    found = stream.check_lease(facts(**short, stream__config={"num_replicas": 3}))
    assert_finding(found, Severity.WARNING, "the lease is 3 s")


def test_a_lane_without_a_consumer_waits_for_a_user_that_may_make_one() -> None:
    missing = {LANE: None}
    assert_finding(stream.check_consumers(facts(consumers=missing)), Severity.INFO, LANE)
    prepared = NatsSettings(prefix="shop", prepared=True)
    assert_finding(stream.check_consumers(facts(consumers=missing, settings=prepared)), Severity.ERROR, LANE)


@pytest.mark.parametrize(
    ("config", "severity", "words"),
    [
        ({"ack_wait": 5 * NANOSECONDS}, Severity.WARNING, ("1 consumer", "5 s", "20 s")),
        ({"max_deliver": 5}, Severity.ERROR, (LANE, "max_deliver")),
    ],
)
def test_settings_of_consumers_that_do_harm(
    config: dict[str, Any], severity: Severity, words: tuple[str, ...]
) -> None:
    changed = {LANE: {**CONSUMER, "config": {**CONSUMER["config"], **config}}}
    assert_finding(stream.check_consumers(facts(consumers=changed)), severity, *words)


def test_a_consumer_may_be_paused_on_the_server() -> None:
    assert_finding(
        stream.check_consumers(facts(consumers={LANE: {**CONSUMER, "paused": True}})), Severity.ERROR, LANE
    )


def test_jobs_of_a_large_stream_are_not_counted() -> None:
    assert not is_small(facts(stream__state={"messages": FEW_MESSAGES + 1}))
