"""The entry point of `mainspring`: the list of all commands, the options of the program, and `main`."""

from __future__ import annotations

import gc
import sys
from typing import Any

import click

from mainspring.cli.commands import MAX_WIDTH, HelpFormatter, LazyGroup, Option
from mainspring.cli.completion import install_completion, show_completion
from mainspring.cli.exit_codes import EXIT_CODES, run_cli
from mainspring.cli.options import app_options

# In the order of the help. Each summary is the first paragraph of the command's own help; a test compares them.
COMMANDS = {
    "Workers": {
        "run": "Run jobs until SIGTERM or Ctrl+C.",
        "serve": "Serve the dashboard, the HTTP API, metrics and probes, without a worker.",
        "workers": "List the workers of a store, on all machines; direct or remove remote ones.",
        "healthcheck": "Check the workers on this machine; exit with 1 if one is unhealthy or none runs.",
    },
    "Jobs": {
        "submit": "Submit a job, or a file of jobs.",
        "jobs": "List, show, cancel, retry and reschedule jobs.",
        "dlq": "List, show, replay and purge dead letters.",
        "queues": "Count the jobs of queues, pause and resume queues.",
        "callbacks": "List paused receivers of callbacks, and lift their pauses.",
        "schedules": "List, show, preview, store, trigger, pause and remove schedules.",
    },
    "Diagnosis": {
        "explain": "Explain why jobs have their status, and what would change it.",
        "events": "Print the events of jobs as they happen.",
        "audit": "List who changed jobs, queues, schedules and tokens, the latest change first.",
        "doctor": "Check the machine, the store, workers, jobs and schedules.",
    },
    "Stores and servers": {
        "tokens": "Make, list and revoke the tokens of the HTTP server.",
        "keys": "Make and list the keys with which jobs are signed.",
        "migrate": "Move jobs and schedules from a SQLite file to NATS.",
        "nats": "Start NATS servers for development; permissions and certificates for production.",
    },
    "Try it out": {
        "bench": "Measure the speed of Mainspring on this machine, with the engine of your store.",
        "demo": "Run a demonstration: a shop whose unpaid orders time out.",
    },
}
HELP = """One scheduler for Python, from a thread pool to a cluster.

Name the application with --app or the store with --url. Without --app, a command uses the application in
MAINSPRING_APP, else app in [tool.mainspring] of pyproject.toml. Without --url, it uses the store that the
application names in its code, else that in MAINSPRING_URL, else url in [tool.mainspring], else mainspring.db here.

Example: mainspring jobs list --app shop:app --status failed
"""


def _show_version(context: click.Context, _: click.Parameter, is_given: object) -> None:
    if is_given and not context.resilient_parsing:
        from importlib.metadata import version  # noqa: PLC0415 - only --version needs it

        click.echo(f"mainspring {version('mainspring')}")
        context.exit()


class Program(LazyGroup):
    """The program `mainspring`. Its help ends with the exit codes."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        assert isinstance(formatter, HelpFormatter)
        formatter.write_rows("Exit codes", [(str(int(code)), meaning) for code, meaning in EXIT_CODES.items()])


_COMPLETION: dict[str, Any] = {
    "cls": Option,
    "section": "Completion",
    "metavar": "[SHELL]",
    "is_flag": False,
    "flag_value": "",  # the value of the option if no shell is given
    "is_eager": True,
    "expose_value": False,
}


@click.group(
    "mainspring",
    cls=Program,
    summaries=COMMANDS,
    help=HELP,
    context_settings={"max_content_width": MAX_WIDTH, "show_default": True},
)
@click.option(
    "--version",
    help="Print the version and exit.",
    is_flag=True,
    callback=_show_version,
    is_eager=True,
    expose_value=False,
)
@app_options
@click.option(
    "--install-completion",
    **_COMPLETION,
    help="Install completion for the current shell, or for bash, zsh, fish or powershell.",
    callback=install_completion,
)
@click.option(
    "--show-completion",
    **_COMPLETION,
    help="Print the completion script of the current shell, or of bash, zsh, fish or powershell.",
    callback=show_completion,
)
def commands(**_: object) -> None:
    """Keep the options of the program in the click context, from which commands read them."""


def main() -> None:
    """Run the command that the command line names; report an error as one line on stderr and an exit code."""
    code = run_cli(commands)
    gc.freeze()  # the process ends: a search for garbage would take a fifth of the time of a short command
    sys.exit(code)
