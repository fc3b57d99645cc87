"""What users of other job systems write by habit is an error that says how to write it."""

from __future__ import annotations

from inspect import signature
from typing import Any

import pytest

from mainspring import InvalidArguments, Mainspring
from mainspring.jobs import peer_names


@pytest.fixture
def app() -> Any:
    return Mainspring("memory://")  # Any, because type checkers refuse most of these calls


def handler(order_id: int) -> None:
    """The handler of all tests."""


@pytest.mark.parametrize(
    "name",
    ["delay", "apply_async", "enqueue", "enqueue_in", "send", "send_with_options", "schedule", "kiq", "defer"],
)
def test_a_job_function_says_how_it_is_submitted(app: Any, name: str) -> None:
    with pytest.raises(AttributeError, match=rf"^JobFunction has no '{name}'; write .*submit"):
        getattr(app.job(handler), name)


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("task", "@app.job"),
        ("actor", "@app.job"),
        ("add_job", "@app.cron"),
        ("scheduled_job", "@app.every"),
        ("periodic_task", "app.schedules.put"),
        ("enqueue", "submit"),
    ],
)
def test_an_application_says_how_jobs_are_declared(app: Any, name: str, ours: str) -> None:
    with pytest.raises(AttributeError, match=f"^Mainspring has no '{name}'; write .*{ours}"):
        getattr(app, name)


@pytest.mark.parametrize("name", ["nothing", "_private", "__wrapped__"])
def test_another_missing_attribute_has_the_usual_error(app: Any, name: str) -> None:
    with pytest.raises(AttributeError, match=f"^'Mainspring' object has no attribute '{name}'$") as caught:
        getattr(app, name)
    assert (caught.value.name, caught.value.obj) == (name, app)


@pytest.mark.parametrize(
    ("options", "ours"),
    [
        ({"retries": 3}, r"write retry=Retry\(max_attempts=4\)"),
        ({"max_retries": 3}, r"write retry=Retry\(max_attempts=4\)"),
        ({"time_limit": 30}, "write timeout="),
        ({"rate_limit": "10/m"}, "write rate=Rate"),
        ({"quueue": "a"}, "did you mean 'queue'"),
        ({"colour": 1}, r" \(it has aliases, at_most_once"),
    ],
)
def test_a_decorator_says_what_it_has_instead(app: Any, options: dict[str, Any], ours: str) -> None:
    with pytest.raises(TypeError, match=f"@app.job has no option '{next(iter(options))}'.*{ours}"):
        app.job(**options)(handler)
    with pytest.raises(TypeError, match=f"remote_job.. has no option '{next(iter(options))}'.*{ours}"):
        app.remote_job("resize", **options)


@pytest.mark.parametrize(
    ("options", "ours"),
    [
        ({"countdown": 60}, r"write after\(60\)"),
        ({"eta": None}, r"write at\(instant\)"),
        ({"que": "orders"}, "did you mean 'queue'"),
    ],
)
def test_the_options_of_a_submit_say_how_they_are_written(app: Any, options: dict[str, Any], ours: str) -> None:
    with pytest.raises(TypeError, match=rf"options\(\) has no option '{next(iter(options))}'; {ours}"):
        app.job(handler).options(**options)


def test_an_option_among_the_arguments_says_how_it_is_written(app: Any) -> None:
    with pytest.raises(InvalidArguments, match=r"countdown.*for the option, write after\(60\)"):
        app.job(handler).submit(42, countdown=60)
    with pytest.raises(InvalidArguments) as caught:
        app.job(handler).submit()
    assert "write" not in str(caught.value)


@pytest.mark.parametrize("options", [{"hour": 2}, {"minute": 0, "hour": 2}, {"day_of_week": "mon"}])
def test_a_schedule_takes_an_expression(app: Any, options: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r'cron\(\) has no option .*write a cron expression: @app.cron\("0 2'):
        app.cron(**options)
    with pytest.raises(TypeError, match=r"every\(\) has no option .*timedelta"):
        app.every(60, **options)


@pytest.mark.parametrize("decorator", ["every", "on_dead_letter"])
def test_options_below_which_a_schedule_would_go_on_without_them_are_refused(app: Any, decorator: str) -> None:
    declared = (app.every(60) if decorator == "every" else app.on_dead_letter)(lambda letter=None: None)
    with pytest.raises(TypeError, match=r"job function .*put @app.cron, @app.every and @app.on_dead_letter above"):
        app.job(queue="reports")(declared)


def test_the_signatures_stay_readable(app: Any) -> None:
    assert list(signature(app.every).parameters)[:2] == ["interval", "misfire"]
    assert "sequence" in signature(app.job(handler).options).parameters


def test_no_name_of_ours_is_listed(app: Any) -> None:
    job = app.job(handler)
    calls = app.job, app.cron, app.every, app.remote_job, app.http_job, job.options
    ours = {name for call in calls for name in signature(call).parameters}
    assert ours & peer_names._OPTIONS.keys() == set()
    assert [name for name in peer_names._OF_JOBS if hasattr(job, name)] == []
    assert [name for name in peer_names._OF_APPLICATIONS if hasattr(app, name)] == []
