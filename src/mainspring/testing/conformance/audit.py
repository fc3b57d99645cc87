"""Conformance tests of engines: the audit trail has an entry for each change that an actor made, and no others."""

from __future__ import annotations

from typing import Any

import msgspec

from mainspring.jobs.audit import MAX_JOBS, Actor, AuditEntry, AuditNote, AuditQuery
from mainspring.jobs.audit_drafts import AuditDraft
from mainspring.jobs.commands import (
    Arrangement,
    CancelJob,
    Changed,
    ChangeLimits,
    Command,
    Delete,
    DropDeadLetterHandler,
    DropLimit,
    Edit,
    NoteTokenUses,
    PauseQueue,
    PauseSchedule,
    PutDeadLetterHandler,
    PutLimit,
    PutSchedule,
    PutToken,
    RemoveSchedule,
    Reopen,
    Replay,
    Reschedule,
    RevokeToken,
)
from mainspring.jobs.dead_letter_jobs import DeadLetterHandler
from mainspring.jobs.engine import Retention
from mainspring.jobs.records import FollowUp
from mainspring.jobs.recurrence.schedule_records import Overlap
from mainspring.jobs.status import JobStatus
from mainspring.jobs.timestamps import to_datetime
from mainspring.security.permissions import Permissions, Scope
from mainspring.security.tokens import make_token
from mainspring.testing.conformance.base import EngineSuite
from mainspring.testing.conformance.bench import TYPE, Bench, seconds
from mainspring.testing.conformance.schedule_driver import NAME, ScheduleDriver

DAY = 86_400


