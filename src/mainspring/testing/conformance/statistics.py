"""Conformance tests of engines: counts of due, blocked and scheduled jobs, which agree with lists."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from msgspec.structs import replace

from mainspring.jobs.commands import CancelJob, Reopen, Replay, Reschedule
from mainspring.jobs.engine import Capability, Engine
from mainspring.jobs.limits import bucket_of
from mainspring.jobs.records import Cause, JobRecord, Lease, NewJob, OutcomeKind, Query
from mainspring.jobs.status import JobStatus
from mainspring.jobs.store_statistics import MAX_IN_PERIOD, SLOT_MICROSECONDS, JobGroup
from mainspring.testing.conformance.base import EngineSuite
from mainspring.testing.conformance.bench import SOON_SECONDS, TYPE, Bench, seconds
from mainspring.testing.conformance.capabilities import needs

ALL = bucket_of("all")
PAGE = 1_000
QUEUES = ("default", "other")
CROWD = 600


def count_naively(engine: Engine, now: int) -> tuple[JobGroup, ...]:
    """Count the jobs of each queue and job type by a scan of all jobs, and by what the engine's `situation` says
    about each due one.
    """
    found: dict[tuple[str, str], JobGroup] = {}
    for record in _all(engine):
        key = (record.queue, record.type)
        group = found.get(key, JobGroup(*key, 0, 0, 0, 0, 0, None, None, is_exact=True))
        found[key] = _add(engine, group, record, now)
    return tuple(
        group
        for _, group in sorted(found.items())
        if group.due or group.blocked or group.scheduled or group.running or group.dead_letters
    )


def _all(engine: Engine) -> Iterator[JobRecord]:
    after: str | None = None
    while True:
        page = engine.find(Query(limit=PAGE, after=after))
        yield from page.records
        after = page.end
        if after is None:
            return


def _add(engine: Engine, group: JobGroup, record: JobRecord, now: int) -> JobGroup:
    match record.status:
        case JobStatus.RUNNING:
            return replace(group, running=group.running + 1)
        case JobStatus.FAILED if record.replayed_as is None:
            return replace(group, dead_letters=group.dead_letters + 1)
        case JobStatus.PENDING if record.due > now:
            return replace(group, scheduled=group.scheduled + 1)
        case JobStatus.PENDING if _is_blocked(engine, record.id):
            oldest = min(record.due, group.oldest_blocked or record.due)
            return replace(group, blocked=group.blocked + 1, oldest_blocked=oldest)
        case JobStatus.PENDING:
            oldest = min(record.due, group.oldest_due or record.due)
            return replace(group, due=group.due + 1, oldest_due=oldest)
        case _:
            return group


def _is_blocked(engine: Engine, job_id: str) -> bool:
    situation = engine.situation(job_id)
    assert situation is not None
    return situation.is_queue_paused or situation.behind is not None or situation.full_bucket is not None


def groups_of(bench: Bench) -> dict[tuple[str, str], JobGroup]:
    """Return the engine's counts by queue and job type, and require that they equal those of `count_naively`."""
    statistics = bench.engine.statistics()
    assert statistics.groups == count_naively(bench.engine, statistics.at)
    return {(group.queue, group.type): group for group in statistics.groups}


def only_group(bench: Bench) -> JobGroup:
    """Return the counts of the only queue and job type that has jobs."""
    (group,) = groups_of(bench).values()
    return group


def numbers(group: JobGroup) -> tuple[int, int, int, int]:
    """Return how many jobs are due, blocked, scheduled and running."""
    return group.due, group.blocked, group.scheduled, group.running


def _random_job(bench: Bench, chance: Random, job_id: str) -> NewJob:
    tenant = chance.choice("ab")
    limits = chance.choice(((), (), (ALL,), (bucket_of("by tenant", tenant),), (ALL, bucket_of("rate"))))
    return bench.job(
        job_id,
        after=chance.choice((-30, -1, 0, 60)),
        type=chance.choice((TYPE, "pong")),
        queue=chance.choice(QUEUES),
        priority=chance.randrange(3),
        sequence=chance.choice((None, None, "s", "t")),
        limits=limits,
    )


def _settle_randomly(bench: Bench, chance: Random, worker: int, lease: Lease) -> None:
    kind = chance.choice((OutcomeKind.COMPLETED, OutcomeKind.FAILED, OutcomeKind.RETRY, OutcomeKind.HANDED_BACK))
    due = bench.now + seconds(chance.choice((-1, 60))) if kind is OutcomeKind.RETRY else None
    cause = None if kind in (OutcomeKind.COMPLETED, OutcomeKind.HANDED_BACK) else Cause.FAILURE
    assert bench.settle(worker, lease, kind, due=due, cause=cause)


