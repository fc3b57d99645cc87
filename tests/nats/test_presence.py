"""Presence: a worker whose process has died loses its jobs before its lease is over, and no other worker does.

The lease is longer than any test: a job that changes its owner was taken over because of the presence alone.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from msgspec import Struct
from msgspec.structs import replace

from mainspring.engines.nats import presence, repair
from mainspring.engines.nats.engine import NatsEngine
from mainspring.engines.nats.job_records import decode, encode
from mainspring.engines.nats.workers import HeartbeatRecord
from mainspring.jobs.records import Lease, OutcomeKind
from mainspring.jobs.status import JobStatus
from tests.nats.fault_bench import FaultBench, fault_benches
from tests.nats.proxy import Proxy
from tests.nats.raw_clients import connected
from tests.nats.servers import MakeServers, Servers
from tests.processes.sandbox import Child, Sandbox
from tests.support import PATIENCE, eventually

LEASE = 20 * PATIENCE
MANY = 6  # probes: twice as many as a verdict needs

MakeBenchAt: TypeAlias = Callable[..., FaultBench]
"""Takes servers or a proxy, and the settings to change."""


@pytest.fixture
def make_bench(
    nats_prefix: str, tmp_path: Path, make_nats_server: MakeServers, make_nats_cluster: MakeServers
) -> Iterator[MakeBenchAt]:
    """Yield a function that makes a bench; its engine is closed before the servers of the test are killed."""
    with ExitStack() as stack:

        def make(at: Servers | Proxy, **settings: Any) -> FaultBench:
            options = {"lease": LEASE, "timeout": PATIENCE} | settings
            return stack.enter_context(fault_benches(at, nats_prefix, tmp_path))(**options)

        yield make


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let observers probe often and judge early: a worker that they leave alone is safe for good."""
    monkeypatch.setattr(presence, "PROBE_SECONDS", 0.1)
    monkeypatch.setattr(presence, "ANSWER_SECONDS", 0.3)
    monkeypatch.setattr(presence, "ABSENCE_SECONDS", 0.2)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let observers probe often, and never reach a verdict: the test looks at their counts."""
    monkeypatch.setattr(presence, "PROBE_SECONDS", 0.1)
    monkeypatch.setattr(presence, "ABSENCE_SECONDS", 20 * PATIENCE)


class Observer:
    """A worker that watches the others, and the results of its probes."""

    def __init__(self, bench: FaultBench) -> None:
        self.bench = bench
        self.engine: NatsEngine = bench.nats
        self.worker = bench.enroll()
        self.monitor = self.engine.components.monitor
        self._is_absent = bench.jetstream.is_absent
        self.absences: Counter[str] = Counter()
        """How often a subject had no listener."""
        self.probes: Counter[str] = Counter()
        vars(bench.jetstream)["is_absent"] = self._note

    async def _note(self, subject: str, seconds: float) -> bool:
        is_absent = await self._is_absent(subject, seconds)
        self.probes[subject] += 1
        self.absences[subject] += is_absent
        return is_absent

    def sweep(self) -> None:
        self.engine.sweep(self.worker)

    def subject_of(self, worker: int) -> str:
        declared = self.sign(worker).presence
        assert declared is not None
        return self.bench.names.presence + declared.token

    def sign(self, worker: int) -> HeartbeatRecord:
        """Return the heartbeat of a worker, as the server has it."""
        return self.engine._workers.read_all()[worker].record

    def count(self, worker: int) -> int:
        """Return how often in a row a worker was found absent."""
        absence = self.monitor._counter._absences.get(worker)
        return 0 if absence is None else absence.count

    def wait_for(self, counts: Counter[str], subject: str, number: int = MANY) -> None:
        """Sweep until there are so many more probes, or absences, of a subject."""
        goal = counts[subject] + number

        def is_reached() -> bool:
            self.sweep()
            return counts[subject] >= goal

        assert eventually(is_reached), f"{counts} after {PATIENCE} s"

    def take_over(self, number: int = 1) -> list[Lease]:
        """Sweep until jobs can be claimed, and return their leases."""
        leases: list[Lease] = []

        def has_leases() -> bool:
            self.sweep()
            leases.extend(self.bench.take(self.worker))
            return len(leases) >= number

        assert eventually(has_leases), "no job was taken over"
        return sorted(leases, key=lambda lease: lease.id)


def assert_keeps_job(victim: FaultBench, worker: int, lease: Lease, observer: Observer) -> None:
    """Assert that no other worker has touched a job, and that its worker can still settle it."""
    record = observer.bench.record()
    assert (record.status, record.owner, record.crashes) == (JobStatus.RUNNING, worker, 0)
    assert not observer.sign(worker).has_left
    assert observer.monitor.take_dead() == {}
    assert eventually(lambda: victim.nats._workers.renew(worker))
    victim.complete(worker, lease)


# -- the dead

WORKER = """
import sys
from threading import Event
from mainspring import Mainspring

