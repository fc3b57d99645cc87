"""The application: urls, decorators, opening and closing, running."""

import sys
from pathlib import Path
from typing import Any

import pytest

from mainspring import (
    EngineUnavailable,
    JobStatus,
    Keep,
    Mainspring,
    Priority,
    ProcessSettings,
    Retry,
    UnknownHandler,
)
from tests.support import PATIENCE, within


def double(number: int) -> int:
    """Twice as much."""
    return number * 2


# -- urls


@pytest.mark.parametrize(
    "url",
    [
        "",
        "orders.db",
        "sqlite:",
        "sqlite://",
        "sqlite:///",
        "sqlite://orders.db",
        "memory:",
        "memory://x",
        "redis://localhost",
        "http://x",
    ],
)
def test_a_url_of_no_engine_is_refused_with_examples(url: str) -> None:
    with pytest.raises(EngineUnavailable, match=r"use 'sqlite:///orders\.db' \(relative\)"):
        Mainspring(url)


@pytest.mark.parametrize("url", [7, Path("orders.db")], ids=repr)
def test_a_url_that_is_no_string_is_refused(url: Any) -> None:
    with pytest.raises(TypeError, match="url must be a string such as"):
        Mainspring(url)


def test_the_default_is_a_file_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Mainspring() as app:
        app.counts()
    assert (tmp_path / "mainspring.db").exists()


def test_a_relative_file_is_found_again_from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Mainspring("sqlite:///orders.db") as app:
        app.counts()
        assert str(tmp_path / "orders.db") in app.manager().engine.description


def test_four_slashes_are_an_absolute_path(tmp_path: Path) -> None:
    with Mainspring(f"sqlite:///{tmp_path / 'deep.db'}") as app:
        app.counts()
    assert (tmp_path / "deep.db").exists()


def test_nothing_is_opened_before_the_first_use(tmp_path: Path) -> None:
    app = Mainspring(f"sqlite:///{tmp_path / 'orders.db'}")
    app.job(double)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_does_not_exist_is_named(tmp_path: Path) -> None:
    app = Mainspring(f"sqlite:///{tmp_path / 'gone' / 'orders.db'}")
    with pytest.raises(EngineUnavailable, match=r"gone does not exist; create the directory"):
        app.counts()


@pytest.mark.parametrize(
    "options",
    [
        {"serializer": "pickle"},
        {"grace": -1},
        {"threads": 0},
        {"coroutines": 0},
        {"max_payload": 0},
        {"durability": "maybe"},
        {"processes": 0},
    ],
    ids=repr,
)
def test_options_that_make_no_sense_are_refused_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(options))} must"):
        Mainspring("memory://", **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": 7}, r"keep must be a Keep such as Keep\(.*got 7"),
        ({"processes": "two"}, "processes must .*got 'two'"),
        ({"processes": True}, "processes must .*got True"),
        ({"threads": "8"}, "threads must be a positive whole number of threads, got '8'"),
        ({"grace": "soon"}, "grace must be a timedelta or a number of seconds, got 'soon'"),
    ],
    ids=repr,
)
def test_options_of_another_type_are_refused_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Mainspring("memory://", **options)


def test_a_number_of_processes_and_their_settings_are_two_ways_to_say_it() -> None:
    settings = ProcessSettings(count=2, max_jobs=100)
    assert Mainspring("memory://", processes=2).processes == ProcessSettings(count=2)
    assert Mainspring("memory://", processes=settings).processes == settings


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count": 0}, "count must be a positive number of processes, got 0"),
        ({"max_jobs": 0}, "max_jobs must be a positive number of jobs, got 0"),
        ({"max_memory": -1}, "max_memory must be a positive number of bytes, got -1"),
    ],
    ids=repr,
)
def test_settings_of_processes_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ProcessSettings(**options)


def test_by_default_letters_are_kept_for_ever_and_the_rest_for_a_week() -> None:
    assert Mainspring("memory://").keep == Keep()
    assert Mainspring("memory://", keep=Keep(completed=60)).keep == Keep(completed=60)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"concurrency": 7}, r"concurrency must be a Concurrency such as Concurrency\(.*got 7"),
        ({"rate": "fast"}, r"rate must be a Rate such as Rate\(.*got 'fast'"),
    ],
    ids=repr,
)
def test_limits_of_a_queue_of_another_type_are_refused(limits: dict[str, Any], message: str) -> None:
    app = Mainspring("memory://")
    with pytest.raises(TypeError, match=message):
        app.queue("mail", **limits)
    assert app.limits.queues() == ()


