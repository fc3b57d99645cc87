"""Conformance tests of engines: where signatures are stored, and which envelopes of ended jobs are remembered."""

from __future__ import annotations

from msgspec.structs import replace

from mainspring.jobs.commands import Delete, Edit, PutDeadLetterHandler, PutSchedule, Reopen, Replay, Reschedule
from mainspring.jobs.dead_letter_jobs import DeadLetterHandler
from mainspring.jobs.job_policies import SIGNATURE
from mainspring.jobs.records import Cause, FollowUp, NewJob, OutcomeKind
from mainspring.jobs.timestamps import MICROSECONDS
from mainspring.testing.conformance.base import EngineSuite
from mainspring.testing.conformance.bench import Bench, seconds
from mainspring.testing.conformance.schedule_driver import ScheduleDriver

OLD = {"user": "7", SIGNATURE: "old"}
NEW = {"user": "7", SIGNATURE: "new"}
HANDLER = DeadLetterHandler(FollowUp("alert", "alerts", 1, argument="letter"), signature="of the handler")
DAY = seconds(86_400)


def envelope(signed: int, until: int, alias: str | None = None) -> dict[str, str]:
    """Return the headers of a job with a signature of this time and end, which no key has made.

    Engines do not verify signatures. With `alias`, the signature covers that id instead of the job's own one.
    """
    form, end = ("j", "") if alias is None else ("r", f".{alias.encode().hex()}")
    seconds = -((signed - until) // MICROSECONDS)
    return {SIGNATURE: f"1{form}.2026-11.{signed:x}.{seconds:x}{end}.{'0' * 32}"}


class SignatureTests(EngineSuite):
    """Tests of `headers` of commands and outcomes, of `spent` (signatures of ended jobs), and of
    `sign_letters`.
    """

    def test_a_job_that_is_due_later_can_get_a_new_signature(self, bench: Bench) -> None:
        bench.submit("job", after=60, headers=OLD)
        assert bench.change(Reschedule("job", bench.now + seconds(90))).is_done
        assert bench.record().headers == OLD
        assert bench.change(Reschedule("job", bench.now, NEW)).is_done
        assert bench.record().headers == NEW
        (lease,) = bench.take_when_there(bench.enroll(), 1)
        assert lease.headers == NEW

    def test_a_retry_can_get_a_new_signature(self, bench: Bench) -> None:
        worker, lease = bench.begin(headers=OLD)
        details = {"due": bench.now, "error": "no", "cause": Cause.FAILURE, "headers": NEW}
        assert bench.settle(worker, lease, OutcomeKind.RETRY, **details)
        assert bench.record().headers == NEW
        (again,) = bench.take_when_there(worker, 1)
        assert again.headers == NEW
        assert bench.settle(worker, again, OutcomeKind.RETRY, due=bench.now, error="no", cause=Cause.FAILURE)
        assert bench.record().headers == NEW

    def test_a_dead_letter_can_get_a_new_signature(self, bench: Bench) -> None:
        for job_id in ("reopened", "edited", "kept"):
            bench.bury(job_id, headers=OLD)
        assert bench.change(Reopen("reopened", bench.now + seconds(60), NEW)).is_done
        assert bench.change(Edit("edited", b"2", "json", headers=NEW)).is_done
        assert bench.change(Edit("kept", b"2", "json")).is_done
        assert bench.record("reopened").headers == bench.record("edited").headers == NEW
        assert bench.record("kept").headers == OLD

    def test_the_copy_of_a_dead_letter_has_its_own_signature(self, bench: Bench) -> None:
        for job_id in ("a", "b"):
            bench.bury(job_id, headers=OLD)
        later = bench.now + seconds(60)
        assert bench.change(Replay("a", "signed", later, headers=NEW)).is_done
        assert bench.change(Replay("b", "not signed", later)).is_done
        assert bench.record("signed").headers == NEW
        assert bench.record("a").headers == bench.record("b").headers == bench.record("not signed").headers == OLD

    def test_schedules_keep_their_signature(self, bench: Bench, timetable: ScheduleDriver) -> None:
        record = replace(timetable.record(), signature="first")
        assert bench.arrange(PutSchedule(record, None))
        (stored,) = bench.engine.schedules()
        assert stored.signature == "first"
        assert bench.arrange(PutSchedule(replace(stored, signature="second"), stored.revision))
        (again,) = bench.engine.schedules()
        assert (again.signature, again.definition) == ("second", stored.definition)

    def test_jobs_of_dead_letter_handlers_are_signed_when_they_are_made(self, bench: Bench) -> None:
        asked: list[tuple[str | None, str]] = []

        def sign(handler: DeadLetterHandler, job: NewJob) -> NewJob:
            asked.append((handler.signature, job.type))
            return replace(job, headers={**(job.headers or {}), SIGNATURE: "new"})

        bench.engine.sign_letters(sign)
        assert bench.arrange(PutDeadLetterHandler(HANDLER))
        assert bench.engine.dead_letter_handlers() == [HANDLER]
        bench.bury("job", headers=OLD)
        (made,) = bench.find_ids(type="alert")
        assert asked == [("of the handler", "alert")]
        headers = bench.record(made).headers or {}
        assert (headers["user"], headers[SIGNATURE]) == ("7", "new")

    def test_the_envelope_of_a_deleted_job_is_remembered(self, bench: Bench, other: Bench) -> None:
        now = bench.now
        kept = {
            "signed": envelope(now - 5, now + DAY),
            "replaced": envelope(now - 3, now + DAY, alias="another id"),
            "ended": envelope(now - 2 * DAY, now - DAY),
            "unsigned": {"user": "7"},
            "unreadable": {SIGNATURE: "1j.x"},
        }
        worker = bench.enroll()
        for job_id, headers in kept.items():
            bench.submit(job_id, headers=headers)
        bench.complete(worker, *bench.take_when_there(worker, len(kept)))
        for job_id in kept:
            assert bench.change(Delete(job_id)).is_done
        expected = {"signed": now - 5, "another id": now - 3}
        assert other.eventually(lambda: other.engine.spent([*kept, "another id"]) == expected)
        assert other.engine.spent(["signed"]) == {"signed": now - 5}
        assert other.engine.spent([]) == {}

    def test_a_job_that_was_signed_later_is_remembered_instead(self, bench: Bench) -> None:
        worker = bench.enroll()
        for signed in (bench.now - 5, bench.now - 2):
            bench.submit("job", headers=envelope(signed, bench.now + DAY))
            bench.complete(worker, *bench.take_when_there(worker, 1))
            assert bench.change(Delete("job")).is_done
            assert bench.eventually(lambda: bench.engine.spent(["job"]) == {"job": signed})  # noqa: B023 - at once
