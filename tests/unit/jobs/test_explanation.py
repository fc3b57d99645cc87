"""`app.explain`: every cause for which a job is where it is, in words, with its remedy, on every engine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from mainspring import (
    Cancel,
    Concurrency,
    Explanation,
    JobFunction,
    JobNotFound,
    JobStatus,
    Mainspring,
    Rate,
    Reason,
    Retry,
    Snooze,
    Unique,
)
from mainspring.jobs.callback_pauses import CallbackPauseRecord
from mainspring.jobs.commands import ChangeCallbackPause
from mainspring.jobs.engine import MAX_CRASHES, Hindrance
from mainspring.jobs.explanation import explain
from mainspring.jobs.records import NewJob
from mainspring.testing import ManualClock, TimeTravel, time_travel
from mainspring.testing.conformance.bench import Bench
from tests.support import Gate
from tests.unit.jobs.call_log import START


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open()


@pytest.fixture
def job(app: Mainspring, gate: Gate) -> JobFunction[..., None]:
    """A job that does what it is told."""

    @app.job(name="shop.work", retry=Retry(max_attempts=2, base=30, jitter=0))
    def work(deed: str = "") -> None:
        if deed == "wait":
            gate()
        if deed == "fail":
            raise ValueError("no such order")
        if deed == "snooze":
            raise Snooze(60)
        if deed == "cancel":
            raise Cancel("not needed")

    return work


@pytest.fixture
def travel(app: Mainspring, job: JobFunction[..., None]) -> Iterator[TimeTravel]:
    with time_travel(app, start=START) as travel:
        yield travel


def words(explanation: Explanation) -> str:
    """What it says, without ids."""
    return str(explanation).replace(explanation.job_id, "ID")


# -- jobs that wait


def test_a_job_that_is_not_due_says_when_it_is(
    app: Mainspring, travel: TimeTravel, job: JobFunction[..., None]
) -> None:
    explanation = app.explain(job.after(3_600).submit().id)
    assert (explanation.reason, explanation.status) == (Reason.NOT_DUE, JobStatus.PENDING)
    assert words(explanation) == "Job ID (shop.work) is due at 2026-03-01 13:00:00 UTC (in 1 h)."
    assert explanation.until == START + timedelta(hours=1)


def test_a_job_that_failed_says_when_it_is_tried_again_and_why(
    app: Mainspring, travel: TimeTravel, job: JobFunction[..., None]
) -> None:
    handle = job.submit("fail")
    travel.settle()
    explanation = app.explain(handle.id)
    assert explanation.reason is Reason.RETRYING
    assert words(explanation) == (
        "Job ID (shop.work) is tried again at 2026-03-01 12:00:30 UTC (in 30 s), after attempt 1: "
        "ValueError: no such order. Its policy: 2 attempts, 30 s apart."
    )
    assert explanation.until == START + timedelta(seconds=30)


def test_a_job_that_snoozes_is_not_due_and_has_not_failed(
    app: Mainspring, travel: TimeTravel, job: JobFunction[..., None]
) -> None:
    handle = job.submit("snooze")
    travel.settle()
    assert app.explain(handle.id).reason is Reason.NOT_DUE


def test_a_callback_whose_receiver_is_paused_names_the_pause(
    app: Mainspring, travel: TimeTravel, job: JobFunction[..., None]
) -> None:
    manager = app.manager()
    now = manager.engine.now()
    pause = CallbackPauseRecord("hooks.example.com", job.name, None, 503, now, now + 60_000_000)
    assert manager.arrange([ChangeCallbackPause(None, pause)]) == [True]
    put_off = job.after(61).submit()
    explanation = app.explain(put_off.id)
    assert explanation.reason is Reason.RECEIVER_PAUSED
    assert words(explanation) == (
        "Job ID (shop.work) waits because its receiver is paused: hooks.example.com has answered with 503 and "
        "gets no requests of the type 'shop.work' until 2026-03-01 12:01:00 UTC (in 1 min), and then one as a "
        "probe. The job is due at 2026-03-01 12:01:01 UTC (in 1 min 1 s). "
        "app.resume_callbacks('hooks.example.com') or app.run_now('ID') lifts the pause."
    )
    assert explanation.until == START + timedelta(seconds=61)
    assert app.explain(job.after(300).submit().id).reason is Reason.NOT_DUE
    app.queue("default").pause()
    travel.fast_forward(60)
    explanation = app.explain(put_off.id)
    assert explanation.reason is Reason.PAUSED, "the pause of the queue comes first"
    due = job.after(2).submit()
    app.queue("default").resume()
    assert "gets one request of the type 'shop.work' as a probe; the others follow" in str(app.explain(due.id))
    assert app.run_now(due.id)
    assert app.callback_pauses() == []


@pytest.mark.parametrize(
    ("delay", "due"), [(0, ""), (60, "; it is due at 2026-03-01 12:01:00 UTC (in 1 min)")], ids=["due", "not due"]
)
def test_a_job_in_a_paused_queue_says_how_to_resume_it(
    app: Mainspring, travel: TimeTravel, job: JobFunction[..., None], delay: int, due: str
) -> None:
    app.queue("default").pause()
    explanation = app.explain(job.after(delay).submit().id)
    assert explanation.reason is Reason.PAUSED
    assert words(explanation) == (
        f"Job ID (shop.work) waits because queue 'default' is paused{due}. "
        "app.queue('default').resume() lets it go on."
    )


def test_a_job_behind_another_names_it_whether_that_one_waits_or_runs(
    app: Mainspring, travel: TimeTravel, job: JobFunction[..., None], gate: Gate
) -> None:
    in_line = job.options(sequence="order-42")
    failing, last = in_line.submit("fail"), in_line.submit("wait")
    travel.settle()
    waiting = app.explain(last.id)
    assert (waiting.reason, waiting.blocked_by) == (Reason.BEHIND, (failing.id,))
    assert f"waits in sequence 'order-42' behind job {failing.id}, and goes on when that one has ended." in waiting
    assert f"app.explain({failing.id!r}) explains the state of that job" in str(waiting)
    after_last = in_line.submit()
    assert failing.cancel()
    gate.wait_until_entered()
    assert app.explain(after_last.id).blocked_by == (last.id,)


def test_a_job_behind_one_that_waits_for_a_limit_names_the_job_that_occupies_it(
    app: Mainspring, gate: Gate
) -> None:
    @app.job(name="shop.fetch", concurrency=Concurrency(1))
    def fetch() -> None:
        gate()

    with time_travel(app, start=START):
        running = fetch.submit()
        gate.wait_until_entered()
        in_line = fetch.options(sequence="order-42")
        front, last = in_line.submit(), in_line.submit()
        explanation = app.explain(last.id)
        gate.open()
    assert (explanation.reason, explanation.blocked_by) == (Reason.BEHIND, (front.id, running.id))
    assert f"behind job {front.id}" in explanation
    assert f"(1 at once) is reached by {running.id}" in explanation


def test_a_job_that_is_rate_limited_says_until_when(app: Mainspring) -> None:
    @app.job(name="shop.mail", rate=Rate(1, per=90, by="tenant"))
    def mail(tenant: str) -> None: ...

    with time_travel(app, start=START) as travel:
        mail.submit("acme")
        travel.fast_forward(30)
        explanation = app.explain(mail.submit("acme").id)
    assert explanation.reason is Reason.RATE_LIMITED
    assert explanation.until == START + timedelta(seconds=90)
    assert words(explanation) == (
        'Job ID (shop.mail) is held back by the rate of handler shop.mail, tenant="acme" (1 in 1 min 30 s), '
        "until 2026-03-01 12:01:30 UTC (in 1 min)."
    )


def test_a_job_whose_limit_is_reached_names_those_that_run(app: Mainspring, gate: Gate) -> None:
    @app.job(name="shop.mail", concurrency=Concurrency(2))
    def mail() -> None:
        gate()

    with time_travel(app, start=START) as travel:
        runs = [mail.submit(), mail.submit()]
        gate.wait_until_entered(2)
        waits = mail.submit()
        explanation = app.explain(waits.id)
        gate.open()
        travel.settle()
    assert explanation.reason is Reason.LIMIT_REACHED
    assert set(explanation.blocked_by) == {handle.id for handle in runs}
    assert words(explanation).startswith(
        "Job ID (shop.mail) waits because the concurrency of handler shop.mail (2 at once) is reached by"
    )
    assert str(explanation).endswith("; it can start when one of them has ended.")


def test_a_job_without_any_worker_says_how_to_start_one(app: Mainspring, job: JobFunction[..., None]) -> None:
    with time_travel(app, start=START):
        app.manager().shutdown(0)
        explanation = app.explain(job.submit().id)
    assert explanation.reason is Reason.NO_WORKER
    assert words(explanation) == (
        "Job ID (shop.work) has been due since 2026-03-01 12:00:00 UTC (now), and no worker is running. "
        "Start one: app.running(), app.run() or `mainspring run module:app`."
    )


def test_a_remote_job_without_a_remote_worker_says_so(app: Mainspring, travel: TimeTravel) -> None:
    explanation = app.explain(app.remote_job("resize").submit().id)
    assert explanation.reason is Reason.NO_REMOTE_WORKER
    assert "and no remote worker serves its type 'resize'." in str(explanation)


def test_a_job_that_no_worker_knows_says_how_to_make_it_known(app: Mainspring, travel: TimeTravel) -> None:
    engine = app.manager().engine
    engine.submit([NewJob("x", "shop.gone", "default", 1, engine.now(), b"{}", "json")])
    explanation = app.explain("x")
    assert explanation.reason is Reason.UNKNOWN_HANDLER
    assert "and the one worker does not know its handler 'shop.gone'." in str(explanation)
    assert "Mainspring(include=[...])" in str(explanation)
    engine.submit([NewJob("y", "shop.wrok", "default", 1, engine.now(), b"{}", "json")])
    assert "its handler 'shop.wrok'; a handler with a similar name is 'shop.work'." in str(app.explain("y"))


def test_a_job_whose_queue_no_worker_serves_says_which_queues_are_served(url: str) -> None:
    with Mainspring(url, durability="normal", queues=["ordes", "mail"]) as app:
        job = app.job(name="shop.work", queue="orders")(print)
        with time_travel(app, start=START):
            explanation = app.explain(job.submit().id)
    assert explanation.reason is Reason.UNSERVED_QUEUE
    assert words(explanation) == (
        "Job ID (shop.work) has been due since 2026-03-01 12:00:00 UTC (now), and no worker serves queue "
        "'orders'; the workers that know its handler serve 'mail', 'ordes'. Start a worker that serves it: "
        "`mainspring run module:app --queues orders`."
    )


def test_a_queue_that_only_workers_without_the_handler_serve_is_not_served(app: Mainspring) -> None:
    with time_travel(app, start=START):
        app.manager().shutdown(0)
        bench = Bench(app.manager().engine, ManualClock())
        bench.enroll("shop.work", queues=("mail",))
        bench.enroll("shop.other", queues=("orders",))
        bench.submit("job", type="shop.work", queue="orders")
        text = str(app.explain("job"))
    assert "no worker that knows its handler serves queue 'orders'" in text


def test_a_job_past_its_timeout_says_that_its_thread_cannot_be_killed(app: Mainspring, gate: Gate) -> None:
    job = app.job(name="shop.slow", timeout=30)(gate.__call__)
    with time_travel(app, start=START) as travel:
        handle = job.submit()
        gate.wait_until_entered()
        assert app.explain(handle.id).reason is Reason.RUNNING
        travel.clock.jump(90)
        explanation = app.explain(handle.id)
        gate.open()
    assert explanation.reason is Reason.OVERTIME
    assert re.sub(r"worker \S+,", "worker W,", words(explanation)) == (
        "Job ID (shop.slow) has been running since 2026-03-01 12:00:00 UTC (1 min 30 s ago) on worker W, which is "
        "past its timeout of 30 s. A handler on a thread cannot be killed: the thread is busy until the handler "
        "returns. Let the handler check current_job().cancelled, or "
        "use execution='process', which can be killed."
    )


def test_a_job_that_waits_for_a_thread_is_queued(url: str, gate: Gate) -> None:
    with Mainspring(url, durability="normal", threads=1) as app:
        job = app.job(name="shop.work")(gate.__call__)
        with time_travel(app, start=START) as travel:
            handles = [job.submit() for _ in range(2)]
            gate.wait_until_entered()
            reasons = {app.explain(handle.id).reason for handle in handles}
            (queued,) = [e for handle in handles if (e := app.explain(handle.id)).reason is Reason.QUEUED]
            gate.open()
            travel.settle()
    assert reasons == {Reason.RUNNING, Reason.QUEUED}
    assert "has been due since 2026-03-01 12:00:00 UTC (now) and waits for a free slot in queue" in str(queued)
    assert "; one worker serves it and knows its handler." in str(queued)
    assert "add workers or threads" in str(queued)


def test_a_job_that_a_worker_holds_already_is_taken(
    app: Mainspring, travel: TimeTravel, job: JobFunction[..., None]
) -> None:
    handle = job.after(0.5).submit()
    travel.settle()
    explanation = app.explain(handle.id)
    assert explanation.reason is Reason.TAKEN
    assert "is leased to worker" in str(explanation)
    assert explanation.until == START + timedelta(milliseconds=500)


# -- jobs that run


def test_a_job_that_runs_says_where_and_since_when(
    app: Mainspring, travel: TimeTravel, job: JobFunction[..., None], gate: Gate
) -> None:
    handle = job.submit("wait")
    gate.wait_until_entered()
    before = app.explain(handle.id)
    assert not handle.cancel()
    after = app.explain(handle.id)
    assert (before.reason, before.status) == (Reason.RUNNING, JobStatus.RUNNING)
    assert "has been running since 2026-03-01 12:00:00 UTC (now) on worker" in str(before)
    assert "asked to stop" not in str(before)
    assert str(after).endswith(", and was asked to stop.")


@pytest.mark.parametrize("is_left_alone", [True, False], ids=["alone", "with others"])
def test_a_job_whose_worker_is_gone_says_who_takes_it_over(
    app: Mainspring,
    job: JobFunction[..., None],
    is_left_alone: bool,  # noqa: FBT001
) -> None:
    with time_travel(app, start=START) as travel:
        app.manager().shutdown(0)
        handle = job.submit()
        bench = Bench(app.manager().engine, travel.clock)
        worker = bench.enroll("shop.work")
        assert bench.take_ids(worker, "shop.work") == [handle.id]
        assert app.explain(handle.id).reason is Reason.RUNNING
        bench.engine.leave(worker)  # as a process does whose grace period is over
        if not is_left_alone:
            bench.enroll("shop.work")
        explanation = app.explain(handle.id)
    assert explanation.reason is Reason.ABANDONED
    assert f"was run by worker {worker}, which is gone" in str(explanation)
    end = "Start one: app.run" if is_left_alone else "another worker takes it over within seconds."
    assert end in str(explanation)


# -- jobs that have ended


ENDS = {
    "": (Reason.COMPLETED, "Job ID (shop.work) completed at 2026-03-01 12:00:00 UTC (2 min ago)."),
    "cancel": (
        Reason.CANCELED,
        "Job ID (shop.work) was canceled at 2026-03-01 12:00:00 UTC (2 min ago): not needed.",
    ),
    "fail": (
        Reason.FAILED,
        (
            "Job ID (shop.work) was given up at 2026-03-01 12:00:30 UTC (1 min 30 s ago), after attempt 2: "
            "ValueError: no such order. app.retry('ID') runs it again."
        ),
    ),
}


@pytest.mark.parametrize("deed", ENDS)
def test_a_job_that_has_ended_says_how(
    app: Mainspring, travel: TimeTravel, job: JobFunction[..., None], deed: str
) -> None:
    handle = job.submit(deed)
    travel.fast_forward(120)
    explanation = app.explain(handle.id)
    assert (explanation.reason, words(explanation)) == ENDS[deed]
    assert explanation.status.is_final


def test_a_job_that_was_called_off_before_it_ran_says_so(
    app: Mainspring, travel: TimeTravel, job: JobFunction[..., None]
) -> None:
    handle = job.after(60).submit()
    handle.cancel()
    explanation = app.explain(handle.id)
    assert explanation.reason is Reason.CANCELED
    assert "was canceled at 2026-03-01 12:00:00 UTC" in str(explanation)
    assert "no reason is recorded" not in str(explanation)


def test_a_job_that_expired_says_so_and_how_to_run_it_all_the_same(
    app: Mainspring, travel: TimeTravel, job: JobFunction[..., None]
) -> None:
    app.queue("default").pause()
    handle = job.options(expires=5).submit()
    travel.fast_forward(10)
    explanation = app.explain(handle.id)
    assert explanation.reason is Reason.EXPIRED
    assert words(explanation) == (
        "Job ID (shop.work) expired at 2026-03-01 12:00:05 UTC (5 s ago): it did not start within its time. "
        "app.retry('ID') runs it again."
    )


def test_a_letter_that_was_replayed_names_its_copy(
    app: Mainspring, travel: TimeTravel, job: JobFunction[..., None]
) -> None:
    handle = job.submit("fail")
    travel.fast_forward(120)
    (copy,) = app.dead_letters.replay(handle.id)
    explanation = app.explain(handle.id)
    assert (explanation.reason, explanation.blocked_by) == (Reason.FAILED, (copy,))
    assert f"was replayed as {copy}." in str(explanation)


def test_a_letter_whose_unique_key_another_job_has_names_that_one(
    app: Mainspring, travel: TimeTravel, job: JobFunction[..., None]
) -> None:
    unique = job.options(unique=Unique("nightly"))
    letter = unique.submit("fail")
    travel.fast_forward(120)
    other = unique.after(60).submit()
    explanation = app.explain(letter.id)
    assert (explanation.reason, explanation.blocked_by) == (Reason.UNIQUE_BLOCKED, (other.id,))
    assert f"cannot run again while job {other.id} has its unique key " in str(explanation)


def test_a_job_that_killed_its_workers_is_quarantined(app: Mainspring, job: JobFunction[..., None]) -> None:
    with time_travel(app, start=START) as travel:
        app.queue("default").pause()
        handle = job.submit()
        app.manager().shutdown(0)
        bench = Bench(app.manager().engine, travel.clock)
        bench.resume()
        for _ in range(MAX_CRASHES):
            worker = bench.enroll("shop.work")
            assert bench.take_ids(worker, "shop.work") == [handle.id]
            bench.crash(worker)
        explanation = app.explain(handle.id)
    assert explanation.reason is Reason.QUARANTINED
    assert "a dead letter" in str(explanation)
    assert "Find out what kills its process or its worker; then app.retry(" in str(explanation)


# -- what a store does not deliver


def test_a_job_that_the_store_does_not_deliver_says_why() -> None:
    with Mainspring("memory://") as app:
        handle = app.job(name="shop.work")(print).submit()
        engine = app.manager().engine
        hindrance = Hindrance("the server has no storage left", "Give it more.")
        situation = engine.situation(handle.id)
        assert situation is not None
        explanation = explain(replace(situation, hindrance=hindrance), [], [], engine.now())
    assert explanation.reason is Reason.NOT_DELIVERED
    assert "and does not start: the server has no storage left. Give it more." in explanation


# -- what cannot be explained


def test_a_job_that_does_not_exist_is_not_found(app: Mainspring) -> None:
    with pytest.raises(JobNotFound, match="there is no job 'gone'"):
        app.explain("gone")
    wrong: Any = 7
    with pytest.raises(TypeError, match="id must be a string, got 7"):
        app.explain(wrong)


def test_every_reason_is_tested_here() -> None:
    text = Path(__file__).read_text()
    assert [reason for reason in Reason if f"Reason.{reason.name}" not in text] == []