def test_a_queue_without_limits_declares_none() -> None:
    app = Mainspring("memory://")
    app.queue("mail")
    assert app.limits.queues() == ()


def test_what_is_no_middleware_is_refused() -> None:
    wrong: Any = 7
    with pytest.raises(TypeError, match=r"middleware must be a Middleware such as .*got 7"):
        Mainspring("memory://").middleware(wrong)


def test_queues_as_one_string_are_refused() -> None:
    queues: Any = "orders"
    with pytest.raises(TypeError, match="queues must"):
        Mainspring("memory://", queues=queues)


def test_an_application_shows_its_url() -> None:
    assert repr(Mainspring("memory://")) == "Mainspring('memory://')"


# -- decorators


def test_a_bare_decorator_registers_a_handler(app: Mainspring) -> None:
    job = app.job(double)
    assert job.name == f"{__name__}.double"
    assert job.name in app.registry


def test_a_decorated_function_is_still_a_function(app: Mainspring) -> None:
    job = app.job(double)
    assert job(21) == 42
    assert (job.__name__, job.__doc__, job.__wrapped__) == ("double", "Twice as much.", double)  # type: ignore[attr-defined]


def test_a_decorator_with_options_registers_them(app: Mainspring) -> None:
    app.job(
        name="shop.double", queue="orders", priority=Priority.BEST_EFFORT, retry=Retry(max_attempts=2, jitter=0)
    )(double)
    options = app.registry.get("shop.double").options
    assert (options.queue, options.priority, options.retry.max_attempts) == ("orders", Priority.BEST_EFFORT, 2)


def test_a_decorator_without_a_policy_has_the_default_one(app: Mainspring) -> None:
    app.job(name="shop.double", retry=None)(double)
    assert app.registry.get("shop.double").options.retry == Retry()


def test_a_decorator_with_no_options_is_called(app: Mainspring) -> None:
    assert app.job()(double)(2) == 4


def test_a_queue_given_as_an_argument_is_refused_with_a_hint(app: Mainspring) -> None:
    decorate: Any = app.job
    with pytest.raises(TypeError, match="options are given by keyword"):
        decorate("orders")


def test_an_unknown_option_is_refused_with_those_that_exist(app: Mainspring) -> None:
    decorate: Any = app.job
    with pytest.raises(TypeError, match=r"color.*queue.*retry.*timeout"):
        decorate(color="red")(double)


@pytest.mark.parametrize("name", ["", "a\nb"])
def test_a_name_that_cannot_be_printed_is_refused(app: Mainspring, name: str) -> None:
    with pytest.raises(ValueError, match="name must"):
        app.job(name=name)(double)


def test_a_variant_shows_its_handler(app: Mainspring) -> None:
    assert repr(app.job(name="shop.double")(double).after(5)) == "<JobFunction shop.double>"


def test_a_variant_is_still_a_function(app: Mainspring) -> None:
    assert app.job(double).after(5)(21) == 42


# -- opening and closing


def test_a_file_keeps_its_jobs_when_it_is_closed_and_opened_again(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'orders.db'}"
    with Mainspring(url) as app:
        handle = app.job(name="double")(double).submit(21)
    with Mainspring(url) as again:
        again.job(name="double")(double)
        with again.running():
            assert again.handle(handle.id).result(PATIENCE) == 42


def test_a_closed_application_opens_again_when_it_is_used(tmp_path: Path) -> None:
    app = Mainspring(f"sqlite:///{tmp_path / 'orders.db'}")
    handle = app.job(double).submit(1)
    app.close()
    assert handle.status() is JobStatus.PENDING
    app.close()


def test_closing_twice_is_fine(app: Mainspring) -> None:
    app.counts()
    app.close()
    app.close()


def test_closing_what_was_never_used_is_fine(url: str) -> None:
    Mainspring(url).close()


def test_jobs_of_an_application_are_seen_by_another_on_the_same_file(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'orders.db'}"
    with Mainspring(url) as web, Mainspring(url) as worker:
        handle = web.job(name="double")(double).submit(21)
        worker.job(name="double")(double)
        with worker.running():
            assert handle.result(PATIENCE) == 42


