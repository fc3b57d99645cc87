"""Sessions of browsers: expiry, logout, bounds, and the throttle of logins."""

from __future__ import annotations

from datetime import timedelta

import pytest

from mainspring.testing.manual_clock import ManualClock
from mainspring.web.dashboard import sessions
from mainspring.web.dashboard.sessions import LoginThrottle, Sessions, csrf_token_of


def test_a_session_knows_its_token_until_it_ends() -> None:
    found = Sessions(ManualClock())
    session = found.begin("token-1")
    assert found.token_of(session) == "token-1"
    assert found.token_of("0" * 64) is None
    found.end(session)
    assert found.token_of(session) is None


def test_a_session_ends_after_a_time_without_requests() -> None:
    clock = ManualClock()
    found = Sessions(clock)
    session = found.begin("token-1")
    for _ in range(3):
        clock.advance(timedelta(hours=11))
        assert found.token_of(session) == "token-1"
    clock.advance(timedelta(hours=12))
    assert found.token_of(session) is None
    assert len(found) == 0


def test_a_session_ends_after_seven_days_however_it_is_used() -> None:
    clock = ManualClock()
    found = Sessions(clock)
    session = found.begin("token-1")
    for _ in range(7 * 24 - 1):
        clock.advance(timedelta(hours=1))
        assert found.token_of(session) == "token-1"
    clock.advance(timedelta(hours=1))
    assert found.token_of(session) is None


def test_the_oldest_session_ends_if_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_SESSIONS", 2)
    found = Sessions(ManualClock())
    first, second, third = (found.begin(f"token-{number}") for number in range(3))
    assert [found.token_of(each) for each in (first, second, third)] == [None, "token-1", "token-2"]


def test_the_memory_has_neither_the_session_id_nor_the_csrf_token() -> None:
    found = Sessions(ManualClock())
    session = found.begin("token-1")
    kept = repr(found.__dict__)
    assert session not in kept
    assert csrf_token_of(session) not in kept
    assert csrf_token_of(session) != session


def test_failed_logins_of_one_address_are_bounded_and_forgotten() -> None:
    clock = ManualClock()
    throttle = LoginThrottle(burst=3, seconds=6, clock=clock)
    for _ in range(3):
        assert throttle.seconds_left("a") == 0
        throttle.failed("a")
    assert throttle.seconds_left("a") == 6
    assert throttle.seconds_left("b") == 0
    clock.advance(timedelta(seconds=6))
    assert throttle.seconds_left("a") == 0
    throttle.failed("a")
    assert throttle.seconds_left("a") == 6
    clock.advance(timedelta(minutes=1))
    for _ in range(3):
        assert throttle.seconds_left("a") == 0
        throttle.failed("a")


def test_the_throttle_forgets_the_oldest_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_CLIENTS", 2)
    throttle = LoginThrottle(burst=1, seconds=6, clock=ManualClock())
    for address in "abc":
        throttle.failed(address)
    assert [throttle.seconds_left(address) for address in "abc"] == [0, 6, 6]
