"""Hand-overs on NATS: a job that ends passes its place to the next one, whatever happens between the steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from mainspring.engines.nats import handover
from mainspring.engines.nats.job_records import decode, encode
from mainspring.engines.nats.limiters import CURRENT, Limiter, sequence_limiter
from mainspring.engines.nats.write_batch import NO_MESSAGE, StoredMessage, Write, WriteBatch
from mainspring.jobs.commands import Delete, Reopen
from mainspring.jobs.limits import bucket_of, family_of
from mainspring.jobs.records import Lease, OutcomeKind
from mainspring.jobs.status import JobStatus
from tests.nats.fault_bench import FaultBench, MakeBench

pytestmark = pytest.mark.long

TENANT = bucket_of("by tenant", "a")
SEQUENCE: dict[str, Any] = {"sequence": "key"}
LIMIT: dict[str, Any] = {"limits": (TENANT,)}
NAMES = {"sequence": sequence_limiter("key"), "limit": TENANT}
ENDED, LIMITER, NEXT = 1, 2, 3  # the steps of a hand-over

kinds = pytest.mark.parametrize("kind", ["sequence", "limit"])


class Killed(Exception):
    """The process has died."""


class Steps:
    """Counts the steps of the next hand-over of a process, and interrupts it before one of them."""

    def __init__(self, bench: FaultBench) -> None:
        self._bench = bench
        self._store = bench.jetstream.store_each
        self.sizes: list[int] = []

    def before(self, step: int, action: Callable[[], object]) -> None:
        """Call a function before a step, once."""

        def store_each(writes: Sequence[Write]) -> list[int | None]:
            self.sizes.append(len(writes))
            if len(self.sizes) == step:
                vars(self._bench.jetstream).pop("store_each")
                action()
            return self._store(writes)

        vars(self._bench.jetstream)["store_each"] = store_each

    def die_before(self, step: int) -> None:
        """Let the process die before a step."""

        def die() -> None:
            raise Killed

        self.before(step, die)

    def store_only(self, step: int, number: int) -> None:
        """Let the process die after the first writes of a step."""

        def store_each(writes: Sequence[Write]) -> list[int | None]:
            self.sizes.append(len(writes))
            if len(self.sizes) == step:
                vars(self._bench.jetstream).pop("store_each")
                self._store(writes[:number])
                raise Killed
            return self._store(writes)

        vars(self._bench.jetstream)["store_each"] = store_each


@pytest.fixture
def bench(make_bench: MakeBench) -> FaultBench:
    bench = make_bench()
    bench.limit("by tenant", 1)
    return bench


@pytest.fixture
def other(bench: FaultBench, make_bench: MakeBench) -> FaultBench:
    return make_bench()


def options(kind: str) -> dict[str, Any]:
    return SEQUENCE if kind == "sequence" else LIMIT


def limiter(bench: FaultBench, kind: str) -> Limiter | None:
    name = NAMES[kind]
    data = bench.jetstream.read_one(bench.names.limiter(family_of(name), name)).data
    return decode(data, Limiter) if data else None


def begin_first(bench: FaultBench, kind: str, *job_ids: str) -> tuple[int, Lease]:
    """Submit jobs and start the first one."""
    worker = bench.enroll()
    bench.submit(*job_ids, **options(kind))
    (lease,) = bench.take_when_there(worker, 1)
    assert lease.id == job_ids[0]
    return worker, lease


def assert_run_in_order(bench: FaultBench, kind: str, *job_ids: str) -> None:
    """Let a new worker run what there is: these jobs, one after another, and the limiter is free then."""
    worker = bench.enroll()
    for job_id in job_ids:
        (lease,) = bench.take_when_there(worker, 1)
        assert lease.id == job_id
        assert bench.take(worker) == []
        bench.complete(worker, lease)
    assert bench.take(worker) == []
    assert limiter(bench, kind) is None

    def has_no_messages() -> bool:
        # A message of a deleted job goes to any process. The process returns it, or drops it when a worker takes.
        assert bench.take(worker) == []
        return not bench.jetstream.scan(f"{bench.names.ready}>")

    assert bench.eventually(has_no_messages)
    assert not bench.jetstream.scan(f"{bench.names.prefix}.line.>")


@kinds
def test_an_end_is_handed_over_in_three_steps_without_a_batch(
    bench: FaultBench, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, lease = begin_first(bench, kind, "a", "b")
    steps = Steps(bench)
    steps.before(NEXT, lambda: None)
    monkeypatch.delattr(type(bench.jetstream), "commit")
    bench.complete(worker, lease)
    monkeypatch.undo()
    assert steps.sizes == [1, 1, 2]
    assert_run_in_order(bench, kind, "b")


class Reads:
    """The subjects of each read of a process."""

    def __init__(self, bench: FaultBench) -> None:
        self._read = bench.jetstream.read
        self.subjects: list[list[str]] = []
        vars(bench.jetstream)["read"] = self._note

    def _note(self, subjects: Iterable[str]) -> dict[str, StoredMessage]:
        self.subjects.append(list(subjects))
        return self._read(self.subjects[-1])


@kinds
def test_the_process_that_hands_over_reads_the_record_of_the_next_job_once(bench: FaultBench, kind: str) -> None:
    worker, lease = begin_first(bench, kind, "a", "b", "c")
    bench.complete(worker, lease)
    reads = Reads(bench)
    (lease,) = bench.take_when_there(worker, 1)
    assert lease.id == "b"
    records = [bench.names.job(job_id) for job_id in "abc"]
    assert not [each for each in reads.subjects if not set(records).isdisjoint(each)]
    reads.subjects.clear()
    bench.complete(worker, lease)
    (subjects,) = reads.subjects  # the limiter and the next job
    assert bench.names.job("c") in subjects
    assert bench.names.limiter(family_of(NAMES[kind]), NAMES[kind]) in subjects
    assert_run_in_order(bench, kind, "c")


@kinds
def test_a_job_that_was_canceled_after_its_hand_over_does_not_start(
    bench: FaultBench, other: FaultBench, kind: str
) -> None:
    worker, lease = begin_first(bench, kind, "a", "b", "c")
    bench.complete(worker, lease)
    other.cancel("b")
    (lease,) = bench.take_when_there(worker, 1)
    assert lease.id == "c"
    assert bench.status("b") is JobStatus.CANCELED
    bench.complete(worker, lease)
    assert bench.record("b").starts == 0


@kinds
def test_what_waits_behind_a_job_may_change_while_the_job_runs(
    bench: FaultBench, other: FaultBench, kind: str
) -> None:
    worker, lease = begin_first(bench, kind, "a", "b", "c", "d")
    bench.complete(worker, lease)
    (lease,) = bench.take_when_there(worker, 1)
    other.cancel("c")  # which this process has noted as the next one
    bench.complete(worker, lease)
    assert_run_in_order(bench, kind, "d")


@kinds
@pytest.mark.parametrize("step", [LIMITER, NEXT])
def test_another_worker_completes_the_hand_over_of_one_that_died(
    bench: FaultBench, other: FaultBench, kind: str, step: int
) -> None:
    worker, lease = begin_first(bench, kind, "a", "b", "c")
    Steps(bench).die_before(step)
    with pytest.raises(Killed):
        bench.complete(worker, lease)
    assert other.status("a") is JobStatus.COMPLETED
    bench.die()
    assert_run_in_order(other, kind, "b", "c")
    assert other.record("a").starts == 1


@kinds
def test_a_message_that_was_not_stored_is_stored_by_another_worker(
    bench: FaultBench, other: FaultBench, kind: str
) -> None:
    worker, lease = begin_first(bench, kind, "a", "b", "c")
    Steps(bench).store_only(NEXT, 1)
    with pytest.raises(Killed):
        bench.complete(worker, lease)
    assert not other.has_message(other.ready("b"))
    bench.die()
    assert_run_in_order(other, kind, "b", "c")


@kinds
def test_one_that_died_before_its_first_step_has_ended_nothing(
    bench: FaultBench, other: FaultBench, kind: str
) -> None:
    worker, lease = begin_first(bench, kind, "a", "b")
    Steps(bench).die_before(ENDED)
    with pytest.raises(Killed):
        bench.complete(worker, lease)
    bench.die()
    assert_run_in_order(other, kind, *("ab" if kind == "sequence" else "ba"))  # the rescue admits b first
    assert other.record("a").starts == 2


@kinds
@pytest.mark.parametrize("lost", ["job", "gate", "ready"])
def test_a_step_whose_reply_was_lost_is_not_done_twice(bench: FaultBench, kind: str, lost: str) -> None:
    worker, lease = begin_first(bench, kind, "a", "b", "c")
    bench.lose_reply(lost)
    bench.complete(worker, lease)
    assert len(bench.lost) == 1
    assert_run_in_order(bench, kind, "b", "c")
    assert {bench.record(job_id).starts for job_id in "abc"} == {1}


@kinds
def test_a_settle_that_is_sent_again_completes_its_hand_over(bench: FaultBench, kind: str) -> None:
    worker, lease = begin_first(bench, kind, "a", "b")
    unavailable = bench.jetstream.unavailable("the connection is lost")

    def fail() -> None:
        raise unavailable

    Steps(bench).before(LIMITER, fail)
    with pytest.raises(type(unavailable)):
        bench.complete(worker, lease)
    assert bench.leases.get("a") is not None, "its message must not be acknowledged yet"
    bench.complete(worker, lease)
    assert bench.leases.get("a") is None
    assert_run_in_order(bench, kind, "b")


@kinds
def test_a_job_that_is_handed_back_is_stored_with_its_message_in_one_batch(bench: FaultBench, kind: str) -> None:
    worker, lease = begin_first(bench, kind, "a", "b")
    steps = Steps(bench)
    steps.die_before(ENDED)
    assert bench.settle(worker, lease, OutcomeKind.HANDED_BACK)
    assert steps.sizes == []
    assert bench.has_message(bench.ready("a" if kind == "sequence" else "b"))


@kinds
@pytest.mark.parametrize("step", [ENDED, LIMITER, NEXT])
def test_a_next_job_that_is_canceled_between_two_steps_is_passed_over(
    bench: FaultBench, other: FaultBench, kind: str, step: int
) -> None:
    worker, lease = begin_first(bench, kind, "a", "b", "c", "d")
    Steps(bench).before(step, lambda: other.cancel("b"))
    bench.complete(worker, lease)
    assert other.status("b") is JobStatus.CANCELED
    assert_run_in_order(other, kind, "c", "d")


@pytest.mark.parametrize("step", [ENDED, LIMITER, NEXT])
def test_a_job_with_an_earlier_turn_that_comes_between_two_steps_runs_alone(
    bench: FaultBench, other: FaultBench, step: int
) -> None:
    worker, lease = begin_first(bench, "sequence", "a", "b", "c")
    Steps(bench).before(step, lambda: other.submit("early", after=-60, **SEQUENCE))
    bench.complete(worker, lease)
    assert_run_in_order(other, "sequence", "early", "b", "c")


@kinds
def test_a_next_job_that_is_canceled_while_its_message_is_stored_does_not_start(
    bench: FaultBench, other: FaultBench, kind: str
) -> None:
    worker, lease = begin_first(bench, kind, "a", "b", "c")

    def cancel() -> None:
        other.cancel("b")
        record = other.names.job("b")
        other.jetstream.store(record, other.jetstream.read_one(record).data)  # the message comes right behind it

    Steps(bench).before(NEXT, cancel)
    bench.complete(worker, lease)
    assert_run_in_order(other, kind, "c")
    assert other.record("b").starts == 0


@kinds
@pytest.mark.parametrize("step", [LIMITER, NEXT])
def test_a_job_that_failed_and_is_retried_between_two_steps_gets_in_line(
    bench: FaultBench, other: FaultBench, kind: str, step: int
) -> None:
    worker, lease = begin_first(bench, kind, "a", "b")
    Steps(bench).before(step, lambda: other.change(Reopen("a", other.now)))
    assert bench.settle(worker, lease, OutcomeKind.FAILED, error="it broke")
    worker = other.enroll()
    ran = []
    for _ in range(2):
        (next_one,) = other.take_when_there(worker, 1)
        assert other.take(worker) == []
        other.complete(worker, next_one)
        ran.append(next_one.id)
    assert sorted(ran) == ["a", "b"]
    assert limiter(other, kind) is None


@kinds
@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("is_handed_over", [False, True])
def test_a_job_that_is_deleted_between_two_steps_leaves_its_limiter(
    bench: FaultBench, other: FaultBench, kind: str, *, is_killed: bool, is_handed_over: bool
) -> None:
    worker, lease = begin_first(bench, kind, *(["a", "b"] if not is_handed_over else ["first", "a", "b"]))
    if is_handed_over:
        bench.complete(worker, lease)
        (lease,) = bench.take_when_there(worker, 1)

    def delete() -> None:
        assert other.change(Delete("a")).is_done
        other.submit("c", **options(kind))  # so that the next step is refused
        if is_killed:
            raise Killed

    Steps(bench).before(LIMITER, delete)
    if is_killed:
        with pytest.raises(Killed):
            bench.complete(worker, lease)
        bench.die()
    else:
        bench.settle(worker, lease, OutcomeKind.COMPLETED)
    assert_run_in_order(other, kind, "b", "c")


@pytest.mark.parametrize("step", [ENDED, LIMITER, NEXT])
def test_two_workers_that_end_jobs_of_one_limit_admit_two_others(
    bench: FaultBench, other: FaultBench, step: int
) -> None:
    bench.limit("by tenant", 2)
    first, second = bench.enroll(), other.enroll()
    bench.submit("a", "b", "c", "d", "e", **LIMIT)
    (own,) = bench.take_when_there(first, 1, starts=1, ahead=0)
    (others,) = other.take_when_there(second, 1, starts=1, ahead=0)
    Steps(bench).before(step, lambda: other.complete(second, others))
    bench.complete(first, own)
    found = limiter(bench, "limit")
    assert found is not None
    assert (found.admitted, sorted(found.holders), found.groups[0].waiting) == (2, ["c", "d"], 1)
    leases = bench.sorted_when_there(first, 2)
    assert [lease.id for lease in leases] == ["c", "d"]
    bench.complete(first, *leases)
    assert_run_in_order(bench, "limit", "e")


@kinds
def test_a_redelivered_message_of_a_job_that_has_handed_over_changes_nothing(
    bench: FaultBench, other: FaultBench, kind: str
) -> None:
    worker, lease = begin_first(bench, kind, "a", "b", "c")
    message = bench.jetstream.read_one(bench.ready("a"))
    bench.complete(worker, lease)
    (running,) = bench.take_when_there(worker, 1)
    before = limiter(bench, kind)
    batch = WriteBatch()
    batch.put(bench.ready("a"), message.data)
    assert bench.jetstream.commit(batch)
    second = other.enroll()
    assert other.eventually(lambda: not other.take(second) and not other.has_message(other.ready("a")))
    assert limiter(bench, kind) == before
    bench.complete(worker, running)
    assert_run_in_order(bench, kind, "c")


def leave_out(bench: FaultBench, kind: str) -> Counter[str]:
    """Let reads of many subjects leave out each record of a kind twice: in the claim, and in the hand-over."""
    read = bench.jetstream._read
    left_out: Counter[str] = Counter()

    async def read_most(subjects: list[str]) -> dict[str, StoredMessage]:
        found = await read(subjects)
        for subject in subjects if len(subjects) > 1 else ():
            if left_out[subject] < 2 and subject.startswith(f"{bench.names.prefix}.{kind}."):
                left_out[subject] += 1
                found[subject] = NO_MESSAGE
        return found

    vars(bench.jetstream)["_read"] = read_most
    return left_out


@kinds
@pytest.mark.parametrize("step", [LIMITER, NEXT])
def test_a_limiter_that_a_read_of_many_leaves_out_is_not_taken_for_absent(
    bench: FaultBench, other: FaultBench, kind: str, step: int
) -> None:
    worker, lease = begin_first(bench, kind, "a", "b", "c")
    Steps(bench).die_before(step)
    with pytest.raises(Killed):
        bench.complete(worker, lease)
    bench.die()
    left_out = leave_out(other, "gate")
    assert_run_in_order(other, kind, "b", "c")
    assert [*left_out.values()] == [2]


def test_a_running_job_that_a_read_of_many_leaves_out_keeps_its_place(
    bench: FaultBench, other: FaultBench
) -> None:
    bench.limit("by tenant", 2)
    first, second = bench.enroll(), other.enroll()
    bench.submit("a", "b", "c", "d", **LIMIT)
    (own,) = bench.take_when_there(first, 1, starts=1, ahead=0)
    (running,) = other.take_when_there(second, 1, starts=1, ahead=0)
    Steps(bench).die_before(NEXT)
    with pytest.raises(Killed):
        bench.complete(first, own)
    bench.die()
    left_out = leave_out(other, "job")
    (third,) = other.take_when_there(second, 1)
    assert other.names.job(running.id) in left_out
    found = limiter(other, "limit")
    assert found is not None
    assert (found.admitted, found.holders) == (2, [running.id, third.id])
    assert other.take(second) == []
    other.complete(second, running, third)
    assert_run_in_order(other, "limit", "d")


@kinds
@pytest.mark.parametrize("step", [LIMITER, NEXT])
def test_orphan_repair_completes_a_hand_over_whose_message_was_purged(
    bench: FaultBench, other: FaultBench, kind: str, step: int
) -> None:
    worker, lease = begin_first(bench, kind, "a", "b", "c")
    Steps(bench).die_before(step)
    with pytest.raises(Killed):
        bench.complete(worker, lease)
    bench.fall_silent()
    bench.purge(bench.ready("a"))
    assert other.nats.repair_orphans(0)
    assert other.nats.repair_orphans(0) == []
    assert_run_in_order(other, kind, "b", "c")


@kinds
def test_limiters_of_version_0_1_are_changed_by_batches_for_a_while(
    bench: FaultBench, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, lease = begin_first(bench, kind, "a", "b", "c")
    steps = Steps(bench)
    steps.before(NEXT, lambda: None)
    write_as_before(bench, kind)
    bench.complete(worker, lease)
    (lease,) = bench.take_when_there(worker, 1)
    assert (lease.id, steps.sizes) == ("b", [1]), "only the claim of b was no batch"
    monkeypatch.setattr(handover, "OLD_SECONDS", 0)
    bench.complete(worker, lease)
    assert steps.sizes == [1, 1, 1]
    assert_run_in_order(bench, kind, "c")


def write_as_before(bench: FaultBench, kind: str) -> None:
    """Write the record of a limiter as version 0.1 does: without the fields that it does not know."""
    found = limiter(bench, kind)
    assert found is not None
    fields = decode(encode(found), list[Any])
    fields[8] = [group[:6] for group in fields[8]]
    batch = WriteBatch()
    batch.put(bench.names.limiter(family_of(found.name), found.name), encode(fields[:10]))
    assert bench.jetstream.commit(batch)


def store_limiter(bench: FaultBench, kind: str, *holders: str) -> None:
    """Store the record of a limiter that has admitted these jobs, as a server that has lost later records does."""
    name = NAMES[kind]
    record = Limiter(name, len(holders), list(holders), version=CURRENT)
    bench.jetstream.store(bench.names.limiter(family_of(name), name), encode(record))


@kinds
@pytest.mark.parametrize("is_deleted", [False, True], ids=["ended", "deleted"])
def test_a_job_does_not_wait_for_one_that_has_left_although_its_limiter_names_it(
    bench: FaultBench, kind: str, *, is_deleted: bool
) -> None:
    worker, lease = begin_first(bench, kind, "first")
    bench.complete(worker, lease)
    if is_deleted:
        assert bench.change(Delete("first")).is_done
    store_limiter(bench, kind, "first")
    bench.submit("second", "third", **options(kind))
    assert_run_in_order(bench, kind, "second", "third")


@kinds
def test_a_job_waits_for_one_that_runs_again(bench: FaultBench, other: FaultBench, kind: str) -> None:
    worker, lease = begin_first(bench, kind, "first")
    assert bench.settle(worker, lease, OutcomeKind.FAILED, error="it broke")
    parts = other.nats.components
    transaction = parts.transactions.begin()
    first = transaction.job("first")
    assert first is not None
    assert first.is_over, "it is read before the limiter, as commands may do"
    assert bench.change(Reopen("first", bench.now)).is_done
    (lease,) = bench.take_when_there(worker, 1)
    assert parts.submitter.add(transaction, other.job("second", after=-60, **options(kind)), "nonce") is None
    assert parts.transactions.commit(transaction)
    assert bench.take(worker) == []
    bench.complete(worker, lease)
    assert_run_in_order(bench, kind, "second")
