"""What the engine refuses, in words that help, and names of every kind that it does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring import Mainspring, NatsSettings, Retry
from mainspring.engines.nats.submitting import RESERVED_BYTES
from mainspring.errors import ArgumentsTooLarge, EngineUnavailable, LimitExceeded, MainspringError, RefusedByStore
from mainspring.jobs.commands import Delete
from mainspring.jobs.engine import Capability
from mainspring.jobs.ids import MAX_ID_LENGTH
from mainspring.jobs.records import Outcome, OutcomeKind
from mainspring.jobs.status import JobStatus
from tests.nats.chaos_workers import projection_in
from tests.nats.fault_bench import FaultBench, fault_benches
from tests.nats.servers import MakeServers, Servers
from tests.support import PATIENCE

NAMES = [
    "a b",
    "a.b.c",
    ">",
    "*",
    "a.>",
    "$JS.API",
    "=2E",
    "=00",
    "größe 注文 🕰",
    "../../etc/passwd",
    "x" * MAX_ID_LENGTH,
    "🕰" * MAX_ID_LENGTH,
]


@pytest.fixture
def app(nats_server: Servers, nats_prefix: str, tmp_path: Path) -> Iterator[Mainspring]:
    url = f"{nats_server.url}?{projection_in(tmp_path)}"
    with Mainspring(url, nats=NatsSettings(prefix=nats_prefix), threads=2) as app:
        yield app


# -- what JetStream cannot give


def test_what_jetstream_cannot_give_is_not_promised(bench: FaultBench) -> None:
    assert bench.nats.capabilities == {
        Capability.SHARED,
        Capability.ANY_THREAD,
        Capability.REMOTE_WORKERS,
        Capability.ADMITS_AT_SUBMIT,
    }


def test_many_jobs_all_or_none_are_refused_before_anything_is_stored(app: Mainspring) -> None:
    @app.job
    def note(number: int) -> None: ...

    with pytest.raises(RefusedByStore, match=r"NATS at .* this store cannot store many jobs all or none"):
        note.submit_many([(1,), (2,)], atomic=True)
    assert app.jobs() == []
    assert len(note.submit_many([(1,), (2,)])) == 2


def test_a_backup_is_refused_with_what_to_do_instead(bench: FaultBench, tmp_path: Path) -> None:
    with pytest.raises(
        EngineUnavailable,
        match=r"the engine cannot copy a store on servers to .*; back up the servers: `nats stream backup`",
    ):
        bench.nats.backup(str(tmp_path / "copy"))


# -- sizes


def test_arguments_that_no_message_could_carry_are_refused_before_anything_is_stored(bench: FaultBench) -> None:
    limit = bench.jetstream.max_payload - RESERVED_BYTES
    jobs = [bench.job("small"), bench.job("large", payload=b"x" * (limit + 1))]
    with pytest.raises(ArgumentsTooLarge) as error:
        bench.nats.submit(jobs)
    assert (error.value.size, error.value.limit) == (limit + 1, limit)
    assert bench.find_ids() == []


@pytest.mark.parametrize("number", [1, 3])
def test_the_largest_arguments_that_are_taken_come_back(bench: FaultBench, number: int) -> None:
    payload = b"x" * (bench.jetstream.max_payload - RESERVED_BYTES)
    ids = [f"job {place}" for place in range(number)]
    bench.submit(*ids, payload=payload)
    worker = bench.enroll()
    leases = bench.take_when_there(worker, number)
    assert {lease.payload for lease in leases} == {payload}
    bench.complete(worker, *leases)


def test_a_record_that_has_grown_too_large_is_refused_with_what_to_do(bench: FaultBench) -> None:
    worker, lease = bench.begin(payload=b"x" * (bench.jetstream.max_payload // 2))
    with pytest.raises(LimitExceeded, match="raise max_payload of the server"):
        bench.settle(worker, lease, OutcomeKind.COMPLETED, result=b"y" * (bench.jetstream.max_payload // 2))
    assert bench.status() is JobStatus.RUNNING
    bench.complete(worker, lease)


def test_an_outcome_that_was_stored_beside_one_that_is_refused_is_recognized(bench: FaultBench) -> None:
    bench.submit("small")
    bench.submit("large", payload=b"x" * (bench.jetstream.max_payload // 2))
    worker = bench.enroll()
    small, large = sorted(bench.take_when_there(worker, 2), key=lambda lease: len(lease.payload))
    ended = Outcome(small, OutcomeKind.COMPLETED)
    growing = Outcome(
        large,
        OutcomeKind.COMPLETED,
        result=b"y" * (bench.jetstream.max_payload // 2),
        keep_result_until=bench.now + 1_000_000,  # so that it is stored after the other one
    )
    with pytest.raises(LimitExceeded):
        bench.nats.settle(worker, [ended, growing])
    assert bench.nats.settle(worker, [ended]) == [True]
    bench.complete(worker, large)


def test_an_end_that_no_batch_of_the_server_could_hold_is_too_large(
    bench: FaultBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, lease = bench.begin()
    ended = Outcome(lease, OutcomeKind.COMPLETED, follow_up=bench.job("after"))
    with monkeypatch.context() as patch:
        patch.setattr("mainspring.engines.nats.transaction.MAX_BATCH", 1)
        with pytest.raises(LimitExceeded, match=r"the end of job .*, in records"):
            bench.nats.settle(worker, [ended])
    assert bench.nats.settle(worker, [ended]) == [True]


def test_the_limit_is_that_of_the_server(make_nats_server: MakeServers, tmp_path: Path) -> None:
    server = make_nats_server(settings={"max_payload": 262_144})
    with fault_benches(server, "small", tmp_path) as make:
        bench = make()
        with pytest.raises(ArgumentsTooLarge, match=r"the limit is 196,608; .* max_payload of the NATS server"):
            bench.nats.submit([bench.job(payload=b"x" * 200_000)])


def test_sizes_that_an_application_cannot_know_are_told_in_its_words(
    app: Mainspring, caplog: pytest.LogCaptureFixture
) -> None:
    @app.job(retry=Retry(max_attempts=1))
    def grow(text: str) -> str:
        return text

    with pytest.raises(MainspringError):
        grow.submit("x" * 1_048_500)
    with app.running():
        handle = grow.submit("x" * 700_000)
        assert handle.wait(PATIENCE) is JobStatus.FAILED
    assert handle.info().error == "its outcome could not be stored: LimitExceeded"
    assert "raise max_payload of the server" in caplog.text


# -- names


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_a_job_with_any_name_lives_its_whole_life(bench: FaultBench, name: str) -> None:
    bench.submit(name, queue=name, type=name)
    worker = bench.enroll(name)
    (lease,) = bench.take_when_there(worker, 1, name, queues=(name,))
    assert (lease.id, lease.queue, lease.type) == (name, name, name)
    assert bench.settle(worker, lease, OutcomeKind.RETRY, due=bench.now)
    (lease,) = bench.take_when_there(worker, 1, name, queues=(name,))
    bench.complete(worker, lease)
    assert bench.find_ids(queue=name, type=name) == [name]
    assert bench.change(Delete(name)).is_done
    assert bench.find_ids() == []


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_policies_with_any_name_work(bench: FaultBench, name: str) -> None:
    bench.limit(name, 1)
    bench.submit("a", "b", sequence=name, limits=(f"{name}\x1f",))
    worker = bench.enroll()
    for job_id in "ab":
        (lease,) = bench.take_when_there(worker, 1)
        assert lease.id == job_id
        bench.complete(worker, lease)


def test_names_that_differ_a_little_are_different_names(bench: FaultBench) -> None:
    ids = ["a", "A", "a.", "a=2E", "a ", " a", "a\u0301", "á", "a>"]
    bench.submit(*ids)
    assert sorted(bench.ids_when_there(bench.enroll(), len(ids), starts=20)) == sorted(ids)
    assert bench.find_ids() == ids
