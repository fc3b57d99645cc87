"""What a handler may raise to say how its attempt ends. None of these is an error."""

from __future__ import annotations

from mainspring.clock import Duration, to_nanoseconds


class Snooze(Exception):
    """Not now: run this job again after `delay`. Uses up no attempt."""

    def __init__(self, delay: Duration) -> None:
        to_nanoseconds(delay, "delay")
        self.delay = delay
        super().__init__(f"snooze for {delay}")


class Cancel(Exception):
    """This job is of no use any more: end it as CANCELED, with this reason."""

    def __init__(self, reason: str = "canceled by its handler") -> None:
        self.reason = reason
        super().__init__(reason)
