"""A program that is called every few seconds starts fast: what it does not need is not loaded."""

import subprocess
import sys

import pytest

from mainspring.cli.main import Commands
from tests.cli.shop import CLEAN, PATIENCE

pytestmark = pytest.mark.long

HELP = """
from mainspring.cli import main
sys.argv = ["mainspring", "--help"]
try:
    main()
except SystemExit:
    pass
"""
NOT_FOR_HELP = {"apsw", "asyncio", "mainspring.jobs", "mainspring.runners", "msgspec", "nats", "pydantic"}
NOT_FOR_THE_NAMES = {
    "apsw",
    "http.client",
    "mainspring.cli",
    "mainspring.engines.memory",
    "mainspring.engines.nats.engine",
    "mainspring.engines.sqlite",
    "mainspring.testing",
    "nats",
    "pydantic",
    "rich",
    "typer",
}


def loaded_by(source: str) -> set[str]:
    script = f"import sys\n{source}\nprint(*sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=CLEAN, timeout=PATIENCE, check=True
    )
    return set(done.stderr.split())


def test_help_loads_no_command_and_nothing_of_jobs() -> None:
    loaded = loaded_by(HELP)
    assert "mainspring.cli.main" in loaded
    assert NOT_FOR_HELP & loaded == set()
    assert {f"mainspring.cli.{name}" for name in Commands.summaries} & loaded == set()


def test_an_application_loads_no_engine_before_it_is_opened_and_nothing_of_the_command_line() -> None:
    loaded = loaded_by("from mainspring import Mainspring\nMainspring('sqlite:///never-opened.db')")
    assert "mainspring.app" in loaded
    assert NOT_FOR_THE_NAMES & loaded == set()


def test_a_name_that_does_not_exist_is_refused_as_python_does() -> None:
    import mainspring  # noqa: PLC0415 - as a user would look for a name

    assert not hasattr(mainspring, "Mainstring")
    with pytest.raises(ImportError, match="cannot import name 'Mainstring' from 'mainspring'"):
        exec("from mainspring import Mainstring")
    assert set(mainspring.__all__) < set(dir(mainspring))