class AuditTests(EngineSuite):
    """Tests of the argument `audit` of the engine's `change`, `arrange` and `fire`, and of `audit_entries`."""

    def draft(
        self,
        bench: Bench,
        name: str = "alice",
        *,
        note: AuditNote | None = None,
        is_bulk: bool = False,
        ago: float = 0,
        token: str | None = None,
    ) -> AuditDraft:
        """Return the draft of an audit entry: the actor `name`, the time, a note. The engine adds its changes."""
        actor = Actor(name=name, source="http", token=token, request_id="r-1")
        return AuditDraft(actor, bench.now - seconds(ago), note, is_bulk=is_bulk)

    def change(self, bench: Bench, *commands: Command, draft: AuditDraft | None = None) -> list[Changed]:
        """Let the engine execute commands on jobs, such as a cancel, on behalf of an actor; return its answers."""
        audit = draft or self.draft(bench)
        answers = bench.engine.change(commands, audit=audit)
        audit.confirm()
        return answers

    def arrange(self, bench: Bench, arrangement: Arrangement, **options: Any) -> bool:
        """Let the engine make one arrangement on behalf of an actor; return whether it changed anything."""
        (is_changed,) = bench.engine.arrange([arrangement], audit=self.draft(bench, **options))
        return is_changed

    def entries(self, bench: Bench, **filters: Any) -> list[AuditEntry]:
        """List the audit entries that match the filters, the latest first."""
        return bench.engine.audit_entries(AuditQuery(**({"limit": 1_000} | filters)))

    def actions(self, bench: Bench, **filters: Any) -> list[tuple[str, str | None]]:
        """List the actions and targets of the audit entries that match the filters, the earliest first."""
        return [(entry.action, entry.target) for entry in reversed(self.entries(bench, **filters))]

    def test_a_change_without_an_actor_has_no_entry(self, bench: Bench, timetable: ScheduleDriver) -> None:
        bench.submit("job")
        bench.cancel()
        bench.pause()
        timetable.put()
        timetable.fire(timetable.trigger("by hand"))
        assert self.entries(bench) == []

    def test_the_entry_of_a_cancel_has_actor_job_type_and_queue(self, bench: Bench, other: Bench) -> None:
        bench.submit("job", queue="mail")
        draft = self.draft(bench, "front end", token="1pWua38F8y")
        before = bench.now
        self.change(bench, CancelJob("job"), draft=draft)
        (entry,) = self.entries(other)
        assert entry == AuditEntry(
            id=entry.id,
            at=entry.at,
            actor="front end",
            action="job.cancel",
            target="job",
            source="http",
            token="1pWua38F8y",
            request_id="r-1",
            types=(TYPE,),
            queues=("mail",),
        )
        assert to_datetime(before - seconds(60)) <= entry.at <= to_datetime(bench.now)
        assert bench.status() is JobStatus.CANCELED

    def test_a_command_that_changes_nothing_has_no_entry(self, bench: Bench) -> None:
        bench.submit("job")
        bench.cancel()
        commands: list[Command] = [
            CancelJob("job"),
            Reschedule("job", bench.now),
            Reopen("job", bench.now),
            Replay("job", "copy", bench.now),
            Edit("job", b"{}", "json"),
            Delete("job", JobStatus.FAILED),
            CancelJob("unknown"),
        ]
        for command in commands:
            (answer,) = self.change(bench, command)
            assert not answer.is_done
        assert self.entries(bench) == []

    def test_a_running_job_that_is_asked_to_stop_has_an_entry(self, bench: Bench) -> None:
        bench.begin()
        assert self.change(bench, CancelJob("job")) == [Changed(False, JobStatus.RUNNING)]
        (entry,) = self.entries(bench)
        assert (entry.action, entry.target, entry.count) == ("job.cancel", "job", 1)
        assert entry.details == {"asked_to_stop": 1}

    def test_each_command_of_an_operator_has_its_action(self, bench: Bench) -> None:
        for letter in ("a", "b", "c"):
            bench.bury(letter)
        bench.submit("later", after=3_600)
        due = bench.now + seconds(7_200)
        self.change(bench, Reschedule("later", due))
        run_now = self.draft(bench, note=AuditNote(action="job.run_now"))
        self.change(bench, Reschedule("later", bench.now + seconds(3_000)), draft=run_now)
        edit = self.draft(bench, note=AuditNote(details={"changed": ["card"]}))
        self.change(bench, Edit("a", b'{"card":"4111"}', "json"), draft=edit)
        self.change(bench, Replay("a", "copy", due, b'{"card":"4222"}', "json"))
        self.change(bench, Reopen("b", due))
        self.change(bench, Delete("c", JobStatus.FAILED))
        self.change(bench, ChangeLimits("later", ()))  # a part of a deploy, no action of an operator
        assert self.actions(bench) == [
            ("job.reschedule", "later"),
            ("job.run_now", "later"),
            ("dead_letter.edit", "a"),
            ("dead_letter.replay", "a"),
            ("job.retry", "b"),
            ("dead_letter.purge", "c"),
        ]
        found = {entry.action: entry for entry in self.entries(bench)}
        assert found["job.reschedule"].details == {"due": to_datetime(due).isoformat()}
        assert found["job.run_now"].details == {}
        assert found["dead_letter.edit"].details == {"changed": ["card"]}
        assert found["dead_letter.replay"].jobs == ("copy",)
        assert {(entry.types, entry.queues) for entry in found.values()} == {((TYPE,), ("default",))}
        assert b"4111" not in msgspec.json.encode(list(found.values()))
        assert b"4222" not in msgspec.json.encode(list(found.values()))

    def test_a_change_of_many_jobs_in_several_calls_is_one_entry(self, bench: Bench) -> None:
        bench.submit(*(f"mail {number}" for number in range(60)), queue="mail", after=3_600)
        bench.submit(*(f"news {number}" for number in range(60)), queue="news", type="other", after=3_600)
        draft = self.draft(bench, note=AuditNote(details={"since": "2h"}), is_bulk=True)
        commands = [CancelJob(f"{queue} {number}") for queue in ("mail", "news") for number in range(60)]
        self.change(bench, *commands[:70], CancelJob("unknown"), draft=draft)
        (entry,) = self.entries(bench)
        assert (entry.count, len(entry.jobs), entry.queues) == (70, 70, ("mail", "news"))
        self.change(bench, *commands[60:], draft=draft)
        (again,) = self.entries(bench)
        assert (again.id, again.at, again.action, again.target) == (entry.id, entry.at, "job.cancel", None)
        assert (again.count, again.details) == (120, {"since": "2h", "refused": 11})
        assert again.jobs == tuple(command.id for command in commands)[:MAX_JOBS]
        assert (again.types, again.queues) == (("other", TYPE), ("mail", "news"))

    def test_many_jobs_that_do_not_change_have_no_entry(self, bench: Bench) -> None:
        draft = self.draft(bench, is_bulk=True)
        self.change(bench, CancelJob("unknown"), CancelJob("other"), draft=draft)
        assert self.entries(bench) == []

    def test_each_arrangement_that_changes_something_has_an_entry(
        self, bench: Bench, timetable: ScheduleDriver
    ) -> None:
        record = timetable.record(queue="reports", rule='{"kind":"every"}')
        token = make_token("shop", Permissions(scopes=frozenset({Scope.READ})), created=1)[1]
        handler = DeadLetterHandler(FollowUp("tell", "alarms", 1))
        arrangements: list[Arrangement] = [
            PutSchedule(record, None),
            PauseSchedule(NAME, is_paused=True, next_due=None),
            PauseSchedule(NAME, is_paused=False, next_due=bench.now + seconds(60)),
            RemoveSchedule(NAME),
            PauseQueue("mail", is_paused=True),
            PauseQueue("mail", is_paused=False),
            PutLimit("few", 3, seconds(60)),
            DropLimit("few"),
            PutDeadLetterHandler(handler),
            DropDeadLetterHandler("tell"),
            PutToken(token),
            RevokeToken(token.id, 900),
        ]
        for arrangement in arrangements:
            assert self.arrange(bench, arrangement)
        for arrangement in arrangements[1:6:2] + arrangements[7:10:2]:
            assert not self.arrange(bench, arrangement)
        assert self.arrange(bench, NoteTokenUses({token.id: 500}))
        assert self.actions(bench) == [
            ("schedule.put", NAME),
            ("schedule.pause", NAME),
            ("schedule.resume", NAME),
            ("schedule.remove", NAME),
            ("queue.pause", "mail"),
            ("queue.resume", "mail"),
            ("limit.put", "few"),
            ("limit.remove", "few"),
            ("dead_letter_handler.put", "tell"),
            ("dead_letter_handler.remove", "tell"),
            ("token.create", "shop"),
            ("token.revoke", token.id),
        ]
        for entry in self.entries(bench, action="schedule"):
            assert (entry.types, entry.queues) == ((TYPE,), ("reports",))
        for entry in self.entries(bench, action="queue"):
            assert (entry.types, entry.queues) == (None, ("mail",))
        (put,) = self.entries(bench, action="schedule.put")
        assert put.details == {"rule": {"kind": "every"}, "is_new": True}
        assert token.digest.encode() not in msgspec.json.encode(self.entries(bench))

    def test_several_arrangements_of_one_call_have_entries_of_their_own(self, bench: Bench) -> None:
        pauses = [PauseQueue(queue, is_paused=True) for queue in ("a", "b", "a", "c")]
        assert bench.engine.arrange(pauses, audit=self.draft(bench)) == [True, True, False, True]
        assert self.actions(bench) == [("queue.pause", "a"), ("queue.pause", "b"), ("queue.pause", "c")]

    def test_a_trigger_has_an_entry_with_its_job(self, bench: Bench, timetable: ScheduleDriver) -> None:
        timetable.put(overlap=Overlap.SKIP)
        assert bench.engine.fire([timetable.trigger("first")], audit=self.draft(bench))[0].is_done
        (skipped,) = bench.engine.fire([timetable.trigger("second")], audit=self.draft(bench))
        assert skipped.skipped_for == "first"
        (entry,) = self.entries(bench)
        assert (entry.action, entry.target, entry.jobs) == ("schedule.trigger", NAME, ("first",))
        assert (entry.types, entry.queues) == ((TYPE,), ("default",))

    def test_entries_are_listed_by_filters_the_latest_first(self, bench: Bench, other: Bench) -> None:
        bench.submit("a", "b", after=3_600)
        self.arrange(bench, PauseQueue("mail", is_paused=True), name="alice@web-1", ago=300)
        self.arrange(other, PauseQueue("mail", is_paused=False), name="front end", token="id", ago=200)
        self.change(bench, CancelJob("a"), draft=self.draft(bench, "alice@web-2", ago=100))
        many = self.draft(bench, "bob@web-1", is_bulk=True)
        self.change(other, CancelJob("b"), CancelJob("a"), draft=many)
        found = self.entries(other)
        assert [entry.actor for entry in found] == ["bob@web-1", "alice@web-2", "front end", "alice@web-1"]
        assert self.entries(bench, limit=2) == found[:2]
        assert self.entries(bench, actor="alice") == [found[1], found[3]]
        assert self.entries(bench, actor="alice@web-1") == [found[3]]
        assert self.entries(bench, actor="id") == [found[2]]
        assert self.entries(bench, action="queue") == found[2:]
        assert self.entries(bench, action="queue", limit=1) == [found[2]]
        assert self.entries(bench, action="queue.pause") == [found[3]]
        assert self.entries(bench, job="b") == [found[0]]
        assert self.entries(bench, job="a") == [found[1]]
        assert self.entries(bench, job="mail") == []
        middle = bench.now - seconds(150)
        assert self.entries(bench, since=middle) == found[:2]
        assert self.entries(bench, until=middle) == found[2:]

    def test_the_oldest_entries_go_if_there_are_too_many(self, bench: Bench) -> None:
        for number in range(6):
            self.arrange(bench, PauseQueue(f"q{number}", is_paused=True), ago=60 - number)
        bench.engine.prune(Retention(None, None, None, most_audited=6))
        assert len(self.entries(bench)) == 6
        bench.engine.prune(Retention(None, None, None, most_audited=2))
        assert bench.eventually(lambda: len(self.entries(bench)) == 2)
        assert [target for _, target in self.actions(bench)] == ["q4", "q5"]

    def test_entries_go_when_they_are_old(self, bench: Bench) -> None:
        for days in (91, 90.5, 89):
            self.arrange(bench, PauseQueue(f"q{days}", is_paused=True), ago=days * DAY)
        bench.engine.prune(Retention(None, None, None, audit=None))
        assert len(self.entries(bench)) == 3
        bench.engine.prune(Retention(None, None, None, audit=seconds(90 * DAY)))
        assert bench.eventually(lambda: len(self.entries(bench)) == 1)
        assert self.actions(bench) == [("queue.pause", "q89")]
