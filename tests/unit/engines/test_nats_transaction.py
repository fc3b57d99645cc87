"""Transactions: what was read must still be there when it is written, and work is done again if it is not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import cast
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from mainspring.engines.nats import transaction as transaction_module
from mainspring.engines.nats.jetstream import JetStream
from mainspring.engines.nats.job_records import StoredJob, encode, make_job
from mainspring.engines.nats.subject_names import SubjectNames
from mainspring.engines.nats.transaction import (
    MAX_TRIES,
    BatchTooLarge,
    ReadyJobs,
    Transaction,
    TransactionManager,
)
from mainspring.engines.nats.write_batch import MAX_BATCH, NO_MESSAGE, StoredMessage, Write, WriteBatch
from mainspring.errors import EngineUnavailable
from mainspring.jobs.records import NewJob
from mainspring.jobs.status import JobStatus
from mainspring.jobs.timestamps import MICROSECONDS

NOW = 1_700_000_000 * MICROSECONDS
NAMES = SubjectNames("p")


class FakeJetStream:
    """A server in memory: subjects with one message each, batches that are stored all or none."""

    def __init__(self) -> None:
        self.held: dict[str, StoredMessage] = {}
        self.last = 0
        self.last_record = 0
        self.reads: list[list[str]] = []
        self.batches: list[list[str]] = []
        self.address = "memory"
        self.pulls = Mock()
        self.on_commit: Callable[[], None] = lambda: None

    def now(self) -> int:
        return NOW

    def shared_deadline(self) -> AbstractContextManager[None]:
        return nullcontext()

    def read(self, subjects: Iterable[str]) -> dict[str, StoredMessage]:
        wanted = list(subjects)
        if wanted:
            self.reads.append(wanted)
        return {subject: self.held.get(subject, NO_MESSAGE) for subject in wanted}

    def store(self, subject: str, data: bytes) -> None:
        """Write as another process does."""
        self.last += 1
        self.held[subject] = StoredMessage(self.last, data)

    def commit(self, batch: WriteBatch) -> int | None:
        self.on_commit()
        if any(not self._is_as_expected(write) for write in batch.writes):
            return None
        self.batches.append([write.subject for write in batch.writes])
        for write in batch.writes:
            self.store(write.subject, write.data)
        return self.last - len(batch.writes) + 1

    def store_each(self, writes: Sequence[Write]) -> list[int | None]:
        answers: list[int | None] = []
        for write in writes:
            is_good = self._is_as_expected(write)
            if is_good:
                self.store(write.subject, write.data)
            answers.append(self.last if is_good else None)
        return answers

    def note_record(self, revision: int) -> None:
        self.last_record = max(self.last_record, revision)

    def _is_as_expected(self, write: Write) -> bool:
        return write.expected is None or write.expected == self.held.get(write.subject, NO_MESSAGE).revision


@pytest.fixture
def jetstream() -> FakeJetStream:
    return FakeJetStream()


@pytest.fixture
def transactions(jetstream: FakeJetStream) -> TransactionManager:
    return TransactionManager(cast("JetStream", jetstream), NAMES)


def job(job_id: str = "job", status: JobStatus = JobStatus.PENDING, finished: int | None = None) -> StoredJob:
    made = make_job(NewJob(job_id, "ping", "default", 1, NOW, b"{}", "json"), now=NOW, place=1, nonce="n")
    return replace(made, status=status, finished=finished)


def ready(job_id: str) -> str:
    return NAMES.ready_of("default", "ping", 1, job_id)


# -- reading and writing


def test_a_subject_is_read_once_and_what_was_written_here_is_seen(
    jetstream: FakeJetStream, transactions: TransactionManager
) -> None:
    jetstream.store("a", b"1")
    transaction = transactions.begin()
    assert (transaction.get("a"), transaction.get("a"), transaction.get("none")) == (b"1", b"1", b"")
    transaction.put("a", b"2")
    assert (transaction.get("a"), transaction.stored("a").data) == (b"2", b"1")
    assert jetstream.reads == [["a"], ["none"]]


def test_what_was_read_and_written_must_not_have_changed(
    jetstream: FakeJetStream, transactions: TransactionManager
) -> None:
    jetstream.store("a", b"1")
    transaction = transactions.begin()
    transaction.put("a", transaction.get("a") + b"x")
    transaction.put("new", b"y")
    jetstream.store("a", b"2")
    assert not transactions.commit(transaction)
    assert jetstream.held.keys() == {"a"}, "all or none"


def test_what_was_not_there_when_it_was_read_must_still_not_be_there(
    jetstream: FakeJetStream, transactions: TransactionManager
) -> None:
    transaction = transactions.begin()
    transaction.put("new", b"ours")
    jetstream.store("new", b"theirs")
    assert not transactions.commit(transaction)
    assert jetstream.held["new"].data == b"theirs"


def test_what_was_only_read_may_change(jetstream: FakeJetStream, transactions: TransactionManager) -> None:
    jetstream.store("a", b"1")
    transaction = transactions.begin()
    transaction.put("b", transaction.get("a"))
    jetstream.store("a", b"2")
    assert transactions.commit(transaction)


def test_work_is_done_again_from_what_is_there_until_no_other_process_was_quicker(
    jetstream: FakeJetStream, transactions: TransactionManager
) -> None:
    rivals = [b"1", b"12"]
    done: list[str] = []

    def interfere() -> None:
        if rivals:
            jetstream.store("a", rivals.pop(0))

    def work(transaction: Transaction) -> bytes:
        seen = transaction.get("a")
        transaction.put("a", seen + b"x")
        transaction.batch.after_commit(lambda: done.append("callback"))
        return seen

    jetstream.on_commit = interfere
    assert transactions.run(work) == b"12"
    assert jetstream.held["a"].data == b"12x"
    assert done == ["callback"], "what follows is done once, for the work that was stored"


def test_work_that_is_never_stored_is_given_up(jetstream: FakeJetStream, transactions: TransactionManager) -> None:
    tries: list[int] = []

    def work(transaction: Transaction) -> None:
        tries.append(1)
        transaction.put("a", transaction.get("a") + b"x")

    jetstream.on_commit = lambda: jetstream.store("a", b"")
    with pytest.raises(
        EngineUnavailable, match=f"{MAX_TRIES} commits in a row failed, because other processes changed the same"
    ):
        transactions.run(work)
    assert len(tries) == MAX_TRIES


# -- jobs


def test_a_job_that_has_ended_is_forgotten_when_its_time_is_over(
    jetstream: FakeJetStream, transactions: TransactionManager
) -> None:
    transactions.retention = {JobStatus.COMPLETED: 60 * MICROSECONDS}
    transaction = transactions.begin()
    transaction.put_job(job("new", JobStatus.COMPLETED, NOW - 20 * MICROSECONDS))
    transaction.put_job(job("old", JobStatus.COMPLETED, NOW - 90 * MICROSECONDS))
    transaction.put_job(job("failed", JobStatus.FAILED, NOW))
    transaction.put_job(job("waiting"))
    headers = {write.subject: write.headers for write in transaction.build_batch().writes}
    assert headers == {
        NAMES.job("new"): {"Nats-TTL": "40s"},
        NAMES.job("old"): {"Nats-TTL": "1s"},
        NAMES.job("failed"): None,
        NAMES.job("waiting"): None,
    }


def test_a_message_that_carries_a_record_stands_right_behind_it(transactions: TransactionManager) -> None:
    transaction = transactions.begin()
    for job_id in "ab":
        transaction.put_job(job(job_id))
        transaction.publish_ready(job(job_id))
    transaction.batch.put("lane", b"x")
    subjects = [write.subject for write in transaction.build_batch().writes]
    assert subjects == [NAMES.job("a"), ready("a"), NAMES.job("b"), ready("b"), "lane"]


def test_a_limiter_is_stored_after_its_jobs(transactions: TransactionManager) -> None:
    transaction = transactions.begin()
    limiter = NAMES.limiter("family", "limiter")
    transaction.put_job(job("a"))
    transaction.put(limiter, b"a")
    transaction.put_job(job("b"))
    transaction.put(limiter, b"a, b")
    transaction.batch.put("lane", b"x")
    subjects = [write.subject for write in transaction.build_batch().writes]
    assert subjects == [NAMES.job("a"), NAMES.job("b"), limiter, "lane"]


def test_a_message_that_is_taken_away_again_is_not_stored(transactions: TransactionManager) -> None:
    transaction = transactions.begin()
    transaction.put_job(job())
    transaction.publish_ready(job())
    transaction.batch.schedule("at.job", ready("job"), NOW)
    transaction.withdraw_ready(job())
    transaction.purge("at.job")
    batch = transaction.build_batch()
    assert [write.subject for write in batch.writes] == [NAMES.job("job")]
    assert batch.purges == ["at.job"]


def test_revisions_are_those_under_which_records_were_stored(
    jetstream: FakeJetStream, transactions: TransactionManager
) -> None:
    jetstream.store("other", b"")
    transaction = transactions.begin()
    for job_id in "ab":
        transaction.put_job(job(job_id))
        transaction.publish_ready(job(job_id))
    assert transactions.commit(transaction)
    assert transaction.revisions() == {
        subject: jetstream.held[subject].revision for subject in map(NAMES.job, "ab")
    }
    assert jetstream.last_record == jetstream.held[NAMES.job("b")].revision


# -- a few records, each for itself


def test_records_that_have_nothing_to_do_with_each_other_are_stored_each_for_itself(
    jetstream: FakeJetStream, transactions: TransactionManager
) -> None:
    transaction = transactions.begin()
    for job_id in "abc":
        transaction.put_job(job(job_id))
    jetstream.store(NAMES.job("b"), encode(job("b")))
    assert transactions.commit_each(transaction) == {NAMES.job("b")}
    assert transaction.revisions().keys() == {NAMES.job("a"), NAMES.job("c")}
    assert jetstream.batches == []


@pytest.mark.parametrize("more", ["ready message", "put", "purge", "send", "callback", "other record"])
def test_whatever_belongs_together_is_stored_as_one(
    jetstream: FakeJetStream, transactions: TransactionManager, more: str
) -> None:
    transaction = transactions.begin()
    transaction.put_job(job("a"))
    transaction.put_job(job("b"))
    match more:
        case "ready message":
            transaction.publish_ready(job("a"))
        case "put":
            transaction.batch.put("lane", b"x")
        case "purge":
            transaction.purge(ready("a"))
        case "send":
            transaction.batch.send("note")
        case "callback":
            transaction.batch.after_commit(lambda: None)
        case _:
            transaction.put(NAMES.limiter("f", "g"), b"x")
    jetstream.store(NAMES.job("b"), encode(job("b")))
    assert NAMES.job("a") in transactions.commit_each(transaction)
    assert NAMES.job("a") not in jetstream.held


# -- many


def test_more_than_the_server_takes_as_one_is_split(
    jetstream: FakeJetStream, transactions: TransactionManager
) -> None:
    def work(transaction: Transaction, number: int) -> int:
        for part in range(20):
            transaction.put(f"{number}.{part}", b"x")
        return number

    assert transactions.run_many(range(120), work) == list(range(120))
    assert len(jetstream.held) == 2_400
    assert max(map(len, jetstream.batches)) <= MAX_BATCH


def test_one_that_is_too_large_by_itself_is_refused(
    jetstream: FakeJetStream, transactions: TransactionManager
) -> None:
    def work(transaction: Transaction, _: int) -> None:
        for part in range(MAX_BATCH + 1):
            transaction.put(f"{part}", b"x")

    with pytest.raises(BatchTooLarge):
        transactions.run_many([1], work)
    assert jetstream.held == {}


def test_each_of_many_sees_what_those_before_it_did(
    jetstream: FakeJetStream, transactions: TransactionManager
) -> None:
    def work(transaction: Transaction, item: bytes) -> bytes:
        before = transaction.get("a")
        transaction.put("a", before + item)
        return before

    assert transactions.run_many([b"x", b"y", b"z"], work, batch_size=2) == [b"", b"x", b"xy"]
    assert jetstream.held["a"].data == b"xyz"


def test_records_of_ready_jobs_are_given_once_and_the_oldest_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transaction_module, "MAX_READY_JOBS", 2)
    known = ReadyJobs()
    jobs = [job(f"job {number}") for number in range(3)]
    for number, each in enumerate(jobs):
        known.put(10 + number, each, number)
    assert known.take(10) is None
    assert known.take(12) == (jobs[2], 2)
    assert known.take(12) is None
    assert known.take(11) == (jobs[1], 1)
