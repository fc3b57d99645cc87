"""Shells complete commands, options and states, asked in the way in which each of them asks."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.shop import CLEAN, Shop
from tests.support import PATIENCE

pytestmark = pytest.mark.long

INSTALLED = {
    "bash": (".bashrc", ".bash_completions/mainspring.sh"),
    "zsh": (".zshrc", ".zfunc/_mainspring"),
    "fish": (".config/fish/completions/mainspring.fish",),
}


def asked_by(shop: Shop, shell: str, line: str) -> str:
    """What the program answers a shell whose user has typed this line and pressed Tab."""
    words = line.split(" ")
    asked: dict[str, Any] = {
        "_MAINSPRING_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    done = shop.run(**asked)
    assert (done.code, done.errors) == (0, "")
    return done.output


@pytest.mark.parametrize("shell", INSTALLED)
def test_each_shell_gets_commands_and_states(shop: Shop, shell: str) -> None:
    commands = asked_by(shop, shell, "mainspring d")
    assert "dlq" in commands
    assert "submit" not in commands
    states = asked_by(shop, shell, "mainspring jobs list --status f")
    assert "failed" in states
    assert "pending" not in states


def test_commands_below_a_command_and_options_are_completed(shop: Shop) -> None:
    assert {"list", "show", "replay", "purge"} <= set(asked_by(shop, "bash", "mainspring dlq ").split())
    assert asked_by(shop, "bash", "mainspring jobs list --s").split() == ["--status"]


def home_of(shop: Shop) -> dict[str, Any]:
    return {"HOME": str(shop.folder), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}


@pytest.mark.parametrize("shell", INSTALLED)
def test_an_option_installs_what_another_shows(shop: Shop, shell: str) -> None:
    home = home_of(shop)
    assert shop.run("--install-completion", shell, **home).code == 0
    shown = shop.run("--show-completion", shell, **home)
    assert shown.code == 0
    assert "_MAINSPRING_COMPLETE" in shown.output
    *settings, script = (shop.folder / file for file in INSTALLED[shell])
    assert script.read_text().strip() == shown.output.strip()
    assert all(file.exists() for file in settings)


def test_a_real_bash_completes_with_what_was_installed(shop: Shop) -> None:
    home = home_of(shop)
    assert shop.run("--install-completion", "bash", **home).code == 0
    script = """
        source ~/.bashrc
        COMP_WORDS=(mainspring schedules pre) COMP_CWORD=2
        $(complete -p mainspring | grep -o '_mainspring[a-z_]*') mainspring
        echo "${COMPREPLY[@]}"
    """
    path = f"{Path(sys.executable).parent}:{CLEAN['PATH']}"
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        env=CLEAN | home | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert done.stdout.split() == ["preview"]
