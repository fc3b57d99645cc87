"""What the answer of a receiver means for its job, and how many requests a host gets at once."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from mainspring import Retry
from mainspring.callbacks.answers import (
    LONGEST_REQUESTED,
    ReceiverAnswer,
    ReceiverBusy,
    ReceiverFailed,
    ReceiverGone,
    is_busy,
    judge,
    retry_after,
    to_result,
)
from mainspring.callbacks.hosts import HostGate

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)
HOST = "hooks.example.com"


def answer(status: int, headers: dict[str, str] | None = None) -> ReceiverAnswer:
    return ReceiverAnswer(status, headers or {}, b"", is_cut=False)


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_success_codes_complete_a_job(status: int) -> None:
    judge(answer(status), "POST x", now=NOW)


def test_success_codes_can_be_chosen() -> None:
    judge(answer(409), "POST x", now=NOW, success=(200, 409))
    with pytest.raises(ReceiverFailed):
        judge(answer(204), "POST x", now=NOW, success=(200, 409))


@pytest.mark.parametrize("status", [199, 400, 401, 404, 422, 500, 502, 504])
def test_other_codes_fail_the_attempt(status: int) -> None:
    with pytest.raises(ReceiverFailed) as caught:
        judge(answer(status), "POST x", now=NOW)
    assert str(caught.value) == f"POST x was answered with {status}"


@pytest.mark.parametrize("status", [300, 301, 302, 307, 308, 399])
def test_redirects_fail_the_attempt_and_say_so(status: int) -> None:
    with pytest.raises(ReceiverFailed) as caught:
        judge(answer(status), "POST x", now=NOW)
    hint = "redirects are not followed: use the URL that it names"
    assert str(caught.value) == f"POST x was answered with {status} ({hint})"


def test_410_and_chosen_codes_end_the_job() -> None:
    for status, stop in ((410, ()), (404, (404, 422))):
        with pytest.raises(ReceiverGone) as caught:
            judge(answer(status), "POST x", now=NOW, stop=stop)
        assert str(caught.value) == (
            f"POST x was answered with {status}: no further attempts are made after this status"
        )


def test_retry_after_of_any_failure_delays_the_retry() -> None:
    with pytest.raises(Retry.Later) as caught:
        judge(answer(500, {"retry-after": "17"}), "POST x", now=NOW)
    assert caught.value.delay == 17
    assert str(caught.value) == "POST x was answered with 500, and Retry-After asks for 17 s"
    date = {"retry-after": "Mon, 05 Jan 2026 12:00:09 GMT"}
    with pytest.raises(Retry.Later) as caught:
        judge(answer(500, date), "POST x", now=NOW)
    assert caught.value.delay == 9


@pytest.mark.parametrize("status", [429, 503])
def test_an_answer_that_asks_for_a_pause_fails_the_attempt(status: int) -> None:
    assert is_busy(status, None, ())
    assert not is_busy(status, (status,), ())
    assert not is_busy(status, None, (status,))
    with pytest.raises(ReceiverFailed) as caught:  # retried by the policy: short pauses use up no attempts
        judge(answer(status), "POST x", now=NOW, pause=2)
    assert str(caught.value) == f"POST x was answered with {status}: this receiver gets no requests for 2 s"


def test_the_job_itself_waits_as_long_as_the_receiver_asks() -> None:
    with pytest.raises(ReceiverBusy) as caught:
        judge(answer(503, {"retry-after": "86400"}), "POST x", now=NOW, pause=300)
    assert caught.value.delay == 86_400
    assert str(caught.value) == (
        "POST x was answered with 503: this receiver gets no requests for 300 s, and Retry-After asks for 86400 s"
    )


def test_a_host_has_a_limited_number_of_requests() -> None:
    gate = HostGate(2)
    assert [gate.enter(HOST) for _ in range(3)] == [True, True, False]
    assert gate.enter("other.example.com")
    gate.leave(HOST)
    assert gate.enter(HOST)


def test_a_job_type_can_have_a_higher_limit() -> None:
    gate = HostGate(2)
    assert [gate.enter(HOST, 3) for _ in range(4)] == [True, True, True, False]
    assert all(HostGate(None).enter(HOST) for _ in range(100))


def test_hosts_without_requests_are_forgotten() -> None:
    gate = HostGate(2)
    for _ in range(2):
        gate.enter(HOST)
    gate.leave(HOST)
    assert len(gate) == 1
    gate.leave(HOST)
    assert len(gate) == 0


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
