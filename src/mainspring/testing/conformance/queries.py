"""Conformance tests of engines: lists, counts, time, backups, and the capabilities that an engine declares."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from mainspring.errors import EngineUnavailable
from mainspring.jobs.commands import Delete, Reopen, Replay
from mainspring.jobs.engine import Capability
from mainspring.jobs.records import Cause, JobRecord, OutcomeKind, Query
from mainspring.jobs.status import JobStatus
from mainspring.jobs.timestamps import to_instant
from mainspring.testing.conformance.base import EngineSuite
from mainspring.testing.conformance.bench import SOON_SECONDS, Bench, MakeEngine, seconds
from mainspring.testing.conformance.capabilities import capabilities_needed_by_suite, needs


class QueryTests(EngineSuite):
    """Tests of the engine's `find`, `counts`, `now` and `backup`, and of its capabilities."""

    # -- lists

    def test_jobs_are_listed_in_the_order_of_submission(self, bench: Bench) -> None:
        bench.submit("z", after=60)
        bench.submit("a")
        bench.submit("m", after=30)
        bench.take(bench.enroll())
        assert bench.find_ids() == ["z", "a", "m"]

    def test_pages_follow_each_other_without_gap_or_overlap(self, bench: Bench) -> None:
        ids = [f"{number:02}" for number in range(10)]
        bench.submit(*ids)
        found: list[str] = []
        after: str | None = None
        sizes = []
        while True:
            page = bench.engine.find(Query(limit=4, after=after))
            found += [record.id for record in page.records]
            sizes.append(len(page.records))
            if page.end is None:
                break
            after = page.end
        assert (found, sizes) == (ids, [4, 4, 2])

    def test_a_full_last_page_is_the_last_one(self, bench: Bench) -> None:
        bench.submit(*"abcd")
        page = bench.engine.find(Query(limit=2))
        assert [record.id for record in page.records] == ["a", "b"]
        assert bench.engine.find(Query(limit=2, after=page.end)).end is None

    def test_what_is_submitted_meanwhile_comes_on_a_later_page(self, bench: Bench) -> None:
        bench.submit(*"abc")
        page = bench.engine.find(Query(limit=2))
        bench.submit("d")
        assert bench.find_ids(after=page.end) == ["c", "d"]

    def test_a_list_can_begin_with_the_newest(self, bench: Bench) -> None:
        bench.submit("z", after=60)
        bench.submit("a")
        bench.submit("m", after=30)
        assert bench.find_ids(newest_first=True) == ["m", "a", "z"]
        assert bench.find_ids(newest_first=True, ids=("z", "m")) == ["m", "z"]
        page = bench.engine.find(Query(newest_first=True, limit=1))
        bench.submit("newer")
        assert bench.find_ids(newest_first=True, after=page.end) == ["a", "z"]
        assert bench.find_ids(after=page.end) == ["newer"]  # a position means the same in both directions

    @pytest.mark.parametrize("newest_first", [False, True])
    def test_pages_are_those_of_a_plain_list_while_jobs_come_and_go(
        self, bench: Bench, *, newest_first: bool
    ) -> None:
        def submit(number: int) -> None:
            bench.submit(f"{number:02}", type="odd" if number % 2 else "even", queue=f"q{number % 3}", after=60)

        for number in range(30):
            submit(number)
        canceled = {f"{number:02}" for number in range(0, 30, 4)}
        for job_id in canceled:
            bench.cancel(job_id)
        filters: list[dict[str, Any]] = [{}, {"queue": "q1"}, {"type": "even"}, {"status": JobStatus.PENDING}]
        filters.append({"status": JobStatus.CANCELED, "type": "even", "queue": "q2"})
        for turn, wanted in enumerate(filters):
            expected = [record for record in bench.engine.find(Query(limit=100)).records if _is(record, wanted)]
            ids = [record.id for record in expected]
            found: list[str] = []
            after: str | None = None
            while True:
                page = bench.engine.find(Query(**wanted, limit=4, after=after, newest_first=newest_first))
                found += [record.id for record in page.records]
                if page.end is None:
                    break
                after = page.end
                if len(found) == 4:  # a job is added, and a listed one may be deleted
                    submit(30 + turn)
                    if wanted.get("status") is JobStatus.CANCELED:
                        assert bench.change(Delete(found[-1], JobStatus.CANCELED)).is_done
            came = [] if newest_first else [job_id for job_id in found if job_id not in ids]
            assert found == (ids[::-1] if newest_first else ids + came)
            assert came in ([], [f"{30 + turn}"])

    def test_a_list_can_be_filtered(self, bench: Bench) -> None:
        bench.submit("a", type="x", queue="one", after=60)
        bench.submit("b", type="y", queue="one", after=60)
        bench.submit("c", type="x", queue="two", after=60)
        bench.cancel("c")
        assert bench.find_ids(type="x") == ["a", "c"]
        assert bench.find_ids(queue="one") == ["a", "b"]
        assert bench.find_ids(status=JobStatus.CANCELED) == ["c"]
        assert bench.find_ids(type="x", queue="one", status=JobStatus.PENDING) == ["a"]
        assert bench.find_ids(type="z") == []
        assert bench.find_ids(queue="two", status=JobStatus.PENDING) == []

    def test_a_list_can_be_restricted_to_types_and_queues(self, bench: Bench) -> None:
        for number, (type_, queue) in enumerate([("x", "one"), ("y", "one"), ("x", "two"), ("z", "two")] * 3):
            bench.submit(f"{number:02}", type=type_, queue=queue, after=60)
        assert bench.find_ids(types=("x", "z")) == ["00", "02", "03", "04", "06", "07", "08", "10", "11"]
        assert bench.find_ids(types=("x",), queues=("two", "none")) == ["02", "06", "10"]
        assert bench.find_ids(types=("x", "y"), type="y") == ["01", "05", "09"]
        assert bench.find_ids(types=("x",), type="y") == []
        assert bench.find_ids(queues=("two",), queue="one") == []
        assert bench.find_ids(types=()) == bench.find_ids(queues=()) == []
        assert bench.find_ids(types=("x",), ids=("00", "01", "02"), queues=("one",)) == ["00"]
        page = bench.engine.find(Query(types=("y", "z"), limit=3))
        assert [record.id for record in page.records] == ["01", "03", "05"]  # jobs of other types take no room
        assert bench.find_ids(types=("y", "z"), limit=3, after=page.end) == ["07", "09", "11"]
        assert bench.find_ids(types=("y", "z"), limit=2, newest_first=True) == ["11", "09"]

    def test_matching_jobs_are_counted_up_to_a_bound(self, bench: Bench) -> None:
        for number, (type_, queue) in enumerate([("x", "one"), ("y", "one"), ("x", "two")] * 3):
            bench.submit(f"{number}", type=type_, queue=queue, after=60)
        for job_id in "01":
            bench.cancel(job_id)
        count, began = bench.engine.count_up_to, bench.record("0").created
        assert [count(Query(), most) for most in (1, 8, 9, 100)] == [1, 8, 9, 9]
        assert count(Query(status=JobStatus.PENDING), 100) == 7
        assert count(Query(status=JobStatus.CANCELED, type="x"), 100) == 1
        assert count(Query(queue="one"), 100) == 6
        assert count(Query(types=("x",), queues=("two",)), 100) == 3
        assert count(Query(types=()), 100) == count(Query(type="z"), 100) == 0
        assert count(Query(limit=1, after=bench.engine.find(Query(limit=5)).end), 100) == 9
        assert count(Query(created_since=began), 100) == 9
        assert count(Query(created_until=began), 100) == 0
        assert count(Query(due_until=bench.engine.now()), 100) == 0

    def test_filters_and_pages_go_together(self, bench: Bench) -> None:
        for number in range(9):
            bench.submit(f"{number}", type="odd" if number % 2 else "even")
        page = bench.engine.find(Query(type="even", limit=3))
        assert [record.id for record in page.records] == ["0", "2", "4"]
        assert bench.find_ids(type="even", limit=3, after=page.end) == ["6", "8"]

    def test_jobs_can_be_found_by_id(self, bench: Bench) -> None:
        bench.submit(*"abcd")
        assert bench.find_ids(ids=("d", "b", "nowhere")) == ["b", "d"]
        assert bench.find_ids(ids=()) == []

    def test_letters_are_told_apart_by_whether_they_were_replayed(self, bench: Bench) -> None:
        bench.bury("a")
        bench.bury("b")
        assert bench.change(Replay("a", "copy", bench.now + seconds(60))).is_done
        assert bench.find_ids(status=JobStatus.FAILED, is_replayed=True) == ["a"]
        assert bench.find_ids(status=JobStatus.FAILED, is_replayed=False) == ["b"]

    def test_a_position_behind_each_job_continues_the_list_there(self, bench: Bench) -> None:
        bench.submit(*"abcd")
        for newest_first, ids in ((False, "abcd"), (True, "dcba")):
            page = bench.engine.find(Query(limit=3, newest_first=newest_first))
            assert page.end == page.positions[-1]
            for place, position in enumerate(page.positions, start=1):
                assert bench.find_ids(after=position, newest_first=newest_first) == list(ids[place:])

    # -- the time of submission

    def test_jobs_are_found_by_the_time_of_their_submission(self, bench: Bench) -> None:
        created: dict[str, int] = {}
        for job_id, queue in (("a", "one"), ("b", "two"), ("c", "one"), ("d", "two")):
            bench.submit(job_id, queue=queue, after=60)
            created[job_id] = bench.record(job_id).created
            bench.pass_time(0.01)
        assert bench.find_ids(created_since=created["b"]) == ["b", "c", "d"]
        assert bench.find_ids(created_since=created["b"] + 1) == ["c", "d"]
        assert bench.find_ids(created_until=created["c"]) == ["a", "b"]
        assert bench.find_ids(created_since=created["b"], created_until=created["d"]) == ["b", "c"]
        assert bench.find_ids(created_since=created["d"], created_until=created["d"]) == []
        assert bench.find_ids(created_since=created["d"] + 1) == []
        assert bench.find_ids(created_until=created["a"]) == []
        assert bench.find_ids(created_since=created["b"], queue="one", newest_first=True) == ["c"]
        assert bench.find_ids(created_since=created["b"], status=JobStatus.CANCELED) == []
        assert bench.find_ids(created_since=created["b"], newest_first=True) == ["d", "c", "b"]
        assert bench.find_ids(ids=("a", "c"), created_since=created["b"]) == ["c"]
        page = bench.engine.find(Query(created_since=created["b"], limit=1))
        assert bench.find_ids(created_since=created["b"], created_until=created["d"], after=page.end) == ["c"]

    def test_a_time_without_jobs_has_none(self, bench: Bench) -> None:
        assert bench.find_ids(created_since=0) == []
        bench.submit("a")
        assert bench.find_ids(created_since=bench.now + seconds(1), created_until=bench.now + seconds(2)) == []

    # -- dead letters by the time of failure

    def test_dead_letters_are_listed_by_the_time_of_failure(self, bench: Bench) -> None:
        bench.submit("slow", queue="two")
        slow = bench.take_by_new_worker()
        bench.pass_time(0.01)
        for job_id, queue in (("a", "one"), ("b", "two"), ("c", "one")):
            bench.bury(job_id, queue=queue)
            bench.pass_time(0.01)
        assert bench.settle(*slow, OutcomeKind.FAILED, error="it broke", cause=Cause.FAILURE)
        bench.end("completed", JobStatus.COMPLETED)
        failed: dict[str, Any] = {"status": JobStatus.FAILED, "by_failure": True}
        assert bench.find_ids(**failed) == ["a", "b", "c", "slow"]
        assert bench.find_ids(**failed, newest_first=True) == ["slow", "c", "b", "a"]
        assert bench.find_ids(**failed, newest_first=True, queue="two") == ["slow", "b"]
        assert bench.find_ids(**failed, type="pong") == []
        assert bench.change(Replay("c", "copy", bench.now + seconds(60))).is_done
        assert bench.find_ids(**failed, newest_first=True, is_replayed=False) == ["slow", "b", "a"]
        assert bench.find_ids(**failed, newest_first=True, limit=1) == ["slow"]
        assert bench.change(Reopen("b", bench.now + seconds(60))).is_done
        assert bench.find_ids(**failed) == ["a", "c", "slow"]

    @pytest.mark.parametrize("newest_first", [False, True])
    def test_pages_by_the_time_of_failure_have_each_dead_letter_once(
        self, bench: Bench, *, newest_first: bool
    ) -> None:
        jobs = [bench.job(f"{number}", queue=f"q{number % 3}") for number in range(9)]
        assert bench.engine.submit(jobs) == [None] * 9
        worker = bench.enroll()
        leases = bench.take_when_there(worker, 9)
        for lease in reversed(leases):
            if lease.id in "147":  # with a manual clock, three jobs fail in each instant
                bench.pass_time(0.01)
            assert bench.settle(worker, lease, OutcomeKind.FAILED, error="it broke", cause=Cause.FAILURE)
        query = Query(status=JobStatus.FAILED, by_failure=True, newest_first=newest_first)
        records = bench.engine.find(query).records
        assert [record.finished for record in records] == sorted(
            (record.finished or 0 for record in records), reverse=newest_first
        )
        for limit in (1, 2, 4):
            found: list[str] = []
            after: str | None = None
            while True:
                page = bench.engine.find(replace(query, limit=limit, after=after))
                found += [record.id for record in page.records]
                after = page.end
                if after is None:
                    break
            assert found == [record.id for record in records]
            assert len(set(found)) == 9

    # -- queues

    def test_queues_are_those_of_jobs_in_whatever_state(self, bench: Bench) -> None:
        assert bench.engine.queues() == ()
        bench.submit("a", queue="orders", after=60)
        bench.submit("b", queue="mail", type="pong", after=60)
        bench.submit("c", queue="mail", after=60)
        bench.bury("d", queue="ended")
        assert bench.engine.queues() == ("ended", "mail", "orders")

    def test_a_queue_without_jobs_is_listed_no_more(self, bench: Bench) -> None:
        bench.bury("a", queue="short")
        bench.submit("b", queue="mail", after=60)
        assert bench.change(Delete("a", JobStatus.FAILED)).is_done
        bench.pause("paused")
        assert bench.engine.queues() == ("mail",)

    # -- counts

    def test_every_state_is_counted(self, bench: Bench) -> None:
        assert bench.engine.counts() == dict.fromkeys(JobStatus, 0)
        for number, status in enumerate((JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELED), start=1):
            for turn in range(number):
                bench.end(f"{status} {turn}", status)
        bench.begin("running")
        bench.submit("held", "pending", after=SOON_SECONDS)
        late = sum(lease.is_started for lease in bench.take(bench.enroll(), ahead=1))  # on a slow machine
        assert bench.engine.counts() == {
            JobStatus.PENDING: 2 - late,
            JobStatus.RUNNING: 1 + late,
            JobStatus.COMPLETED: 1,
            JobStatus.FAILED: 2,
            JobStatus.CANCELED: 3,
        }

    def test_a_dead_letter_that_was_replayed_is_counted_no_more(self, bench: Bench) -> None:
        for job_id, queue in (("a", "orders"), ("b", "orders"), ("c", "mail")):
            bench.bury(job_id, queue=queue)
        assert bench.change(Replay("a", "copy", bench.now)).is_done
        failed = JobStatus.FAILED
        assert bench.engine.counts()[failed] == 2
        assert bench.engine.counts(queue="orders")[failed] == 1
        assert bench.engine.counts(queue="mail", type="ping")[failed] == 1
        assert bench.engine.counts(type="other")[failed] == 0
        assert len(bench.find_ids(status=failed)) == 3
        worker, lease = bench.take_by_new_worker()
        assert lease.id == "copy"
        assert bench.settle(worker, lease, OutcomeKind.FAILED, error="again", cause=Cause.FAILURE)
        assert bench.engine.counts()[failed] == 3  # the replay has failed and is a dead letter now
        assert bench.find_ids(status=failed, is_replayed=False) == ["b", "c", "copy"]

    def test_counts_can_be_filtered(self, bench: Bench) -> None:
        bench.submit("a", "b", type="x", queue="one")
        bench.submit("c", type="y", queue="one")
        bench.submit("d", type="x", queue="two")
        pending = JobStatus.PENDING
        assert bench.engine.counts(queue="one")[pending] == 3
        assert bench.engine.counts(type="x")[pending] == 3
        assert bench.engine.counts(queue="one", type="x")[pending] == 2
        assert bench.engine.counts(queue="nowhere") == dict.fromkeys(JobStatus, 0)

    def test_any_thread_may_read(self, bench: Bench) -> None:
        bench.submit(*"abc")
        with ThreadPoolExecutor(4) as threads:
            lists = list(threads.map(lambda _: bench.find_ids(), range(40)))
            counts = list(threads.map(lambda _: bench.engine.counts()[JobStatus.PENDING], range(40)))
        assert lists == [["a", "b", "c"]] * 40
        assert counts == [3] * 40

    # -- the engine itself

    def test_it_lacks_what_the_class_of_its_tests_says_and_nothing_else(self, bench: Bench) -> None:
        declared = bench.engine.capabilities
        assert not self.lacks & declared, "the engine declares what `lacks` names: take it out, its tests run then"
        missing = capabilities_needed_by_suite(type(self)) - self.lacks - declared
        assert not missing, "tests need what the engine does not declare: declare it, or name it in `lacks`"

    def test_its_time_does_not_run_backwards(self, bench: Bench) -> None:
        instants = [bench.now for _ in range(100)]
        bench.pass_time(0.1)
        assert instants == sorted(instants)
        assert bench.now - instants[-1] >= seconds(0.09)

    def test_it_says_where_the_jobs_are(self, bench: Bench) -> None:
        assert bench.engine.description

    @needs(Capability.VIRTUAL_TIME)
    def test_its_time_is_that_of_its_clock_if_it_says_so(self, bench: Bench) -> None:
        before = bench.now
        bench.pass_time(1.5)
        assert bench.now == before + seconds(1.5) == to_instant(bench.clock.now(), "now")

    def test_a_closed_engine_may_be_opened_again(self, bench: Bench) -> None:
        worker, lease = bench.begin("running")
        assert bench.settle(worker, lease, OutcomeKind.COMPLETED)
        bench.submit("pending")
        bench.engine.leave(worker)
        bench.engine.close()
        again = Bench(bench.engine, bench.clock)
        assert again.find_ids() == ["running", "pending"]
        assert again.take_by_new_worker()[1].id == "pending"

    @needs(Capability.SHARED)
    def test_engines_share_their_jobs_if_they_say_so(self, bench: Bench, make_engine: MakeEngine) -> None:
        other = Bench(make_engine(bench.clock), bench.clock)
        try:
            bench.submit("job", type="new", queue="new")
            worker = other.enroll("new")
            (lease,) = other.take_when_there(worker, 1, "new")
            assert bench.cancel() == other.cancel()
            assert other.look(worker, "new").stops == ["job"]
            assert not bench.settle(bench.enroll(), lease, OutcomeKind.COMPLETED)
            assert other.settle(worker, lease, OutcomeKind.COMPLETED)
            assert bench.status() is JobStatus.COMPLETED
        finally:
            other.engine.close()

    def test_a_backup_is_written_to_a_new_file_or_refused(self, bench: Bench, tmp_path: Path) -> None:
        bench.submit("job")
        target = tmp_path / "copy of the jobs"
        if Capability.BACKUP in bench.engine.capabilities:
            bench.engine.backup(str(target))
            assert target.stat().st_size > 0
            with pytest.raises(FileExistsError, match="copy of the jobs"):
                bench.engine.backup(str(target))
        else:
            with pytest.raises(EngineUnavailable, match="back"):
                bench.engine.backup(str(target))
            assert not target.exists()


def _is(record: JobRecord, wanted: dict[str, Any]) -> bool:
    return all(getattr(record, name) == value for name, value in wanted.items())
