"""Commands and schedules on a real server: one message for a job, lost answers, and what no batch can hold."""

from collections.abc import Callable
from itertools import count

import pytest

from mainspring.engines.nats.jetstream import JetStream
from mainspring.engines.nats.write_batch import WriteBatch
from mainspring.jobs.commands import (
    Arrangement,
    CancelJob,
    Changed,
    Command,
    Delete,
    PauseSchedule,
    PutSchedule,
    RemoveSchedule,
    Reopen,
    Replay,
    Reschedule,
)
from mainspring.jobs.records import OutcomeKind
from mainspring.jobs.recurrence.schedule_records import Fired, OccurrenceKind, Overlap
from mainspring.jobs.status import JobStatus
from mainspring.testing.conformance.bench import Bench, seconds
from mainspring.testing.conformance.schedule_driver import NAME, ScheduleDriver


@pytest.fixture
def timetable(bench: Bench) -> ScheduleDriver:
    return ScheduleDriver(bench)


def test_a_job_that_is_queued_and_called_off_in_one_batch_is_not_taken(bench: Bench) -> None:
    bench.bury("letter")
    bench.submit("job", after=3_600)
    commands: list[Command] = [
        Replay("letter", "copy", 0),
        CancelJob("copy"),
        Reschedule("job", 0),
        Reschedule("job", bench.now),
        CancelJob("job"),
    ]
    assert all(changed.is_done for changed in bench.engine.change(commands))
    bench.submit("last")
    assert bench.ids_when_there(bench.enroll(), 1) == ["last"]


def test_a_job_that_is_put_off_is_taken_later(bench: Bench) -> None:
    bench.submit("job")
    due = bench.now + seconds(1.5)
    assert bench.change(Reschedule("job", due)).is_done
    _, lease = bench.take_by_new_worker()
    assert (lease.id, lease.due) == ("job", due)


def test_what_is_put_off_and_back_again_has_one_message(bench: Bench, other: Bench) -> None:
    bench.submit("job")
    for _ in range(20):
        assert bench.change(Reschedule("job", bench.now + seconds(3_600))).is_done
        assert other.change(Reschedule("job", other.now)).is_done
    worker, lease = bench.take_by_new_worker()
    bench.complete(worker, lease)
    bench.submit("last")
    assert bench.ids_when_there(worker, 1) == ["last"]


def test_the_id_of_a_deleted_job_is_free_at_once(bench: Bench, other: Bench) -> None:
    worker = bench.enroll()
    for _ in range(20):
        bench.submit("job")
        (lease,) = bench.take_when_there(worker, 1)
        bench.complete(worker, lease)
        assert other.change(Delete("job")).is_done


# -- lost answers


