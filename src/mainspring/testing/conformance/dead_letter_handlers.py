"""Conformance tests of engines: jobs that dead-letter handlers get when other jobs become dead letters."""

from __future__ import annotations

import pytest
from msgspec.json import decode
from msgspec.structs import replace

from mainspring.jobs.commands import DropDeadLetterHandler, PutDeadLetterHandler, PutLimit, Reopen
from mainspring.jobs.dead_letter_jobs import MARK, DeadLetter, DeadLetterHandler
from mainspring.jobs.engine import MAX_CRASHES, Capability, Demand
from mainspring.jobs.limits import bucket_of
from mainspring.jobs.quotas import depth_family, submit_rate_family
from mainspring.jobs.records import Cause, FollowUp, JobRecord, Outcome, OutcomeKind
from mainspring.jobs.status import JobStatus
from mainspring.jobs.timestamps import to_datetime
from mainspring.testing.conformance.base import EngineSuite
from mainspring.testing.conformance.bench import TYPE, Bench, seconds
from mainspring.testing.conformance.capabilities import needs

ALERT = "alert"
HANDLER = DeadLetterHandler(FollowUp(ALERT, "alerts", 2, argument="letter"))
OTHER = DeadLetterHandler(FollowUp("record", "default", 1, argument="job_id"), passes_id=True)


def put(bench: Bench, *handlers: DeadLetterHandler) -> None:
    """Store dead-letter handlers, by default the one of these tests, and require that each is new or changed."""
    for handler in handlers or (HANDLER,):
        assert bench.arrange(PutDeadLetterHandler(handler))


def alerts(bench: Bench, type: str = ALERT) -> list[JobRecord]:
    """Return the stored jobs of a dead-letter handler, given by its job type."""
    return [bench.record(job_id) for job_id in bench.find_ids(type=type)]


def letter_in(record: JobRecord) -> DeadLetter:
    """Return the dead letter that is the argument of a dead-letter handler's job."""
    return decode(record.payload, type=dict[str, DeadLetter])["letter"]


def fail(bench: Bench, job_id: str = "job", **options: object) -> None:
    """Submit a job and let it become a dead letter."""
    bench.bury(job_id, **options)