app = Mainspring(sys.argv[1], threads=2)


@app.job(name="ping")
def ping() -> None:
    print("begun", flush=True)
    Event().wait()


app.run()
"""


def start_worker(sandbox: Sandbox, bench: FaultBench) -> Child:
    """Start a worker process on the store of a bench, and wait until it runs a job."""
    settings = bench.nats.settings
    child = sandbox.start(
        "-c", WORKER, f"{','.join(bench.jetstream.servers)}?prefix={settings.prefix}&lease={LEASE}"
    )
    bench.submit("job")
    child.expect("begun")
    return child


@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.long
def test_a_job_is_taken_over_when_the_process_of_its_worker_is_killed(
    nodes: int, request: pytest.FixtureRequest, make_bench: MakeBenchAt, sandbox: Sandbox
) -> None:
    make: MakeServers = request.getfixturevalue("make_nats_server" if nodes == 1 else "make_nats_cluster")
    observer = Observer(make_bench(make(), replicas=nodes))
    child = start_worker(sandbox, observer.bench)
    before = observer.bench.record()
    child.kill()
    (lease,) = observer.take_over()
    record = observer.bench.record()
    assert (record.owner, record.crashes, record.starts) == (observer.worker, 1, 2)
    assert lease.token == before.token + 1
    observer.bench.complete(observer.worker, lease)
    assert list(observer.engine._workers.read_all()) == [observer.worker]


def test_every_worker_of_a_dead_process_loses_its_jobs_and_no_other(
    make_bench: MakeBenchAt, nats_server: Servers, hasty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repair, "SCAN_PAGE", 2)
    victim, survivor, observer = (
        make_bench(nats_server),
        make_bench(nats_server),
        Observer(make_bench(nats_server)),
    )
    owners: dict[str, int] = {}
    for bench, names in ((victim, "abc"), (survivor, "de"), (victim, "fgh"), (survivor, "i")):
        worker = bench.enroll()
        bench.submit(*names)
        assert sorted(bench.ids_when_there(worker, len(names))) == list(names)
        owners |= dict.fromkeys(names, worker)
    victim.submit("waiting", after=LEASE)
    victim.nats.close()  # as the server sees it, its process has died
    leases = observer.take_over(6)
    assert [lease.id for lease in leases] == list("abcfgh")
    assert [observer.bench.record(name).owner for name in "dei"] == [owners[name] for name in "dei"]
    assert observer.bench.status("waiting") is JobStatus.PENDING


def test_a_job_that_a_dead_worker_held_is_free_without_a_crash(
    make_bench: MakeBenchAt, nats_server: Servers, hasty: None, far_ahead: float
) -> None:
    victim, observer = make_bench(nats_server), Observer(make_bench(nats_server))
    victim.submit("job", after=far_ahead)
    _, lease = victim.take_by_new_worker()
    assert not lease.is_started
    victim.nats.close()

    def is_free() -> bool:
        observer.sweep()
        return observer.bench.record().owner is None

    assert eventually(is_free)
    assert (observer.bench.record().crashes, observer.bench.record().starts) == (0, 0)


def test_jobs_are_rescued_by_a_worker_that_has_no_handler_for_them(
    make_bench: MakeBenchAt, nats_server: Servers, hasty: None
) -> None:
    victim, observer = make_bench(nats_server), Observer(make_bench(nats_server))
    victim.begin()
    victim.nats.close()

    def is_rescued() -> bool:
        observer.engine.take(observer.worker, [], lead=0, start_lead=0)
        observer.sweep()
        return observer.bench.status() is JobStatus.PENDING

    assert eventually(is_rescued)


def test_a_worker_that_is_cut_off_for_long_loses_its_jobs_and_is_told(
    make_bench: MakeBenchAt, nats_server: Servers, hasty: None
) -> None:
    proxy = nats_server.proxy()
    victim, observer = make_bench(proxy), Observer(make_bench(nats_server))
    worker, stale = victim.begin()
    proxy.cut()
    (lease,) = observer.take_over()
    proxy.heal()
    assert not victim.nats.renew(worker)
    assert not victim.look(worker).is_alive
    assert not victim.settle(worker, stale, OutcomeKind.COMPLETED)
    observer.bench.complete(observer.worker, lease)


# -- the living


@pytest.mark.long
def test_a_suspended_process_keeps_its_jobs_until_its_lease_is_over(
    make_bench: MakeBenchAt, nats_server: Servers, sandbox: Sandbox, hasty: None
) -> None:
    observer = Observer(make_bench(nats_server))
    child = start_worker(sandbox, observer.bench)
    worker = observer.bench.record().owner
    assert worker is not None
    child.suspend()
    subject = observer.subject_of(worker)
    observer.wait_for(observer.probes, subject)
    assert observer.absences[subject] == 0
    record = observer.bench.record()
    assert (record.status, record.owner, record.crashes) == (JobStatus.RUNNING, worker, 0)


def test_a_worker_that_reconnects_in_time_keeps_its_jobs(
    make_bench: MakeBenchAt, nats_server: Servers, patient: None
) -> None:
    proxy = nats_server.proxy()
    victim, observer = make_bench(proxy), Observer(make_bench(nats_server))
    worker, lease = victim.begin()
    before = observer.sign(worker).presence
    proxy.cut()
    observer.wait_for(observer.absences, observer.subject_of(worker))
    assert observer.count(worker)
    proxy.heal()

    def is_back() -> bool:
        observer.sweep()
        return observer.sign(worker).presence not in (None, before) and observer.count(worker) == 0

    assert eventually(is_back), "its next heartbeat declares the new connection"
    assert_keeps_job(victim, worker, lease, observer)


def test_a_heartbeat_starts_the_count_again_and_protects_from_a_verdict(
    make_bench: MakeBenchAt, nats_server: Servers, hasty: None
) -> None:
    """Its subscription is gone, but it is not dead: it has sent a heartbeat since the observer read the last."""
    victim, observer = make_bench(nats_server), Observer(make_bench(nats_server))
    worker, lease = victim.begin()
    observer.sweep()
    revision = observer.engine._workers.read_all()[worker].revision
    assert victim.nats.renew(worker)
    assert not observer.engine._workers.declare_dead(worker, revision, ("job",))
    assert_keeps_job(victim, worker, lease, observer)


@pytest.mark.long
def test_the_restart_of_the_server_robs_no_worker(
    make_bench: MakeBenchAt, make_nats_server: MakeServers, hasty: None
) -> None:
    """The worker comes back late: the restarted server does not know its connection, and confirms nothing."""
    servers = make_nats_server()
    proxy = servers.proxy()
    victim, observer = make_bench(proxy), Observer(make_bench(servers))
    worker, lease = victim.begin()
    subject = observer.subject_of(worker)
    observer.wait_for(observer.probes, subject, 1)
    proxy.cut()
    servers.kill()
    servers.restart()
    observer.wait_for(observer.absences, subject)
    assert observer.count(worker) == 0
    proxy.heal()
    assert_keeps_job(victim, worker, lease, observer)


@pytest.mark.long
def test_a_broken_route_between_servers_robs_no_worker(
    make_bench: MakeBenchAt, make_nats_cluster: MakeServers, hasty: None
) -> None:
    """The server of the worker is suspended: the others close their routes to it, and the worker is alive."""
    pings = {"ping_interval": "1s", "ping_max": 1}
    cluster = make_nats_cluster(settings={"cluster": pings})
    observer = Observer(make_bench(cluster, replicas=3))
    leader = cluster.leader_of(observer.bench.names.stream)
    away = next(node for node in cluster.nodes if node is not leader)
    near = next(node for node in cluster.nodes if node is not away)
    watching = Observer(make_bench(cluster.proxy(near), replicas=3))
    observer.engine.leave(observer.worker)
    victim = make_bench(cluster.proxy(away), replicas=3)
    worker, lease = victim.begin()
    subject = watching.subject_of(worker)
    watching.wait_for(watching.probes, subject, 1)
    cluster.stop_process(away)
    try:
        watching.wait_for(watching.absences, subject)
        assert watching.count(worker) == 0
    finally:
        cluster.cont(away)
    assert_keeps_job(victim, worker, lease, watching)


def test_a_listener_to_everything_hides_a_death_and_its_jobs_wait(
    make_bench: MakeBenchAt, make_nats_server: MakeServers, hasty: None
) -> None:
    servers = make_nats_server()
    victim, observer = make_bench(servers), Observer(make_bench(servers))
    worker, _ = victim.begin()
    subject = observer.subject_of(worker)

    async def listen_during(act: Callable[[], Any]) -> None:
        async with connected(servers.urls) as client:
            await client.subscribe(">", cb=_ignore)
            await client.flush()
            await asyncio.to_thread(act)

    def die() -> None:
        victim.nats.close()
        observer.wait_for(observer.probes, subject)
        assert observer.absences[subject] == 0
        assert observer.bench.record().owner == worker

    asyncio.run(listen_during(die))
    assert [lease.id for lease in observer.take_over()] == ["job"]


async def _ignore(_message: object) -> None:
    return None


def test_an_observer_that_was_disconnected_starts_its_counts_again(
    make_bench: MakeBenchAt, nats_server: Servers, patient: None
) -> None:
    proxy = nats_server.proxy()
    victim, observer = make_bench(nats_server), Observer(make_bench(proxy))
    worker, _ = victim.begin()
    subject = observer.subject_of(worker)
    victim.nats.close()
    observer.wait_for(observer.absences, subject)
    first = observer.monitor._counter._absences[worker].first
    proxy.drop()

    def has_begun_again() -> bool:
        observer.sweep()
        absence = observer.monitor._counter._absences.get(worker)
        return absence is not None and absence.first > first

    assert eventually(has_begun_again)


def test_a_verdict_from_before_a_disconnection_is_forgotten(make_bench: MakeBenchAt, nats_server: Servers) -> None:
    observer = Observer(make_bench(nats_server))
    observer.monitor._dead[7] = 1
    observer.engine._on_connection(False)
    assert observer.monitor.take_dead() == {}


def test_a_worker_of_version_0_1_is_left_to_its_lease(
    make_bench: MakeBenchAt, nats_server: Servers, hasty: None
) -> None:
    """It declares no presence. Another worker that does is watched at the same time."""
    old, victim, observer = make_bench(nats_server), make_bench(nats_server), Observer(make_bench(nats_server))
    old_worker, _ = old.begin("old")
    sign = observer.sign(old_worker)
    record = [sign.name, sign.process, sign.types, sign.beat, sign.left_behind, sign.has_left]
    old.jetstream.store(old.names.worker(old_worker), encode(record))
    assert observer.sign(old_worker) == replace(sign, presence=None)
    victim.begin("new")
    old.nats.close()
    victim.nats.close()
    assert [lease.id for lease in observer.take_over()] == ["new"]
    assert observer.bench.record("old").owner == old_worker
    assert not observer.sign(old_worker).has_left


class OldHeartbeat(Struct, frozen=True, array_like=True):
    """The heartbeat as version 0.1 knows it."""

    name: str
    process: int
    types: tuple[str, ...]
    beat: int
    left_behind: tuple[str, ...] = ()
    has_left: bool = False


def test_version_0_1_can_read_a_heartbeat_that_declares_a_presence(
    make_bench: MakeBenchAt, nats_server: Servers
) -> None:
    bench = make_bench(nats_server)
    worker = bench.enroll()
    data = bench.jetstream.read_one(bench.names.worker(worker)).data
    assert decode(data, HeartbeatRecord).presence is not None
    old = decode(data, OldHeartbeat)
    assert (old.name, old.types, old.has_left) == ("tester", ("ping",), False)


# -- missing rights


def server_that_denies(make: MakeServers, *, publish: str = "other", subscribe: str = "other") -> Servers:
    """Start a server whose only user may do everything but this."""
    permissions = {"publish": {"deny": publish}, "subscribe": {"deny": subscribe}}
    user = {"user": "worker", "password": "secret", "permissions": permissions}
    return make(settings={"authorization": {"users": [user]}})


@pytest.mark.parametrize("denied", [{"subscribe": "*.presence.*"}, {"publish": "*.presence.*"}])
def test_a_worker_whose_subject_is_denied_declares_no_presence_and_says_so(
    denied: dict[str, str],
    make_bench: MakeBenchAt,
    make_nats_server: MakeServers,
    caplog: pytest.LogCaptureFixture,
    hasty: None,
) -> None:
    servers = server_that_denies(make_nats_server, **denied)
    victim, observer = (make_bench(servers, user="worker", password="secret") for _ in range(2))
    worker, lease = victim.begin()
    assert victim.nats._workers.read_all()[worker].record.presence is None
    rival = observer.enroll()
    observer.nats.sweep(rival)
    assert observer.nats.components.monitor._signs == []
    assert victim.jetstream.denied is None, "errors do not name a right that is not needed"
    warnings = [message for message in caplog.messages if "its jobs wait for the end of their lease" in message]
    assert len(warnings) == 2, "one for each process"
    victim.complete(worker, lease)


def test_without_the_right_to_ask_the_servers_the_lease_decides(
    make_bench: MakeBenchAt, make_nats_server: MakeServers, caplog: pytest.LogCaptureFixture, hasty: None
) -> None:
    servers = server_that_denies(make_nats_server, publish="$SYS.>")
    victim, bench = (make_bench(servers, user="worker", password="secret") for _ in range(2))
    observer = Observer(bench)
    worker, _ = victim.begin()
    subject = observer.subject_of(worker)
    victim.nats.close()
    observer.wait_for(observer.absences, subject)
    assert (observer.count(worker), observer.bench.record().owner) == (0, worker)
    warning = "no server answers a request to the subject '$SYS.REQ.ACCOUNT.PING.CONNZ'"
    assert sum(warning in message for message in caplog.messages) == 1


# -- jobs that are claimed while the connection is lost


def during_claims(bench: FaultBench, act: Callable[[], None]) -> None:
    """Call a function after the next claims are stored, before the worker gets them."""
    fetcher = bench.nats.components.fetcher
    fetch = fetcher.fetch

    def fetch_and_act(*args: Any) -> Any:
        taken = fetch(*args)
        if taken.leases:
            del vars(fetcher)["fetch"]
            act()
        return taken

    vars(fetcher)["fetch"] = fetch_and_act


def reconnect(bench: FaultBench, proxy: Proxy) -> None:
    before = bench.jetstream.connection_id
    proxy.drop()
    assert eventually(lambda: bench.jetstream.connection_id not in (None, before))


def declare_dead(observer: FaultBench, worker: int) -> None:
    workers = observer.nats._workers
    assert eventually(lambda: workers.declare_dead(worker, workers.read_all()[worker].revision, ()))


def test_a_worker_that_lost_its_connection_during_a_claim_is_confirmed_before_it_starts_jobs(
    make_bench: MakeBenchAt, nats_server: Servers
) -> None:
    proxy = nats_server.proxy()
    bench = make_bench(proxy)
    worker = bench.enroll()
    bench.submit("job")
    revisions = []

    def lose_connection() -> None:
        reconnect(bench, proxy)
        revisions.append(bench.nats._workers.read_all()[worker].revision)

    during_claims(bench, lose_connection)
    (lease,) = bench.take_when_there(worker, 1)
    assert bench.nats._workers.read_all()[worker].revision > revisions[0]
    bench.complete(worker, lease)


def test_a_worker_that_was_declared_dead_during_a_claim_starts_nothing(
    make_bench: MakeBenchAt, nats_server: Servers
) -> None:
    proxy = nats_server.proxy()
    bench, other = make_bench(proxy), make_bench(nats_server)
    worker = bench.enroll()
    bench.submit("job")

    def be_declared_dead() -> None:
        reconnect(bench, proxy)
        declare_dead(other, worker)

    during_claims(bench, be_declared_dead)
    answers = []

    def is_told() -> bool:
        answers.append(bench.look(worker))
        return not answers[-1].is_alive

    assert eventually(is_told)
    assert [lease for answer in answers for lease in answer.leases] == []
    assert other.take_by_new_worker()[1].id == "job"


def test_a_claim_that_took_long_is_confirmed(
    make_bench: MakeBenchAt, nats_server: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, other = make_bench(nats_server), make_bench(nats_server)
    worker = bench.enroll()
    bench.submit("job")
    during_claims(bench, lambda: declare_dead(other, worker))
    with monkeypatch.context() as patch:
        patch.setattr("mainspring.engines.nats.workers.CONFIRMED_SECONDS", 0)
        assert eventually(lambda: not bench.look(worker).is_alive)
    assert other.take_by_new_worker()[1].id == "job"


def test_a_worker_without_a_connection_starts_nothing_that_it_has_claimed(
    make_bench: MakeBenchAt, nats_server: Servers
) -> None:
    proxy = nats_server.proxy()
    bench = make_bench(proxy, timeout=1.0)
    worker = bench.enroll()
    bench.submit("job")

    def lose_connection() -> None:
        proxy.cut()
        assert eventually(lambda: not bench.jetstream.is_connected)

    during_claims(bench, lose_connection)
    answers = []

    def is_cut() -> bool:
        answers.append(bench.look(worker))
        return not bench.jetstream.is_connected

    assert eventually(is_cut)
    assert [lease for answer in answers for lease in answer.leases] == []
    assert answers[-1].is_alive


def test_the_start_of_a_held_job_is_refused_to_a_worker_that_was_declared_dead(
    make_bench: MakeBenchAt, nats_server: Servers, far_ahead: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, other = make_bench(nats_server), make_bench(nats_server)
    bench.submit("job", after=far_ahead)
    worker, lease = bench.take_by_new_worker()
    declare_dead(other, worker)
    monkeypatch.setattr("mainspring.engines.nats.workers.CONFIRMED_SECONDS", 0)
    assert bench.nats.start(worker, [lease]) == [False]
    assert bench.record().status is JobStatus.PENDING