class StatisticsTests(EngineSuite):
    """Tests of the engine's `statistics`."""

    def test_an_empty_store_has_no_groups(self, bench: Bench) -> None:
        statistics = bench.engine.statistics()
        assert (statistics.groups, statistics.paused, statistics.fullest_slot) == ((), (), None)
        assert abs(statistics.at - bench.now) < seconds(60)

    def test_jobs_are_counted_by_queue_and_type(self, bench: Bench) -> None:
        bench.submit("a", "b", queue="one", priority=0)
        bench.submit("c", queue="one", priority=2)
        bench.submit("d", queue="one", type="pong")
        bench.submit("e", queue="two", after=60)
        found = groups_of(bench)
        assert {key: numbers(group) for key, group in found.items()} == {
            ("one", TYPE): (3, 0, 0, 0),
            ("one", "pong"): (1, 0, 0, 0),
            ("two", TYPE): (0, 0, 1, 0),
        }

    def test_jobs_that_are_due_later_are_no_backlog(self, bench: Bench) -> None:
        bench.engine.submit([bench.job(f"{number}", after=1_800) for number in range(50)])
        group = only_group(bench)
        assert numbers(group) == (0, 0, 50, 0)
        assert group.oldest_due is None

    def test_the_oldest_due_job_is_the_one_that_was_due_first(self, bench: Bench) -> None:
        bench.submit("new")
        bench.submit("old", after=-30)
        bench.submit("older", after=-60, type="pong")
        found = groups_of(bench)
        assert found["default", TYPE].oldest_due == bench.record("old").due
        assert found["default", "pong"].oldest_due == bench.record("older").due

    def test_running_jobs_are_neither_due_nor_blocked(self, bench: Bench) -> None:
        worker, lease = bench.begin("a")
        assert numbers(only_group(bench)) == (0, 0, 0, 1)
        bench.complete(worker, lease)
        assert groups_of(bench) == {}

    def test_a_job_that_waits_for_a_retry_is_scheduled(self, bench: Bench) -> None:
        worker, lease = bench.begin("a")
        due = bench.now + seconds(60)
        assert bench.settle(worker, lease, OutcomeKind.RETRY, due=due, cause=Cause.FAILURE)
        assert numbers(only_group(bench)) == (0, 0, 1, 0)

    def test_a_job_that_a_worker_holds_counts_as_scheduled(self, bench: Bench) -> None:
        worker = bench.enroll()
        bench.submit("a", after=SOON_SECONDS)
        (lease,) = bench.take_when_there(worker, 1)
        statistics = bench.engine.statistics()
        (group,) = statistics.groups
        if lease.is_started:  # a slow machine may reach the due time
            assert numbers(group) == (0, 0, 0, 1)
        else:
            assert numbers(group) == ((1, 0, 0, 0) if lease.due <= statistics.at else (0, 0, 1, 0))

    @needs(Capability.VIRTUAL_TIME)
    def test_a_job_that_a_worker_holds_is_due_until_it_has_started(self, bench: Bench) -> None:
        worker = bench.enroll()
        bench.submit("a", after=SOON_SECONDS)
        (lease,) = bench.take(worker)
        bench.pass_time(SOON_SECONDS + 1)
        group = only_group(bench)
        assert numbers(group) == (1, 0, 0, 0)
        assert group.oldest_due == lease.due
        assert bench.engine.start(worker, [lease]) == [True]
        assert numbers(only_group(bench)) == (0, 0, 0, 1)

    # -- blocked

    def test_due_jobs_of_a_paused_queue_are_blocked(self, bench: Bench) -> None:
        bench.submit("a", "b", queue="quiet")
        bench.submit("later", queue="quiet", after=60)
        bench.submit("c")
        bench.pause("quiet")
        found = groups_of(bench)
        assert numbers(found["quiet", TYPE]) == (0, 2, 1, 0)
        assert numbers(found["default", TYPE]) == (1, 0, 0, 0)
        assert found["quiet", TYPE].oldest_due is None
        assert found["quiet", TYPE].oldest_blocked == bench.record("a").due
        assert bench.engine.statistics().paused == ("quiet",)
        bench.resume("quiet")
        assert numbers(groups_of(bench)["quiet", TYPE]) == (2, 0, 1, 0)

    def test_due_jobs_behind_a_running_one_of_their_sequence_are_blocked(self, bench: Bench) -> None:
        bench.begin("head", sequence="s")
        bench.engine.submit([bench.job(f"{number}", sequence="s") for number in range(20)])
        bench.submit("later", sequence="s", after=60)
        group = only_group(bench)
        assert numbers(group) == (0, 20, 1, 1)
        assert group.oldest_due is None
        assert group.oldest_blocked == bench.record("0").due

    def test_the_first_job_of_a_sequence_is_due(self, bench: Bench) -> None:
        bench.submit("a", "b", "c", sequence="s")
        bench.submit("d", sequence="t")
        bench.submit("e")
        assert numbers(only_group(bench)) == (3, 2, 0, 0)

    def test_due_jobs_behind_one_that_waits_for_a_retry_are_blocked(self, bench: Bench) -> None:
        worker, lease = bench.begin("head", sequence="s")
        bench.submit("a", "b", sequence="s")
        due = bench.now + seconds(60)
        assert bench.settle(worker, lease, OutcomeKind.RETRY, due=due, cause=Cause.FAILURE)
        assert numbers(only_group(bench)) == (0, 2, 1, 0)

    def test_due_jobs_under_a_full_limit_are_blocked(self, bench: Bench) -> None:
        bench.limit("all", 1)
        worker, lease = bench.begin("head", limits=(ALL,))
        bench.submit("a", "b", limits=(ALL,))
        bench.submit("later", limits=(ALL,), after=60)
        bench.submit("free")
        group = only_group(bench)
        assert numbers(group) == (1, 2, 1, 1)
        assert group.oldest_due == bench.record("free").due
        assert group.oldest_blocked == bench.record("a").due
        bench.complete(worker, lease)
        assert only_group(bench).running == 0

    def test_limits_are_evaluated_for_each_key(self, bench: Bench) -> None:
        bench.limit("all", 1)
        bench.begin("head", limits=(bucket_of("all", "one"),))
        bench.submit("a", "b", limits=(bucket_of("all", "one"),))
        bench.submit("c", limits=(bucket_of("all", "two"),))
        assert numbers(only_group(bench)) == (1, 2, 0, 1)

    def test_due_jobs_that_wait_for_a_token_are_blocked(self, bench: Bench) -> None:
        bench.limit("all", 1, per=600)
        worker, lease = bench.begin("first", limits=(ALL,))
        bench.submit("a", "b", limits=(ALL,))
        assert numbers(only_group(bench)) == (0, 2, 0, 1)
        bench.complete(worker, lease)
        assert numbers(only_group(bench)) == (0, 2, 0, 0)

    def test_jobs_in_a_sequence_and_under_a_limit_are_counted_once(self, bench: Bench) -> None:
        bench.limit("all", 1)
        bench.begin("head", limits=(ALL,))
        bench.submit("a", "b", sequence="s", limits=(ALL,))
        bench.submit("c", sequence="s", limits=(ALL,), after=60)
        bench.submit("d", sequence="t")
        assert numbers(only_group(bench)) == (1, 2, 1, 1)

    def test_a_limit_that_was_never_stored_blocks_nothing(self, bench: Bench) -> None:
        bench.submit("a", "b", limits=(ALL,))
        bench.submit("later", limits=(ALL,), after=60)
        assert numbers(only_group(bench)) == (2, 0, 1, 0)

    # -- dead letters

    def test_dead_letters_that_were_replayed_do_not_count(self, bench: Bench) -> None:
        bench.bury("a")
        bench.bury("b")
        bench.bury("c", queue="other")
        found = groups_of(bench)
        assert found["default", TYPE].dead_letters == 2
        assert bench.change(Replay("a", "copy", bench.now + seconds(60))).is_done
        assert bench.change(Reopen("c", bench.now + seconds(60))).is_done
        found = groups_of(bench)
        assert (found["default", TYPE].dead_letters, found["default", TYPE].scheduled) == (1, 1)
        assert (found["other", TYPE].dead_letters, found["other", TYPE].scheduled) == (0, 1)
        counts = bench.engine.counts()
        assert counts[JobStatus.FAILED] == sum(group.dead_letters for group in found.values())

    # -- changes, and other calls

    def test_counts_follow_commands(self, bench: Bench) -> None:
        bench.submit("a", "b", "c", "d", sequence="s")
        bench.submit("e", after=60)
        assert bench.change(CancelJob("a")).is_done
        assert numbers(only_group(bench)) == (1, 2, 1, 0)
        assert bench.change(Reschedule("e", bench.now)).is_done
        assert bench.change(Reschedule("b", bench.now + seconds(60))).is_done
        assert sum(numbers(only_group(bench))) == 4

    def test_the_counts_add_up_to_those_by_status(self, bench: Bench) -> None:
        bench.bury("j")
        bench.limit("all", 2)
        bench.begin("x", limits=(ALL,))
        bench.submit(*"abc", limits=(ALL,))
        bench.submit(*"def", sequence="s")
        bench.submit(*"ghi", after=60)
        groups = groups_of(bench).values()
        counts = bench.engine.counts()
        assert sum(group.due + group.blocked + group.scheduled for group in groups) == counts[JobStatus.PENDING]
        assert sum(group.running for group in groups) == counts[JobStatus.RUNNING]

    def test_another_process_counts_the_same(self, bench: Bench, other: Bench) -> None:
        bench.limit("all", 1)
        bench.begin("head", limits=(ALL,))
        bench.submit("a", "b", limits=(ALL,))
        bench.submit("c", "d", sequence="s")
        assert other.engine.statistics().groups == bench.engine.statistics().groups

    @pytest.mark.parametrize("seed", range(3))
    def test_random_states_are_counted_as_by_a_scan(self, bench: Bench, seed: int) -> None:
        chance = Random(seed)
        bench.limit("all", 2)
        bench.limit("by tenant", 1)
        bench.limit("rate", 3, per=600)
        worker = bench.enroll(TYPE, "pong")
        held: list[Lease] = []
        for step in range(24):
            match chance.choice(("submit", "submit", "take", "settle", "pause", "cancel", "limit")):
                case "submit":
                    assert None in bench.engine.submit(
                        [_random_job(bench, chance, f"{step}-{n}") for n in range(3)]
                    )
                case "take":
                    held += bench.take(worker, TYPE, "pong", starts=chance.randrange(1, 4), ahead=0)
                case "settle" if held:
                    _settle_randomly(bench, chance, worker, held.pop(chance.randrange(len(held))))
                case "pause":
                    (bench.pause if chance.random() < 0.5 else bench.resume)(chance.choice(QUEUES))
                case "cancel":
                    pending = bench.find_ids(status=JobStatus.PENDING)
                    if pending:
                        assert bench.cancel(chance.choice(pending)).is_done
                case "limit":
                    bench.limit("all", chance.randrange(1, 4))
                case _:  # there is nothing to settle
                    continue
            groups_of(bench)

    # -- the fullest slot

    def test_the_fullest_slot_is_found_among_the_scheduled_jobs(self, bench: Bench) -> None:
        instant = bench.now // SLOT_MICROSECONDS * SLOT_MICROSECONDS + 7_200 * SLOT_MICROSECONDS + 1_000
        jobs = [bench.job(f"even-{number}", after=60 + 30 * number) for number in range(20)]
        jobs += [replace(bench.job(f"crowd-{number}", type="pong"), due=instant) for number in range(CROWD)]
        jobs += [replace(bench.job(f"near-{number}", type="pong"), due=instant + 9_000) for number in range(5)]
        assert bench.engine.submit(jobs) == [None] * len(jobs)
        slot = bench.engine.statistics().fullest_slot
        assert slot is not None
        assert (slot.queue, slot.type) == ("default", "pong")
        assert (slot.count, slot.at_once) == (CROWD + 5, CROWD)
        assert slot.since <= instant < slot.since + SLOT_MICROSECONDS
        assert slot.average < 1

    # -- scheduled jobs by time

    def test_scheduled_jobs_are_counted_by_time(self, bench: Bench) -> None:
        begin = bench.now + seconds(3_600)
        jobs = [replace(bench.job("before"), due=begin - 1), replace(bench.job("first"), due=begin)]
        jobs += [replace(bench.job(f"crowd-{number}"), due=begin + seconds(15)) for number in range(CROWD)]
        jobs += [replace(bench.job("other", type="pong"), due=begin + seconds(29))]
        jobs += [replace(bench.job("after"), due=begin + seconds(30)), bench.job("due")]
        assert bench.engine.submit(jobs) == [None] * len(jobs)
        edges = [begin + seconds(10 * number) for number in range(4)]
        found = {(each.queue, each.type): each.counts for each in bench.engine.upcoming(edges)}
        most = min(CROWD, MAX_IN_PERIOD)
        assert found["default", "ping"][0] == 1
        assert found["default", "ping"][1] >= most
        assert found["default", "ping"][2] == 0
        assert found["default", "pong"] == (0, 0, 1)
        assert bench.engine.upcoming([begin - seconds(20), begin - seconds(10)]) == []
