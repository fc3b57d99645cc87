"""`app.activity()`: what all processes did in each minute, with time travel and across processes and restarts."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import apsw
import pytest

from mainspring import ActivityRow, Mainspring, Retry, Snooze
from mainspring.testing import time_travel
from tests import exiting_program
from tests.programs import program, read_line
from tests.support import PATIENCE

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)


def row_of(app: Mainspring, type_: str) -> ActivityRow:
    (row,) = [row for row in app.activity() if row.type.endswith(type_)]
    return row


@pytest.fixture
def app() -> Mainspring:
    return Mainspring("memory://")


def test_each_minute_of_a_journey_has_its_row(app: Mainspring) -> None:
    @app.job(queue="mail")
    def send() -> None: ...

    with time_travel(app, start=NOON) as travel:
        send.submit()
        send.after(timedelta(minutes=2)).submit()
        travel.fast_forward(minutes=5)
        rows = app.activity()
        assert [(row.start, row.submitted, row.attempts) for row in rows] == [
            (NOON, 2, {"completed": 1}),
            (NOON + timedelta(minutes=2), 0, {"completed": 1}),
        ]
        assert [list(row.lateness) for row in rows] == [["immediate"], ["delayed"]]
        assert all(histogram.count == 1 for row in rows for histogram in row.duration.values())
        assert (rows[0].queue, rows[0].length) == ("mail", timedelta(minutes=1))


def test_since_and_until_choose_the_minutes(app: Mainspring) -> None:
    @app.job
    def ping() -> None: ...

    with time_travel(app, start=NOON) as travel:
        for minute in range(4):
            ping.after(timedelta(minutes=minute)).submit()
        travel.fast_forward(minutes=10)
        starts = [row.start.minute for row in app.activity(since=timedelta(minutes=9))]
        assert starts == [1, 2, 3]
        until = NOON + timedelta(minutes=2)
        assert [row.start.minute for row in app.activity(since=NOON, until=until)] == [0, 1]
        assert [row.start.minute for row in app.activity(since=until, until=timedelta(minutes=7))] == [2]
        assert app.activity(since=timedelta(minutes=1)) == []


@pytest.mark.parametrize("value", ["yesterday", NOON.replace(tzinfo=None), 3600])
def test_other_times_are_refused(app: Mainspring, value: object) -> None:
    with pytest.raises((TypeError, ValueError), match="since must be an aware datetime"):
        app.activity(since=value)  # type: ignore[arg-type]


def test_retries_snoozes_and_failures_are_attempts(app: Mainspring) -> None:
    attempts = iter([Snooze(60), ValueError("once"), ValueError("twice")])

    @app.job(retry=Retry(max_attempts=2, base=60, max_delay=60, jitter=0))
    def flaky() -> None:
        raise next(attempts)

    with time_travel(app, start=NOON) as travel:
        flaky.submit()
        travel.fast_forward(minutes=10)
        rows = app.activity()
        ended = [(outcome, count) for row in rows for outcome, count in row.attempts.items()]
        assert ended == [("snoozed", 1), ("failed", 1), ("failed", 1)]
        assert [row.retries for row in rows] == [0, 1, 0]


def test_expired_jobs_are_counted(app: Mainspring) -> None:
    @app.job(expires=30)
    def brief() -> None: ...

    with time_travel(app, start=NOON) as travel:
        app.queue("default").pause()
        brief.submit()
        travel.fast_forward(minutes=1)
        row = row_of(app, "brief")
        assert (row.submitted, row.attempts, row.lateness) == (1, {"expired": 1}, {})


def test_jobs_of_schedules_follow_ups_and_dead_letters_are_submitted(app: Mainspring) -> None:
    @app.job
    def after_it() -> None: ...

    @app.every(timedelta(minutes=1))
    def tick() -> None: ...

    @app.job(then=after_it)
    def first() -> None: ...

    @app.job(retry=Retry(max_attempts=1))
    def broken() -> None:
        raise ValueError("broken")

    @app.on_dead_letter
    def letter(job_id: str) -> None: ...

    with time_travel(app, start=NOON) as travel:
        first.submit()
        broken.submit()
        travel.fast_forward(minutes=3)
        submitted: dict[str, int] = {}
        kinds: dict[str, set[str]] = {}
        for row in app.activity():
            name = row.type.rpartition(".")[2]
            submitted[name] = submitted.get(name, 0) + row.submitted
            kinds.setdefault(name, set()).update(row.lateness)
        assert submitted == {"after_it": 1, "broken": 1, "first": 1, "letter": 1, "tick": 3}
        assert kinds["tick"] == {"recurring"}


def test_two_applications_add_up_and_the_history_survives_them(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    for _ in range(2):
        with Mainspring(url) as app:

            @app.job(name="send", queue="mail")
            def send() -> None: ...

            send.submit_many([()] * 5)
            with app.running():
                app.queue("mail").drain(timeout=60)
    with Mainspring(url) as reader:
        rows = reader.activity()
        assert sum(row.submitted for row in rows) == 10
        assert sum(row.attempts.get("completed", 0) for row in rows) == 10
        assert sum(histogram.count for row in rows for histogram in row.duration.values()) == 10
        assert asyncio.run(reader.activity_async()) == rows


def test_what_a_process_has_just_done_is_in_its_own_answer(app: Mainspring) -> None:
    @app.job
    def ping() -> None: ...

    with app:
        for number in range(1, 4):
            ping.submit()
            assert sum(row.submitted for row in app.activity()) == number


def test_a_number_of_pairs_is_counted_separately() -> None:
    with Mainspring("memory://", activity_pairs=1) as app:

        @app.job(name="first")
        def first() -> None: ...

        @app.job(name="second")
        def second() -> None: ...

        first.submit()
        second.submit()
        assert {(row.queue, row.type): row.submitted for row in app.activity()} == {
            ("default", "first"): 1,
            ("other", "other"): 1,
        }


@pytest.mark.parametrize("value", [-1, 1.5, "many"])
def test_another_number_of_pairs_is_refused(value: object) -> None:
    with pytest.raises((TypeError, ValueError), match=f"activity_pairs .*{value!r}"):
        Mainspring("memory://", activity_pairs=value)  # type: ignore[arg-type]


def test_an_application_may_count_nothing() -> None:
    app = Mainspring("memory://", activity_pairs=0)

    @app.job
    def ping() -> None: ...

    with app:
        ping.submit()
        assert app.activity() == []
        assert app.manager().recorder is None


# -- the exit of a process that does not close its application


@pytest.mark.long
@pytest.mark.parametrize("action", ["exit", "fork"])
def test_a_process_that_only_submits_stores_its_counts_at_its_exit(tmp_path: Path, action: str) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with program(exiting_program.__file__, url, action) as process:
        _, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, errors) == (0, "")
    with Mainspring(url) as reader:
        assert row_of(reader, "send").submitted == 1


def test_a_locked_store_does_not_hold_up_the_exit(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with program(exiting_program.__file__, f"sqlite:///{path}", "locked") as process:
        assert read_line(process) == "submitted\n"
        connection = apsw.Connection(str(path))
        connection.execute("BEGIN IMMEDIATE")
        _, errors = process.communicate("\n", timeout=PATIENCE)
        assert (process.returncode, errors) == (0, "")
        connection.execute("ROLLBACK")
        connection.close()
    with Mainspring(f"sqlite:///{path}") as reader:
        assert reader.counts()["PENDING"] == 1
        assert reader.activity() == []
