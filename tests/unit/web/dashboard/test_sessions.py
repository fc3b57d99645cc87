"""Sessions of browsers: expiry, logout, bounds, and the throttle of logins."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from mainspring.testing.manual_clock import ManualClock
from mainspring.web.dashboard import sessions
from mainspring.web.dashboard.sessions import (
    DELAY_SECONDS,
    MAX_DELAYED,
    LoginThrottle,
    Sessions,
    csrf_token_of,
)
from mainspring.web.problems import Refused


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


class Sleeper:
    """Records delays, and lets them end when the test says so."""

    def __init__(self) -> None:
        self.delays: list[float] = []
        self._may_end = asyncio.Event()

    async def __call__(self, seconds: float) -> None:
        self.delays.append(seconds)
        await self._may_end.wait()

    def end(self) -> None:
        self._may_end.set()


def make_throttle(**options: Any) -> tuple[LoginThrottle, ManualClock, Sleeper]:
    clock, sleeper = ManualClock(), Sleeper()
    return LoginThrottle(clock=clock, sleep=sleeper, **options), clock, sleeper


def test_failed_logins_of_one_address_are_delayed_after_the_first_ones() -> None:
    async def scenario() -> None:
        throttle, clock, sleeper = make_throttle(burst=3, seconds=6)
        sleeper.end()
        for _ in range(3):
            await throttle.failed("a")
        assert sleeper.delays == []
        await throttle.failed("a")
        assert sleeper.delays == [DELAY_SECONDS]
        await throttle.failed("b")
        assert sleeper.delays == [DELAY_SECONDS], "another address is not delayed"
        for _ in range(1_000):
            await throttle.failed("a")
        clock.advance(timedelta(seconds=4 * 6))
        sleeper.delays.clear()
        for _ in range(3):
            await throttle.failed("a")
        assert sleeper.delays == [], "a thousand failures are forgotten as soon as four"

    asyncio.run(scenario())


def test_few_answers_to_an_address_are_delayed_at_once() -> None:
    async def scenario() -> None:
        throttle, _, sleeper = make_throttle(burst=1)
        await throttle.failed("a")
        await throttle.failed("b")
        waiting = [asyncio.create_task(throttle.failed("a")) for _ in range(MAX_DELAYED)]
        await asyncio.sleep(0)
        with pytest.raises(Refused, match="wait for their answers") as refused:
            await throttle.failed("a")
        assert refused.value.problem.type == "too-many-logins"
        other = asyncio.create_task(throttle.failed("b"))
        sleeper.end()
        await asyncio.gather(other, *waiting)
        await throttle.failed("a")
        assert len(sleeper.delays) == MAX_DELAYED + 2

    asyncio.run(scenario())


def test_the_throttle_forgets_the_oldest_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        throttle, _, sleeper = make_throttle(burst=1)
        sleeper.end()
        for address in "abc":
            await throttle.failed(address)
        await throttle.failed("a")
        assert sleeper.delays == []
        await throttle.failed("c")
        assert sleeper.delays == [DELAY_SECONDS]

    monkeypatch.setattr(sessions, "MAX_CLIENTS", 2)
    asyncio.run(scenario())
