"""The writer stores the counts of a process: with transactions of the io layer, by a timer, and at the end."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from mainspring import EngineUnavailable, ThreadPool
from mainspring.jobs import activity_writer
from mainspring.jobs.activity import ActivityRecorder, EngineNote
from mainspring.jobs.activity_rows import ActivityBatch
from mainspring.jobs.activity_writer import LATEST_SECONDS, MAX_TRIES, ActivityWriter
from mainspring.jobs.engine import Capability, Engine
from mainspring.jobs.io_layer import SUBMIT, BlockingReply, IoLayer, Operation
from mainspring.jobs.records import Conflict, ConflictKind, NewJob
from mainspring.testing import ManualClock
from tests.support import PATIENCE, Gate, eventually, within

JOB = NewJob("a", "send", "mail", 1, 0, b"{}", "json")


class CountingEngine:
    """An engine that keeps the batches it gets, and fails as a test says."""

    description = "an engine of this test"

    def __init__(self, *capabilities: Capability) -> None:
        self.capabilities = frozenset(capabilities)
        self.batches: list[ActivityBatch] = []
        self.notes: list[EngineNote] = []
        self.error: Exception | None = None
        self.commit_error: Exception | None = None
        self.units = 0
        self._in_unit: list[ActivityBatch] = []

    @contextmanager
    def unit(self, *, durable: bool) -> Iterator[None]:
        self._in_unit = []
        yield
        self.units += 1
        if self.commit_error is not None:
            raise self.commit_error
        self.batches += self._in_unit

    def submit(self, jobs: list[NewJob]) -> list[Conflict | None]:
        return [Conflict(job.id, ConflictKind.ID) if job.id == "taken" else None for job in jobs]

    def take_notes(self) -> list[EngineNote]:
        notes, self.notes = self.notes, []
        return notes

    def record_activity(self, batch: ActivityBatch) -> None:
        if self.error is not None:
            raise self.error
        if Capability.ATOMIC_UNIT in self.capabilities:
            self._in_unit.append(batch)
        else:
            self.batches.append(batch)

    @property
    def submitted(self) -> int:
        counts = {(batch.sender, batch.number): batch.counts for batch in self.batches}
        return sum(count.count for part in counts.values() for count in part if count.measure == "submitted")


class Bench:
    """An engine, an io layer on a pool with a manual clock, and the writer."""

    def __init__(
        self, clock: ManualClock, pool: ThreadPool, *capabilities: Capability, has_timer: bool = True
    ) -> None:
        self.clock = clock
        self.engine = CountingEngine(*capabilities)
        engine = cast(Engine, self.engine)
        self.recorder = ActivityRecorder(lambda: 0, keeps_minutes=True)
        self.writer = ActivityWriter(engine, self.recorder, clock, has_timer=has_timer)
        self.io = IoLayer(engine, pool, self.writer)

    def submit(self) -> None:
        self.io.call(SUBMIT, [JOB])

    def count(self) -> None:
        """Count a job, outside of any transaction."""
        self.recorder.count_submits([JOB], [None])
        self.writer.note_news()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def pool(clock: ManualClock) -> Iterator[ThreadPool]:
    with ThreadPool(1, name="io", clock=clock) as pool:
        yield pool


@pytest.fixture
def bench(clock: ManualClock, pool: ThreadPool) -> Bench:
    return Bench(clock, pool, Capability.ATOMIC_UNIT)


@pytest.fixture
def untimed(clock: ManualClock, pool: ThreadPool) -> Bench:
    """A bench whose writer sets no timer."""
    return Bench(clock, pool, Capability.ATOMIC_UNIT, has_timer=False)


@pytest.fixture
def sending(clock: ManualClock, pool: ThreadPool) -> Bench:
    """A bench whose engine cannot commit several calls in one transaction."""
    return Bench(clock, pool)


def test_counts_are_stored_in_a_later_transaction_at_most_once_a_second(untimed: Bench) -> None:
    untimed.submit()  # it is counted when it is committed
    assert untimed.engine.batches == []
    untimed.submit()
    assert (untimed.engine.submitted, untimed.engine.units) == (1, 2)
    for _ in range(5):
        untimed.submit()
    assert (untimed.engine.submitted, untimed.engine.units) == (1, 7)
    untimed.clock.jump(1)
    untimed.submit()
    assert (untimed.engine.submitted, untimed.engine.units, len(untimed.engine.batches)) == (7, 8, 2)


def test_a_timer_stores_counts_if_there_is_no_other_transaction(bench: Bench) -> None:
    bench.submit()
    bench.clock.advance(LATEST_SECONDS - 1)
    assert bench.engine.batches == []
    bench.clock.advance(1)
    eventually(lambda: bench.engine.submitted == 1)
    assert bench.engine.units == 2


def test_a_process_without_work_makes_no_transaction(bench: Bench) -> None:
    bench.submit()
    bench.clock.advance(LATEST_SECONDS)
    eventually(lambda: bench.engine.submitted == 1)
    units = bench.engine.units
    bench.clock.advance(10 * LATEST_SECONDS)
    assert bench.engine.units == units


def test_after_the_end_no_timer_is_left(bench: Bench, pool: ThreadPool) -> None:
    bench.submit()
    assert pool.statistics().delayed == 1
    bench.writer.close()
    bench.submit()
    assert pool.statistics().delayed == 0


def test_a_flush_stores_counts_at_once(bench: Bench) -> None:
    bench.submit()
    bench.submit()
    bench.submit()
    bench.writer.flush(PATIENCE)
    assert bench.engine.submitted == 3
    units = bench.engine.units
    bench.writer.flush(PATIENCE)
    assert bench.engine.units == units  # there was nothing to store


def test_a_commit_that_fails_is_counted_later(bench: Bench) -> None:
    bench.submit()
    bench.engine.commit_error = EngineUnavailable(engine="it", reason="is locked", remedy="wait")
    with pytest.raises(EngineUnavailable):
        bench.submit()
    assert bench.engine.batches == []
    bench.engine.commit_error = None
    bench.submit()
    bench.writer.flush(PATIENCE)
    assert bench.engine.submitted == 2
    numbers = [batch.number for batch in bench.engine.batches]
    assert numbers == sorted(set(numbers))


def test_counts_that_cannot_be_written_do_not_fail_jobs(untimed: Bench, caplog: pytest.LogCaptureFixture) -> None:
    untimed.engine.error = ValueError("no such table")
    with caplog.at_level(logging.WARNING, "mainspring.activity"):
        for _ in range(2 * MAX_TRIES + 1):
            untimed.submit()
            untimed.clock.jump(LATEST_SECONDS)
    assert untimed.engine.units == 2 * MAX_TRIES + 1
    assert len(caplog.records) == 2
    assert "no such table" in caplog.text
    untimed.engine.error = None
    untimed.submit()
    untimed.writer.flush(PATIENCE)
    assert untimed.engine.submitted == 2  # those after the last time that counts were dropped
    assert untimed.recorder.snapshot().submitted == {("mail", "send"): 2 * MAX_TRIES + 2}


def test_a_failure_is_not_tried_again_at_once(untimed: Bench) -> None:
    untimed.submit()
    untimed.engine.error = ValueError("busy")
    untimed.submit()
    untimed.engine.error = None
    untimed.submit()
    untimed.clock.jump(LATEST_SECONDS - 1)
    untimed.submit()
    assert untimed.engine.batches == []
    untimed.clock.jump(1)
    untimed.submit()
    assert untimed.engine.submitted == 4


def test_notes_of_the_engine_are_counted_with_a_transaction(bench: Bench) -> None:
    bench.engine.notes = [EngineNote("expired", "mail", "send", 3)]
    bench.submit()
    assert bench.recorder.snapshot().attempts == {("mail", "send", "expired"): 3}


def test_a_commit_is_counted_with_its_size(bench: Bench) -> None:
    bench.io.call(SUBMIT, [JOB] * 7)
    bench.submit()
    operations = bench.recorder.snapshot().commit_operations
    assert (operations.count, operations.sum) == (2, 8)


def test_operations_that_share_a_commit_are_counted_together(bench: Bench, pool: ThreadPool) -> None:
    gate = Gate()
    pool.post(gate)
    gate.wait_until_entered()  # so that all operations are queued before the first is committed
    other = NewJob("b", "report", "mail", 1, 0, b"{}", "json")
    taken = NewJob("taken", "send", "mail", 1, 0, b"{}", "json")
    answers: list[BlockingReply[Any]] = [BlockingReply() for _ in range(3)]
    for answer, jobs in zip(answers, [[JOB], [taken, other], [JOB, JOB]], strict=True):
        bench.io.dispatch(Operation(SUBMIT, jobs, answer))
    gate.open()
    results = [within(answer.get) for answer in answers]
    assert results == [[None], [Conflict("taken", ConflictKind.ID), None], [None, None]]
    activity = bench.recorder.snapshot()
    assert activity.submitted == {("mail", "send"): 3, ("mail", "report"): 1}
    assert (activity.commit_operations.count, activity.commit_operations.sum) == (1, 5)


def test_a_transaction_that_fails_is_not_counted(bench: Bench) -> None:
    bench.engine.commit_error = ValueError("no")
    with pytest.raises(ValueError, match="no"):
        bench.submit()
    activity = bench.recorder.snapshot()
    assert (activity.submitted, activity.commit_seconds.count) == ({}, 0)


def test_many_counts_become_several_batches(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity_writer, "MAX_COUNTS", 3)
    for number in range(7):
        bench.recorder.count_notes([EngineNote("expired", "mail", f"type {number}")])
    bench.writer.flush(PATIENCE)
    assert [len(batch.counts) for batch in bench.engine.batches] == [3, 3, 1]


# -- an engine without ATOMIC_UNIT


def test_other_engines_get_counts_from_a_thread_of_their_own(sending: Bench) -> None:
    sending.submit()
    sending.submit()
    assert sending.engine.batches == []
    sending.clock.advance(LATEST_SECONDS)
    eventually(lambda: sending.engine.submitted == 2)
    assert sending.engine.units == 2


def test_a_batch_that_was_not_confirmed_is_sent_again_with_its_number(sending: Bench) -> None:
    sending.submit()
    sending.engine.error = EngineUnavailable(engine="it", reason="is gone", remedy="wait")
    sending.writer.flush(PATIENCE)
    sending.submit()
    sending.engine.error = None
    sending.writer.flush(PATIENCE)
    assert [batch.number for batch in sending.engine.batches] == [1, 2]
    assert sending.engine.submitted == 2
    assert {batch.sender for batch in sending.engine.batches} == {sending.engine.batches[0].sender}


def test_counts_that_cannot_be_sent_are_dropped_with_one_line(
    sending: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    sending.engine.error = EngineUnavailable(engine="it", reason="is gone", remedy="wait")
    sending.count()
    with caplog.at_level(logging.WARNING, "mainspring.activity"):
        for _ in range(MAX_TRIES):
            sending.writer.flush(PATIENCE)
    assert len(caplog.records) == 1
    assert not sending.writer.has_news


def test_two_processes_have_different_senders(clock: ManualClock, pool: ThreadPool) -> None:
    benches: list[Any] = [Bench(clock, pool) for _ in range(2)]
    for bench in benches:
        bench.count()
        bench.writer.flush(PATIENCE)
    assert benches[0].engine.batches[0].sender != benches[1].engine.batches[0].sender
