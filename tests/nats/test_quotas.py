"""Quotas of queues on NATS: how far several submitters can exceed a depth, what counts, and what a check costs."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from mainspring import LimitExceeded
from mainspring.engines.nats import connection, projector
from mainspring.engines.nats.engine import NatsEngine
from mainspring.engines.nats.write_batch import StoredMessage
from mainspring.jobs.commands import PutLimit
from mainspring.jobs.quotas import depth_family
from mainspring.jobs.records import Outcome, OutcomeKind
from mainspring.jobs.status import JobStatus
from tests.nats.fault_bench import FaultBench, MakeBench, fault_benches
from tests.nats.servers import MakeServers, Servers
from tests.support import at_once, eventually

SUBMITTERS = 3
BATCH = 5
DEPTH = 60
HOUR = 3_600


def set_depth(most: int, *benches: FaultBench) -> None:
    """Store the quota of the default queue, and wait until all processes know it."""
    benches[0].arrange(PutLimit(depth_family("default"), most, None))
    for bench in benches:
        assert eventually(partial(_knows, bench, most))


def _knows(bench: FaultBench, most: int) -> bool:
    return any(limit.most == most for limit in bench.nats.limits())


def refuses(bench: FaultBench, job_id: str = "refused") -> bool:
    """Submit a job; return whether the queue is full."""
    try:
        bench.submit(job_id, after=HOUR)
    except LimitExceeded:
        return True
    return False


def ids(name: str, number: int) -> list[str]:
    return [f"{name} {index}" for index in range(number)]


@pytest.fixture
def deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let processes miss what other processes send them, except that settings have changed."""
    receive = NatsEngine._on_notification

    def receive_settings(engine: NatsEngine, subject: str, data: bytes) -> None:
        if subject.endswith(".settings"):
            receive(engine, subject, data)

    monkeypatch.setattr(NatsEngine, "_on_notification", receive_settings)


# -- how far the depth is exceeded


