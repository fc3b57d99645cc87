"""Conformance tests of engines: commands of users and operators on a job, and the statuses that allow them."""

from __future__ import annotations

import pytest

from mainspring.jobs.commands import CancelJob, Changed, Command, Delete, Edit, Reopen, Replay
from mainspring.jobs.records import OutcomeKind
from mainspring.jobs.status import FINAL, JobStatus
from mainspring.testing.conformance.base import EngineSuite
from mainspring.testing.conformance.bench import SOON_SECONDS, Bench, seconds

LETTER_COMMANDS = [Reopen("job", 0), Replay("job", "copy", 0), Edit("job", b"2", "json")]
GOES_BACK = [OutcomeKind.RETRY, OutcomeKind.SNOOZED, OutcomeKind.INTERRUPTED, OutcomeKind.HANDED_BACK]


class CommandTests(EngineSuite):
    """Tests of the engine's `change`: which command is allowed in which status, and its effect."""

    # -- cancel

    def test_a_pending_job_called_off_never_runs(self, bench: Bench) -> None:
        bench.submit("job")
        before = bench.now
        assert bench.cancel() == Changed(True, JobStatus.PENDING)
        record = bench.record()
        assert (record.status, bool(record.error)) == (JobStatus.CANCELED, True)
        assert bench.is_since(before, record.finished)
        assert bench.take(bench.enroll()) == []

    def test_a_held_job_called_off_never_runs(self, bench: Bench) -> None:
        worker, lease = bench.begin("job", after=SOON_SECONDS)
        assert bench.cancel() == Changed(True, JobStatus.PENDING)
        assert (bench.record().status, bench.record().owner) == (JobStatus.CANCELED, None)
        assert bench.engine.start(worker, [lease]) == [False]
        assert not bench.settle(worker, lease, OutcomeKind.HANDED_BACK)
        assert bench.status() is JobStatus.CANCELED

    def test_a_running_job_is_asked_to_stop(self, bench: Bench) -> None:
        worker, _ = bench.begin()
        other = bench.enroll()
        before = bench.wakes
        assert bench.cancel() == Changed(False, JobStatus.RUNNING)
        assert bench.is_woken(before)
        assert (bench.record().status, bench.record().stop_requested) == (JobStatus.RUNNING, True)
        assert bench.look(worker).stops == ["job"]
        assert bench.look(other).stops == []

    @pytest.mark.parametrize("status", sorted(FINAL))
    def test_a_job_that_has_ended_cannot_be_called_off(self, bench: Bench, status: JobStatus) -> None:
        bench.end("job", status)
        before = bench.record()
        assert bench.cancel() == Changed(False, status)
        assert bench.record() == before

    @pytest.mark.parametrize("kind", GOES_BACK, ids=lambda kind: kind.value)
    def test_a_job_that_shall_stop_does_not_go_back(self, bench: Bench, kind: OutcomeKind) -> None:
        worker, lease = bench.begin()
        bench.cancel()
        before = bench.now
        assert bench.settle(worker, lease, kind, due=bench.now)
        record = bench.record()
        assert (record.status, record.owner, record.stop_requested) == (JobStatus.CANCELED, None, False)
        assert bench.is_since(before, record.finished)
        assert bench.look(worker) == bench.look(bench.enroll())

    @pytest.mark.parametrize("kind", [OutcomeKind.COMPLETED, OutcomeKind.FAILED], ids=lambda kind: kind.value)
    def test_a_job_that_ends_before_it_can_stop_has_ended(self, bench: Bench, kind: OutcomeKind) -> None:
        worker, lease = bench.begin()
        bench.cancel()
        assert bench.settle(worker, lease, kind)
        assert (bench.status(), bench.record().stop_requested) == (JobStatus[kind.name], False)
        assert bench.look(worker).stops == []

    # -- dead letters

    def test_a_reopened_letter_runs_again_as_the_same_job(self, bench: Bench) -> None:
        bench.bury()
        before = bench.record()
        due = bench.now + seconds(0.001)
        wakes = bench.wakes
        assert bench.change(Reopen("job", due)) == Changed(True, JobStatus.FAILED)
        assert bench.is_woken(wakes)
        record = bench.record()
        assert (record.status, record.due, record.finished, record.error) == (JobStatus.PENDING, due, None, None)
        assert (record.failures, record.timeouts, record.crashes) == (0, 0, 0)
        assert record.history == before.history
        _, lease = bench.take_by_new_worker()
        assert (lease.id, lease.failures) == ("job", 0)
        assert lease.token > before.token

    def test_a_replay_is_a_new_job_linked_with_its_letter(self, bench: Bench) -> None:
        bench.bury("job", queue="orders", priority=2, payload=b"[1]")
        due = bench.now
        wakes = bench.wakes
        assert bench.change(Replay("job", "copy", due)) == Changed(True, JobStatus.FAILED)
        assert bench.is_woken(wakes)
        letter, copy = bench.record("job"), bench.record("copy")
        assert (letter.status, letter.replayed_as) == (JobStatus.FAILED, "copy")
        assert (copy.status, copy.origin, copy.due) == (JobStatus.PENDING, "job", due)
        assert (copy.type, copy.queue, copy.priority) == ("ping", "orders", 2)
        assert (copy.payload, copy.codec, copy.starts, copy.error) == (b"[1]", "json", 0, None)
        assert bench.ids_when_there(bench.enroll(), 1) == ["copy"]

    def test_a_letter_is_replayed_once(self, bench: Bench) -> None:
        bench.bury()
        assert bench.change(Replay("job", "copy", 0)).is_done
        assert bench.change(Replay("job", "third", 0)) == Changed(False, JobStatus.FAILED, "copy")
        assert bench.find_ids() == ["job", "copy"]

    def test_a_replay_may_have_other_arguments(self, bench: Bench) -> None:
        bench.bury("job", payload=b"[1]")
        assert bench.change(Replay("job", "copy", 0, b"\x91\xff", "msgpack")).is_done
        assert (bench.record("copy").payload, bench.record("copy").codec) == (b"\x91\xff", "msgpack")
        assert (bench.record("job").payload, bench.record("job").codec) == (b"[1]", "json")

    def test_a_letter_can_be_given_other_arguments(self, bench: Bench) -> None:
        bench.bury("job", payload=b"[1]")
        before = bench.record()
        assert bench.change(Edit("job", b"\x91\xff", "msgpack")) == Changed(True, JobStatus.FAILED)
        record = bench.record()
        assert (record.payload, record.codec) == (b"\x91\xff", "msgpack")
        assert (record.status, record.error) == (before.status, before.error)
        assert bench.change(Reopen("job", bench.now)).is_done
        assert bench.take_by_new_worker()[1].payload == b"\x91\xff"

    @pytest.mark.parametrize("command", LETTER_COMMANDS, ids=lambda command: type(command).__name__)
    def test_a_job_that_is_no_letter_is_not_treated_as_one(self, bench: Bench, command: Command) -> None:
        bench.submit("job")
        assert bench.change(command) == Changed(False, JobStatus.PENDING)
        worker, lease = bench.take_by_new_worker()
        assert bench.change(command) == Changed(False, JobStatus.RUNNING)
        assert bench.settle(worker, lease, OutcomeKind.COMPLETED)
        before = bench.record()
        assert bench.change(command) == Changed(False, JobStatus.COMPLETED)
        assert bench.record() == before
        assert bench.find_ids() == ["job"]

    # -- delete

    @pytest.mark.parametrize("status", sorted(FINAL))
    def test_a_job_that_has_ended_can_be_forgotten(self, bench: Bench, status: JobStatus) -> None:
        bench.end("job", status)
        assert bench.change(Delete("job")) == Changed(True, status)
        assert bench.find_ids() == []

    def test_a_job_that_has_not_ended_is_not_forgotten(self, bench: Bench) -> None:
        bench.submit("job")
        assert bench.change(Delete("job")) == Changed(False, JobStatus.PENDING)
        bench.take_by_new_worker()
        assert bench.change(Delete("job")) == Changed(False, JobStatus.RUNNING)
        assert bench.find_ids() == ["job"]

    def test_the_lease_of_a_forgotten_job_is_not_good_for_another(self, bench: Bench) -> None:
        worker, older = bench.begin("older")
        assert bench.settle(worker, older, OutcomeKind.COMPLETED)
        assert bench.change(Delete("older")).is_done
        bench.submit("newer")
        assert len(bench.take_when_there(worker, 1)) == 1
        assert not bench.settle(worker, older, OutcomeKind.COMPLETED)
        assert bench.status("newer") is JobStatus.RUNNING

    def test_the_lease_of_a_forgotten_job_is_not_good_for_another_of_the_same_id(self, bench: Bench) -> None:
        worker, older = bench.begin()
        assert bench.settle(worker, older, OutcomeKind.COMPLETED)
        assert bench.change(Delete("job")).is_done
        bench.submit("job")
        (newer,) = bench.take_when_there(worker, 1)
        assert not bench.report(worker, older, 0.5)
        assert not bench.settle(worker, older, OutcomeKind.COMPLETED)
        assert (bench.status(), bench.record().progress) == (JobStatus.RUNNING, None)
        bench.complete(worker, newer)

    # -- all commands

    @pytest.mark.parametrize(
        "command", [CancelJob("job"), *LETTER_COMMANDS, Delete("job")], ids=lambda command: type(command).__name__
    )
    def test_there_may_be_no_such_job(self, bench: Bench, command: Command) -> None:
        assert bench.change(command) == Changed(False, None)
        assert bench.find_ids() == []

    def test_a_letter_that_was_replayed_is_not_reopened(self, bench: Bench) -> None:
        bench.bury("letter")
        bench.engine.change([Replay("letter", "copy", 0)])
        assert bench.engine.change([Reopen("letter", 0)]) == [Changed(False, JobStatus.FAILED, "copy")]

    def test_commands_are_carried_out_in_order(self, bench: Bench) -> None:
        bench.bury("letter")
        bench.bury("another")
        bench.submit("a", "b")
        answers = bench.engine.change(
            [
                CancelJob("a"),
                CancelJob("a"),
                Delete("a"),
                CancelJob("a"),
                Replay("letter", "copy", 0),
                Reopen("letter", 0),
                CancelJob("letter"),
                CancelJob("copy"),
                Delete("letter"),
                Reopen("another", 0),
                CancelJob("another"),
                CancelJob("b"),
            ]
        )
        assert answers == [
            Changed(True, JobStatus.PENDING),
            Changed(False, JobStatus.CANCELED),
            Changed(True, JobStatus.CANCELED),
            Changed(False, None),
            Changed(True, JobStatus.FAILED),
            Changed(False, JobStatus.FAILED, "copy"),
            Changed(False, JobStatus.FAILED),
            Changed(True, JobStatus.PENDING),
            Changed(True, JobStatus.FAILED),
            Changed(True, JobStatus.FAILED),
            Changed(True, JobStatus.PENDING),
            Changed(True, JobStatus.PENDING),
        ]
        assert bench.find_ids() == ["another", "b", "copy"]
        assert (bench.status("b"), bench.status("copy")) == (JobStatus.CANCELED, JobStatus.CANCELED)
