"""The rate of submits of a token: a token bucket, compared with a naive one, and the headers of answers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring import Mainspring
from mainspring.security.http_limits import HttpLimits, parse_limits
from mainspring.testing import ManualClock
from mainspring.web.problems import Refused
from mainspring.web.submit_rates import MAX_CALLERS, SubmitRates
from tests.asgi_client import request

SMALL = HttpLimits(submit_rate=2, submit_burst=10, max_batch=10)


def spend(rates: SubmitRates, jobs: int, caller: str = "shop") -> Refused | None:
    try:
        rates.spend(caller, jobs)
    except Refused as refused:
        return refused
    return None


def test_a_token_submits_a_burst_and_then_at_its_rate() -> None:
    clock = ManualClock()
    rates = SubmitRates(SMALL, clock)
    assert spend(rates, 10) is None
    refused = spend(rates, 1)
    assert refused is not None
    assert (refused.problem.status, refused.problem.type) == (429, "submit-rate")
    assert refused.problem.headers["Retry-After"] == "1"
    clock.advance(0.5)
    assert spend(rates, 1) is None
    refused = spend(rates, 7)
    assert refused is not None
    assert refused.problem.headers["Retry-After"] == "4"
    assert "2 jobs per second on average, and 0 at this moment; the request has 7 jobs; try again in 4 s" in str(
        refused
    )
    clock.advance(3.5)
    assert spend(rates, 7) is None


def test_a_refused_request_counts_nothing() -> None:
    rates = SubmitRates(SMALL, ManualClock())
    assert spend(rates, 6) is None
    for _ in range(5):
        assert spend(rates, 5) is not None
    assert spend(rates, 4) is None


def test_more_than_the_burst_is_never_possible_and_the_error_says_so() -> None:
    refused = spend(SubmitRates(SMALL, ManualClock()), 11)
    assert refused is not None
    assert "Retry-After" not in refused.problem.headers
    assert "submit at most 10 at once" in str(refused)


def test_a_whole_burst_is_possible_later() -> None:
    rates = SubmitRates(SMALL, ManualClock())
    assert spend(rates, 2) is None
    refused = spend(rates, 10)
    assert refused is not None
    assert "try again in 1 s" in str(refused)
    assert refused.problem.headers["Retry-After"] == "1"


def test_tokens_do_not_share_their_rates() -> None:
    rates = SubmitRates(SMALL, ManualClock())
    assert spend(rates, 10, "shop") is None
    assert spend(rates, 10, "mail") is None
    assert spend(rates, 1, "shop") is not None


def test_the_headers_say_what_is_left_and_when_it_is_full_again() -> None:
    rates = SubmitRates(SMALL, ManualClock())
    meter = rates.meter("shop")
    assert meter.headers == {}
    meter.count(3)
    assert meter.headers == {"RateLimit-Policy": '"submits";q=10;w=5', "RateLimit": '"submits";r=7;t=2'}


def test_a_full_bucket_is_full_after_no_time_and_a_small_burst_has_a_window_of_a_second() -> None:
    rates = SubmitRates(HttpLimits(submit_rate=10, submit_burst=10, max_batch=10), ManualClock())
    assert rates.spend("shop", 0) == {"RateLimit-Policy": '"submits";q=10;w=1', "RateLimit": '"submits";r=10;t=0'}


def test_no_time_refills_nothing() -> None:
    fast = HttpLimits(submit_rate=1_000_000_000, submit_burst=10, max_batch=10)  # a job in each nanosecond
    rates = SubmitRates(fast, ManualClock())
    assert spend(rates, 10) is None
    assert spend(rates, 1) is not None


def test_the_number_of_buckets_is_limited() -> None:
    rates = SubmitRates(SMALL, ManualClock())
    for number in range(MAX_CALLERS + 10):
        assert spend(rates, 10, f"caller {number}") is None
    assert len(rates._buckets) == MAX_CALLERS
    assert spend(rates, 1, f"caller {MAX_CALLERS + 9}") is not None


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 4_000)), max_size=40))
def test_the_bucket_is_as_full_as_a_naive_one(steps: list[tuple[int, int]]) -> None:
    clock = ManualClock()
    rates = SubmitRates(SMALL, clock)
    tokens = Fraction(10)
    for jobs, milliseconds in steps:
        clock.advance(milliseconds / 1_000)
        tokens = min(Fraction(10), tokens + Fraction(2 * milliseconds, 1_000))
        if abs(tokens - jobs) < Fraction(1, 1_000_000):  # rounding decides
            return
        is_allowed = jobs <= tokens
        assert (spend(rates, jobs) is None) is is_allowed
        tokens -= jobs * is_allowed


@pytest.fixture
def app() -> Iterator[Mainspring]:
    with Mainspring("memory://") as app:
        app.job(name="ping")(lambda: None)
        yield app


def test_submits_over_http_are_counted_and_have_the_headers(app: Mainspring) -> None:
    asgi = app.asgi(auth="tokens", limits=HttpLimits(submit_rate=0.001, submit_burst=2, max_batch=2))
    token = app.tokens.create("shop", scopes=["submit", "read"]).secret
    body = json.dumps({"type": "ping"}).encode()
    headers = [("content-type", "application/json")]
    answers = [
        request(asgi, "/api/v1/jobs", method="POST", token=token, headers=headers, body=body) for _ in range(3)
    ]
    assert [answer.status for answer in answers] == [201, 201, 429]
    for answer in answers:
        assert answer.headers["ratelimit-policy"] == '"submits";q=2;w=2000'
        assert re.fullmatch(r'"submits";r=\d;t=\d+', answer.headers["ratelimit"])
    assert answers[2].problem == "submit-rate"
    assert 990 <= int(answers[2].headers["retry-after"]) <= 1_000
    assert "ratelimit" not in request(asgi, "/api/v1/", token=token).headers
    other = app.tokens.create("mail", scopes=["submit"]).secret
    assert request(asgi, "/api/v1/jobs", method="POST", token=other, headers=headers, body=body).status == 201
    assert app.counts()["PENDING"] == 3


def test_a_repetition_with_a_key_costs_no_rate(app: Mainspring) -> None:
    asgi = app.asgi(auth="tokens", limits=HttpLimits(submit_rate=0.001, submit_burst=1, max_batch=1))
    token = app.tokens.create("shop", scopes=["submit"]).secret
    headers = [("content-type", "application/json"), ("idempotency-key", "k1")]
    for _ in range(5):
        answer = request(
            asgi, "/api/v1/jobs", method="POST", token=token, headers=headers, body=b'{"type": "ping"}'
        )
        assert answer.status == 201


@pytest.mark.parametrize(
    ("limits", "problem"),
    [
        ({"submit_rate": 0}, "submit_rate must be a positive number, got 0"),
        ({"max_batch": -1}, "max_batch must be a positive number, got -1"),
        ({"max_depth": 1.5}, "max_depth must be a whole number, got 1.5"),
        ({"event_readers": True}, "event_readers must be a positive number, got True"),
        ({"submit_burst": 100}, "submit_burst=100 is less than max_batch=10000"),
    ],
)
def test_impossible_limits_are_refused(limits: dict[str, float], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        HttpLimits(**limits)  # type: ignore[arg-type] # wrong on purpose


def test_limits_are_given_on_the_command_line() -> None:
    assert parse_limits(["max-batch=5", " submit_rate = 0.5 "]) == HttpLimits(max_batch=5, submit_rate=0.5)
    assert parse_limits([]) == HttpLimits()


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["max_bacth=5"], r"names no limit of the HTTP server; did you mean 'max_batch'"),
        (["speed=5"], r"names no limit of the HTTP server; the limits are max_header, "),
        (["max_batch"], r"has no whole number as its value; write max_batch=100"),
        (["max_batch=1.5"], r"has no whole number"),
        (["submit_rate=fast"], r"has no number as its value"),
        (["submit_rate=nan"], r"submit_rate must be a positive number"),
        (["max_batch=-1"], r"max_batch must be a positive number"),
        (["max_batch=1", "max_batch=2"], r"max_batch is given twice"),
    ],
)
def test_wrong_limits_on_the_command_line_are_explained(given: list[str], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_limits(given)
