"""Shells complete commands, options and states, asked in the way in which each of them asks."""

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.shop_program import ENVIRONMENT, ShopProgram
from tests.support import PATIENCE

pytestmark = pytest.mark.long

INSTALLED = {
    "bash": (".bashrc", ".bash_completions/mainspring.sh"),
    "zsh": (".zshrc", ".zfunc/_mainspring"),
    "fish": (".config/fish/completions/mainspring.fish",),
    "powershell": (
        ".config/powershell/Microsoft.PowerShell_profile.ps1",
        ".config/powershell/mainspring.ps1",
    ),
}


def asked_by(shop: ShopProgram, shell: str, line: str) -> str:
    """What the program answers a shell whose user has typed this line and pressed Tab."""
    words = line.split(" ")
    asked: dict[str, Any] = {
        "_MAINSPRING_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": words[-1] if shell == "fish" else str(len(words) - 1),
    }
    done = shop.run(**asked)
    assert (done.code, done.errors) == (0, "")
    return done.output


@pytest.mark.parametrize("shell", INSTALLED)
def test_each_shell_gets_commands_and_states(shop: ShopProgram, shell: str) -> None:
    commands = asked_by(shop, shell, "mainspring d")
    assert "dlq" in commands
    assert "submit" not in commands
    states = asked_by(shop, shell, "mainspring jobs list --status f")
    assert "failed" in states
    assert "pending" not in states


def test_commands_below_a_command_and_options_are_completed(shop: ShopProgram) -> None:
    below = set(asked_by(shop, "bash", "mainspring dlq ").split())
    assert {"plain,list", "plain,show", "plain,replay", "plain,purge"} <= below
    assert asked_by(shop, "bash", "mainspring jobs list --st").split() == ["plain,--status"]


def home_of(shop: ShopProgram) -> dict[str, Any]:
    return {"HOME": str(shop.folder)}


@pytest.mark.parametrize("shell", INSTALLED)
def test_an_option_installs_what_another_shows(shop: ShopProgram, shell: str) -> None:
    home = home_of(shop)
    assert shop.run("--install-completion", shell, **home).code == 0
    shown = shop.run("--show-completion", shell, **home)
    assert shown.code == 0
    assert "_MAINSPRING_COMPLETE" in shown.output
    *settings, script = (shop.folder / file for file in INSTALLED[shell])
    assert script.read_text().strip() == shown.output.strip()
    before = [file.read_text() for file in settings]
    assert shop.run("--install-completion", shell, **home).code == 0
    assert [file.read_text() for file in settings] == before  # the line that loads the script is there once


def test_settings_of_the_user_are_kept(shop: ShopProgram) -> None:
    (shop.folder / ".bashrc").write_text("alias ll='ls -l'")
    assert shop.run("--install-completion", "bash", **home_of(shop)).code == 0
    kept, added = (shop.folder / ".bashrc").read_text().splitlines()
    assert kept == "alias ll='ls -l'"
    assert added == "source ~/.bash_completions/mainspring.sh"


def test_the_current_shell_is_detected(shop: ShopProgram) -> None:
    command = f"{shlex.join(shop.command('--show-completion'))}; exit $?"  # bash would replace itself otherwise
    done = subprocess.run(
        ["bash", "--norc", "-c", command],
        env=ENVIRONMENT | {"SHELL": "/bin/other"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert done.stdout == shop.run("--show-completion", "bash").output


def test_a_shell_without_completion_is_refused(shop: ShopProgram) -> None:
    done = shop.run("--show-completion", "csh")
    assert done.code == 2
    assert "there is no completion for shell 'csh'; name one of bash, zsh, fish, powershell" in done.error_line


def test_a_real_bash_completes_with_what_was_installed(shop: ShopProgram) -> None:
    home = home_of(shop)
    assert shop.run("--install-completion", "bash", **home).code == 0
    script = """
        source ~/.bashrc
        COMP_WORDS=(mainspring schedules pre) COMP_CWORD=2
        $(complete -p mainspring | grep -o '_mainspring[a-z_]*') mainspring
        echo "${COMPREPLY[@]}"
    """
    path = f"{Path(sys.executable).parent}:{ENVIRONMENT['PATH']}"
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        env=ENVIRONMENT | home | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert done.stdout.split() == ["preview"]
