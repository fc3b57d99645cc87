"""Which jobs a limit admits: the names of buckets, and the arithmetic, against a list of starts."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

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

RATE, ONE = bucket_of("rate"), bucket_of("one")


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


def test_a_limit_without_a_key_has_one_bucket() -> None:
    assert bucket_of("rate") == bucket_of("rate", "")


# -- several at once


def test_a_rate_tells_the_instant_from_which_several_jobs_are_admitted_at_once() -> None:
    admission = Admission({"rate": Limit(4, 40)}, {RATE: BucketState(full_at=140)}, 100)
    assert [admission.room_at(RATE, count) for count in (1, 2, 4, 5)] == [110, 120, 140, None]
    for now, room in ((119, 1), (120, 2), (140, 4)):
        admission.begin(now)
        assert admission.room((RATE,), 9) == room


def test_of_several_buckets_the_last_to_admit_them_decides() -> None:
    slow = bucket_of("slow")
    limits = {"rate": Limit(4, 40), "slow": Limit(2, 200), "one": Limit(2, None)}
    admission = Admission(limits, {RATE: BucketState(full_at=140), slow: BucketState(full_at=250)}, 100)
    both = admission.limit_for((RATE, slow))
    assert [both.room_at(count) for count in (1, 2, 3)] == [150, 250, None]
    assert admission.limit_for((RATE, ONE)).room_at(1) is None  # a job has to end first
    assert admission.room_at(bucket_of("undefined"), 1) is None


# -- ends


def test_a_job_that_ends_gives_its_place_back_and_its_token_not() -> None:
    limits = {"one": Limit(2, None), "rate": Limit(2, 10)}
    admission = Admission(limits, {}, 100)
    assert admission.admit_many((ONE, RATE), 2) == 2
    admission.limit_for((ONE, RATE)).vacate(1)
    assert (admission.room((ONE,), 9), admission.room((RATE,), 9)) == (1, 0)
    assert admission.changed == {ONE: BucketState(running=1), RATE: BucketState(full_at=110)}


def test_an_end_is_a_change_and_no_place_is_given_back_twice() -> None:
    admission = Admission({"one": Limit(2, None)}, {ONE: BucketState(running=1)}, 100)
    admission.limit_for((ONE,)).vacate(5)
    assert admission.changed == {ONE: BucketState(running=0)}


# -- whether a bucket may be full


def test_an_admission_is_tight_when_the_last_place_was_taken_until_it_begins_again() -> None:
    admission = Admission({"one": Limit(2, None)}, {}, 100)
    found = [admission.is_tight]
    for _ in range(2):
        admission.admit((ONE,))
        found.append(admission.is_tight)
    admission.begin(200)
    assert [*found, admission.is_tight] == [False, False, True, False]


def test_an_admission_is_tight_when_it_has_refused_a_job() -> None:
    admission = Admission({"one": Limit(1, None)}, {ONE: BucketState(running=1)}, 100)
    assert admission.admit((ONE,)) == Refusal(ONE, None)
    assert admission.is_tight


# -- reuse


def test_an_admission_goes_on_at_another_time_and_with_further_buckets() -> None:
    admission = Admission({"one": Limit(1, None), "rate": Limit(1, 10)}, {}, 100)
    assert [admission.admit((RATE,)), admission.admit((RATE,))] == [None, Refusal(RATE, 110)]
    admission.begin(110)
    assert admission.admit((RATE,)) is None
    admission.learn({ONE: BucketState(running=1)})
    assert admission.admit((ONE,)) == Refusal(ONE, None)


def test_an_admission_makes_each_combination_of_buckets_once_and_counts_what_it_keeps() -> None:
    admission = Admission({"one": Limit(1, None), "rate": Limit(1, 10)}, {}, 100)
    assert admission.limit_for((ONE,)) is admission.limit_for((ONE,))
    admission.limit_for((ONE, RATE))
    assert len(admission) == 4  # two buckets, two combinations
