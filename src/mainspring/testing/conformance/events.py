"""Conformance tests of engines: events are recorded in order while a client listens, and only then."""

from __future__ import annotations

from itertools import count

import pytest

from mainspring.jobs.commands import ChangeLimits, Delete, Edit, Reopen, Replay, Reschedule
from mainspring.jobs.engine import MAX_CRASHES, Capability, Retention
from mainspring.jobs.events import Event, EventKind
from mainspring.jobs.records import Cause, OutcomeKind, UniqueKey
from mainspring.jobs.recurrence.schedule_records import OccurrenceKind, Overlap
from mainspring.jobs.status import JobStatus
from mainspring.testing.conformance.base import EngineSuite
from mainspring.testing.conformance.bench import SOON_SECONDS, Bench, seconds
from mainspring.testing.conformance.capabilities import needs
from mainspring.testing.conformance.schedule_driver import NAME, ScheduleDriver

AN_HOUR = 3600.0
BY_OUTCOME = {
    OutcomeKind.COMPLETED: [EventKind.COMPLETED],
    OutcomeKind.FAILED: [EventKind.FAILED],
    OutcomeKind.CANCELED: [EventKind.CANCELED],
    OutcomeKind.RETRY: [EventKind.RETRIED],
    OutcomeKind.SNOOZED: [EventKind.SNOOZED],
    OutcomeKind.INTERRUPTED: [EventKind.INTERRUPTED],
    OutcomeKind.HANDED_BACK: [],
}
OUTCOMES = pytest.mark.parametrize("kind", OutcomeKind, ids=lambda kind: kind.value)


class EventReader:
    """Reads the events of an engine from now on, as a client that listens.

    While it listens, for `duration` seconds, all processes write events.
    """

    def __init__(self, bench: Bench, duration: float = AN_HOUR) -> None:
        self.bench = bench
        self.place = bench.engine.listen(bench.now + seconds(duration))

    def read(self) -> list[Event]:
        """Return the events since the last call, or since this reader was made; at most 1,000."""
        page = self.bench.engine.events(self.place, 1_000)
        self.place = page.end
        return page.events

    def read_until(self, job_id: str) -> list[str]:
        """Read new events until one is about the job `job_id`; return the ids of the jobs in all of them.

        Events of other processes may arrive with a delay. If the event does not arrive in time (see
        `eventually_in_time`), return the ids read so far.
        """
        found: list[str] = []

        def is_found() -> bool:
            found.extend(event.id for event in self.read())
            return job_id in found

        self.bench.eventually_in_time(is_found)
        return found

    def read_kinds(self) -> list[tuple[EventKind, str]]:
        """Return the kinds and job ids of the events since the last call."""
        return [(event.kind, event.id) for event in self.read()]


