"""Limits: so many at once, so many in a time, for each key, over all workers; no job waits for the wrong one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from mainspring import Concurrency, JobStatus, Mainspring, Rate, Reason, Retry
from mainspring.jobs.limits import (
    Admission,
    BucketState,
    Limit,
    Refusal,
    bucket_of,
    describe_bucket,
    family_of,
    is_fair,
    key_of,
)
from mainspring.testing import time_travel
from tests.support import Gate
from tests.unit.jobs.call_log import START, CallLog

RATE, ONE = bucket_of("rate"), bucket_of("one")


@pytest.fixture
def call_log(app: Mainspring) -> CallLog:
    return CallLog(app)


# -- names


@pytest.mark.parametrize(("key", "words"), [("", "rate"), ('tenant="a"', 'rate, tenant="a"')], ids=repr)
def test_a_bucket_is_named_by_family_and_key(key: str, words: str) -> None:
    bucket = bucket_of("rate", key)
    assert (family_of(bucket), key_of(bucket), describe_bucket(bucket)) == ("rate", key, words)


def test_only_jobs_with_a_key_take_turns() -> None:
    assert [is_fair(buckets) for buckets in ((), (RATE,), (RATE, bucket_of("c", "k")))] == [False, False, True]


# -- the arithmetic, against a list of starts

gaps = st.lists(st.integers(0, 3_000), min_size=1, max_size=60)


@given(st.integers(1, 7), st.integers(1, 5_000), gaps)
def test_no_more_start_than_the_burst_and_what_has_grown_since(most: int, per: int, waits: list[int]) -> None:
    state, starts, now = BucketState(), [], 1_000_000
    for wait in waits:
        now += wait
        admission = Admission({"rate": Limit(most, per)}, {RATE: state}, now)
        if admission.admit((RATE,)) is None:
            starts.append(now)
            state = admission.changed[RATE]
    for first, begin in enumerate(starts):  # n + elapsed * n / per, in whole numbers
        for last, end in enumerate(starts[first:], start=first):
            assert (last - first + 1) * per <= most * per + (end - begin) * most


@given(st.integers(1, 7), st.integers(1, 5_000), gaps)
def test_a_refused_job_is_told_the_first_instant_at_which_it_is_admitted(
    most: int, per: int, waits: list[int]
) -> None:
    limits, state, now = {"rate": Limit(most, per)}, BucketState(), 1_000_000
    for wait in waits:
        now += wait
        admission = Admission(limits, {RATE: state}, now)
        refusal = admission.admit((RATE,))
        if refusal is None:
            state = admission.changed[RATE]
            continue
        assert refusal.until is not None
        assert refusal.until > now
        early, right = (Admission(limits, {RATE: state}, refusal.until + shift) for shift in (-1, 0))
        assert early.refusal((RATE,)) is not None
        assert right.refusal((RATE,)) is None


@given(st.integers(1, 7), st.integers(1, 5_000), st.integers(0, 20_000))
def test_a_bucket_that_rests_fills_up_to_its_burst_and_no_further(most: int, per: int, rest: int) -> None:
    limit = Limit(most, per)
    begin = 1_000_000
    emptied = BucketState(full_at=begin + limit.interval * most)
    room = Admission({"rate": limit}, {RATE: emptied}, begin + rest).room((RATE,), 100)
    assert room == min(most, rest // limit.interval)


@given(st.lists(st.booleans(), max_size=40), st.integers(1, 4))
def test_as_many_run_at_once_as_there_are_places(moves: list[bool], most: int) -> None:
    state, running = BucketState(), 0
    for is_start in moves:
        admission = Admission({"one": Limit(most, None)}, {ONE: state}, 0)
        if is_start:
            assert (admission.admit((ONE,)) is None) == (running < most)
            running = min(most, running + 1)
            state = admission.changed.get(ONE, state)
        elif running:
            running -= 1
            state = BucketState(running=state.running - 1)
        assert state.running == running


def test_a_job_is_admitted_by_all_its_buckets_or_counted_in_none() -> None:
    limits = {"one": Limit(1, None), "rate": Limit(1, 10)}
    admission = Admission(limits, {ONE: BucketState(running=1)}, 100)
    assert admission.admit((RATE, ONE)) == Refusal(ONE, None)
    assert admission.changed == {}
    assert admission.admit((RATE,)) is None
    assert admission.admit((RATE,)) == Refusal(RATE, 110)


def test_an_undefined_family_admits_everything() -> None:
    admission = Admission({}, {}, 0)
    assert admission.admit((RATE,)) is None
    assert admission.room((RATE, ONE), 7) == 7


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
    @app.job(concurrency=Concurrency(1), retry=Retry(max_attempts=2, base=10))
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
    @app.job(rate=Rate(1, per=60), retry=Retry(max_attempts=3, base=5))
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