class DeadLetterHandlerTests(EngineSuite):
    """Tests of `PutDeadLetterHandler`, and of the jobs that are stored with each dead letter."""

    # -- handlers

    def test_handlers_are_stored_until_they_are_dropped(self, bench: Bench, other: Bench) -> None:
        assert bench.engine.dead_letter_handlers() == []
        put(bench, OTHER, HANDLER)
        assert not bench.arrange(PutDeadLetterHandler(HANDLER))
        assert other.engine.dead_letter_handlers() == [HANDLER, OTHER]
        changed = replace(HANDLER, aliases=("old",))
        assert bench.arrange(PutDeadLetterHandler(changed))
        assert bench.engine.dead_letter_handlers() == [changed, OTHER]
        assert bench.arrange(DropDeadLetterHandler(ALERT))
        assert not bench.arrange(DropDeadLetterHandler(ALERT))
        assert bench.engine.dead_letter_handlers() == [OTHER]

    def test_handlers_leave_limits_and_pauses_alone(self, bench: Bench) -> None:
        bench.limit("few", 3)
        bench.pause("mail")
        put(bench)
        assert [limit.family for limit in bench.engine.limits()] == ["few"]
        assert bench.engine.paused_queues() == ("mail",)
        bench.limit("more", 5)
        bench.resume("mail")
        assert bench.engine.dead_letter_handlers() == [HANDLER]

    def test_without_a_handler_a_dead_letter_makes_no_job(self, bench: Bench) -> None:
        fail(bench)
        assert bench.find_ids() == ["job"]
        put(bench)
        assert bench.arrange(DropDeadLetterHandler(ALERT))
        fail(bench, "second")
        assert bench.find_ids() == ["job", "second"]

    # -- causes

    def test_a_job_that_fails_makes_a_job_with_a_snapshot_of_it(self, bench: Bench) -> None:
        put(bench)
        fail(bench, headers={"trace": "1"}, queue="orders")
        record = bench.record()
        (alert,) = alerts(bench)
        assert (alert.queue, alert.priority, alert.status) == ("alerts", 2, JobStatus.PENDING)
        assert alert.headers == {"trace": "1", MARK: "job"}
        letter = letter_in(alert)
        assert (letter.id, letter.type, letter.queue) == ("job", TYPE, "orders")
        assert (letter.error, letter.reason) == ("it broke", "it broke")
        assert (letter.starts, letter.failures, letter.crashes) == (1, 1, 0)
        assert (letter.created, letter.due) == (to_datetime(record.created), to_datetime(record.due))
        assert letter.finished == to_datetime(record.finished or 0)
        assert (letter.headers, letter.origin, letter.schedule) == ({"trace": "1"}, None, None)
        assert bench.ids_when_there(bench.enroll(ALERT), 1, ALERT) == [alert.id]

    def test_a_dead_letter_wakes_workers(self, bench: Bench) -> None:
        put(bench)
        worker, lease = bench.begin()
        before = bench.wakes
        assert bench.settle(worker, lease, OutcomeKind.FAILED, error="no", cause=Cause.FAILURE)
        assert bench.is_woken(before)

    def test_a_job_that_expires_makes_a_job(self, bench: Bench) -> None:
        put(bench)
        bench.submit("job", expires=0.5)
        bench.pass_time(1)
        worker = bench.enroll()
        assert bench.gives_up(worker, "job")
        (alert,) = alerts(bench)
        assert letter_in(alert).error.startswith("expired")

    def test_a_job_whose_child_processes_die_makes_a_job(self, bench: Bench) -> None:
        put(bench)
        worker, lease = bench.begin()
        assert bench.settle(worker, lease, OutcomeKind.FAILED, error="quarantined: died", cause=Cause.CRASH)
        assert letter_in(alerts(bench)[0]).crashes == 1

    def test_a_job_that_runs_at_most_once_makes_a_job_when_its_worker_is_gone(self, bench: Bench) -> None:
        put(bench)
        bench.submit("job")
        worker = bench.enroll()
        demand = Demand((TYPE,), 1, 0, at_most_once=(TYPE,), at_most_once_starts=1)
        assert len(bench.look_when_there(lambda: bench.look_for(worker, demand)).leases) == 1
        bench.engine.leave(worker)
        bench.engine.sweep(bench.enroll())
        (alert,) = alerts(bench)
        assert letter_in(alert).error.startswith("at most once")

    @needs(Capability.VIRTUAL_TIME)
    def test_a_job_that_is_quarantined_makes_a_job(self, bench: Bench) -> None:
        put(bench)
        bench.submit("job")
        for _ in range(MAX_CRASHES):
            assert alerts(bench) == []
            bench.crash(bench.take_by_new_worker()[0])
        (alert,) = alerts(bench)
        assert letter_in(alert).error.startswith("quarantined")

    @pytest.mark.parametrize(
        "kind", [kind for kind in OutcomeKind if kind is not OutcomeKind.FAILED], ids=lambda kind: kind.value
    )
    def test_other_outcomes_make_no_job(self, bench: Bench, kind: OutcomeKind) -> None:
        put(bench)
        worker, lease = bench.begin()
        assert bench.settle(worker, lease, kind)
        assert bench.find_ids() == ["job"]

    def test_a_refused_outcome_makes_no_job(self, bench: Bench) -> None:
        put(bench)
        worker, stale = bench.begin()
        assert bench.settle(worker, stale, OutcomeKind.HANDED_BACK)
        (lease,) = bench.take_when_there(worker, 1)
        assert not bench.settle(worker, stale, OutcomeKind.FAILED, error="no", cause=Cause.FAILURE)
        bench.complete(worker, lease)
        assert not bench.settle(worker, lease, OutcomeKind.FAILED, error="no", cause=Cause.FAILURE)
        assert bench.find_ids() == ["job"]

    def test_a_batch_makes_a_job_for_each_job_that_failed(self, bench: Bench) -> None:
        put(bench)
        bench.submit("a", "b", "c")
        worker = bench.enroll()
        a, b, c = bench.sorted_when_there(worker, 3)
        outcomes = [
            Outcome(a, OutcomeKind.FAILED, error="no", cause=Cause.FAILURE),
            Outcome(b, OutcomeKind.COMPLETED),
            Outcome(c, OutcomeKind.FAILED, error="no", cause=Cause.TIMEOUT),
        ]
        assert bench.engine.settle(worker, outcomes) == [True] * 3
        assert sorted(letter_in(alert).id for alert in alerts(bench)) == ["a", "c"]

    def test_a_job_that_fails_again_after_a_retry_makes_another_job(self, bench: Bench) -> None:
        put(bench)
        fail(bench)
        assert bench.change(Reopen("job", bench.now)).is_done
        worker, lease = bench.take_by_new_worker()
        assert bench.settle(worker, lease, OutcomeKind.FAILED, error="again", cause=Cause.FAILURE)
        assert [letter_in(alert).error for alert in alerts(bench)] == ["it broke", "again"]

    # -- several handlers, and loops

    def test_each_handler_gets_a_job(self, bench: Bench) -> None:
        put(bench, HANDLER, OTHER)
        fail(bench)
        assert len(alerts(bench)) == 1
        (recorded,) = alerts(bench, "record")
        assert decode(recorded.payload) == {"job_id": "job"}

    def test_a_handler_without_parameters_gets_no_argument(self, bench: Bench) -> None:
        put(bench, DeadLetterHandler(FollowUp(ALERT, "alerts", 2)))
        fail(bench)
        assert alerts(bench)[0].payload == b"{}"

    @pytest.mark.parametrize("type_", [ALERT, "record", "old"])
    def test_the_dead_letter_of_a_handler_makes_no_job(self, bench: Bench, type_: str) -> None:
        put(bench, replace(HANDLER, aliases=("old",)), OTHER)
        worker = bench.enroll(type_)
        bench.submit("job", type=type_)
        (lease,) = bench.take_when_there(worker, 1, type_)
        assert bench.settle(worker, lease, OutcomeKind.FAILED, error="no", cause=Cause.FAILURE)
        assert bench.find_ids() == ["job"]

    def test_the_dead_letter_of_a_job_that_came_of_a_handler_makes_no_job(self, bench: Bench) -> None:
        put(bench)
        fail(bench, headers={MARK: "first"})
        assert bench.find_ids() == ["job"]

    # -- options of a handler

    def test_the_jobs_of_a_handler_have_its_options(self, bench: Bench) -> None:
        bench.limit("few", 1)
        plan = FollowUp(
            ALERT,
            "alerts",
            0,
            delay=seconds(60),
            argument="letter",
            expires=seconds(5),
            limits=(("few", ()),),
            follow_up=FollowUp("next", "default", 1),
        )
        put(bench, DeadLetterHandler(plan))
        before = bench.now
        fail(bench)
        (alert,) = alerts(bench)
        assert alert.due >= before + seconds(60)
        assert (alert.expires or 0) - alert.due == seconds(5)
        assert (alert.limits, alert.follow_up) == ((bucket_of("few"),), plan.follow_up)

    def test_the_jobs_of_a_handler_are_exempt_from_submit_quotas(self, bench: Bench) -> None:
        put(bench)
        assert bench.arrange(PutLimit(depth_family("alerts"), 1, None))
        assert bench.arrange(PutLimit(submit_rate_family("alerts"), 1, seconds(60)))
        for job_id in "abc":
            fail(bench, job_id)
        assert len(alerts(bench)) == 3

    def test_jobs_under_limits_and_in_sequences_make_jobs_as_well(self, bench: Bench) -> None:
        bench.limit("few", 1)
        bench.limit("one alert", 1)
        put(bench, replace(HANDLER, plan=replace(HANDLER.plan, sequence="alerts", limits=(("one alert", ()),))))
        bench.submit("a", "b", sequence="key", limits=(bucket_of("few"),))
        worker = bench.enroll()
        for job_id in "ab":
            (lease,) = bench.take_when_there(worker, 1)
            assert lease.id == job_id
            assert bench.settle(worker, lease, OutcomeKind.FAILED, error="no", cause=Cause.FAILURE)
            listener = bench.enroll(ALERT)
            (alert,) = bench.take_when_there(listener, 1, ALERT)
            bench.complete(listener, alert)
        assert [letter_in(alert).id for alert in alerts(bench)] == ["a", "b"]
