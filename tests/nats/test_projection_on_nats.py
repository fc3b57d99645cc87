"""Lists, counts and histories from the local copy: they equal the records, and only who asks for a list pays."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainspring.engines.nats.projector import REVISION_NS
from mainspring.jobs.commands import Delete
from mainspring.jobs.engine import Retention
from mainspring.jobs.pace import Pace
from mainspring.jobs.periodic_reads import PeriodicReads
from mainspring.jobs.records import Cause, JobRecord, OutcomeKind, Query
from mainspring.jobs.status import JobStatus
from mainspring.testing.conformance.bench import seconds
from tests.nats.fault_bench import FaultBench, MakeBench

MOST = 10_000


def submit_all_kinds(bench: FaultBench) -> list[str]:
    """Let there be jobs in every state, with everything that a record can hold."""
    bench.end("completed", JobStatus.COMPLETED)
    bench.end("canceled", JobStatus.CANCELED)
    bench.bury("failed")
    worker, lease = bench.begin("retried", headers={"trace": "1"})
    assert bench.settle(
        worker, lease, OutcomeKind.RETRY, due=bench.now + seconds(3_600), error="once", cause=Cause.FAILURE
    )
    running, at_work = bench.begin("running")
    assert bench.report(running, at_work, 0.5)
    bench.submit("later", after=3_600, queue="mail", type="pong", priority=2, payload=b"\x00\xff", codec="msgpack")
    bench.submit("in line a", "in line b", sequence="key", after=-1)
    bench.submit("expiring", after=3_600, expires=7_200)
    return ["completed", "canceled", "failed", "retried", "running", "later", "in line a", "in line b", "expiring"]


def findings_of(bench: FaultBench) -> dict[str, JobRecord]:
    return {record.id: record for record in bench.nats.find(Query(limit=MOST)).records}


def count_reads(bench: FaultBench, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note how many records each look at the stream brings from now on."""
    scan = bench.jetstream.scan
    read: list[int] = []

    def scan_and_note(subject: str, **options: int) -> object:
        found = scan(subject, **options)  # type: ignore[arg-type]
        if subject.startswith(bench.names.jobs):
            read.append(len(found))
        return found

    monkeypatch.setattr(bench.jetstream, "scan", scan_and_note)
    return read


# -- the same as the records


def test_a_list_shows_every_job_as_its_record_has_it_in_the_order_of_submission(
    bench: FaultBench, other: FaultBench
) -> None:
    ids = submit_all_kinds(bench)
    for reader in (bench, other):
        assert list(findings_of(reader)) == ids
        assert findings_of(reader) == {job_id: bench.record(job_id) for job_id in ids}
        assert [attempt.error for attempt in findings_of(reader)["retried"].history] == ["once"]


def test_counts_are_those_of_the_records(bench: FaultBench, other: FaultBench) -> None:
    submit_all_kinds(bench)
    states = {JobStatus.PENDING: 5, JobStatus.RUNNING: 1}
    ended = dict.fromkeys((JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELED), 1)
    for reader in (bench, other):
        assert reader.nats.counts() == {**states, **ended}
        assert sum(reader.nats.counts(queue="mail").values()) == 1
        assert sum(reader.nats.counts(type="pong").values()) == 1


def test_a_list_shows_what_any_process_stored_before_it_was_asked_for(
    bench: FaultBench, other: FaultBench
) -> None:
    for number in range(20):
        (bench, other)[number % 2].submit(f"job {number}", after=3_600)
        assert len(findings_of(bench)) == len(findings_of(other)) == number + 1


# -- periodic reads


class SimulatedPace(Pace):
    """A pace that the test decides, and that notes what it is asked."""

    def __init__(self) -> None:
        super().__init__(share=1)
        self.is_open = False
        self.expected: list[int] = []

    def is_due(self, expected_ns: int = 0) -> bool:
        self.expected.append(expected_ns)
        return self.is_open