def require_strict_bound(benches: list[FaultBench]) -> None:
    """Let submitters fill a queue at the same time; it must not exceed its quota by more than a batch of each."""
    set_depth(DEPTH, *benches)

    def submit(number: int) -> int:
        stored = 0
        for turn in range(2 * DEPTH // BATCH):
            try:
                benches[number].submit(*ids(f"{number}-{turn}", BATCH), after=HOUR)
            except LimitExceeded:
                continue
            stored += BATCH
        return stored

    stored = sum(at_once(*(lambda number=number: submit(number) for number in range(len(benches)))))
    assert DEPTH <= stored <= DEPTH + len(benches) * BATCH
    assert benches[0].nats.counts(queue="default")[JobStatus.PENDING] == stored


def test_submitters_at_the_same_time_exceed_the_depth_by_one_batch_each_at_most(make_bench: MakeBench) -> None:
    require_strict_bound([make_bench() for _ in range(SUBMITTERS)])


@pytest.mark.usefixtures("deaf")
def test_the_bound_does_not_depend_on_messages_between_the_submitters(make_bench: MakeBench) -> None:
    require_strict_bound([make_bench() for _ in range(SUBMITTERS)])


@pytest.mark.long
def test_the_bound_holds_in_a_cluster(make_nats_cluster: MakeServers, tmp_path: Path) -> None:
    cluster = make_nats_cluster()
    with fault_benches(cluster, "shop", tmp_path, replicas=3) as make:
        require_strict_bound([make() for _ in range(SUBMITTERS)])


@pytest.mark.usefixtures("deaf")
def test_a_process_counts_the_submits_of_others_without_hearing_of_them(
    bench: FaultBench, other: FaultBench
) -> None:
    set_depth(DEPTH, bench, other)
    bench.submit("first", after=HOUR)
    other.submit(*ids("other", DEPTH - 1), after=HOUR)
    with pytest.raises(LimitExceeded, match="has 60 pending jobs and takes at most 60"):
        bench.submit("refused", after=HOUR)
    assert other.cancel("first").is_done
    assert not refuses(bench, "instead")
    assert refuses(other)


def test_the_first_submit_of_a_process_sees_the_jobs_of_all_others(make_bench: MakeBench) -> None:
    early = make_bench()
    set_depth(2, early)
    early.submit("a", "b", after=HOUR)
    late = make_bench()
    assert refuses(late)
    assert early.cancel("a").is_done
    assert not refuses(make_bench(), "instead")
    assert refuses(late)


def test_a_process_that_was_disconnected_sees_the_jobs_that_were_stored_meanwhile(
    nats_server: Servers, nats_prefix: str, tmp_path: Path, other: FaultBench
) -> None:
    proxy = nats_server.proxy()
    with fault_benches(proxy, nats_prefix, tmp_path) as make:
        bench = make()
        set_depth(2, bench, other)
        bench.submit("a", after=HOUR)
        proxy.cut()
        other.submit("b", after=HOUR)
        proxy.heal()
        assert refuses(bench)


# -- what counts


def test_jobs_that_no_quota_was_applied_to_count_at_once(bench: FaultBench, other: FaultBench) -> None:
    set_depth(3, bench, other)
    bench.submit("a", after=HOUR)
    # as a process of version 0.1 does, which knows no quotas
    other.nats.components.submitter.submit([other.job(job_id, after=HOUR) for job_id in "bc"])
    assert refuses(bench)


def test_a_follow_up_job_of_another_process_counts_at_once(bench: FaultBench, other: FaultBench) -> None:
    set_depth(2, bench, other)
    worker, lease = other.begin()
    bench.submit("a", after=HOUR)
    outcome = Outcome(lease, OutcomeKind.COMPLETED, follow_up=other.job("next", after=HOUR))
    assert other.nats.settle(worker, [outcome]) == [True]
    assert refuses(bench)


def test_a_replica_that_lags_behind_makes_no_room(
    bench: FaultBench, other: FaultBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_depth(3, bench, other)
    bench.submit("a", after=HOUR)
    bench.jetstream.reads_leader = True  # as in a cluster, where replicas reply to scans
    scan, known = bench.jetstream.scan, bench.streams.last_sequence()

    def scan_old_state(subject: str, **options: int) -> list[tuple[str, StoredMessage]]:
        return [(name, entry) for name, entry in scan(subject, **options) if entry.revision <= known]  # type: ignore[arg-type]

    monkeypatch.setattr(bench.jetstream, "scan", scan_old_state)
    other.submit("b", "c", after=HOUR)
    assert refuses(bench)
    assert other.cancel("a").is_done
    assert not refuses(bench, "instead")


def test_a_stream_that_was_created_again_has_room(bench: FaultBench) -> None:
    set_depth(1, bench)
    bench.submit("a", after=HOUR)
    assert refuses(bench)
    bench.streams.remove()
    assert not refuses(bench, "b")


# -- what a check costs


def note_requests(bench: FaultBench, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record from now on what submits ask the server: `last` sequence numbers, and `changes`."""
    requests: list[str] = []
    ask, scan = bench.jetstream.ask, bench.jetstream.scan

    def note_ask(subject: str) -> bytes:
        requests.append("last")
        return ask(subject)

    def note_scan(subject: str, **options: int) -> object:
        requests.append("changes")
        return scan(subject, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(bench.jetstream, "ask", note_ask)
    monkeypatch.setattr(bench.jetstream, "scan", note_scan)
    return requests


def test_while_there_is_room_a_batch_costs_one_request(bench: FaultBench, monkeypatch: pytest.MonkeyPatch) -> None:
    set_depth(1_000, bench)
    bench.submit("first", after=HOUR)
    requests = note_requests(bench, monkeypatch)
    bench.submit("one", after=HOUR)
    bench.submit(*ids("many", 20), after=HOUR)
    assert requests == ["last", "last"]


def test_a_submit_reads_the_changes_only_if_they_might_fill_the_queue(
    bench: FaultBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_depth(20, bench)
    bench.submit("first", after=HOUR)
    requests = note_requests(bench, monkeypatch)
    for number in range(19):
        bench.submit(f"{number}", after=HOUR)
    assert requests.count("last") == 19
    assert 0 < requests.count("changes") < 19
    requests.clear()
    assert refuses(bench)
    assert requests[0] == "last"
    requests.clear()
    assert refuses(bench)
    assert requests == ["last"]  # nothing has changed since the last count


def test_queues_without_a_depth_cost_nothing(bench: FaultBench, monkeypatch: pytest.MonkeyPatch) -> None:
    set_depth(1, bench)
    bench.submit("counted", after=HOUR)
    requests = note_requests(bench, monkeypatch)
    bench.submit("a", "b", queue="mail")
    assert requests == []


def test_each_page_of_changes_has_the_full_timeout(
    bench: FaultBench, other: FaultBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_depth(5, bench, other)
    other.submit(*ids("other", 5), after=HOUR)
    monkeypatch.setattr(projector, "PAGE_SIZE", 1)
    deadlines: list[float | None] = []
    scan = bench.jetstream.scan

    def note_deadline(subject: str, **options: int) -> object:
        deadlines.append(connection._shared_deadline.get())
        return scan(subject, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(bench.jetstream, "scan", note_deadline)
    assert refuses(bench)  # builds its projection first
    assert None not in deadlines
    assert len(set(deadlines)) >= 5
