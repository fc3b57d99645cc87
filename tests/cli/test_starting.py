"""A program that is called every few seconds starts fast: what it does not need is not loaded."""

from pathlib import Path

import pytest

from mainspring.cli.exit_codes import ExitCode
from mainspring.cli.main import commands
from tests.cli.shop_program import ENVIRONMENT, ShopProgram
from tests.programs import run_python

pytestmark = pytest.mark.long

NOT_FOR_HELP = {"apsw", "asyncio", "mainspring.jobs", "mainspring.runners", "msgspec", "nats", "rich"}
NOT_FOR_A_LIST = {
    "asyncio",
    "http.client",
    "importlib.metadata",
    "mainspring.bench",
    "mainspring.demo",
    "mainspring.engines.sqlite.memory",
    "mainspring.engines.nats",
    "mainspring.foreground.foreground",
    "mainspring.jobs.worker.host",
    "nats",
    "rich.markdown",
    "rich.progress",
    "tomllib",
}
NOT_FOR_A_PLAIN_LIST = {
    "mainspring.cli.queues",
    "mainspring.jobs.explanation",
    "mainspring.jobs.recurrence.cron",
    "mainspring.jobs.recurrence.schedules",
    "mainspring.jobs.statistics",
    "mainspring.jobs.tokens",
    "mainspring.jobs.worker_status",
    "mainspring.security.http_limits",
    "socket",
    "zoneinfo",
}
NOT_FOR_THE_NAMES = {
    "apsw",
    "http.client",
    "mainspring.cli",
    "mainspring.engines.sqlite.memory",
    "mainspring.engines.nats.engine",
    "mainspring.engines.sqlite",
    "mainspring.testing",
    "click",
    "nats",
    "rich",
}


def loaded_by(source: str) -> set[str]:
    script = f"import sys\n{source}\nprint('loaded:', *sys.modules, file=sys.stderr)"
    done = run_python("-c", script, environment=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.partition("loaded:")[2].split())


def loaded_by_command(*arguments: str, code: int = 0) -> set[str]:
    return loaded_by(f"""
from mainspring.cli import main
sys.argv = ["mainspring", *{arguments!r}]
try:
    main()
except SystemExit as end:
    assert end.code == {int(code)}, end.code
""")


def test_help_loads_no_command_and_nothing_of_jobs() -> None:
    loaded = loaded_by_command("--help")
    assert "mainspring.cli.main" in loaded
    assert NOT_FOR_HELP & loaded == set()
    assert {f"mainspring.cli.{name}" for name in commands.commands} & loaded == set()


def test_a_probe_loads_no_application_and_no_jobs(tmp_path: Path) -> None:
    loaded = loaded_by_command("healthcheck", "--live", "--health-dir", str(tmp_path), code=ExitCode.FAILURE)
    assert "mainspring.foreground.health_files" in loaded
    assert (NOT_FOR_HELP - {"msgspec", "rich"}) & loaded == set()


def test_a_list_loads_what_it_needs(shop: ShopProgram) -> None:
    (job,) = shop.submit({"order_id": 1})
    for arguments in (("jobs", "list"), ("explain", job)):
        loaded = loaded_by_command(*arguments, "--url", shop.url)
        assert "mainspring.engines.sqlite.engine" in loaded
        assert NOT_FOR_A_LIST & loaded == set()


def test_a_list_in_a_pipe_loads_nothing_for_terminals(shop: ShopProgram) -> None:
    shop.submit({"order_id": 1})
    loaded = loaded_by_command("jobs", "list", "--url", shop.url)
    assert {name for name in loaded if name.partition(".")[0] == "rich"} == set()


def test_a_list_loads_nothing_of_schedules_statistics_and_tokens(shop: ShopProgram) -> None:
    shop.submit({"order_id": 1})
    assert NOT_FOR_A_PLAIN_LIST & loaded_by_command("jobs", "list", "--url", shop.url) == set()


def test_names_load_no_engine_and_nothing_of_the_command_line() -> None:
    loaded = loaded_by("from mainspring import Mainspring")
    assert "mainspring.app" in loaded
    assert NOT_FOR_THE_NAMES & loaded == set()


def test_an_application_loads_its_engine_at_once_and_no_other(tmp_path: Path) -> None:
    script = f"from mainspring import Mainspring\nMainspring('sqlite:///{tmp_path}/jobs.db')"
    loaded = loaded_by(script)
    assert "mainspring.engines.sqlite.engine" in loaded
    assert NOT_FOR_THE_NAMES & loaded == {"apsw", "mainspring.engines.sqlite"}
    first_use = f"{script}.manager().engine.now()"
    assert [m for m in loaded_by(first_use) - loaded if m.startswith("mainspring")] == []  # forks may interrupt it


def test_calls_of_an_application_import_nothing_that_a_fork_could_interrupt(tmp_path: Path) -> None:
    script = f"""
from mainspring import Mainspring
app = Mainspring("sqlite:///{tmp_path}/jobs.db")

@app.every(60)
def clean() -> None: ...

job = clean.submit()
"""
    calls = """
app.schedules.put("hourly", clean, "0 * * * *")
app.store_declarations(app.manager())
app.schedules.list(), app.tokens.list(), app.statistics(), app.workers(), app.jobs(), app.explain(job.id)
list(app.events(timeout=0))
"""
    ended = "app.close()"
    loaded = loaded_by(script + ended)
    assert [name for name in loaded_by(script + calls + ended) - loaded if name.startswith("mainspring")] == []


def test_a_name_that_does_not_exist_is_refused_as_python_does() -> None:
    import mainspring  # noqa: PLC0415 - as a user would look for a name

    assert not hasattr(mainspring, "Mainstring")
    with pytest.raises(ImportError, match="cannot import name 'Mainstring' from 'mainspring'"):
        exec("from mainspring import Mainstring")
    assert set(mainspring.__all__) < set(dir(mainspring))