class EventTests(EngineSuite):
    """Tests of the engine's `listen`, `events` and `holds`."""

    # -- listening

    def test_no_event_is_written_while_no_process_follows(self, bench: Bench) -> None:
        place = bench.engine.listen(bench.now)
        bench.submit("a")
        assert bench.engine.events(place, 10).events == []
        listener = EventReader(bench)
        assert listener.read() == []
        bench.submit("b")
        assert listener.read_kinds() == [(EventKind.SUBMITTED, "b")]

    def test_nothing_is_written_down_when_the_time_is_over(self, bench: Bench) -> None:
        listener = EventReader(bench, 1.5)
        bench.submit("a")
        bench.pass_time(1.5)
        bench.submit("b")
        assert listener.read_kinds() == [(EventKind.SUBMITTED, "a")]

    def test_who_listens_shorter_does_not_cut_short_the_other(self, bench: Bench) -> None:
        listener = EventReader(bench, 60)
        EventReader(bench, 0.1)
        bench.pass_time(0.2)
        bench.submit("a")
        assert listener.read_kinds() == [(EventKind.SUBMITTED, "a")]

    def test_every_listener_hears_all_from_its_place_on(self, bench: Bench, other: Bench) -> None:
        early = EventReader(bench)
        bench.submit("a")
        assert early.read_until("a") == ["a"]
        late = EventReader(other)
        other.submit("b")
        assert early.read_until("b") == ["b"]
        assert late.read_until("b") == ["b"]
        assert early.read() == []

    def test_another_process_writes_for_those_who_listen_here(self, bench: Bench, other: Bench) -> None:
        other.submit("before")
        listener = EventReader(bench)
        attempts = count()

        def is_heard() -> bool:  # the other process learns of the listener with a delay
            other.submit(f"attempt {next(attempts)}")
            return bool(listener.read())

        assert bench.eventually_in_time(is_heard)
        other.submit("a")
        found = listener.read_until("a")
        assert found[-1:] == ["a"]
        assert "before" not in found

    def test_events_come_in_pages(self, bench: Bench) -> None:
        place = EventReader(bench).place
        for job_id in "abcde":
            bench.submit(job_id)
        found = []
        for _ in range(4):
            page = bench.engine.events(place, 2)
            found.append("".join(event.id for event in page.events))
            place = page.end
        assert found == ["ab", "cd", "e", ""]

    def test_an_event_tells_what_happened_when_and_to_which_job(self, bench: Bench) -> None:
        listener = EventReader(bench)
        bench.submit("job", type="größe", queue="orders", after=AN_HOUR)
        bench.cancel()
        assert [(event.kind, event.id, event.type, event.queue) for event in listener.read()] == [
            (EventKind.SUBMITTED, "job", "größe", "orders"),
            (EventKind.CANCELED, "job", "größe", "orders"),
        ]
        bench.pass_time(0.1)
        before = bench.now
        bench.submit("timed")
        (event,) = listener.read()
        assert bench.is_since(before, event.at)

    # -- positions

    def test_a_reader_continues_after_any_event(self, bench: Bench, other: Bench) -> None:
        start = EventReader(bench).place
        for job_id in "abc":
            bench.submit(job_id)
        page = bench.engine.events(start, 10)
        assert page.is_complete
        assert page.positions[-1] == page.end
        for number, position in enumerate([start, *page.positions]):
            assert bench.engine.holds(position)
            assert other.engine.holds(position)
            assert [event.id for event in other.engine.events(position, 10).events] == list("abc")[number:]

    def test_a_position_holds_as_long_as_a_client_listens(self, bench: Bench) -> None:
        listener = EventReader(bench, 60)
        start = listener.place
        bench.submit("a")
        EventReader(bench, 120)
        bench.submit("b")
        listener.read()
        assert bench.engine.holds(start)
        assert bench.engine.holds(listener.place)

    def test_a_position_does_not_hold_when_no_client_listens_any_more(self, bench: Bench) -> None:
        listener = EventReader(bench, 0.5)
        bench.submit("a")
        listener.read()
        bench.pass_time(0.6)
        assert not bench.engine.holds(listener.place)

    def test_a_position_from_before_a_time_without_listeners_never_holds_again(self, bench: Bench) -> None:
        listener = EventReader(bench, 0.5)
        start = listener.place
        bench.submit("a")
        listener.read()
        bench.pass_time(0.6)
        bench.submit("unseen")
        fresh = EventReader(bench)
        assert not bench.engine.holds(start)
        assert not bench.engine.holds(listener.place)
        assert bench.engine.holds(fresh.place)
        bench.submit("b")
        assert not bench.engine.holds(listener.place)
        assert bench.engine.holds(fresh.place)

    @pytest.mark.parametrize(
        "position",
        [
            "",
            "0",
            "-1",
            "1-",
            "-",
            "a",
            "1-2-3",
            "9" * 18,
            "9" * 30,
            "9" * 500,
            f"{'9' * 18}-0",
            "\N{DEVANAGARI DIGIT ONE}",
        ],
    )
    def test_a_position_that_was_not_given_out_does_not_hold(self, bench: Bench, position: str) -> None:
        EventReader(bench)
        bench.submit("a")
        assert not bench.engine.holds(position)

    # -- the life of a job

    def test_a_life_is_told_in_order(self, bench: Bench) -> None:
        listener = EventReader(bench)
        worker, lease = bench.begin()
        assert bench.report(worker, lease, 0.5)
        assert bench.settle(worker, lease, OutcomeKind.RETRY, cause=Cause.FAILURE)
        (lease,) = bench.take_when_there(worker, 1)
        assert bench.settle(worker, lease, OutcomeKind.COMPLETED)
        assert [event.kind for event in listener.read()] == [
            EventKind.SUBMITTED,
            EventKind.STARTED,
            EventKind.PROGRESS,
            EventKind.RETRIED,
            EventKind.STARTED,
            EventKind.COMPLETED,
        ]

    def test_a_held_job_has_not_started_until_it_does(self, bench: Bench) -> None:
        worker, lease = bench.begin("job", after=SOON_SECONDS)
        listener = EventReader(bench)
        assert listener.read() == []
        assert bench.engine.start(worker, [lease]) == [True]
        assert bench.engine.start(worker, [lease]) == [False]
        assert bench.engine.is_followed
        assert listener.read() == []
        assert bench.report_begin(worker, lease)
        assert listener.read_kinds() == [(EventKind.STARTED, "job")]

    @OUTCOMES
    def test_every_end_of_an_attempt_is_told(self, bench: Bench, kind: OutcomeKind) -> None:
        worker, lease = bench.begin()
        listener = EventReader(bench)
        assert bench.settle(worker, lease, kind, due=bench.now)
        assert listener.read_kinds() == [(found, "job") for found in BY_OUTCOME[kind]]

    @OUTCOMES
    def test_nothing_is_told_of_an_outcome_that_is_refused(self, bench: Bench, kind: OutcomeKind) -> None:
        worker, stale = bench.begin()
        assert bench.settle(worker, stale, OutcomeKind.HANDED_BACK)
        assert len(bench.take_when_there(worker, 1)) == 1
        listener = EventReader(bench)
        assert not bench.settle(worker, stale, kind, error="stale")
        assert not bench.report(worker, stale, 1)
        assert listener.read() == []

    def test_the_first_line_of_the_error_says_why_a_job_failed(self, bench: Bench) -> None:
        worker, lease = bench.begin()
        listener = EventReader(bench)
        assert bench.settle(
            worker, lease, OutcomeKind.FAILED, error="no such order\nTraceback", cause=Cause.FAILURE
        )
        assert [event.note for event in listener.read()] == ["no such order"]

    def test_a_batch_is_told_job_by_job(self, bench: Bench) -> None:
        listener = EventReader(bench)
        bench.submit("a", "b", "c")
        worker = bench.enroll()
        leases = bench.take_when_there(worker, 3)
        assert bench.report_begin(worker, *leases)
        bench.complete(worker, *leases)
        given = [lease.id for lease in leases]
        found = listener.read_kinds()
        assert found[:3] == [(EventKind.SUBMITTED, job_id) for job_id in "abc"]
        assert sorted(found[3:6]) == [(EventKind.STARTED, job_id) for job_id in "abc"]
        assert found[6:] == [(EventKind.COMPLETED, job_id) for job_id in given]

    def test_starts_are_told_in_the_order_in_which_handlers_begin(self, bench: Bench) -> None:
        bench.submit("b", "a", "c")
        listener = EventReader(bench)
        worker = bench.enroll()
        leases = {lease.id: lease for lease in bench.take_when_there(worker, 3)}
        assert bench.report_begin(worker, leases["c"], leases["b"])
        assert bench.report_begin(worker, leases["a"])
        assert listener.read_kinds() == [(EventKind.STARTED, job_id) for job_id in "cba"]

    # -- caused by commands and other jobs

    def test_a_job_that_is_called_off_is_told_when_it_ends(self, bench: Bench) -> None:
        bench.submit("pending", after=60)
        worker, lease = bench.begin("running")
        listener = EventReader(bench)
        bench.cancel("pending")
        bench.cancel("running")
        assert listener.read_kinds() == [(EventKind.CANCELED, "pending")]
        assert bench.settle(worker, lease, OutcomeKind.RETRY, due=bench.now)
        assert listener.read_kinds() == [(EventKind.CANCELED, "running")]

    def test_commands_are_told(self, bench: Bench) -> None:
        bench.bury("a")
        bench.bury("b")
        bench.submit("c", after=60)
        listener = EventReader(bench)
        due = bench.now + seconds(60)
        for command in (Reopen("a", due), Replay("b", "copy", due), Reschedule("c", due)):
            assert bench.change(command).is_done
            assert not bench.change(Reopen("copy", due)).is_done
        assert listener.read_kinds() == [
            (EventKind.REOPENED, "a"),
            (EventKind.SUBMITTED, "copy"),
            (EventKind.RESCHEDULED, "c"),
        ]

    def test_what_changes_no_state_is_not_told(self, bench: Bench) -> None:
        bench.bury("letter")
        bench.submit("pending", after=60)
        listener = EventReader(bench)
        for command in (Edit("letter", b"2", "json"), Delete("letter"), ChangeLimits("pending", ("a\x1f",))):
            assert bench.change(command).is_done
        bench.engine.prune(Retention(0, 0, 0))
        assert listener.read() == []

    def test_jobs_in_the_way_are_told(self, bench: Bench) -> None:
        unique = UniqueKey("key", (JobStatus.PENDING,))
        bench.submit("a", unique=unique)
        listener = EventReader(bench)
        bench.engine.submit([bench.job("b", unique=unique, type="other"), bench.job("a")])
        bench.engine.submit([bench.job("c", unique=UniqueKey("key", (JobStatus.PENDING,), replaces=True))])
        events = listener.read()
        assert [(event.kind, event.id) for event in events] == [
            (EventKind.DEDUPLICATED, "a"),
            (EventKind.RESCHEDULED, "a"),
        ]
        assert {event.type for event in events} == {"ping"}

    def test_an_expired_job_is_told(self, bench: Bench) -> None:
        bench.submit("job", expires=0.3)
        listener = EventReader(bench)
        bench.pass_time(0.3)
        assert bench.gives_up(bench.enroll(), "job")
        assert [(event.kind, event.note) for event in listener.read()] == [
            (EventKind.FAILED, "expired: it did not start within its time")
        ]

    # -- crashes

    @needs(Capability.VIRTUAL_TIME)
    def test_rescues_are_told(self, bench: Bench) -> None:
        bench.submit("rescued", "stopped")
        bench.submit("held", after=SOON_SECONDS)
        worker = bench.enroll()
        assert len(bench.take(worker)) == 3
        bench.cancel("stopped")
        listener = EventReader(bench)
        bench.crash(worker)
        assert sorted(listener.read_kinds()) == [(EventKind.CANCELED, "stopped"), (EventKind.RESCUED, "rescued")]

    @needs(Capability.VIRTUAL_TIME)
    def test_a_quarantine_is_told(self, bench: Bench) -> None:
        bench.submit("job")
        for _ in range(MAX_CRASHES - 1):
            bench.crash(bench.take_by_new_worker()[0])
        worker, _ = bench.take_by_new_worker()
        listener = EventReader(bench)
        bench.crash(worker)
        assert [(event.kind, event.note) for event in listener.read()] == [
            (EventKind.FAILED, bench.record().error),
        ]

    # -- schedules

    def test_the_occurrences_of_a_schedule_are_told(self, bench: Bench, timetable: ScheduleDriver) -> None:
        assert timetable.put(after=0, overlap=Overlap.SKIP, queue="nights")
        listener = EventReader(bench)
        (job_id,) = timetable.fire().submitted
        assert timetable.fire().skipped_for == job_id
        assert not timetable.fire(timetable.firing(expected=0)).is_done
        assert [(event.kind, event.id, event.type) for event in listener.read()] == [
            (EventKind.SUBMITTED, job_id, "ping"),
            (EventKind.SKIPPED, NAME, "ping"),
        ]

    def test_an_occurrence_without_a_job_is_told_with_what_became_of_it(
        self, bench: Bench, timetable: ScheduleDriver
    ) -> None:
        assert timetable.put(after=0, queue="nights")
        records = (timetable.occurrence(1), timetable.occurrence(2, OccurrenceKind.COALESCED))
        listener = EventReader(bench)
        before = bench.now
        assert timetable.fire(timetable.firing(jobs=(), records=records)).is_done
        found = listener.read()
        assert all(bench.is_since(before, event.at) for event in found)
        assert [(event.kind, event.id, event.type, event.queue, event.note) for event in found] == [
            (EventKind.SKIPPED, NAME, "ping", "nights", note)
            for note in ("missed: occurrence 1", "coalesced: occurrence 2")
        ]

    def test_a_job_that_is_replaced_by_a_later_occurrence_is_told(
        self, bench: Bench, timetable: ScheduleDriver
    ) -> None:
        assert timetable.put(after=0, overlap=Overlap.REPLACE)
        (first,) = timetable.fire().submitted
        listener = EventReader(bench)
        (second,) = timetable.fire().submitted
        assert listener.read_kinds() == [(EventKind.CANCELED, first), (EventKind.SUBMITTED, second)]