@pytest.fixture
def lose_reply(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let the next change be stored, and lose the reply."""
    commit = JetStream.commit
    losses: list[None] = []

    def commit_silently(jetstream: JetStream, batch: WriteBatch) -> int | None:
        if not losses or not batch.writes:
            return commit(jetstream, batch)
        losses.pop()
        only_stored = WriteBatch()
        only_stored.writes = batch.writes
        assert commit(jetstream, only_stored) is not None
        return None

    monkeypatch.setattr(JetStream, "commit", commit_silently)
    return lambda: losses.append(None)


def test_a_command_whose_answer_was_lost_is_done(bench: Bench, lose_reply: Callable[[], None]) -> None:
    bench.bury("letter")
    bench.bury("another")
    bench.submit("job")
    bench.submit("later", after=3_600)
    commands: list[Command] = [
        CancelJob("job"),
        Delete("job"),
        Replay("letter", "copy", 0),
        Reopen("another", bench.now),
        Reschedule("later", bench.now),
    ]
    lose_reply()
    assert [changed.is_done for changed in bench.engine.change(commands)] == [True] * 5
    assert sorted(bench.ids_when_there(bench.enroll(), 3)) == ["another", "copy", "later"]


def test_a_command_that_is_stored_only_after_its_second_attempt_began_is_done(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.submit("job", after=3_600)
    bench.submit("later", after=3_600)
    commit = JetStream.commit
    late: list[WriteBatch] = []

    def commit_late(jetstream: JetStream, batch: WriteBatch) -> int | None:
        if not late:
            late.append(batch)
            return None  # the time is over, and the server will store the batch
        if len(late) == 1:
            late.append(batch)
            assert commit(jetstream, late[0]) is not None
        return commit(jetstream, batch)

    monkeypatch.setattr(JetStream, "commit", commit_late)
    due = bench.now + seconds(60)
    answers = bench.engine.change([CancelJob("job"), Reschedule("later", due)])
    assert [changed.is_done for changed in answers] == [True, True]
    assert bench.status("job") is JobStatus.CANCELED
    assert bench.record("later").due == due


def test_a_stop_whose_answer_was_lost_reaches_the_worker(bench: Bench, lose_reply: Callable[[], None]) -> None:
    worker, _ = bench.begin()
    lose_reply()
    assert bench.cancel() == Changed(False, JobStatus.RUNNING)
    assert bench.eventually(lambda: bench.look(worker).stops == ["job"])


def test_a_change_of_a_schedule_whose_answer_was_lost_is_done(
    bench: Bench, timetable: ScheduleDriver, lose_reply: Callable[[], None]
) -> None:
    arrangements: list[Arrangement] = [
        PutSchedule(timetable.record(), None),
        PutSchedule(timetable.record(after=0), 1),
        PauseSchedule(NAME, is_paused=True, next_due=None),
        RemoveSchedule(NAME),
    ]
    for arrangement in arrangements:
        lose_reply()
        assert bench.arrange(arrangement)
        due = bench.engine.schedules(due_until=bench.now + seconds(90))
        assert due == [record for record in bench.engine.schedules() if not record.is_paused]
    assert not bench.arrange(arrangements[-1])


def test_a_firing_whose_answer_was_lost_is_done(
    bench: Bench, timetable: ScheduleDriver, lose_reply: Callable[[], None]
) -> None:
    assert timetable.put(after=0)
    firing = timetable.firing()
    lose_reply()
    assert bench.engine.fire([firing, firing]) == [Fired(True, (firing.jobs[0].id,)), Fired(False)]
    assert bench.find_ids() == [firing.jobs[0].id]


# -- firing


def test_more_occurrences_than_a_draft_holds_are_made_up_for(bench: Bench, timetable: ScheduleDriver) -> None:
    assert timetable.put(after=0, overlap=Overlap.SKIP)
    jobs = tuple(timetable.job(NAME, number, sequence="s") for number in range(250))
    firing = timetable.firing(jobs=jobs, records=(timetable.occurrence(-1),))
    assert bench.engine.fire([firing, firing]) == [Fired(True, tuple(job.id for job in jobs)), Fired(False)]
    assert (timetable.stored().next_due, len(bench.find_ids(limit=1_000))) == (firing.next_due, 250)
    assert [occurrence.due for occurrence in bench.engine.occurrences(NAME, 10)] == [-1]
    late = timetable.firing(jobs=tuple(timetable.job(NAME, number) for number in range(250, 400)))
    answer = timetable.fire(late)
    assert (answer.is_done, answer.submitted, answer.skipped_for in {job.id for job in jobs}) == (True, (), True)


def test_who_fires_after_another_died_halfway_makes_the_other_jobs(
    bench: Bench, other: Bench, timetable: ScheduleDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert timetable.put(after=0, overlap=Overlap.SKIP)
    dues = range(250)
    firing = timetable.firing(jobs=tuple(timetable.job(NAME, due) for due in dues))
    again = timetable.firing(jobs=tuple(bench.job(f"again {due}", schedule=NAME, occurrence=due) for due in dues))
    commit = JetStream.commit
    batches = count()

    def die_later(jetstream: JetStream, batch: WriteBatch) -> int | None:
        if next(batches) == 2:
            raise RuntimeError("as if it had died")
        return commit(jetstream, batch)

    with monkeypatch.context() as patch:
        patch.setattr(JetStream, "commit", die_later)
        with pytest.raises(RuntimeError):
            bench.engine.fire([firing])
    assert timetable.stored().next_due == firing.expected
    (fired,) = other.engine.fire([again])
    assert fired == Fired(True, tuple(f"again {due}" for due in range(200, 250)))
    found = [record.occurrence for record in (bench.record(job_id) for job_id in bench.find_ids(limit=1_000))]
    assert sorted(due for due in found if due is not None) == list(dues)


# -- jobs that count as not ended


def test_a_reopened_job_of_a_schedule_counts_as_not_ended(bench: Bench, timetable: ScheduleDriver) -> None:
    assert timetable.put(after=0, overlap=Overlap.SKIP)
    (first,) = timetable.fire().submitted
    worker, lease = bench.take_by_new_worker()
    assert bench.settle(worker, lease, OutcomeKind.FAILED)
    (second,) = timetable.fire().submitted  # forgets the first: it has ended
    bench.cancel(second)
    assert bench.change(Reopen(first, bench.now)).is_done
    assert timetable.fire().skipped_for == first


def test_a_schedule_that_was_removed_and_put_again_knows_its_jobs(bench: Bench, timetable: ScheduleDriver) -> None:
    assert timetable.put(after=0, overlap=Overlap.SKIP)
    (job_id,) = timetable.fire().submitted
    assert bench.arrange(RemoveSchedule(NAME))
    assert (bench.engine.schedules(), bench.engine.schedules(names=[NAME])) == ([], [])
    assert timetable.put(overlap=Overlap.SKIP)
    assert timetable.fire().skipped_for == job_id
    (occurrence,) = bench.engine.occurrences(NAME, 10)
    assert occurrence.kind is OccurrenceKind.SKIPPED


# -- other processes


def test_other_processes_hear_of_changes_of_schedules(
    bench: Bench, other: Bench, timetable: ScheduleDriver
) -> None:
    def names_of_due() -> list[str]:
        return [record.name for record in other.engine.schedules(due_until=other.now + seconds(90))]

    worker = other.enroll()
    assert names_of_due() == []
    assert timetable.put()
    assert other.eventually(lambda: names_of_due() == [NAME])
    assert other.look(worker).next_firing == timetable.stored().next_due
    wakes = other.wakes
    assert bench.arrange(RemoveSchedule(NAME))
    assert other.is_woken(wakes)
    assert other.eventually(lambda: names_of_due() == [])


def test_a_firing_that_was_refused_shows_what_has_changed(
    bench: Bench, other: Bench, timetable: ScheduleDriver
) -> None:
    assert timetable.put(after=0)
    assert other.eventually(lambda: len(other.engine.schedules(due_until=other.now)) == 1)
    firing = timetable.firing()
    assert timetable.fire(firing).is_done
    assert other.engine.fire([firing]) == [Fired(False)]
    assert other.engine.schedules(due_until=other.now) == []


def test_more_schedules_than_the_server_tells_at_once_are_known(
    bench: Bench, other: Bench, timetable: ScheduleDriver
) -> None:
    names = [f"{number:04}" for number in range(1_005)]
    orders = [PutSchedule(timetable.record(name, after=0), None) for name in names]
    assert all(bench.engine.arrange(orders))
    assert [record.name for record in other.engine.schedules()] == names
    assert [record.name for record in other.engine.schedules(due_until=other.now)] == names


def test_each_of_many_arrangements_has_the_whole_timeout(
    bench: Bench, timetable: ScheduleDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    restarted: list[int] = []
    restart = JetStream.restart_deadline

    def note(self: JetStream) -> None:
        restarted.append(len(bench.engine.schedules()))
        restart(self)

    monkeypatch.setattr(JetStream, "restart_deadline", note)
    orders = [PutSchedule(timetable.record(name, after=0), None) for name in "abc"]
    assert bench.engine.arrange(orders) == [True] * 3
    assert restarted == [1, 2, 3]
