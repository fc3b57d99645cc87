"""`mainspring run` up to the point at which it runs: help, and load errors in one line with a remedy."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from mainspring import EngineUnavailable, Mainspring
from mainspring.cli.loading import load_app
from mainspring.cli.main import commands

USAGE = 2


def run(*arguments: str) -> Result:
    return CliRunner().invoke(commands, list(arguments), env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"})


def message_of(result: Result) -> str:
    """What was wrong, without the box around it."""
    return " ".join(result.output.replace("│", " ").split())


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


def test_an_application_is_found_in_the_working_directory(shop: str) -> None:
    assert isinstance(load_app(f"{shop}:app"), Mainspring)


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
    for name in ("other", "gone"):
        result = run("run", f"{shop}:{name}")
        assert result.exit_code == USAGE
        assert f"'{shop}:{name}' is not a Mainspring application; it has {shop}:app" in message_of(result)


def test_a_module_without_an_application_is_said_to_have_none(folder: Path) -> None:
    (folder / "broken_for_cli.py").write_text("")
    assert "it has none" in message_of(run("run", "broken_for_cli:app"))


def test_a_module_that_imports_what_is_not_there_is_told_by_its_own_error(folder: Path) -> None:
    (folder / "broken_for_cli.py").write_text("import gone_for_cli\n")
    result = run("run", "broken_for_cli:app")
    assert result.exit_code == 1
    assert "gone_for_cli" in repr(result.exception)


@pytest.mark.parametrize("threads", ["0", "-1", "many"])
def test_a_number_of_threads_that_makes_no_sense_is_refused(shop: str, threads: str) -> None:
    result = run("run", f"{shop}:app", "--threads", threads)
    assert result.exit_code == USAGE
    assert "--threads" in message_of(result)


@pytest.mark.parametrize(
    ("options", "expected"),
    [([], (8, None)), (["--threads", "3", "--queues", "orders, mail"], (3, ("orders", "mail")))],
    ids=["none", "all"],
)
def test_options_that_are_given_reach_the_application(
    shop: str, monkeypatch: pytest.MonkeyPatch, options: list[str], expected: tuple[int, tuple[str, ...] | None]
) -> None:
    seen: list[tuple[int, tuple[str, ...] | None]] = []

    def note(app: Mainspring) -> None:
        seen.append((app.threads, app.queues))

    monkeypatch.setattr(Mainspring, "run", note)
    assert run("run", f"{shop}:app", *options).exit_code == 0
    assert seen == [expected]


def test_an_error_of_ours_is_one_line_and_exit_code_three(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "from mainspring import Mainspring\napp = Mainspring('sqlite:///gone/orders.db')\n"
    )
    command = [sys.executable, "-m", "mainspring", "run", "shop:app"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("mainspring: SQLite file ")
    assert "gone does not exist; create it" in done.stderr


def test_a_bad_url_in_the_module_is_an_error_of_ours(folder: Path) -> None:
    (folder / "broken_for_cli.py").write_text("from mainspring import Mainspring\napp = Mainspring('redis://')\n")
    result = run("run", "broken_for_cli:app")
    assert isinstance(result.exception, EngineUnavailable)
