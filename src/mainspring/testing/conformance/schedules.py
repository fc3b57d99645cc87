"""Conformance tests of engines: schedules are stored, listed by due time, and changed if the revision matches."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from mainspring.jobs.commands import PauseSchedule, PutSchedule, RemoveSchedule
from mainspring.jobs.engine import Capability
from mainspring.jobs.recurrence.schedule_records import OccurrenceKind, Overlap
from mainspring.testing.conformance.base import EngineSuite
from mainspring.testing.conformance.bench import Bench, seconds
from mainspring.testing.conformance.capabilities import needs
from mainspring.testing.conformance.schedule_driver import NAME, ScheduleDriver


class ScheduleTests(EngineSuite):
    """Tests of `PutSchedule`, `PauseSchedule`, `RemoveSchedule`, `schedules` and `Taken.next_firing`."""

    # -- storing

    def test_a_schedule_is_kept_as_it_was_given(self, bench: Bench, timetable: ScheduleDriver) -> None:
        changes: dict[str, Any] = {
            "type": "größe",
            "queue": "注文",
            "priority": 2,
            "payload": b"\x00\xff",
            "codec": "msgpack",
            "rule": '{"cron":"0 2 * * *"}',
            "misfire": "all",
            "catch_up": 7,
            "overlap": Overlap.REPLACE,
            "jitter": 5,
            "start": 1,
            "end": 2**60,
            "expires": 9,
            "limits": ("a\x1f", "b\x1fx"),
            "is_declared": True,
            "maker": "token 1",
        }
        given = timetable.record(**changes)
        before = bench.now
        assert bench.arrange(PutSchedule(given, None))
        stored = timetable.stored()
        assert stored == replace(given, revision=1, created=stored.created)
        assert bench.is_since(before, stored.created)

    def test_a_schedule_is_new_only_once(self, timetable: ScheduleDriver) -> None:
        assert timetable.put(payload=b"1")
        before = timetable.stored()
        assert not timetable.put(payload=b"2")
        assert timetable.stored() == before

    def test_a_change_counts_up_the_revision_and_keeps_its_history(
        self, bench: Bench, timetable: ScheduleDriver
    ) -> None:
        assert timetable.put()
        assert timetable.fire().is_done
        assert bench.arrange(PauseSchedule(NAME, is_paused=True, next_due=None))
        before = timetable.stored()
        bench.pass_time(0.1)
        changed = timetable.record(payload=b"2", after=33, is_declared=False, maker="token 2")
        assert bench.arrange(PutSchedule(changed, 1))
        assert before.last_due is not None
        assert timetable.stored() == replace(
            changed, revision=2, created=before.created, is_paused=True, last_due=before.last_due
        )

    def test_a_change_by_an_author_who_has_not_seen_the_last_one_is_refused(
        self, timetable: ScheduleDriver
    ) -> None:
        assert timetable.put()
        assert timetable.put(expected=1, payload=b"first")
        before = timetable.stored()
        assert not timetable.put(expected=1, payload=b"second")
        assert not timetable.put(expected=3, payload=b"third")
        assert timetable.stored() == before
        assert timetable.put(expected=2, payload=b"fourth")

    def test_a_schedule_that_is_gone_is_not_changed(self, timetable: ScheduleDriver) -> None:
        assert not timetable.put(expected=1)
        assert timetable.bench.engine.schedules() == []

    def test_storing_a_schedule_wakes_workers(self, bench: Bench, timetable: ScheduleDriver) -> None:
        before = bench.wakes
        assert timetable.put()
        assert bench.is_woken(before)
        before = bench.wakes
        assert timetable.put(expected=1, after=1)
        assert bench.is_woken(before)

    def test_arrangements_are_carried_out_in_order(self, bench: Bench, timetable: ScheduleDriver) -> None:
        pause = PauseSchedule(NAME, is_paused=True, next_due=None)
        remove = RemoveSchedule(NAME)
        assert timetable.put("another")
        assert bench.engine.arrange([pause, remove]) == [False, False]
        assert timetable.put()
        assert bench.engine.arrange([pause, pause, remove, remove, pause]) == [True, False, True, False, False]
        assert bench.engine.arrange([]) == []

    def test_schedules_outlive_the_engine(self, bench: Bench, timetable: ScheduleDriver) -> None:
        assert timetable.put()
        before = timetable.stored()
        bench.engine.close()
        assert ScheduleDriver(Bench(bench.engine, bench.clock)).stored() == before

    # -- pausing and removing

    def test_a_schedule_that_has_changed_meanwhile_is_not_woken_up(
        self, bench: Bench, timetable: ScheduleDriver
    ) -> None:
        assert timetable.put(after=0)
        assert bench.arrange(PauseSchedule(NAME, is_paused=True, next_due=None))
        revision = timetable.stored().revision
        stale = PauseSchedule(NAME, is_paused=False, next_due=bench.now, expected=revision - 1)
        assert not bench.arrange(stale)
        assert timetable.stored().is_paused
        assert bench.arrange(replace(stale, expected=revision))

    def test_a_schedule_that_has_changed_meanwhile_is_neither_paused_nor_removed(
        self, bench: Bench, timetable: ScheduleDriver
    ) -> None:
        assert timetable.put()
        records = (timetable.occurrence(1, OccurrenceKind.SKIPPED),)
        assert timetable.fire(timetable.firing(records=records)).is_done
        before = timetable.stored()
        assert timetable.put(expected=before.revision, after=1)
        changed = timetable.stored()
        assert not bench.arrange(PauseSchedule(NAME, is_paused=True, next_due=None, expected=before.revision))
        assert not bench.arrange(RemoveSchedule(NAME, expected=before.revision))
        assert timetable.stored() == changed
        assert len(bench.engine.occurrences(NAME, 10)) == 1
        assert bench.arrange(PauseSchedule(NAME, is_paused=True, next_due=None, expected=changed.revision))
        assert bench.arrange(RemoveSchedule(NAME, expected=changed.revision))
        assert (bench.engine.schedules(), bench.engine.occurrences(NAME, 10)) == ([], [])

    def test_a_paused_schedule_is_not_due_and_wakes_up_where_it_is_told(
        self, bench: Bench, timetable: ScheduleDriver
    ) -> None:
        assert timetable.put(after=0)
        before = timetable.stored()
        assert bench.arrange(PauseSchedule(NAME, is_paused=True, next_due=None))
        assert not bench.arrange(PauseSchedule(NAME, is_paused=True, next_due=None))
        assert timetable.stored() == replace(before, is_paused=True)
        assert bench.engine.schedules(due_until=bench.now) == []
        due = bench.now + seconds(30)
        wakes = bench.wakes
        assert bench.arrange(PauseSchedule(NAME, is_paused=False, next_due=due))
        assert bench.is_woken(wakes)
        assert not bench.arrange(PauseSchedule(NAME, is_paused=False, next_due=due))
        assert timetable.stored() == replace(before, next_due=due)

    def test_a_removed_schedule_leaves_its_jobs_and_no_records(
        self, bench: Bench, timetable: ScheduleDriver
    ) -> None:
        assert timetable.put()
        records = (timetable.occurrence(1, OccurrenceKind.SKIPPED),)
        assert timetable.fire(timetable.firing(records=records)).is_done
        jobs = bench.find_ids()
        assert bench.arrange(RemoveSchedule(NAME))
        assert not bench.arrange(RemoveSchedule(NAME))
        assert (bench.engine.schedules(), bench.engine.occurrences(NAME, 10)) == ([], [])
        assert (bench.find_ids(), len(jobs)) == (jobs, 1)
        assert timetable.put()
        assert timetable.stored().revision == 1
        assert bench.engine.occurrences(NAME, 10) == []

    # -- lists

    def test_schedules_are_listed_by_name(self, bench: Bench, timetable: ScheduleDriver) -> None:
        for name in ("c", "a", "b"):
            assert timetable.put(name)
        assert [record.name for record in bench.engine.schedules()] == ["a", "b", "c"]
        assert [record.name for record in bench.engine.schedules(limit=2)] == ["a", "b"]
        assert [record.name for record in bench.engine.schedules(names=["c", "nowhere", "a"])] == ["a", "c"]
        assert bench.engine.schedules(names=[]) == []

    def test_those_that_are_due_are_listed_with_the_earliest_first(
        self, bench: Bench, timetable: ScheduleDriver
    ) -> None:
        for name, after in (("a", 3), ("b", 1), ("c", 2), ("d", 4), ("e", None)):
            assert timetable.put(name, after=after)
        until = bench.now + seconds(3)
        assert [record.name for record in bench.engine.schedules(due_until=until)] == ["b", "c", "a"]
        assert [record.name for record in bench.engine.schedules(due_until=until, limit=2)] == ["b", "c"]
        assert bench.engine.schedules(due_until=until - seconds(2.5)) == []

    @needs(Capability.FORESIGHT)
    def test_every_worker_is_told_the_next_occurrence_of_all_schedules(
        self, bench: Bench, timetable: ScheduleDriver
    ) -> None:
        worker = bench.enroll()
        assert bench.look(worker).next_firing is None
        assert timetable.put("later", after=90)
        assert timetable.put("sooner", after=30, type="other")
        assert timetable.put("over", after=None)
        assert bench.look(worker).next_firing == timetable.stored("sooner").next_due
        assert bench.arrange(PauseSchedule("sooner", is_paused=True, next_due=None))
        assert bench.look(worker).next_firing == timetable.stored("later").next_due
        assert bench.arrange(RemoveSchedule("later"))
        assert bench.look(worker).next_firing is None

    def test_another_process_sees_the_schedules(
        self, bench: Bench, other: Bench, timetable: ScheduleDriver
    ) -> None:
        assert timetable.put()
        assert ScheduleDriver(other).stored() == timetable.stored()
        assert not ScheduleDriver(other).put()

    @needs(Capability.FORESIGHT)
    def test_another_process_is_told_the_next_occurrence(
        self, bench: Bench, other: Bench, timetable: ScheduleDriver
    ) -> None:
        worker = other.enroll()
        assert timetable.put()
        assert other.look(worker).next_firing == timetable.stored().next_due
