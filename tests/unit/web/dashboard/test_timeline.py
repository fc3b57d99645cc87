"""The timeline of a job: from its submit over its attempts to its end."""

from datetime import UTC, datetime

from mainspring import Mainspring, Retry
from mainspring.testing import TimeTravel, time_travel
from mainspring.web.api.job_views import to_view
from mainspring.web.dashboard.timeline import split_error, timeline_of

START = datetime(2026, 1, 5, 12, tzinfo=UTC)
ERROR = """ValueError: bad
  File "shop.py", line 8, in ship
    raise ValueError("bad") from error
caused by: KeyError: 'order'
  File "shop.py", line 3, in find
raised while this was handled: OSError: gone"""


def kinds(app: Mainspring, travel: TimeTravel, job_id: str) -> list[tuple[str, str]]:
    return [(entry.kind, entry.title) for entry in timeline_of(to_view(app.get(job_id)), travel.now)]


def test_an_error_is_split_into_its_exceptions() -> None:
    first, cause, context = split_error(ERROR)
    assert (first.relation, first.title, len(first.lines)) == ("", "ValueError: bad", 2)
    assert (cause.relation, cause.title) == ("caused by", "KeyError: 'order'")
    assert (context.relation, context.title, context.lines) == (
        "raised while this was handled",
        "OSError: gone",
        (),
    )
    assert split_error(None) == split_error("") == ()
    assert split_error("caused by: nothing")[0].title == "caused by: nothing"


def test_attempts_are_told_in_order(app: Mainspring) -> None:
    with time_travel(app, start=START) as travel:
        is_down = [True]

        @app.job(name="ship", retry=Retry(max_attempts=3, base=10, factor=1, jitter=0))
        def ship() -> None:
            if is_down:
                raise ValueError("down")

        job_id = ship.submit().id
        travel.settle()
        assert kinds(app, travel, job_id) == [
            ("submitted", "Submitted"),
            ("failed", "Attempt 1 failed"),
            ("waits", "Attempt 2 is due"),
        ]
        entries = timeline_of(to_view(app.get(job_id)), travel.now)
        assert entries[1].error[0].title == "ValueError: down"
        assert entries[1].seconds == 0
        assert entries[2].is_future
        is_down.clear()
        travel.fast_forward(10)
        assert kinds(app, travel, job_id)[2:] == [("completed", "Attempt 2 completed")]


def test_ends_have_their_reasons(app: Mainspring) -> None:
    with time_travel(app, start=START) as travel:

        @app.job(name="fail", retry=Retry(max_attempts=1))
        def fail() -> None:
            raise ValueError

        failed = fail.submit().id
        canceled = fail.options(delay=60).submit().id
        expired = fail.options(queue="paused", expires=5).submit
        app.queue("paused").pause()
        late = expired().id
        app.cancel(canceled)
        travel.fast_forward(60)
        assert kinds(app, travel, failed)[1:] == [
            ("failed", "Attempt 1 failed"),
            ("failed", "Given up: it is a dead letter"),
        ]
        assert kinds(app, travel, canceled)[1:] == [("canceled", "Canceled")]
        assert kinds(app, travel, late)[1:] == [("expired", "Expired before it could start")]
