"""What all commands share: help, exit codes, terminals and pipes, completion."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mainspring.cli.commands import load, summary_of
from mainspring.cli.exit_codes import ExitCode
from mainspring.cli.main import COMMANDS, commands
from tests.cli.shop_program import ENVIRONMENT, ShopProgram
from tests.support import PATIENCE

DOCUMENT = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
NO_DATA = {"mainspring run", "mainspring serve"}
USAGE = 2


def all_commands() -> Iterator[tuple[str, Any]]:
    for name in commands.commands:
        command = load(name)
        if hasattr(command, "commands"):
            yield from ((f"mainspring {name} {child}", below) for child, below in command.commands.items())
        else:
            yield f"mainspring {name}", command


def test_the_help_of_the_program_says_of_each_command_what_its_own_help_says() -> None:
    for summaries in COMMANDS.values():
        assert {name: summary_of(load(name)) for name in summaries} == summaries


def test_the_help_of_every_command_has_an_example_of_itself() -> None:
    lacking = [path for path, command in all_commands() if not re.search(rf"Example: {path}(?!\w)", command.help)]
    assert lacking == []


def test_every_command_that_prints_data_prints_json_too() -> None:
    options = {path: {o for p in command.params for o in p.opts} for path, command in all_commands()}
    assert {path for path, names in options.items() if "--json" not in names} <= NO_DATA


def test_the_document_has_every_command_and_every_exit_code() -> None:
    assert [path for path, _ in all_commands() if path not in DOCUMENT] == []
    assert [code for code in ExitCode if f"| {code} |" not in DOCUMENT] == []


def test_the_program_says_its_exit_codes(shop: ShopProgram) -> None:
    done = shop.run("--help")
    assert done.code == 0
    words = " ".join(done.output.split())
    assert (
        "Exit codes: 0 success 1 the command found nothing, found a problem, or failed 2 wrong usage 3 " in words
    )
    assert "else app in [tool.mainspring] of pyproject.toml" in words
    assert "--version Print the version and exit." in words  # --version takes no value


def test_help_groups_the_commands_in_the_order_of_the_list(shop: ShopProgram) -> None:
    lines = shop.run("--help").output.splitlines()
    places = [lines.index(f"{heading}:") for heading in COMMANDS]
    assert places == sorted(places)
    named = [line.split()[0] for line in lines[places[0] :] if re.match("  [a-z]", line)]
    assert named == [name for summaries in COMMANDS.values() for name in summaries]


def test_help_shows_the_default_of_an_option_and_the_section_of_shared_ones(shop: ShopProgram) -> None:
    words = " ".join(shop.run("jobs", "list", "--help").output.split())
    assert "--limit NUMBER List at most this many entries. [default: 50]" in words
    assert (
        words.index("Options:")
        < words.index("--limit NUMBER")
        < words.index("Application and store: --app MODULE:APP")
    )


def test_a_group_without_a_command_prints_its_help_as_wrong_usage(shop: ShopProgram) -> None:
    done = shop.run("jobs")
    assert (done.code, done.errors) == (USAGE, "")
    assert done.output == shop.run("jobs", "--help").output


def test_help_fits_a_terminal_and_has_colors_there_and_none_in_a_pipe(shop: ShopProgram) -> None:
    for arguments in (("--help",), ("jobs", "list", "--help"), ("submit", "--help"), ("dlq", "replay", "--help")):
        for columns in (60, 80, 120):
            code, shown = shop.run_on_terminal(*arguments, columns=columns)
            assert code == 0
            assert "\x1b[36m" in shown
            assert max(map(len, re.sub(r"\x1b\[[\d;]*m", "", shown).splitlines())) <= columns
        assert "\x1b" not in shop.run_on_terminal(*arguments, NO_COLOR="1")[1]
        assert "\x1b" not in shop.run(*arguments).output


def test_a_number_out_of_range_is_refused_with_the_limit(shop: ShopProgram) -> None:
    refused = shop.run("jobs", "list", "--limit", "0").error_line
    assert "Invalid value for '--limit': 0 is too small, the minimum is 1 (" in refused
    assert "70000 is too large, the maximum is 65,533" in shop.run("nats", "dev", "--port", "70000").error_line
    assert "the minimum is 0.000001" in shop.run("dlq", "replay", "--all", "--rate", "0").error_line


def test_the_program_says_its_version(shop: ShopProgram) -> None:
    assert shop.run("--version").output == f"mainspring {version('mainspring')}\n"


def test_wrong_usage_is_one_line_that_names_the_command(shop: ShopProgram) -> None:
    done = shop.run("jobs", "list", "--limit", "none")
    assert done.code == USAGE
    assert done.error_line.startswith("mainspring jobs list: Invalid value for '--limit': ")
    assert done.error_line.endswith("(help: mainspring jobs list --help)")
    assert shop.run("jobs", "lost").error_line.startswith("mainspring jobs: No such command 'lost'")


def test_a_terminal_gets_colours_and_lines_that_fit_and_a_pipe_gets_neither(shop: ShopProgram) -> None:
    shop.make_dead_letters("order-1")
    (new,) = shop.submit({"order_id": 2})
    for columns in (50, 130):
        code, shown = shop.run_on_terminal("jobs", "list", "--url", shop.url, columns=columns)
        assert code == 0
        assert "\x1b[31mFAILED" in shown
        lines = re.sub(r"\x1b\[[\d;]*m", "", shown).splitlines()
        assert max(map(len, lines)) <= columns
        assert lines[1].startswith(f"{new}  PENDING")  # whole, so that it can be copied
    piped = shop.run_on_store("jobs", "list").output
    assert "\x1b" not in piped
    assert "RuntimeError: order 1 is gone" in piped.splitlines()[2]  # nothing is cut off


def test_nothing_of_a_job_is_cut_off_in_a_pipe(shop: ShopProgram) -> None:
    reason = "lost " * 100
    (job,) = shop.submit({"order_id": 1, "reason": reason})
    assert f'arguments  {{"order_id":1,"reason":"{reason}"}}\n' in shop.run_on_store("jobs", "show", job).output


def test_no_color_is_respected_on_a_terminal(shop: ShopProgram) -> None:
    shop.make_dead_letters("order-1")
    _, shown = shop.run_on_terminal("jobs", "list", "--url", shop.url, NO_COLOR="1")
    assert "FAILED" in shown
    assert re.search(r"\x1b\[3\dm", shown) is None


def test_what_is_in_a_job_cannot_control_the_terminal(shop: ShopProgram) -> None:
    (job,) = shop.submit({"order_id": 1, "reason": "\x1b[2J \x9b2J [bold red]"})
    _, shown = shop.run_on_terminal("jobs", "show", job, "--url", shop.url, NO_COLOR="1", columns=200)
    assert "\x1b[2J" not in shown
    assert "\x9b" not in shown
    assert "[bold red]" in shown  # and it is no markup
    said = shop.run_on_store("jobs", "show", job, "--json")
    assert "\x9b" not in said.output
    assert said.json["arguments"]["reason"] == "\x1b[2J \x9b2J [bold red]"


def test_a_reader_that_has_gone_ends_the_program_quietly(shop: ShopProgram) -> None:
    shop.submit({"order_id": 1})
    for typed in ("jobs list", "jobs list --json", "dlq list --json", "schedules list --json", "queues list"):
        arguments = typed.split()
        reader, writer = os.pipe()
        os.close(reader)
        command = shop.command(*arguments, "--url", shop.url)
        with os.fdopen(writer, "wb") as output:
            done = subprocess.run(
                command, stdout=output, stderr=subprocess.PIPE, env=ENVIRONMENT, timeout=PATIENCE, check=False
            )
        assert (done.returncode, done.stderr) == (ExitCode.OUTPUT_CLOSED, b"")


def test_a_reader_that_goes_in_the_middle_is_noticed_without_buffers_too(shop: ShopProgram) -> None:
    shop.submit({"order_id": 1, "reason": "x" * 500_000})  # more than a pipe holds
    for unbuffered in ("", "1"):
        environment = ENVIRONMENT | {"PYTHONUNBUFFERED": unbuffered}
        command = shop.command("jobs", "list", "--json", "--url", shop.url)
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as program:
            assert program.stdout is not None
            program.stdout.read(1)
            program.stdout.close()
            assert program.wait(PATIENCE) == ExitCode.OUTPUT_CLOSED


def test_a_full_disk_is_one_line_too(shop: ShopProgram) -> None:
    shop.submit({"order_id": 1})
    command = shop.command("jobs", "list", "--url", shop.url)
    with Path("/dev/full").open("wb") as output:
        done = subprocess.run(
            command, stdout=output, stderr=subprocess.PIPE, env=ENVIRONMENT, timeout=PATIENCE, check=False
        )
    reason = b"mainspring: the output cannot be written: No space left on device"
    assert done.returncode == ExitCode.FAILURE
    assert done.stderr == reason + b"; free some space, or redirect the output\n"


def test_an_interrupt_ends_with_130_and_without_a_traceback(shop: ShopProgram) -> None:
    shop.submit({"order_id": 1})
    process = shop.start("events", "--follow", "--url", shop.url)
    try:
        assert process.stderr is not None
        assert process.stderr.readline() == "listening, stop with Ctrl+C\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=PATIENCE) == ("", "")
        assert process.returncode == ExitCode.INTERRUPTED
    finally:
        process.kill()
        process.communicate()
