"""`wait_idle` counts a delayed task from the instant at which it is due, not from its arrival in the queue."""

from __future__ import annotations

import pytest

from mainspring import ThreadPool
from tests.support import Background, Gate


def test_a_task_that_is_due_counts_while_the_timer_is_held_up() -> None:
    ran: list[str] = []
    with ThreadPool(1) as pool:
        held_up = Gate()
        pool.services.delays.call_after(0, held_up)
        held_up.wait_until_entered()
        pool.post(lambda: ran.append("delayed"), delay=0.000_001)
        with pytest.raises(TimeoutError, match=r"was not idle after timeout=0\.05"):
            pool.wait_idle(0.05)
        waiting = Background(pool.wait_idle)
        held_up.open()
        waiting.result()
        assert ran == ["delayed"]


def test_a_callback_of_the_timer_does_not_wait_for_itself() -> None:
    with ThreadPool(1) as pool:
        waited = Gate()
        waited.open()

        def wait() -> None:
            pool.wait_idle()
            waited()

        pool.services.delays.call_after(0, wait)
        waited.wait_until_entered()
