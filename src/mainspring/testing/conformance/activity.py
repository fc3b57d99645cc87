"""Conformance tests of engines: the history of activity, the kinds of jobs, and notes about calls."""

from __future__ import annotations

from datetime import timedelta

from mainspring.jobs.activity import MINUTE
from mainspring.jobs.activity_rows import HOUR, ActivityBatch, ActivityCount, ActivityRow, rows_of
from mainspring.jobs.commands import PutDeadLetterHandler, Replay
from mainspring.jobs.dead_letter_jobs import DeadLetterHandler
from mainspring.jobs.engine import Capability, Retention
from mainspring.jobs.records import DELAYED, IMMEDIATE, RECURRING, Cause, FollowUp, OutcomeKind
from mainspring.jobs.timestamps import to_datetime
from mainspring.testing.conformance.base import EngineSuite
from mainspring.testing.conformance.bench import TYPE, Bench, seconds
from mainspring.testing.conformance.capabilities import needs

FOR_EVER = Retention(None, None, None)
DAY = 24 * HOUR


def count(
    start: int, number: int = 1, *, measure: str = "submitted", label: str = "", bucket: int = 0, type_: str = TYPE
) -> ActivityCount:
    """Return the count of one measure in the minute of an instant, by default of submitted jobs of the type
    `ping`.
    """
    return ActivityCount(start // MINUTE * MINUTE, "default", type_, measure, label, bucket, number)


class ActivityTests(EngineSuite):
    """Tests of the engine's `record_activity`, `activity` and `take_notes`."""

    def record(self, bench: Bench, number: int, *counts: ActivityCount, sender: str = "process") -> None:
        """Store a batch of counts with this number, as if the process `sender` had sent it."""
        with bench.engine.unit(durable=False):
            bench.engine.record_activity(ActivityBatch(sender, number, counts))

    def rows(self, bench: Bench, since: int, until: int | None = None) -> list[ActivityRow]:
        """Return the rows of activity from `since` to `until`, or to now."""
        return rows_of(bench.engine.activity(since, bench.now + 1 if until is None else until))

    def notes(self, bench: Bench) -> list[tuple[str, str, str, int]]:
        """Take the engine's notes: counts of jobs that expired, crashed, or that the engine itself has stored.

        Return what, queue, type and count, sorted; equal notes are added up. The engine forgets the notes.
        """
        found: dict[tuple[str, str, str], int] = {}
        for note in bench.engine.take_notes():
            key = (note.what, note.queue, note.type)
            found[key] = found.get(key, 0) + note.count
        return sorted((*key, number) for key, number in found.items())

    # -- the history

    def test_a_new_store_has_no_history(self, bench: Bench) -> None:
        assert bench.engine.activity(0, bench.now + DAY) == []

    def test_the_counts_of_two_processes_add_up(self, bench: Bench, other: Bench) -> None:
        now = bench.now
        attempts = count(now, 3, measure="attempts", label="completed")
        self.record(bench, 1, count(now, 5), attempts, sender="first")
        self.record(other, 1, count(now, 2), count(now, 1, measure="attempts", label="failed"), sender="second")
        self.record(other, 2, attempts, sender="second")
        (row,) = self.rows(other, now)
        assert (row.submitted, row.attempts) == (7, {"completed": 6, "failed": 1})

    def test_an_engine_adds_up_the_counts_of_several_minutes(self, bench: Bench) -> None:
        step = 5 * MINUTE
        begin = bench.now // step * step - 2 * step
        times = [begin, begin + MINUTE, begin + 4 * MINUTE, begin + step]
        self.record(bench, 1, *(count(time, 1 << place) for place, time in enumerate(times)))
        rows = rows_of(bench.engine.activity(begin + MINUTE, bench.now, step=step))
        found = [(row.start, row.length, row.submitted) for row in rows]
        length = timedelta(minutes=5)
        assert found == [(to_datetime(begin), length, 2 + 4), (to_datetime(begin + step), length, 8)]

    def test_a_batch_that_is_sent_again_counts_once(self, bench: Bench, other: Bench) -> None:
        now = bench.now
        self.record(bench, 1, count(now, 5))
        self.record(bench, 1, count(now, 5))
        self.record(bench, 2, count(now, 1))
        self.record(other, 1, count(now, 5))
        self.record(other, 1, count(now, 5), sender="another process")
        (row,) = self.rows(bench, now)
        assert row.submitted == 11

    def test_minutes_and_types_have_rows_of_their_own(self, bench: Bench) -> None:
        now = bench.now // MINUTE * MINUTE
        self.record(bench, 1, count(now - MINUTE, 1), count(now, 2), count(now, 4, type_="other"))
        rows = self.rows(bench, now - MINUTE, now + MINUTE)
        assert [(row.type, row.submitted) for row in rows] == [(TYPE, 1), ("other", 4), (TYPE, 2)]
        assert (rows[1].start - rows[0].start).total_seconds() == 60
        assert [row.submitted for row in self.rows(bench, now, now + 1)] == [4, 2]
        assert [row.submitted for row in self.rows(bench, now - 1, now)] == [1]
        assert self.rows(bench, now + MINUTE, now + 2 * MINUTE) == []

    def test_histograms_add_up(self, bench: Bench) -> None:
        now = bench.now
        for number in (1, 2):
            self.record(
                bench,
                number,
                count(now, 3, measure="lateness", label=DELAYED, bucket=1_000),
                count(now, 1, measure="lateness", label=DELAYED, bucket=0),
                count(now, 700, measure="lateness sum", label=DELAYED),
            )
        (row,) = self.rows(bench, now)
        histogram = row.lateness[DELAYED]
        assert (histogram.counts[0], histogram.counts[-1], histogram.sum) == (6, 2, 1_400)
        assert (histogram.count, list(row.lateness), row.duration) == (8, [DELAYED], {})

    def test_old_minutes_become_hours_and_old_hours_are_deleted(self, bench: Bench) -> None:
        now = bench.now
        hour = (now - 3 * DAY) // HOUR * HOUR
        old = [count(hour + minute * MINUTE, 1) for minute in (0, 30, 59)]
        self.record(bench, 1, *old, count(hour + HOUR, 7), count(now - DAY, 9), count(now - 31 * DAY, 99))
        for _ in range(10):
            if not bench.engine.prune(FOR_EVER).is_more:
                break
        rows = self.rows(bench, now - 40 * DAY)
        assert [(row.submitted, row.length.total_seconds()) for row in rows] == [(3, 3600), (7, 3600), (9, 60)]
        self.record(bench, 2, count(hour, 1))
        while bench.engine.prune(FOR_EVER).is_more:
            pass
        assert [row.submitted for row in self.rows(bench, now - 40 * DAY)] == [4, 7, 9]

    @needs(Capability.SHARED)
    def test_the_history_survives_a_restart(self, bench: Bench, other: Bench) -> None:
        now = bench.now
        self.record(bench, 1, count(now, 5))
        assert self.rows(bench, now)
        bench.engine.close()
        bench.engine.open(lambda: None)
        self.record(bench, 2, count(now, 1))
        assert [row.submitted for row in self.rows(bench, now)] == [6]
        assert [row.submitted for row in self.rows(other, now)] == [6]

    # -- the kinds of jobs

    def test_a_lease_has_the_kind_of_its_job(self, bench: Bench) -> None:
        worker = bench.enroll()
        now = bench.now
        jobs = [bench.job("immediate"), bench.job("delayed", after=0.3)]
        recurring = bench.job("recurring", schedule="nightly", occurrence=now)
        assert bench.engine.submit([*jobs, recurring]) == [None] * 3
        bench.pass_time(0.35)
        leases = bench.take_when_there(worker, 3)
        assert {lease.id: lease.kind for lease in leases} == {
            "immediate": IMMEDIATE,
            "delayed": DELAYED,
            "recurring": RECURRING,
        }

    def test_a_retry_is_delayed(self, bench: Bench) -> None:
        worker, lease = bench.begin()
        assert lease.kind == IMMEDIATE
        due = bench.now + seconds(0.05)
        assert bench.settle(worker, lease, OutcomeKind.RETRY, due=due, cause=Cause.FAILURE, error="it broke")
        bench.pass_time(0.1)
        (again,) = bench.take_when_there(worker, 1)
        assert again.kind == DELAYED

    # -- notes about calls

    def test_submits_and_completed_jobs_leave_no_notes(self, bench: Bench) -> None:
        worker, lease = bench.begin()
        bench.complete(worker, lease)
        assert self.notes(bench) == []

    def test_expired_jobs_are_noted_once(self, bench: Bench) -> None:
        worker = bench.enroll()
        bench.submit("a", "b", after=60, expires=0.1)
        bench.pass_time(0.15)
        assert bench.gives_up(worker, "a", "b")
        assert self.notes(bench) == [("expired", "default", TYPE, 2)]
        assert self.notes(bench) == []

    @needs(Capability.VIRTUAL_TIME)
    def test_an_attempt_whose_worker_died_is_noted(self, bench: Bench) -> None:
        worker, _ = bench.begin()
        bench.crash(worker)
        assert self.notes(bench) == [("crashed", "default", TYPE, 1)]

    def test_the_jobs_of_dead_letter_handlers_are_noted(self, bench: Bench) -> None:
        plan = FollowUp("letters.tell", "letters", 1, argument="letter")
        assert bench.arrange(PutDeadLetterHandler(DeadLetterHandler(plan)))
        bench.bury()
        assert self.notes(bench) == [("submitted", "letters", "letters.tell", 1)]

    def test_a_replay_is_noted(self, bench: Bench) -> None:
        bench.bury("letter")
        assert bench.change(Replay("letter", "copy", bench.now)).is_done
        assert not bench.change(Replay("letter", "another copy", bench.now)).is_done
        assert self.notes(bench) == [("submitted", "default", TYPE, 1)]
