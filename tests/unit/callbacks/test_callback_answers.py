"""What the answer of a receiver means for its job, and when a host gets no requests."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from mainspring import Retry
from mainspring.callbacks.answers import (
    ReceiverAnswer,
    ReceiverBusy,
    ReceiverFailed,
    ReceiverGone,
    judge,
    retry_after,
    to_result,
)
from mainspring.callbacks.hosts import FULL_DELAY, LONGEST_PAUSE, LONGEST_REQUESTED, MOST_HOSTS, PACE, HostGate
from mainspring.testing import ManualClock

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)
HOST = "hooks.example.com"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def gate(clock: ManualClock) -> HostGate:
    gate = HostGate(2, clock.monotonic_ns)
    assert gate.enter(HOST) is None
    return gate


def answer(status: int, headers: dict[str, str] | None = None) -> ReceiverAnswer:
    return ReceiverAnswer(status, headers or {}, b"", is_cut=False)


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_success_codes_complete_a_job(gate: HostGate, status: int) -> None:
    judge(answer(status), "POST x", host=HOST, gate=gate, now=NOW)


def test_success_codes_can_be_chosen(gate: HostGate) -> None:
    judge(answer(409), "POST x", host=HOST, gate=gate, now=NOW, success=(200, 409))
    with pytest.raises(ReceiverFailed):
        judge(answer(204), "POST x", host=HOST, gate=gate, now=NOW, success=(200, 409))


@pytest.mark.parametrize("status", [199, 400, 401, 404, 422, 500, 502, 504])
def test_other_codes_fail_the_attempt(gate: HostGate, status: int) -> None:
    with pytest.raises(ReceiverFailed) as caught:
        judge(answer(status), "POST x", host=HOST, gate=gate, now=NOW)
    assert str(caught.value) == f"POST x was answered with {status}"


@pytest.mark.parametrize("status", [300, 301, 302, 307, 308, 399])
def test_redirects_fail_the_attempt_and_say_so(gate: HostGate, status: int) -> None:
    with pytest.raises(ReceiverFailed) as caught:
        judge(answer(status), "POST x", host=HOST, gate=gate, now=NOW)
    hint = "redirects are not followed: use the URL that it names"
    assert str(caught.value) == f"POST x was answered with {status} ({hint})"


def test_410_and_chosen_codes_end_the_job(gate: HostGate) -> None:
    for status, stop in ((410, ()), (404, (404, 422))):
        with pytest.raises(ReceiverGone) as caught:
            judge(answer(status), "POST x", host=HOST, gate=gate, now=NOW, stop=stop)
        assert str(caught.value) == (
            f"POST x was answered with {status}: no further attempts are made after this status"
        )


def test_retry_after_of_any_failure_delays_the_retry(gate: HostGate) -> None:
    with pytest.raises(Retry.Later) as caught:
        judge(answer(500, {"retry-after": "17"}), "POST x", host=HOST, gate=gate, now=NOW)
    assert caught.value.delay == 17
    assert str(caught.value) == "POST x was answered with 500, and Retry-After asks for 17 s"
    date = {"retry-after": "Mon, 05 Jan 2026 12:00:09 GMT"}
    with pytest.raises(Retry.Later) as caught:
        judge(answer(500, date), "POST x", host=HOST, gate=gate, now=NOW)
    assert caught.value.delay == 9


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_host_is_paused_for_all_requests(gate: HostGate, clock: ManualClock, status: int) -> None:
    with pytest.raises(ReceiverBusy) as caught:
        judge(answer(status, {"retry-after": "30"}), "POST x", host=HOST, gate=gate, now=NOW)
    assert caught.value.delay == 30
    assert str(caught.value) == f"POST x was answered with {status}: {HOST} gets no requests for 30 s"
    assert gate.enter(HOST) == pytest.approx(30 + PACE)
    assert gate.enter(HOST) == pytest.approx(30 + 2 * PACE)
    assert gate.enter("other.example.com") is None
    clock.advance(30)
    assert gate.enter(HOST) is None


def test_without_retry_after_the_pause_doubles_until_a_success(gate: HostGate, clock: ManualClock) -> None:
    pauses = []
    for _ in range(8):
        with pytest.raises(ReceiverBusy) as caught:
            judge(answer(503), "POST x", host=HOST, gate=gate, now=NOW)
        pauses.append(caught.value.delay)
        clock.advance(61)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, LONGEST_PAUSE]
    judge(answer(200), "POST x", host=HOST, gate=gate, now=NOW)
    with pytest.raises(ReceiverBusy) as caught:
        judge(answer(503), "POST x", host=HOST, gate=gate, now=NOW)
    assert caught.value.delay == 1


def test_answers_to_requests_of_before_the_pause_count_once(gate: HostGate) -> None:
    for _ in range(5):
        with pytest.raises(ReceiverBusy) as caught:
            judge(answer(429), "POST x", host=HOST, gate=gate, now=NOW)
        assert caught.value.delay == 1


def test_a_host_has_a_limited_number_of_requests(gate: HostGate) -> None:
    assert gate.enter(HOST) is None
    assert gate.enter(HOST) == FULL_DELAY
    gate.leave(HOST)
    assert gate.enter(HOST) is None


def test_a_job_type_can_have_a_higher_limit(gate: HostGate) -> None:
    assert [gate.enter(HOST, 3) for _ in range(3)] == [None, None, FULL_DELAY]


def test_a_pause_holds_to_its_last_moment(gate: HostGate, clock: ManualClock) -> None:
    gate.slow_down(HOST, 10)
    clock.advance(9.5)
    assert gate.enter(HOST) == pytest.approx(0.5 + PACE)
    clock.advance(0.5)
    assert gate.enter(HOST) is None


def test_a_host_with_requests_or_pauses_is_not_forgotten(gate: HostGate, clock: ManualClock) -> None:
    gate.enter(HOST)
    gate.leave(HOST)
    assert len(gate) == 1
    for number in range(MOST_HOSTS):
        gate.enter(f"{number}.example.com")
        gate.leave(f"{number}.example.com")
    gate.enter("paused.example.com")
    gate.slow_down("paused.example.com", 60)
    gate.leave("paused.example.com")
    assert len(gate) == 2
    clock.advance(61)
    gate.enter("paused.example.com")
    gate.leave("paused.example.com")
    assert gate.enter("paused.example.com") is None
    assert gate.slow_down("paused.example.com", None) == 2  # the earlier pause counts until a success
    for number in range(MOST_HOSTS):
        gate.enter(f"{number}.example.org")
        gate.slow_down(f"{number}.example.org", 60)
        gate.leave(f"{number}.example.org")
    assert gate.enter("paused.example.com") is not None


def test_idle_hosts_are_forgotten(gate: HostGate, clock: ManualClock) -> None:
    gate.leave(HOST)
    assert len(gate) == 0
    for number in range(MOST_HOSTS):
        gate.enter(f"{number}.example.com")
        gate.slow_down(f"{number}.example.com", 5)
        gate.leave(f"{number}.example.com")
    assert len(gate) == MOST_HOSTS
    clock.advance(6)
    gate.enter(HOST)
    assert len(gate) == 1


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("0", 0),
        ("120", 120),
        (" 120 ", 120),
        ("Mon, 05 Jan 2026 12:00:10 GMT", 10),
        ("Mon, 05 Jan 2026 11:00:00 GMT", 0),
        ("Mon, 05 Jan 2026 12:00:10", 10),
        ("soon", None),
        ("-5", None),
        ("1.5", None),
        ("9" * 400, LONGEST_REQUESTED),
        ("Fri, 01 Jan 2100 00:00:00 GMT", LONGEST_REQUESTED),
        ("Mon, 99 Jan 2026 12:00:10 GMT", None),
        (f"Mon, 05 Jan {'9' * 20} 12:00:10 GMT", None),
        (f"Mon, 05 Jan 2026 12:00:10 +{'9' * 20}", None),
    ],
)
def test_retry_after_is_a_number_or_a_date(value: str | None, seconds: float | None) -> None:
    assert retry_after(value, NOW) == seconds


def test_only_some_headers_are_kept() -> None:
    headers = {"content-type": "text/plain", "set-cookie": "a=b", "x-request-id": "7" * 900}
    result = to_result(ReceiverAnswer(200, headers, b"\xff ok", is_cut=True))
    assert result == {
        "status": 200,
        "headers": {"content-type": "text/plain", "x-request-id": "7" * 500},
        "body": "� ok",
        "is_cut": True,
    }
