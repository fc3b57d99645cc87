"""`mainspring run` up to the point at which it runs: help, and load errors in one line with a remedy."""

import sys
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mainspring import EngineUnavailable, Mainspring
from mainspring.cli.app_selection import import_app
from mainspring.cli.exit_codes import AppImportFailed
from mainspring.cli.main import commands
from tests.programs import run_python

USAGE = 2


def run(*arguments: str) -> Result:
    return CliRunner().invoke(commands, list(arguments), env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"})


def message_of(result: Result) -> str:
    """The output on one line."""
    return " ".join(result.output.split())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory; what is imported from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("shop_for_cli", "broken_for_cli"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


@pytest.fixture
def shop(folder: Path) -> str:
    """A module with an application."""
    (folder / "shop_for_cli.py").write_text(
        "from mainspring import Mainspring\napp = Mainspring('memory://')\nother = 7\n"
    )
    return "shop_for_cli"


def test_help_shows_the_command_and_its_options() -> None:
    result = run("run", "--help")
    assert result.exit_code == 0
    for part in ("MODULE:APP", "--queues", "--threads", "mainspring run shop:app"):
        assert part in message_of(result)


def test_help_of_the_program_names_its_commands() -> None:
    result = run("--help")
    assert result.exit_code == 0
    assert "run" in result.output


@pytest.fixture(autouse=True)
def log_of_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log stays as it is: it belongs to all tests of this process."""
    monkeypatch.setattr("mainspring.cli.run.start_logging", lambda *_: None)


def test_an_application_is_found_in_the_working_directory(shop: str) -> None:
    assert isinstance(import_app(f"{shop}:app"), Mainspring)


@pytest.mark.parametrize("reference", ["shop", "shop:", ":app", ":", ""])
def test_a_reference_without_both_parts_shows_the_form(folder: Path, reference: str) -> None:
    result = run("run", reference)
    assert result.exit_code == USAGE
    assert "is not of the form module:name; for app in shop.py it is shop:app" in message_of(result)


def test_a_module_that_does_not_exist_is_named_with_where_it_was_looked_for(folder: Path) -> None:
    result = run("run", "gone_for_cli:app")
    assert result.exit_code == USAGE
    assert "there is no module 'gone_for_cli'" in message_of(result)


def test_a_name_that_is_no_application_is_answered_with_those_there_are(shop: str) -> None:
    other = run("run", f"{shop}:other")
    assert other.exit_code == USAGE
    assert f"'{shop}:other' is of the type int, not a Mainspring application; give {shop}:app" in message_of(other)
    gone = run("run", f"{shop}:gone")
    assert gone.exit_code == USAGE
    assert f"the module '{shop}' has no name 'gone'; give {shop}:app" in message_of(gone)


def test_a_module_without_an_application_is_said_to_have_none(folder: Path) -> None:
    (folder / "broken_for_cli.py").write_text("")
    message = message_of(run("run", "broken_for_cli:app"))
    assert (
        "the module 'broken_for_cli' has no name 'app', and the module has no application; write app =" in message
    )


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("import gone_for_cli", "ModuleNotFoundError: No module named 'gone_for_cli'"),
        ("def f(:", "SyntaxError: invalid syntax (broken_for_cli.py, line 1)"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_module_that_cannot_be_imported_is_told_by_its_own_error(
    folder: Path, code: str, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "broken_for_cli.py").write_text(f"{code}\n")
    with pytest.raises(AppImportFailed) as refused:
        import_app("broken_for_cli:app")
    assert str(refused.value) == f"'broken_for_cli:app' cannot be imported: {error}"
    way = capsys.readouterr().err
    assert f'{folder / "broken_for_cli.py"}", line 1' in way
    assert "importlib" not in way


@pytest.mark.parametrize("threads", ["0", "-1", "many"])
def test_a_number_of_threads_that_makes_no_sense_is_refused(shop: str, threads: str) -> None:
    result = run("run", f"{shop}:app", "--threads", threads)
    assert result.exit_code == USAGE
    assert "--threads" in message_of(result)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Mainspring]:
    """The applications that would have been run."""
    applications: list[Mainspring] = []

    class Noted:
        def __init__(self, app: Mainspring, **_options: object) -> None:
            self._app = app

        def run(self) -> None:
            applications.append(self._app)

    monkeypatch.setattr("mainspring.cli.run.Foreground", Noted)
    return applications


def test_without_options_an_application_stays_as_it_is(shop: str, ran: list[Mainspring]) -> None:
    assert run("run", f"{shop}:app").exit_code == 0
    assert [(app.url, app.threads, app.queues, app.stall_after) for app in ran] == [("memory://", 8, None, 60)]


def test_options_that_are_given_reach_the_application(shop: str, ran: list[Mainspring]) -> None:
    options = ["--threads", "3", "--processes", "2", "--queues", "orders, mail", "--stall-after", "5m"]
    options += ["--coroutines", "50", "--grace", "90s"]
    assert run("run", f"{shop}:app", *options, "--url", "sqlite:///other.db").exit_code == 0
    (app,) = ran
    assert (app.coroutines, app.grace) == (50, timedelta(seconds=90))
    assert (app.url, app.threads, app.processes.count) == ("sqlite:///other.db", 3, 2)
    assert (app.queues, app.stall_after) == (("orders", "mail"), timedelta(minutes=5))


def test_an_application_is_found_as_by_all_other_commands(
    shop: str, ran: list[Mainspring], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("run", "--app", f"{shop}:app").exit_code == 0
    assert run("--app", f"{shop}:app", "run").exit_code == 0
    monkeypatch.setenv("MAINSPRING_APP", f"{shop}:app")
    assert run("run").exit_code == 0
    assert [app.url for app in ran] == ["memory://"] * 3


def test_two_different_applications_are_one_too_many(shop: str) -> None:
    result = run("run", f"{shop}:app", "--app", "other:app")
    assert result.exit_code == USAGE
    assert f"two applications are given, '{shop}:app' and --app 'other:app'; give one" in message_of(result)


def test_no_application_at_all_is_answered_with_the_ways_to_name_one(folder: Path) -> None:
    assert "no application or store is named; give --app module:app" in message_of(run("run"))


def test_a_store_alone_has_no_handlers_to_run(folder: Path) -> None:
    result = run("run", "--url", "sqlite:///shop.db")
    assert result.exit_code == USAGE
    assert "a worker needs handlers, and only a store is named; add --app module:app" in message_of(result)


@pytest.mark.parametrize(
    ("option", "value"),
    [("--stall-after", "soon"), ("--queues", ","), ("--log-format", "xml"), ("--log-level", "x")],
)
def test_options_that_make_no_sense_are_refused(shop: str, ran: object, option: str, value: str) -> None:
    result = run("run", f"{shop}:app", option, value)
    assert result.exit_code == USAGE
    assert value in message_of(result)


def test_an_error_of_ours_is_one_line_and_exit_code_three(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "from mainspring import Mainspring\napp = Mainspring('sqlite:///gone/orders.db')\n"
    )
    done = run_python("-m", "mainspring", "run", "shop:app", folder=tmp_path)
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("mainspring: SQLite file ")
    assert "gone does not exist; create the directory" in done.stderr


def test_a_bad_url_in_the_module_is_an_error_of_ours(folder: Path) -> None:
    (folder / "broken_for_cli.py").write_text("from mainspring import Mainspring\napp = Mainspring('redis://')\n")
    result = run("run", "broken_for_cli:app")
    assert isinstance(result.exception, EngineUnavailable)
