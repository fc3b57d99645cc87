"""The limit on log lines about a failure that repeats: one at once, then one a minute, until a success."""

from mainspring.clock import NANOSECONDS
from mainspring.jobs.worker.failure_log import FailureLog


def test_a_failure_is_logged_at_once_and_then_once_a_minute() -> None:
    log = FailureLog()
    seconds = range(100, 100 + 181)
    logged = [(second, since) for second in seconds if (since := log.failed(second * NANOSECONDS)) is not None]
    assert logged == [(100, 0.0), (160, 60.0), (220, 120.0), (280, 180.0)]


def test_a_failure_after_a_success_is_logged_at_once() -> None:
    log = FailureLog()
    assert log.failed(7) == 0.0
    assert log.failed(8) is None
    log.succeeded()
    assert log.failed(9) == 0.0
    assert log.failed(9 + 60 * NANOSECONDS) == 60.0


def test_the_interval_is_over_after_a_minute_exactly() -> None:
    log = FailureLog()
    log.failed(5)
    assert log.failed(5 + 60 * NANOSECONDS - 1) is None
    assert log.failed(5 + 60 * NANOSECONDS) == 60.0
