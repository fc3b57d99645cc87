"""The overview: numbers, problems with remedies, history, and what a restricted token sees of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mainspring import Mainspring
from mainspring.jobs.activity import Tally
from mainspring.jobs.activity_rows import ActivityBatch, ActivityRow, counts_of
from mainspring.jobs.histogram import Histogram
from mainspring.jobs.manager import JobManager
from mainspring.security.permissions import ALL_PERMISSIONS, Permissions, Scope
from mainspring.web.dashboard.history import RANGES, add_up
from tests.dashboard_client import DashboardBrowser, visible_text


@pytest.fixture
def app() -> Iterator[Mainspring]:
    with Mainspring("memory://") as app:
        yield app


def add_jobs(app: Mainspring) -> None:
    send = app.job(name="mail.send", queue="mail")(lambda: None)
    pay = app.job(name="orders.pay", queue="money")(lambda: None)
    for _ in range(3):
        send.after(timedelta(seconds=30)).submit()
    pay.after(timedelta(minutes=30)).submit()
    pay.after(timedelta(hours=5)).submit()


def record(app: Mainspring, minutes_ago: int, **counts: int) -> None:
    """Store what a process did at a time: completed and failed attempts of `mail.send`, 2 ms late."""
    engine = app.manager().engine
    tally = Tally()
    tally.attempts = {("mail", "mail.send", outcome): number for outcome, number in counts.items()}
    lateness = Histogram()
    lateness.observe_all([2_000] * sum(counts.values()))
    tally.lateness = {("mail", "mail.send", "immediate"): lateness}
    minute = engine.now() // 60_000_000 - minutes_ago
    with engine.unit(durable=False):
        engine.record_activity(ActivityBatch(f"process {minutes_ago}", 1, tuple(counts_of({minute: tally}))))


def tiles(text: str) -> dict[str, str]:
    """Return the numbers of the tiles by their labels."""
    found = re.findall(r'tile-label">([^<]+)</span>\s*<span class="tile-value[^"]*">([^<]+)<', text)
    return dict(found)


def test_a_new_store_says_what_to_do_next(app: Mainspring) -> None:
    text = DashboardBrowser(app).text("/")
    assert "No jobs yet" in text
    assert "mainspring run MODULE:APP" in text


def test_the_tiles_tell_due_blocked_and_scheduled_jobs_apart(app: Mainspring) -> None:
    add_jobs(app)
    ready = app.job(name="ready", queue="mail")(lambda: None)
    held = app.job(name="held", queue="paused")(lambda: None)
    ready.submit()
    held.submit()
    app.queue("paused").pause()
    found = tiles(DashboardBrowser(app).get("/").body.decode())
    assert {name: found[name] for name in ("Due", "Blocked", "Scheduled", "Running", "Workers")} == {
        "Due": "1",
        "Blocked": "1",
        "Scheduled": "5",
        "Running": "0",
        "Workers": "0",
    }


def test_the_headline_is_the_lateness_of_the_last_minutes(app: Mainspring) -> None:
    record(app, 3, completed=90, failed=10)
    record(app, 40, completed=500)
    text = DashboardBrowser(app).text("/")
    headline = text.partition("Lateness")[2]
    assert re.search(r"p50 1.\d\d? ms p99 2.\d\d? ms", headline), headline[:200]
    assert "90 completed" in text
    assert "completed 590" in text, "the history of the last hour"


@pytest.mark.parametrize("name", [each.name for each in RANGES])
def test_every_range_of_the_history_is_shown(app: Mainspring, name: str) -> None:
    record(app, 10, completed=7)
    page = DashboardBrowser(app).get(f"/?range={name}").body.decode()
    assert re.search(rf'range={name}" aria-current="true"', page)
    assert "completed 7" in visible_text(DashboardBrowser(app).get(f"/?range={name}"))


def test_the_history_is_read_from_the_begin_of_its_first_column(
    app: Mainspring, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the first column would have more than the minutes of its period, if time goes on meanwhile."""
    read: list[float] = []

    def activity(manager: JobManager, since: datetime, **options: Any) -> list[ActivityRow]:
        read.append(since.timestamp() % (options["step"] / 1_000_000))
        return []

    monkeypatch.setattr(JobManager, "activity", activity)
    for each in RANGES:
        DashboardBrowser(app).get(f"/?range={each.name}")
    assert len(read) > len(RANGES)
    assert set(read) == {0}


