"""Shell completion: `mainspring --install-completion` and `mainspring --show-completion`.

click creates the scripts, and answers them when the user presses Tab. This module detects the shell and installs
its script.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import click

PROGRAM = "mainspring"
VARIABLE = "_MAINSPRING_COMPLETE"
_ALIASES = {"pwsh": "powershell"}


class _Files(NamedTuple):
    """The files that completion needs for one shell, with paths relative to the home directory."""

    script: str
    settings: str | None = None
    """The start-up file of the shell; None if the shell loads the script by itself."""
    line: str = ""
    """The line in the start-up file that loads the script."""


SHELLS = {
    "bash": _Files(".bash_completions/mainspring.sh", ".bashrc", "source ~/.bash_completions/mainspring.sh"),
    "zsh": _Files(".zfunc/_mainspring", ".zshrc", "fpath+=~/.zfunc; autoload -Uz compinit; compinit"),
    "fish": _Files(".config/fish/completions/mainspring.fish"),
    "powershell": _Files(
        ".config/powershell/mainspring.ps1",
        ".config/powershell/Microsoft.PowerShell_profile.ps1",
        ". ~/.config/powershell/mainspring.ps1",
    ),
}


def show_completion(context: click.Context, _: click.Parameter, shell: str | None) -> None:
    """Print the completion script of a shell and exit; do nothing if the option was not given.

    An empty name means the current shell.
    """
    if shell is not None and not context.resilient_parsing:
        click.echo(_script(context, _choose(shell)))
        context.exit()


def install_completion(context: click.Context, _: click.Parameter, shell: str | None) -> None:
    """Install the completion script of a shell, let its start-up file load the script, and exit.

    An empty name means the current shell. Do nothing if the option was not given.
    """
    if shell is None or context.resilient_parsing:
        return
    chosen = _choose(shell)
    files = SHELLS[chosen]
    script = Path.home() / files.script
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(_script(context, chosen) + "\n")
    if files.settings is not None:
        _add_line(Path.home() / files.settings, files.line)
    click.echo(f"installed completion for {chosen} in {script}; open a new shell to use it")
    context.exit()


def _script(context: click.Context, shell: str) -> str:
    from click.shell_completion import get_completion_class  # noqa: PLC0415 - only these options need it

    made_by = get_completion_class(shell)
    assert made_by is not None, f"click does not know {shell}"
    return made_by(context.command, {}, PROGRAM, VARIABLE).source().strip()


def _add_line(file: Path, line: str) -> None:
    text = file.read_text() if file.exists() else ""
    if line not in text.splitlines():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text.rstrip()}\n{line}\n".lstrip())


def _choose(given: str) -> str:
    shell = given or _current_shell()
    shell = _ALIASES.get(shell, shell)
    if shell not in SHELLS:
        problem = f"there is no completion for shell {shell!r}" if shell else "the current shell is unknown"
        raise click.BadParameter(f"{problem}; name one of {', '.join(SHELLS)}")
    return shell


def _current_shell() -> str:
    """Return the name of the shell that is the nearest ancestor process, else of the login shell (`$SHELL`).

    Return an empty text if neither is known.
    """
    pid = os.getppid()
    while pid > 1:
        try:
            name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
        except OSError:
            break
        if name in SHELLS or name in _ALIASES:
            return name
        pid = int(rest.split()[1])  # the id of its parent process
    return Path(os.environ.get("SHELL", "")).name
