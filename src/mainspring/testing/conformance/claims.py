"""Conformance tests of engines: which jobs a worker can claim, in which order and when, and which it may start."""

from __future__ import annotations

from mainspring.jobs.backlog import FRESH_SHARE, HEAD_START
from mainspring.jobs.engine import Capability, Demand
from mainspring.jobs.records import OutcomeKind, Query
from mainspring.jobs.status import JobStatus
from mainspring.jobs.timestamps import MICROSECONDS
from mainspring.testing.conformance.base import EngineSuite
from mainspring.testing.conformance.bench import LEAD_SECONDS, SOON_SECONDS, Bench, seconds
from mainspring.testing.conformance.capabilities import needs

HEAD_START_SECONDS = HEAD_START / MICROSECONDS


class ClaimTests(EngineSuite):
    """Tests of the engine's `take` and `start`: which jobs a worker gets and may start."""

    # -- order

    @needs(Capability.EXACT_ORDER)
    def test_what_is_due_longest_comes_first(self, bench: Bench) -> None:
        for job_id, age in (("second", 20), ("third", 10), ("first", 30)):
            bench.submit(job_id, after=-age)
        assert bench.take_ids(bench.enroll()) == ["first", "second", "third"]

    @needs(Capability.EXACT_ORDER)
    def test_jobs_due_at_the_same_instant_come_in_the_order_of_submission(self, bench: Bench) -> None:
        bench.submit(*"zaymb")
        assert "".join(bench.take_ids(bench.enroll())) == "zaymb"

    @needs(Capability.EXACT_ORDER)
    def test_a_higher_priority_overtakes(self, bench: Bench) -> None:
        bench.submit("low", priority=0, after=-2)
        bench.submit("middle", priority=1, after=-1)
        bench.submit("high", priority=2)
        assert bench.take_ids(bench.enroll()) == ["high", "middle", "low"]

    @needs(Capability.EXACT_ORDER)
    def test_what_has_waited_longer_than_the_head_start_is_not_overtaken(self, bench: Bench) -> None:
        bench.submit("overtaken", priority=1, after=1 - HEAD_START_SECONDS)
        bench.submit("waited", priority=1, after=-1 - HEAD_START_SECONDS)
        bench.submit("high", priority=2)
        assert bench.take_ids(bench.enroll()) == ["waited", "high", "overtaken"]

    @needs(Capability.EXACT_ORDER)
    def test_the_first_ones_are_taken_when_there_is_not_room_for_all(self, bench: Bench) -> None:
        for age in range(20):
            bench.submit(f"{age:02}", after=-age / 10, priority=age % 3, queue=f"queue {age % 2}")
        order = sorted(range(20), key=lambda age: -age / 10 - HEAD_START_SECONDS * (age % 3))
        worker = bench.enroll()
        taken = [job_id for _ in range(4) for job_id in bench.take_ids(worker, starts=5)]
        assert taken == [f"{age:02}" for age in order]

    @needs(Capability.EXACT_ORDER)
    def test_fresh_jobs_have_a_share_of_the_starts_beside_a_backlog(self, bench: Bench) -> None:
        bench.submit(*(f"old {number}" for number in range(40)), after=-3600)
        bench.submit(*(f"fresh {number}" for number in range(10)))
        worker = bench.enroll()
        for room in (2 * FRESH_SHARE, *[1] * FRESH_SHARE):
            taken = bench.take_ids(worker, starts=room)
            assert len(taken) == room
        fresh = [record.id for record in bench.engine.find(Query(status=JobStatus.RUNNING)).records][-3:]
        assert fresh == ["fresh 0", "fresh 1", "fresh 2"]

    def test_a_backlog_without_fresh_jobs_gets_every_start(self, bench: Bench) -> None:
        ids = [f"{number:02}" for number in range(20)]
        bench.submit(*ids, after=-3600)
        worker = bench.enroll()
        taken = [job_id for _ in range(2) for job_id in bench.ids_when_there(worker, 10, starts=10)]
        assert sorted(taken) == ids

    @needs(Capability.EXACT_ORDER)
    def test_a_backlog_is_worked_off_in_order(self, bench: Bench) -> None:
        ids = [f"{number:02}" for number in range(20)]
        bench.submit(*ids, after=-3600)
        worker = bench.enroll()
        assert [job_id for _ in range(2) for job_id in bench.take_ids(worker, starts=10)] == ids

    def test_no_job_is_given_twice_for_the_share_of_fresh_ones(self, bench: Bench) -> None:
        bench.submit(*(f"old {number}" for number in range(6)), after=-60)
        bench.submit("fresh", after=-1, priority=2)
        bench.submit("middle", after=-20)
        taken = bench.ids_when_there(bench.enroll(), 8, starts=8)
        assert sorted(taken) == sorted(bench.find_ids())

    # -- free slots of the worker

    def test_no_more_are_started_than_there_is_room_for(self, bench: Bench) -> None:
        bench.submit(*"abc")
        worker = bench.enroll()
        taken = bench.look_when_there(lambda: bench.look(worker, starts=2))
        (left,) = set("abc") - {lease.id for lease in taken.leases}
        assert taken.is_more
        assert (bench.record(left).status, bench.record(left).owner) == (JobStatus.PENDING, None)
        rest = bench.look_when_there(lambda: bench.look(worker, starts=2))
        assert [lease.id for lease in rest.leases] == [left]
        assert not rest.is_more

    def test_no_more_are_held_than_there_is_room_for(self, bench: Bench) -> None:
        worker = bench.enroll()
        bench.submit(*"abc", after=SOON_SECONDS)
        first = bench.look_when_there(lambda: bench.look(worker, ahead=2)).leases
        assert [lease.is_started for lease in first] == [False, False]
        rest = bench.take_when_there(worker, 1, ahead=2)
        assert sorted(lease.id for lease in (*first, *rest)) == ["a", "b", "c"]

    @needs(Capability.EXACT_ORDER)
    def test_the_first_ones_are_held_when_there_is_not_room_for_all(self, bench: Bench) -> None:
        bench.submit(*"cab", after=SOON_SECONDS)
        worker = bench.enroll()
        assert [bench.take_ids(worker, ahead=2), bench.take_ids(worker, ahead=2)] == [["c", "a"], ["b"]]

    def test_without_room_nothing_is_taken_and_the_rest_is_still_told(self, bench: Bench) -> None:
        bench.submit("due")
        bench.submit("soon", after=SOON_SECONDS)
        taken = bench.look(bench.enroll(), starts=0, ahead=0)
        assert (taken.leases, taken.is_more) == ([], True)

    @needs(Capability.FORESIGHT)
    def test_without_room_the_next_due_time_is_still_told(self, bench: Bench) -> None:
        bench.submit("due")
        bench.submit("later", after=60)
        bench.submit("soon", after=SOON_SECONDS)
        assert bench.look(bench.enroll(), starts=0, ahead=0).next_due == bench.record("soon").due

    def test_each_demand_has_limits_of_its_own(self, bench: Bench) -> None:
        bench.submit("a1", "a2", "a3", type="a")
        bench.submit("b1", "b2", "b3", type="b")
        bench.submit("a4", "a5", type="a", after=SOON_SECONDS)
        worker, demands = bench.enroll("a", "b"), (Demand(("a",), 1, 1), Demand(("b",), 2, 0))
        taken = bench.look_when_there(lambda: bench.look_for(worker, *demands))
        given = sorted(lease.type for lease in taken.leases if lease.is_started)
        assert given == ["a", "b", "b"]
        assert taken.is_more

    @needs(Capability.EXACT_ORDER)
    def test_a_demand_without_room_for_more_starts_may_hold_what_is_due_soon(self, bench: Bench) -> None:
        bench.submit("due", "left")
        bench.submit("soon", "sooner", after=SOON_SECONDS)
        leases = bench.take(bench.enroll(), starts=1, ahead=1)
        assert [lease.is_started for lease in leases] == [True, False]

    # -- followers

    def test_a_job_is_left_for_a_worker_that_knows_its_handler(self, bench: Bench) -> None:
        bench.submit("new", type="new")
        bench.submit("old", type="old")
        assert bench.ids_when_there(bench.enroll("old"), 1, "old") == ["old"]
        assert bench.ids_when_there(bench.enroll("old", "new"), 1, "old", "new") == ["new"]

    def test_only_the_queues_that_were_asked_for_are_served(self, bench: Bench) -> None:
        for queue in ("a", "b", "c"):
            bench.submit(queue, queue=queue)
        worker = bench.enroll()
        assert sorted(bench.ids_when_there(worker, 2, queues=("a", "c"))) == ["a", "c"]
        assert bench.take_ids(worker, queues=()) == []
        assert bench.ids_when_there(worker, 1) == ["b"]

    def test_a_worker_without_handlers_gets_nothing(self, bench: Bench) -> None:
        bench.submit("job")
        taken = bench.look_for(bench.enroll())
        assert (taken.leases, taken.next_due, taken.is_more, taken.stops) == ([], None, False, [])

    # -- time

    def test_a_job_that_is_due_is_started_at_once(self, bench: Bench) -> None:
        worker, lease = bench.begin("job", after=-5)
        record = bench.record()
        assert lease.is_started
        assert (record.status, record.owner, record.starts) == (JobStatus.RUNNING, worker, 1)
        assert record.started is not None
        assert record.due < record.started <= bench.now

    def test_a_job_that_is_due_soon_is_held_and_stays_pending(self, bench: Bench) -> None:
        worker, lease = bench.begin("job", after=SOON_SECONDS)
        record = bench.record()
        assert not lease.is_started
        assert (record.status, record.owner, record.starts) == (JobStatus.PENDING, worker, 0)
        assert record.started is None

    def test_a_start_a_little_ahead_counts_from_the_due_time(self, bench: Bench) -> None:
        _, lease = bench.begin("job", after=0.009)
        started = bench.record().started
        assert lease.is_started
        assert started is not None
        assert lease.due <= started <= max(lease.due, bench.now)

    def test_a_job_beyond_the_lead_stays_where_it_is(self, bench: Bench) -> None:
        bench.submit("later", after=7200)
        bench.submit("sooner", after=3600)
        assert bench.take(bench.enroll()) == []
        assert (bench.record("sooner").owner, bench.record("later").owner) == (None, None)

    @needs(Capability.FORESIGHT)
    def test_the_due_time_of_a_job_beyond_the_lead_is_told(self, bench: Bench) -> None:
        bench.submit("later", after=7200)
        bench.submit("sooner", after=3600)
        bench.submit("other", after=60, type="other")
        assert bench.look(bench.enroll()).next_due == bench.record("sooner").due

    @needs(Capability.FORESIGHT)
    def test_the_next_due_time_is_that_of_the_first_job_that_is_left(self, bench: Bench) -> None:
        bench.submit("soon", "left", after=SOON_SECONDS)
        bench.submit("later", after=60)
        taken = bench.look(bench.enroll(), ahead=1)
        (left,) = {"soon", "left"} - {lease.id for lease in taken.leases}
        assert taken.next_due == bench.record(left).due

    @needs(Capability.FORESIGHT)
    def test_there_is_no_next_due_time_without_later_jobs(self, bench: Bench) -> None:
        bench.submit("due")
        bench.submit("soon", after=SOON_SECONDS)
        taken = bench.look(bench.enroll())
        assert len(taken.leases) == 2
        assert taken.next_due is None

    def test_a_job_can_be_taken_when_its_time_has_come(self, bench: Bench) -> None:
        bench.submit("job", after=1.8)
        held_from = bench.record().due - seconds(LEAD_SECONDS)
        (lease,) = bench.take_not_before(held_from, bench.enroll())
        assert lease.id == "job"

    @needs(Capability.VIRTUAL_TIME)
    def test_a_job_is_held_as_soon_as_it_is_due_within_the_lead(self, bench: Bench) -> None:
        bench.submit("job", after=3600)
        worker = bench.enroll()
        assert bench.take(worker) == []
        bench.pass_time(3598.5)
        assert bench.take(worker) == []
        bench.pass_time(1)
        assert [lease.is_started for lease in bench.take(worker)] == [False]

    # -- leases

    def test_a_job_is_given_to_one_worker_at_a_time(self, bench: Bench) -> None:
        bench.submit("due")
        bench.submit("soon", after=SOON_SECONDS)
        first, second = bench.enroll(), bench.enroll()
        assert sorted(bench.ids_when_there(first, 2)) == ["due", "soon"]
        assert bench.take_ids(second) == []
        assert bench.take_ids(first) == []

    def test_a_lease_carries_what_a_worker_needs(self, bench: Bench) -> None:
        job = bench.job("job", queue="orders", priority=2, payload=b"[1]")
        bench.engine.submit([job])
        _, lease = bench.take_by_new_worker()
        assert (lease.id, lease.type, lease.queue, lease.priority) == ("job", "ping", "orders", 2)
        assert (lease.due, lease.payload, lease.codec) == (job.due, b"[1]", "json")
        assert (lease.failures, lease.timeouts, lease.crashes, lease.interruptions) == (0, 0, 0, 0)

    def test_tokens_grow_with_every_take(self, bench: Bench) -> None:
        bench.submit("job")
        worker = bench.enroll()
        tokens = [bench.record().token]
        for kind in (OutcomeKind.HANDED_BACK, OutcomeKind.RETRY, OutcomeKind.SNOOZED, OutcomeKind.INTERRUPTED):
            (lease,) = bench.take_when_there(worker, 1)
            assert bench.record().token == lease.token
            tokens.append(lease.token)
            assert bench.settle(worker, lease, kind)
        assert tokens == sorted(set(tokens))

    # -- starting

    def test_a_held_job_runs_once_its_start_is_accepted(self, bench: Bench) -> None:
        worker, lease = bench.begin("job", after=SOON_SECONDS)
        bench.pass_time(1)
        before = bench.now
        assert bench.engine.start(worker, [lease]) == [True]
        record = bench.record()
        assert (record.status, record.owner, record.starts) == (JobStatus.RUNNING, worker, 1)
        assert bench.is_since(before, record.started)
        assert record.token == lease.token

    def test_the_start_of_a_job_called_off_is_refused(self, bench: Bench) -> None:
        worker = bench.enroll()
        bench.submit("a", "b", "c", after=SOON_SECONDS)
        leases = bench.sorted_when_there(worker, 3)
        assert bench.cancel("b").is_done
        assert bench.engine.start(worker, leases) == [True, False, True]
        assert (bench.record("b").status, bench.record("b").starts) == (JobStatus.CANCELED, 0)

    def test_a_job_is_not_started_twice(self, bench: Bench) -> None:
        worker, lease = bench.begin("job", after=SOON_SECONDS)
        assert bench.engine.start(worker, [lease]) == [True]
        assert bench.engine.start(worker, [lease]) == [False]
        assert bench.record().starts == 1

    def test_no_other_worker_can_start_a_held_job(self, bench: Bench) -> None:
        _, lease = bench.begin("job", after=SOON_SECONDS)
        assert bench.engine.start(bench.enroll(), [lease]) == [False]
        assert bench.status() is JobStatus.PENDING

    def test_an_older_lease_of_the_same_worker_starts_nothing(self, bench: Bench) -> None:
        worker, older = bench.begin("job", after=SOON_SECONDS)
        assert bench.settle(worker, older, OutcomeKind.HANDED_BACK)
        (newer,) = bench.take_when_there(worker, 1)
        assert bench.engine.start(worker, [older]) == [False]
        assert bench.engine.start(worker, [older, newer]) == [False, True]
        assert bench.record().starts == 1

    def test_an_empty_start_is_answered(self, bench: Bench) -> None:
        assert bench.engine.start(bench.enroll(), []) == []
