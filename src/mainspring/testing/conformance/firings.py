"""Conformance tests of engines: an occurrence fires once, and its jobs are stored in the same transaction."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from mainspring.jobs.commands import PauseSchedule, RemoveSchedule
from mainspring.jobs.engine import Capability
from mainspring.jobs.records import OutcomeKind
from mainspring.jobs.recurrence.schedule_records import Fired, Occurrence, OccurrenceKind, Overlap
from mainspring.jobs.status import JobStatus
from mainspring.testing.conformance.base import EngineSuite
from mainspring.testing.conformance.bench import SOON_SECONDS, Bench, seconds
from mainspring.testing.conformance.capabilities import needs
from mainspring.testing.conformance.schedule_driver import EVERY_SECONDS, NAME, ScheduleDriver

MOST_RECORDS = 100


class FiringTests(EngineSuite):
    """Tests of the engine's `fire`, which stores the jobs of occurrences of schedules, and of `occurrences`.

    `occurrences` lists the occurrences for which no job was made.
    """

    # -- each occurrence is fired once

    def test_an_occurrence_becomes_a_job_and_the_schedule_moves_on(
        self, bench: Bench, timetable: ScheduleDriver
    ) -> None:
        assert timetable.put(after=0)
        before = timetable.stored()
        due = before.next_due
        assert due is not None
        wakes = bench.wakes
        assert timetable.fire() == Fired(True, (f"{NAME} {due}",))
        assert bench.is_woken(wakes)
        assert timetable.stored() == replace(before, next_due=due + seconds(EVERY_SECONDS), last_due=due)
        record = bench.record(f"{NAME} {due}")
        assert (record.schedule, record.occurrence, record.status) == (NAME, due, JobStatus.PENDING)
        assert bench.ids_when_there(bench.enroll(), 1) == [record.id]

    def test_of_two_that_fire_the_same_occurrence_one_is_refused(
        self, bench: Bench, other: Bench, timetable: ScheduleDriver
    ) -> None:
        assert timetable.put(after=0)
        mine, theirs = timetable.firing(), ScheduleDriver(other).firing()
        assert timetable.fire(mine).is_done
        before = timetable.stored()
        assert other.engine.fire([theirs]) == [Fired(False)]
        assert timetable.stored() == before
        assert len(bench.find_ids()) == 1

    def test_of_two_firings_in_a_batch_the_first_says_what_comes_next(
        self, bench: Bench, timetable: ScheduleDriver
    ) -> None:
        assert timetable.put(after=0)
        first = timetable.firing()
        second = replace(first, next_due=bench.now + seconds(3_600), last_due=bench.now + seconds(1_800))
        assert [fired.is_done for fired in bench.engine.fire([first, second])] == [True, False]
        assert (timetable.stored().next_due, timetable.stored().last_due) == (first.next_due, first.last_due)

    def test_a_batch_does_not_fire_twice(self, bench: Bench, timetable: ScheduleDriver) -> None:
        assert timetable.put(after=0)
        assert timetable.put("another", after=0)
        firing, another = timetable.firing(), timetable.firing("another")
        assert [fired.is_done for fired in bench.engine.fire([firing, firing, another])] == [True, False, True]
        assert len(bench.find_ids()) == 2
        assert bench.engine.fire([]) == []

    def test_an_occurrence_that_was_decided_about_by_an_older_definition_is_refused(
        self, bench: Bench, timetable: ScheduleDriver
    ) -> None:
        assert timetable.put(after=0)
        stale = timetable.firing()
        assert timetable.put(expected=1, after=0, payload=b"2")
        assert timetable.fire(stale) == Fired(False)
        assert bench.find_ids() == []
        assert timetable.fire().is_done

    def test_a_schedule_that_rests_or_is_gone_does_not_fire(self, bench: Bench, timetable: ScheduleDriver) -> None:
        assert timetable.put(after=0)
        firing = timetable.firing()
        assert bench.arrange(PauseSchedule(NAME, is_paused=True, next_due=None))
        assert timetable.fire(firing) == Fired(False)
        assert bench.arrange(RemoveSchedule(NAME))
        assert timetable.fire(firing) == Fired(False)
        assert bench.find_ids() == []

    def test_the_job_of_an_occurrence_is_not_stored_again(self, bench: Bench, timetable: ScheduleDriver) -> None:
        """A new definition of a schedule may repeat occurrences of the old definition."""
        assert timetable.put(after=0)
        due = timetable.stored().next_due
        assert timetable.fire().is_done
        assert timetable.put(expected=1, next_due=due)
        jobs = (bench.job("again", schedule=NAME, occurrence=due), timetable.job(NAME, 7))
        assert timetable.fire(timetable.firing(jobs=jobs)) == Fired(True, (f"{NAME} 7",))
        assert bench.find_ids() == [f"{NAME} {due}", f"{NAME} 7"]

    def test_the_last_occurrence_leaves_none(self, bench: Bench, timetable: ScheduleDriver) -> None:
        assert timetable.put(after=0)
        assert timetable.fire(timetable.firing(next_due=None)).is_done
        assert timetable.stored().next_due is None
        assert bench.engine.schedules(due_until=bench.now + seconds(1e6)) == []

    @needs(Capability.FORESIGHT)
    def test_after_the_last_occurrence_none_is_told(self, bench: Bench, timetable: ScheduleDriver) -> None:
        assert timetable.put(after=0)
        assert timetable.fire(timetable.firing(next_due=None)).is_done
        assert bench.look(bench.enroll()).next_firing is None

    def test_several_occurrences_may_be_made_up_for_at_once(self, bench: Bench, timetable: ScheduleDriver) -> None:
        assert timetable.put(after=0)
        jobs = tuple(timetable.job(NAME, number) for number in (1, 2, 3))
        assert timetable.fire(timetable.firing(jobs=jobs)) == Fired(True, tuple(job.id for job in jobs))
        assert sorted(bench.ids_when_there(bench.enroll(), 3)) == [job.id for job in jobs]

    @needs(Capability.EXACT_ORDER)
    def test_occurrences_that_are_made_up_for_run_in_order(self, bench: Bench, timetable: ScheduleDriver) -> None:
        assert timetable.put(after=0)
        jobs = tuple(timetable.job(NAME, number) for number in (3, 1, 2))
        assert timetable.fire(timetable.firing(jobs=jobs)).is_done
        assert bench.take_ids(bench.enroll()) == [job.id for job in jobs]

    # -- records

    def test_occurrences_without_a_job_are_remembered_with_the_latest_first(
        self, bench: Bench, timetable: ScheduleDriver
    ) -> None:
        assert timetable.put(after=0)
        records = (
            Occurrence(1, 5, 5, OccurrenceKind.MISSED, "größe", bench.now),
            Occurrence(6, 6, 1, OccurrenceKind.COALESCED, "one for all", bench.now),
            Occurrence(7, 7, 1, OccurrenceKind.SKIPPED, "", bench.now),
        )
        assert timetable.fire(timetable.firing(jobs=(), records=records)) == Fired(True)
        assert bench.engine.occurrences(NAME, 10) == list(reversed(records))
        assert bench.engine.occurrences(NAME, 1) == [records[-1]]
        assert bench.engine.occurrences("nowhere", 10) == []

    def test_a_refused_firing_leaves_no_records(self, bench: Bench, timetable: ScheduleDriver) -> None:
        assert timetable.put(after=0)
        firing = timetable.firing(records=(timetable.occurrence(1),))
        assert timetable.fire().is_done
        assert timetable.fire(firing) == Fired(False)
        assert bench.engine.occurrences(NAME, 10) == []

    def test_only_the_latest_are_remembered(self, bench: Bench, timetable: ScheduleDriver) -> None:
        assert timetable.put(after=0)
        assert timetable.put("another", after=0)
        for start in (0, 90):
            records = tuple(timetable.occurrence(start + number) for number in range(90))
            assert timetable.fire(timetable.firing(jobs=(), records=records)).is_done
        assert timetable.fire(timetable.firing("another", records=(timetable.occurrence(0),))).is_done
        kept = [record.due for record in bench.engine.occurrences(NAME, 1_000)]
        assert kept == list(range(179, 179 - MOST_RECORDS, -1))
        assert len(bench.engine.occurrences("another", 1_000)) == 1

    # -- overlap

    def test_an_occurrence_may_be_skipped_while_an_earlier_one_has_not_ended(
        self, bench: Bench, timetable: ScheduleDriver
    ) -> None:
        assert timetable.put(after=0, overlap=Overlap.SKIP)
        assert timetable.fire().is_done
        worker, lease = bench.take_by_new_worker()
        firing = timetable.firing()
        assert firing.expected is not None
        before = bench.now
        assert timetable.fire(firing) == Fired(True, (), lease.id)
        assert bench.find_ids() == [lease.id]
        assert timetable.stored().last_due == firing.last_due
        (occurrence,) = bench.engine.occurrences(NAME, 10)
        assert occurrence == Occurrence(
            firing.expected,
            firing.expected,
            1,
            OccurrenceKind.SKIPPED,
            f"job {lease.id} of an earlier occurrence has not ended",
            occurrence.decided,
        )
        assert bench.is_since(before, occurrence.decided)
        bench.complete(worker, lease)
        assert len(timetable.fire().submitted) == 1

    def test_a_job_that_waits_counts_as_not_ended(self, bench: Bench, timetable: ScheduleDriver) -> None:
        assert timetable.put(after=0, overlap=Overlap.SKIP)
        assert timetable.put("another", after=0, overlap=Overlap.SKIP)
        (first,) = timetable.fire().submitted
        assert timetable.fire(timetable.firing("another")).skipped_for is None
        assert timetable.fire().skipped_for == first
        bench.cancel(first)
        assert timetable.fire().skipped_for is None

    def test_each_of_several_that_are_skipped_is_remembered(self, bench: Bench, timetable: ScheduleDriver) -> None:
        assert timetable.put(after=0, overlap=Overlap.SKIP)
        jobs = tuple(timetable.job(NAME, number) for number in (1, 2))
        assert len(timetable.fire(timetable.firing(jobs=jobs)).submitted) == 2  # no earlier job blocks them
        later = tuple(timetable.job(NAME, number) for number in (3, 4))
        records = (timetable.occurrence(0),)
        assert timetable.fire(timetable.firing(jobs=later, records=records)).submitted == ()
        assert sorted(occurrence.due for occurrence in bench.engine.occurrences(NAME, 10)) == [0, 3, 4]

    def test_a_firing_without_jobs_skips_nothing(self, bench: Bench, timetable: ScheduleDriver) -> None:
        assert timetable.put(after=0, overlap=Overlap.SKIP)
        assert len(timetable.fire().submitted) == 1
        assert timetable.fire(timetable.firing(jobs=())) == Fired(True)
        assert bench.engine.occurrences(NAME, 10) == []

    @pytest.mark.parametrize("overlap", [Overlap.SKIP, Overlap.REPLACE])
    def test_an_occurrence_that_has_its_job_is_not_in_its_own_way(
        self, bench: Bench, timetable: ScheduleDriver, overlap: Overlap
    ) -> None:
        assert timetable.put(after=0, overlap=overlap)
        due = timetable.stored().next_due
        (job_id,) = timetable.fire().submitted
        assert timetable.put(expected=1, next_due=due, overlap=overlap)
        assert timetable.fire() == Fired(True)
        assert (bench.status(job_id), bench.engine.occurrences(NAME, 10)) == (JobStatus.PENDING, [])

    def test_an_occurrence_may_replace_the_earlier_ones(self, bench: Bench, timetable: ScheduleDriver) -> None:
        assert timetable.put(after=0, overlap=Overlap.REPLACE)
        assert timetable.put("another", after=0, overlap=Overlap.REPLACE)
        timetable.fire()
        worker, running = bench.take_by_new_worker()
        (untouched,) = timetable.fire(timetable.firing("another")).submitted
        pending = timetable.job(NAME, 1)
        assert timetable.fire(timetable.firing(jobs=(pending,), overlap=Overlap.ALLOW)).is_done
        wakes = bench.wakes
        (new,) = timetable.fire().submitted
        assert bench.is_woken(wakes)
        assert (bench.status(pending.id), bench.status(new)) == (JobStatus.CANCELED, JobStatus.PENDING)
        assert (bench.status(running.id), bench.record(running.id).stop_requested) == (JobStatus.RUNNING, True)
        assert bench.status(untouched) is JobStatus.PENDING
        assert bench.look(worker).stops == [running.id]
        assert bench.settle(worker, running, OutcomeKind.RETRY, due=bench.now)
        assert bench.status(running.id) is JobStatus.CANCELED

    def test_a_held_job_that_is_replaced_never_starts(self, bench: Bench, timetable: ScheduleDriver) -> None:
        assert timetable.put(overlap=Overlap.REPLACE)
        held = timetable.job(NAME, 1, after=SOON_SECONDS)
        assert timetable.fire(timetable.firing(jobs=(held,))).is_done
        worker, lease = bench.take_by_new_worker()
        assert timetable.fire().is_done
        assert bench.engine.start(worker, [lease]) == [False]
        assert bench.status(held.id) is JobStatus.CANCELED

    @pytest.mark.parametrize("overlap", [Overlap.ALLOW, Overlap.QUEUE])
    def test_an_occurrence_may_be_stored_beside_the_earlier_ones(
        self, bench: Bench, timetable: ScheduleDriver, overlap: Overlap
    ) -> None:
        assert timetable.put(after=0, overlap=overlap)
        submitted = [job_id for _ in range(3) for job_id in timetable.fire().submitted]
        assert (bench.find_ids(), len(submitted)) == (submitted, 3)
        assert {bench.status(job_id) for job_id in submitted} == {JobStatus.PENDING}

    # -- triggers

    def test_a_trigger_stores_a_job_and_leaves_the_schedule_as_it_is(
        self, bench: Bench, timetable: ScheduleDriver
    ) -> None:
        assert timetable.put(after=EVERY_SECONDS)
        before = timetable.stored()
        wakes = bench.wakes
        assert timetable.fire(timetable.trigger("by hand")) == Fired(True, ("by hand",))
        assert bench.is_woken(wakes)
        assert timetable.stored() == before
        record = bench.record("by hand")
        assert (record.schedule, record.occurrence, record.status) == (NAME, None, JobStatus.PENDING)
        assert bench.ids_when_there(bench.enroll(), 1) == ["by hand"]

    def test_a_schedule_may_be_triggered_again_at_the_same_instant(
        self, bench: Bench, timetable: ScheduleDriver
    ) -> None:
        assert timetable.put()
        assert timetable.put("another")
        assert timetable.fire(timetable.trigger("one")) == Fired(True, ("one",))
        assert timetable.fire(timetable.trigger("two")) == Fired(True, ("two",))
        both = bench.engine.fire([timetable.trigger("three"), timetable.trigger("four", "another")])
        assert [fired.submitted for fired in both] == [("three",), ("four",)]
        assert bench.find_ids() == ["one", "two", "three", "four"]

    def test_a_paused_schedule_and_one_that_has_ended_may_be_triggered(
        self, bench: Bench, timetable: ScheduleDriver
    ) -> None:
        assert timetable.put()
        assert timetable.put("ended", after=None)
        assert bench.arrange(PauseSchedule(NAME, is_paused=True, next_due=None))
        assert timetable.fire(timetable.trigger("one")).submitted == ("one",)
        assert timetable.fire(timetable.trigger("two", "ended")).submitted == ("two",)
        assert (timetable.stored().is_paused, timetable.stored("ended").next_due) == (True, None)

    def test_a_trigger_of_an_older_definition_or_of_a_schedule_that_is_gone_is_refused(
        self, bench: Bench, timetable: ScheduleDriver
    ) -> None:
        assert timetable.put()
        stale = timetable.trigger("stale")
        assert timetable.put(expected=1, payload=b"2")
        assert timetable.fire(stale) == Fired(False)
        current = timetable.trigger("late")
        assert bench.arrange(RemoveSchedule(NAME))
        assert timetable.fire(current) == Fired(False)
        assert bench.find_ids() == []

    def test_an_occurrence_that_is_fired_beside_a_trigger_is_not_refused(
        self, bench: Bench, timetable: ScheduleDriver
    ) -> None:
        assert timetable.put(after=0)
        firing = timetable.firing()
        by_hand, occurrence = bench.engine.fire([timetable.trigger("by hand"), firing])
        assert occurrence == Fired(True, (firing.jobs[0].id,))
        assert by_hand in (Fired(True, ("by hand",)), Fired(False))  # refused, it can be planned anew
        assert timetable.stored().next_due == firing.next_due

    def test_the_overlap_policy_applies_to_triggers(self, bench: Bench, timetable: ScheduleDriver) -> None:
        assert timetable.put(after=0, overlap=Overlap.SKIP)
        assert timetable.fire(timetable.trigger("first")).submitted == ("first",)
        assert timetable.fire(timetable.trigger("second")) == Fired(True, (), "first")
        assert timetable.fire() == Fired(True, (), "first")
        bench.cancel("first")
        (job_id,) = timetable.fire().submitted
        assert timetable.fire(timetable.trigger("third")) == Fired(True, (), job_id)
        replaced = timetable.trigger("fourth", overlap=Overlap.REPLACE)
        assert timetable.fire(replaced).submitted == ("fourth",)
        assert (bench.status(job_id), bench.status("fourth")) == (JobStatus.CANCELED, JobStatus.PENDING)

    # -- policies of its jobs

    def test_the_jobs_of_a_schedule_keep_their_sequence_and_limits(
        self, bench: Bench, timetable: ScheduleDriver
    ) -> None:
        bench.limit("all", 1)
        assert timetable.put(after=0)
        queued = tuple(timetable.job(NAME, number, sequence="s", after=-1) for number in (1, 2))
        limited = tuple(timetable.job(NAME, number, limits=("all\x1f",)) for number in (3, 4))
        assert timetable.fire(timetable.firing(jobs=queued + limited)).is_done
        of_sequence, of_limit = sorted(bench.ids_when_there(bench.enroll(), 2))
        assert of_sequence == queued[0].id
        assert of_limit in {job.id for job in limited}