def test_problems_come_first_and_name_their_remedies(app: Mainspring) -> None:
    job = app.job(name="mail.send", queue="mail")(lambda: None)
    job.submit()
    app.queue("mail").pause()
    text = DashboardBrowser(app).text("/")
    problem = text.index("The queue mail is paused, and 1 job waits for it")
    assert problem < text.index("Lateness")
    assert "mainspring queues resume mail" in text


def test_a_store_without_a_worker_is_a_problem(app: Mainspring) -> None:
    add_jobs(app)
    text = DashboardBrowser(app, "read").text("/")
    assert "No worker is running" in text
    assert "5 jobs will be due later" in text


def test_a_restricted_token_sees_nothing_of_other_types(app: Mainspring) -> None:
    add_jobs(app)
    record(app, 3, completed=90)
    browser = DashboardBrowser(app, "read", types=["orders.pay"])
    answer = browser.get("/")
    assert "mail" not in answer.body.decode()
    assert tiles(answer.body.decode())["Scheduled"] == "2"
    text = visible_text(answer)
    assert "0 completed" in text
    assert "Workers" not in tiles(answer.body.decode())
    assert wheel_counts(answer.body.decode()) == {"hour": 1, "day": 1}


def wheel_counts(page: str) -> dict[str, int]:
    """Return how many jobs each ring of the clock has."""
    found: dict[str, int] = {}
    for name, ring in re.findall(r'<g class="wheel-ring (\w+)"(.*?)</g>', page, re.DOTALL):
        jobs = sum(int(number.replace(",", "")) for number in re.findall(r"<title>([\d,]+) ", ring))
        if jobs:
            found[name] = jobs
    return found


def test_each_scheduled_job_is_in_one_ring_of_the_clock(app: Mainspring) -> None:
    add_jobs(app)
    page = DashboardBrowser(app).get("/").body.decode()
    assert wheel_counts(page) == {"minute": 3, "hour": 1, "day": 1}
    assert "Timing wheel: 5 jobs are due within a day" in page


def test_names_of_types_and_queues_are_escaped(app: Mainspring) -> None:
    name = "<script>alert(1)</script>"
    app.job(name=name, queue='"><img src=x>')(lambda: None).after(timedelta(hours=1)).submit()
    page = DashboardBrowser(app).get("/").body.decode()
    assert name not in page
    assert "<img" not in page
    assert "&lt;script&gt;alert(1)" in page


def test_no_page_has_a_style_attribute_or_an_inline_script(app: Mainspring) -> None:
    add_jobs(app)
    record(app, 3, completed=5, failed=1)
    browser = DashboardBrowser(app)
    for answer in (
        browser.get("/"),
        DashboardBrowser(app, is_logged_in=False).get("/login"),
        browser.get("/none"),
    ):
        page = answer.body.decode()
        assert not re.search(r"<[^>]+ (style|on\w+)=", page)
        assert "<style" not in page
        assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", page))
        assert not re.findall(r'(?:href|src|action)="(?:https?:)?//', page)


def row(start: datetime, **values: Any) -> ActivityRow:
    given: dict[str, Any] = {
        "length": timedelta(minutes=1),
        "queue": "mail",
        "type": "mail.send",
        "submitted": 0,
        "attempts": {},
        "retries": 0,
        "lateness": {},
        "duration": {},
    }
    return ActivityRow(start=start, **(given | values))


def test_activity_is_added_up_by_periods_as_far_as_the_caller_may_read_it() -> None:
    since = datetime(2026, 11, 17, 10, 0, tzinfo=UTC)
    rows = [
        row(since, attempts={"completed": 5, "failed": 1}),
        row(since + timedelta(minutes=4), attempts={"timeout": 2, "canceled": 3}, retries=2),
        row(since + timedelta(minutes=5), submitted=4),
        row(since + timedelta(minutes=5), submitted=100, type="other"),
    ]
    until = since + timedelta(minutes=10)
    reader = Permissions(scopes=frozenset({Scope.READ}), types=frozenset({"mail.send"}))
    history = add_up(rows, since, until, timedelta(minutes=5), reader)
    assert [period.start for period in history.periods] == [since, since + timedelta(minutes=5)]
    first, second = history.periods
    assert (first.completed, first.failed, first.other, first.retries) == (5, 3, 3, 2)
    assert (second.submitted, history.total.submitted) == (4, 4)
    assert add_up(rows, since, until, timedelta(minutes=5), ALL_PERMISSIONS).total.submitted == 104
