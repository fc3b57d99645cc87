"""`mainspring serve`: runs the HTTP server without a worker."""

from __future__ import annotations

import logging
import os
import sys
from importlib.metadata import version

import click

from mainspring.cli.app_selection import load_application, require_store
from mainspring.cli.commands import Argument, Command, Option
from mainspring.cli.exit_codes import exit_code_for
from mainspring.cli.http_options import HTTP, HttpOptions, http_options, open_entry
from mainspring.cli.logs import LogFormat, LogLevel, start_logging
from mainspring.cli.options import app_options, log_options
from mainspring.cli.output import is_terminal
from mainspring.errors import MainspringError
from mainspring.foreground.run_output import HttpNotice
from mainspring.foreground.serving import serve_until_signal

STOPPING = "stopping: accepted requests are answered (stop once more to end at once)"

logger = logging.getLogger("mainspring.http")


class ServeOutput:
    """Shows the start and the end of the HTTP server: as lines on stdout, or as JSON log records."""

    def __init__(self, engine: str, *, as_json: bool) -> None:
        self._engine = engine
        self._as_json = as_json

    def show_http(self, notice: HttpNotice) -> None:
        """Show that the server listens, and how to reach it."""
        facts = {"engine": self._engine, "version": version("mainspring"), "pid": os.getpid()} | notice.facts
        text = f"Mainspring serves the jobs of {self._engine}"
        if self._as_json:
            self._tell("serving", "; ".join((text, *notice.lines)), facts)
            return
        _print(text)
        _print(f"  version {facts['version']}, pid {facts['pid']}")
        for line in notice.terminal_lines if is_terminal() else notice.lines:
            _print(f"  {line}")
        _print("  stop with Ctrl+C or SIGTERM")

    def show_stopping(self) -> None:
        self._say("stopping", STOPPING)

    def show_stopped(self) -> None:
        self._say("stopped", "stopped")

    def _say(self, event: str, text: str) -> None:
        if self._as_json:
            self._tell(event, text, {})
        else:
            _print(text)

    def _tell(self, event: str, text: str, facts: dict[str, object]) -> None:
        logger.info("%s", text, extra={"facts": {"event": event} | facts})


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


@click.command("serve", cls=Command)
@click.argument(
    "reference",
    cls=Argument,
    required=False,
    metavar="MODULE:APP",
    help="The application, as module:name; the same as --app.",
)
@click.option(
    "--http",
    "address",
    cls=Option,
    section=HTTP,
    default="127.0.0.1:8400",
    help="The address at which the server listens.",
    metavar="HOST:PORT",
)
@http_options
@log_options
@app_options
def serve(
    *,
    reference: str | None,
    address: str,
    host_names: tuple[str, ...],
    http_limits: tuple[str, ...],
    no_auth: bool,
    read_only: bool,
    log_format: str,
    log_level: str,
    app: str | None,
    url: str | None,
) -> None:
    """Serve the dashboard, the HTTP API, metrics and probes, without a worker.

    A caller needs a token: see mainspring tokens create. If the store has none, and the address is a loopback
    address, the command prints a link with a token that is valid until the process ends, on a terminal only.

    Example: mainspring serve shop:app --http 127.0.0.1:8400
    """
    if reference is not None and app is not None and reference != app:
        raise click.BadParameter(f"two applications are given, {reference!r} and --app {app!r}; give one")
    chosen_format = LogFormat(log_format)
    start_logging(chosen_format, LogLevel(log_level))
    given = app if reference is None else reference
    options = HttpOptions(
        address=address,
        host_names=host_names,
        http_limits=http_limits,
        no_auth=no_auth,
        read_only=read_only,
        store_metrics=True,
        app=given,
        url=url,
    )
    try:
        _serve(options, as_json=chosen_format is LogFormat.JSON)
    except MainspringError as error:
        if chosen_format is not LogFormat.JSON:
            raise
        logging.getLogger("mainspring.cli").critical("%s", error)
        raise click.exceptions.Exit(exit_code_for(error)) from error


def _serve(options: HttpOptions, *, as_json: bool) -> None:
    with open_entry(options) as entry:
        application = load_application(options.app, options.url)
        require_store(application, creates_store=True)
        output = ServeOutput(application.manager().engine.description, as_json=as_json)
        serve_until_signal(
            entry.make_server(application, output.show_http),
            close=application.close,
            output=output,
            environment=os.environ,
        )