def test_memory_belongs_to_its_application() -> None:
    with Mainspring("memory://") as one, Mainspring("memory://") as other:
        one.job(double).submit(1)
        assert sum(other.counts().values()) == 0


# -- running


def test_jobs_run_while_the_block_lasts(app: Mainspring) -> None:
    job = app.job(double)
    with app.running() as same:
        assert same is app
        assert job.submit(21).result(PATIENCE) == 42
    assert job.submit(21).status() is JobStatus.PENDING


def test_running_twice_in_one_process_is_refused_and_the_first_goes_on(app: Mainspring) -> None:
    job = app.job(double)
    with app.running():
        with pytest.raises(RuntimeError, match="already"), app.running():
            pass
        assert job.submit(21).result(PATIENCE) == 42


def test_running_again_later_is_fine(app: Mainspring) -> None:
    job = app.job(double)
    for _ in range(2):
        with app.running():
            assert job.submit(21).result(PATIENCE) == 42


def test_an_error_inside_of_the_block_stops_the_worker_too(app: Mainspring) -> None:
    with pytest.raises(ZeroDivisionError), app.running():
        _ = 1 // 0
    with app.running():
        pass


def test_modules_are_included_when_jobs_are_run(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "included_handlers.py").write_text(
        "from included_app import app\n@app.job\ndef greet(): return 'hi'\n"
    )
    (tmp_path / "included_app.py").write_text(
        f"from mainspring import Mainspring\napp = Mainspring({url!r}, include=['included_handlers'])\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    try:
        import included_app  # type: ignore[import-not-found]  # noqa: PLC0415 - written above

        app: Mainspring = included_app.app
        before = "included_handlers.greet" in app.registry
        with app, app.running():
            job = app.manager().submit("included_handlers.greet")
            assert app.handle(job).result(PATIENCE) == "hi"
        assert not before
    finally:
        for name in ("included_app", "included_handlers"):
            sys.modules.pop(name, None)


def test_running_in_the_foreground_needs_the_main_thread(app: Mainspring) -> None:
    with pytest.raises(RuntimeError, match=r"only the main thread can; use `with app\.running\(\):` elsewhere"):
        within(app.run)


def test_an_unknown_handler_is_refused_by_the_manager(app: Mainspring) -> None:
    with pytest.raises(UnknownHandler):
        app.manager().submit("gone")


@pytest.mark.parametrize("serializer", ["json", "msgpack"])
def test_each_serializer_carries_arguments_and_results(url: str, serializer: Any) -> None:
    with Mainspring(url, serializer=serializer) as app, app.running():

        @app.job(name="shop.pair")
        def pair(left: bytes, right: set[int]) -> tuple[bytes, set[int]]:
            return left, right

        assert pair.submit(b"\xff\x00", {1, 2}).result(PATIENCE) == (b"\xff\x00", {1, 2})


def test_jobs_stored_by_another_serializer_still_run(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'orders.db'}"
    with Mainspring(url, serializer="msgpack") as before:
        handle = before.job(name="double")(double).submit(21)
    with Mainspring(url, serializer="json") as after:
        after.job(name="double")(double)
        with after.running():
            assert after.handle(handle.id).result(PATIENCE) == 42


# -- backups


def test_a_backup_has_what_the_file_has(tmp_path: Path) -> None:
    with Mainspring(f"sqlite:///{tmp_path / 'orders.db'}") as app:
        handle = app.job(double).submit(21)
        app.backup(str(tmp_path / "copy.db"))
    with Mainspring(f"sqlite:///{tmp_path / 'copy.db'}") as copy:
        assert copy.get(handle.id).arguments == {"number": 21}


def test_memory_cannot_be_backed_up(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable, match="memory cannot be backed up"):
        Mainspring("memory://").backup(str(tmp_path / "copy.db"))


def test_a_due_time_that_is_none_is_refused_with_the_remedy() -> None:
    job = Mainspring("memory://").job(name="later")(lambda: None)
    nothing: Any = None
    with pytest.raises(TypeError, match=r"after\(\) needs .*, got None; leave after\(\) out"):
        job.after(nothing)
    with pytest.raises(TypeError, match=r"at\(\) needs an aware datetime, got None"):
        job.at(nothing)
