"""Limits: so many at once, so many in a time, for each key, over all workers; no job waits for the wrong one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from mainspring import Concurrency, JobStatus, Mainspring, Rate, Reason, Retry
from mainspring.testing import time_travel
from tests.support import Gate
from tests.unit.jobs.call_log import START, CallLog


@pytest.fixture
def call_log(app: Mainspring) -> CallLog:
    return CallLog(app)


# -- at once, in an application


def occupy(app: Mainspring, submit: Callable[[Any], None], expected: int) -> int:
    """Let jobs that wait at a gate come due, and return how many run once so many have begun."""
    gate = Gate()
    with time_travel(app, start=START) as travel:
        try:
            submit(gate)
            travel.clock.jump(60)
            gate.wait_until_entered(expected)
            running = app.counts()[JobStatus.RUNNING]
        finally:
            gate.open()
        travel.settle()
        assert app.counts()[JobStatus.PENDING] == 0
        return running


@pytest.mark.parametrize("where", ["handler", "queue"])
def test_no_more_run_at_once_than_there_are_places(app: Mainspring, where: str) -> None:
    gates: list[Gate] = []
    limit = Concurrency(3)
    if where == "queue":
        app.queue("mail", concurrency=limit)

    @app.job(queue="mail", concurrency=limit if where == "handler" else None)
    def work() -> None:
        gates[0]()

    def submit(gate: Gate) -> None:
        gates.append(gate)
        work.after(60).submit_many([()] * 12)

    assert occupy(app, submit, 3) == 3


def test_each_key_has_places_of_its_own(app: Mainspring) -> None:
    gates: list[Gate] = []

    @app.job(concurrency=Concurrency(2, by="tenant"))
    def work(tenant: str) -> None:
        gates[0]()

    def submit(gate: Gate) -> None:
        gates.append(gate)
        work.after(60).submit_many([(tenant,) for tenant in "aaaaaaaaaabbc"])

    assert occupy(app, submit, 5) == 5


def test_a_limit_of_the_queue_holds_for_all_its_handlers(app: Mainspring) -> None:
    gates: list[Gate] = []
    app.queue("mail", concurrency=Concurrency(2))

    def work() -> None:
        gates[0]()

    jobs = [app.job(name=name, queue="mail")(work) for name in ("one", "two")]

    def submit(gate: Gate) -> None:
        gates.append(gate)
        for job in jobs * 4:
            job.after(60).submit()

    assert occupy(app, submit, 2) == 2


def test_places_are_free_again_after_every_kind_of_end(app: Mainspring, call_log: CallLog) -> None:
    @app.job(concurrency=Concurrency(1), retry=Retry(max_attempts=2, base=10, jitter=0))
    def work(number: int) -> None:
        call_log.record(number)
        if number % 2:
            raise ValueError("odd")

    with time_travel(app, start=START) as travel:
        work.submit_many([(number,) for number in range(6)])
        travel.fast_forward(60)
        assert Counter(call_log.names) == {0: 1, 1: 2, 2: 1, 3: 2, 4: 1, 5: 2}
        assert app.counts() == {"PENDING": 0, "RUNNING": 0, "COMPLETED": 3, "FAILED": 3, "CANCELED": 0}


def test_keys_take_turns_so_that_one_with_many_jobs_does_not_starve_the_others(url: str) -> None:
    with Mainspring(url, durability="normal", threads=1) as app:
        call_log = CallLog(app)

        @app.job(concurrency=Concurrency(5, by="tenant"))
        def work(tenant: str) -> None:
            call_log.record(tenant)

        with time_travel(app, start=START) as travel:
            work.after(60).submit_many([("big",)] * 40)
            work.after(60).submit_many([("small",)] * 3)
            travel.fast_forward(60)
    assert len(call_log.names) == 43
    assert [place for place, tenant in enumerate(call_log.names) if tenant == "small"][-1] <= 8


# -- in a time, in an application


@pytest.mark.parametrize("where", ["handler", "queue"])
def test_a_rate_lets_a_burst_go_and_then_one_exactly_when_there_is_a_token(
    app: Mainspring, call_log: CallLog, where: str
) -> None:
    rate = Rate(3, per=30)
    if where == "queue":
        app.queue("mail", rate=rate)

    @app.job(queue="mail", rate=rate if where == "handler" else None)
    def work() -> None:
        call_log.record("ran")

    with time_travel(app, start=START) as travel:
        work.submit_many([()] * 6)
        travel.fast_forward(100)
        burst = list(call_log.times)
        work.submit_many([()] * 4)  # all tokens are there again
        travel.fast_forward(100)
    assert burst == [0, 0, 0, 10, 20, 30]
    assert call_log.times[6:] == [100, 100, 100, 110]


def test_each_key_has_tokens_of_its_own(app: Mainspring, call_log: CallLog) -> None:
    @app.job(rate=Rate(1, per=10, by="tenant"))
    def work(tenant: str, number: int) -> None:
        call_log.record(tenant)

    with time_travel(app, start=START) as travel:
        work.submit_many([(tenant, number) for number in range(3) for tenant in "ab"])
        travel.fast_forward(60)
    assert sorted(call_log.entries) == [(tenant, time) for tenant in "ab" for time in (0, 10, 20)]


def test_an_attempt_that_is_repeated_needs_a_token_of_its_own(app: Mainspring, call_log: CallLog) -> None:
    @app.job(rate=Rate(1, per=60), retry=Retry(max_attempts=3, base=5, jitter=0))
    def work() -> None:
        call_log.record("tried")
        raise ValueError("no")

    with time_travel(app, start=START) as travel:
        work.submit()
        travel.fast_forward(300)
    assert call_log.times == [0, 60, 120]


def test_a_job_under_several_limits_starts_when_all_admit_it(app: Mainspring, call_log: CallLog) -> None:
    app.queue("mail", rate=Rate(1, per=5))

    @app.job(queue="mail", rate=Rate(1, per=20, by="tenant"))
    def work(tenant: str) -> None:
        call_log.record(tenant)

    with time_travel(app, start=START) as travel:
        work.submit_many([(tenant,) for tenant in "aabbc"])
        travel.fast_forward(120)
        assert app.counts()[JobStatus.PENDING] == 0
    times = {tenant: [time for name, time in call_log.entries if name == tenant] for tenant in "abc"}
    assert all(later - earlier >= 20 for earlier, later in (times["a"], times["b"]))
    ordered = sorted(call_log.times)
    assert all(later - earlier >= 5 for earlier, later in pairwise(ordered))
    assert ordered[:3] == [0, 5, 10]
    assert ordered[-1] <= 30


def test_a_job_that_waits_for_a_limit_keeps_no_other_waiting(app: Mainspring, call_log: CallLog) -> None:
    @app.job(rate=Rate(1, per=60))
    def slow() -> None:
        call_log.record("slow")

    @app.job
    def free() -> None:
        call_log.record("free")

    with time_travel(app, start=START) as travel:
        slow.submit_many([()] * 50)
        free.submit()
        travel.settle()
    assert Counter(call_log.names) == {"slow": 1, "free": 1}


def test_a_limited_job_that_is_canceled_uses_up_nothing(app: Mainspring, call_log: CallLog) -> None:
    @app.job(rate=Rate(1, per=10))
    def work(number: int) -> None:
        call_log.record(number)

    with time_travel(app, start=START) as travel:
        handles = [work.submit(number) for number in range(3)]
        travel.fast_forward(1)
        assert handles[1].cancel()
        assert app.explain(handles[2].id).reason is Reason.RATE_LIMITED
        travel.fast_forward(60)
    assert call_log.entries == [(0, 0), (2, 10)]
