"""Signals that end a program: none is missed, and afterwards everything is as before."""

from __future__ import annotations

import os
import signal
from threading import Event

import pytest

from mainspring.stop_signals import ENDING, StopSignals
from tests.support import PATIENCE


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_that_comes_before_a_thread_waits_is_not_missed(number: signal.Signals) -> None:
    with StopSignals() as signals:
        os.kill(os.getpid(), number)
        assert signals.wait()


def test_another_signal_is_none_of_ours() -> None:
    seen = []
    before = signal.signal(signal.SIGUSR1, lambda number, _frame: seen.append(number))
    try:
        with StopSignals() as signals:
            os.kill(os.getpid(), signal.SIGUSR1)
            os.kill(os.getpid(), signal.SIGTERM)
            assert signals.wait()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert seen == [signal.SIGUSR1]


def test_the_second_signal_calls_back() -> None:
    hurried = Event()
    with StopSignals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        signals.wait()
        signals.call_on_next(hurried.set)
        os.kill(os.getpid(), signal.SIGTERM)
        assert hurried.wait(PATIENCE)


def test_a_thread_can_end_the_wait_unless_a_signal_has_come() -> None:
    with StopSignals() as signals:
        signals.interrupt()
        assert not signals.wait()
        assert not signals.is_received
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.wait()
        assert signals.is_received
        signals.interrupt()  # has no effect any more
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.wait()


def test_without_a_second_signal_nothing_is_called_and_no_thread_waits() -> None:
    hurried = Event()
    with StopSignals() as signals:
        signals.call_on_next(hurried.set)
    assert not hurried.is_set()


def test_afterwards_signals_are_handled_as_before() -> None:
    before = {number: signal.getsignal(number) for number in ENDING}
    with StopSignals():
        assert all(signal.getsignal(number) != handler for number, handler in before.items())
    assert {number: signal.getsignal(number) for number in ENDING} == before
    assert signal.set_wakeup_fd(-1) == -1