def test_a_periodic_read_sees_an_earlier_state_until_the_next_update_is_due(
    bench: FaultBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    pace, reads = SimulatedPace(), PeriodicReads()
    monkeypatch.setattr(bench.nats.projector, "_pace", pace)
    bench.submit("first", after=-1)
    with reads.round():
        assert len(findings_of(bench)) == 1, "the first read builds the copy"
        bench.submit("second", "third", after=-1)
        before = bench.nats.statistics()
        assert (len(findings_of(bench)), before.groups[0].due) == (1, 1)
        assert before.at < bench.nats.now()
        assert reads.age_ns > 0
    assert len(findings_of(bench)) == 3, "a user sees everything that was stored before the request"
    bench.submit("fourth", after=-1)
    with reads.round():
        assert len(findings_of(bench)) == 3
        pace.is_open = True
        assert len(findings_of(bench)) == 4
        after = bench.nats.statistics()
        assert (after.groups[0].due, after.at > before.at) == (4, True)


def test_a_periodic_read_expects_a_cost_for_each_change_of_its_process(
    bench: FaultBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    pace = SimulatedPace()
    monkeypatch.setattr(bench.nats.projector, "_pace", pace)
    findings_of(bench)
    with PeriodicReads().round():
        findings_of(bench)
        bench.submit(*(f"job {number}" for number in range(100)), after=3_600)
        findings_of(bench)
    assert pace.expected[0] == 0
    assert pace.expected[1] >= 100 * REVISION_NS


def test_a_copy_that_was_opened_again_is_updated_for_a_periodic_read(
    make_bench: MakeBench, bench: FaultBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = make_bench(projection=str(tmp_path / "copy.db"))
    monkeypatch.setattr(copy.nats.projector, "_pace", SimulatedPace())
    assert findings_of(copy) == {}
    copy.nats.close()
    bench.submit("one more", after=3_600)
    copy.nats.open(lambda: None)
    with PeriodicReads().round():
        assert len(findings_of(copy)) == 1


@pytest.mark.parametrize("is_permanent", [True, False])
def test_pruning_by_a_busy_worker_updates_a_permanent_copy_only(
    make_bench: MakeBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_permanent: bool
) -> None:
    bench = make_bench(projection=str(tmp_path / "copy.db")) if is_permanent else make_bench()
    monkeypatch.setattr(bench.nats.projector, "_pace", SimulatedPace())
    assert findings_of(bench) == {}
    bench.submit("one more", after=3_600)
    read = count_reads(bench, monkeypatch)
    PeriodicReads().measure(lambda: bench.nats.prune(Retention(None, None, None)))
    assert sum(read) == int(is_permanent)


# -- going on, and beginning anew


def test_a_copy_goes_on_where_it_stopped(
    make_bench: MakeBench, bench: FaultBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.submit(*(f"job {number}" for number in range(300)), after=3_600)
    copy = make_bench(projection=str(tmp_path / "copy.db"))
    assert len(findings_of(copy)) == 300
    copy.nats.close()
    bench.submit("one more", after=3_600)
    copy.nats.open(lambda: None)
    read = count_reads(copy, monkeypatch)
    assert len(findings_of(copy)) == 301
    assert sum(read) == 1
    assert findings_of(copy) == findings_of(bench)
    assert sum(read) == 1


def test_a_copy_of_another_process_that_has_ended_is_used_again(
    make_bench: MakeBench, bench: FaultBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.submit(*(f"job {number}" for number in range(300)), after=3_600)
    first, second = (
        make_bench(projection=str(tmp_path / "copy.db")),
        make_bench(projection=str(tmp_path / "copy.db")),
    )
    assert len(findings_of(first)) == 300
    first.nats.close()
    read = count_reads(second, monkeypatch)
    assert len(findings_of(second)) == 300
    assert sum(read) == 0


def test_a_copy_that_is_built_again_is_the_same(bench: FaultBench, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = submit_all_kinds(bench)
    before = findings_of(bench)
    read = count_reads(bench, monkeypatch)
    bench.nats.projector.rebuild()
    assert sum(read) == len(ids)
    assert findings_of(bench) == before
    assert sum(bench.nats.counts().values()) == len(ids)


def test_a_copy_of_a_stream_that_was_deleted_begins_anew(
    make_bench: MakeBench, bench: FaultBench, tmp_path: Path
) -> None:
    copy = make_bench(projection=str(tmp_path / "copy.db"))
    bench.submit("old", after=3_600)
    assert findings_of(copy).keys() == {"old"}
    copy.nats.close()
    bench.jetstream.api(f"STREAM.DELETE.{bench.names.stream}")
    copy.nats.open(lambda: None)
    copy.submit("new", after=3_600)
    assert findings_of(copy).keys() == {"new"}


def test_the_lag_is_told(bench: FaultBench, other: FaultBench) -> None:
    other.submit("a", after=3_600)
    assert bench.nats.projector.lag() == 0, "there is no copy that could lag"
    assert len(findings_of(bench)) == 1
    assert bench.nats.projector.lag() == 0
    other.submit("b", "c", after=3_600)
    assert bench.nats.projector.lag() > 0
    assert len(findings_of(bench)) == 3
    assert bench.nats.projector.lag() == 0
    other.nats.renew(other.enroll())
    assert bench.nats.projector.lag() == 0, "only records count"


# -- who has one


def test_a_process_that_asks_for_no_list_has_no_copy(bench: FaultBench, tmp_path: Path) -> None:
    submit_all_kinds(bench)
    worker = bench.enroll()
    bench.take(worker)
    bench.nats.sweep(worker)
    bench.nats.prune(Retention(completed=None, canceled=None, failed=None))
    assert bench.situation("running").record == bench.record("running")
    assert not bench.nats.projector.is_open
    assert list(tmp_path.iterdir()) == []


def test_two_processes_have_different_files(
    bench: FaultBench, other: FaultBench, make_bench: MakeBench, tmp_path: Path
) -> None:
    bench.submit("job", after=3_600)
    assert len(findings_of(bench)) == len(findings_of(other)) == 1
    files = sorted(tmp_path.glob("*.db"))
    assert len(files) == 2
    bench.nats.close()
    assert len(findings_of(make_bench())) == 1
    assert sorted(tmp_path.glob("*.db")) == files, "the file of one that has ended serves the next"


# -- what is forgotten


def test_a_deleted_job_vanishes_from_lists(bench: FaultBench, other: FaultBench) -> None:
    bench.submit("kept", "deleted", after=3_600)
    bench.cancel("deleted")
    assert len(findings_of(other)) == 2
    assert bench.change(Delete("deleted")).is_done
    for reader in (bench, other):
        assert findings_of(reader).keys() == {"kept"}
        assert sum(reader.nats.counts().values()) == 1


@pytest.mark.parametrize("status", [JobStatus.COMPLETED, JobStatus.CANCELED, JobStatus.FAILED])
def test_a_job_whose_time_is_over_vanishes_from_the_server_and_from_lists(
    bench: FaultBench, other: FaultBench, status: JobStatus
) -> None:
    kept = dict.fromkeys(("completed", "canceled", "failed")) | {status.lower(): seconds(1)}
    bench.nats.prune(Retention(**kept))
    bench.submit("kept", after=3_600)
    bench.end("job", status)
    assert findings_of(other).keys() == {"job", "kept"}
    assert bench.eventually(lambda: not bench.nats.find(Query(ids=("job",))).records)
    for reader in (bench, other):
        assert findings_of(reader).keys() == {"kept"}
        assert reader.nats.counts()[status] == 0


def test_a_job_that_is_deleted_while_a_copy_is_away_is_missing_when_it_is_back(
    make_bench: MakeBench, bench: FaultBench, tmp_path: Path
) -> None:
    copy = make_bench(projection=str(tmp_path / "copy.db"))
    bench.submit("kept", "deleted", after=3_600)
    bench.cancel("deleted")
    assert len(findings_of(copy)) == 2
    copy.nats.close()
    assert bench.change(Delete("deleted")).is_done
    copy.nats.open(lambda: None)
    assert findings_of(copy).keys() == {"kept"}
