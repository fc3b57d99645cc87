"""`mainspring run`: runs a worker in the foreground.

It prints a banner on a terminal, plain lines in a pipe, or JSON for log collectors.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC
from functools import partial
from typing import Any

import click

from mainspring.app import Mainspring
from mainspring.cli.app_selection import load_application, require_selection
from mainspring.cli.commands import Argument, Command, Option
from mainspring.cli.exit_codes import AppImportFailed, exit_code_for
from mainspring.cli.http_options import HTTP, HttpOptions, http_options, listening
from mainspring.cli.logs import LogFormat, LogLevel, start_logging
from mainspring.cli.options import (
    HEALTH,
    NumberRange,
    app_options,
    health_dir_option,
    log_options,
    parse_duration,
)
from mainspring.cli.output import is_terminal
from mainspring.cli.reload import Reloader, SourceWatcher, imported_files
from mainspring.errors import MainspringError
from mainspring.foreground.foreground import Foreground
from mainspring.foreground.run_output import (
    STOPPING,
    Banner,
    HttpNotice,
    NextFiring,
    PlainRunOutput,
    RunOutput,
)
from mainspring.plurals import format_count

logger = logging.getLogger("mainspring.worker")


def choose_output(chosen: LogFormat) -> RunOutput:
    """Return the object that prints the banner and the messages of a worker, for the format of the log.

    With JSON it writes log records. Otherwise it prints on stdout: in color on a terminal, plain lines elsewhere.
    """
    if chosen is LogFormat.JSON:
        return JsonRunOutput()
    if not is_terminal():
        return PlainRunOutput()
    from mainspring.cli.terminal_run_output import TerminalRunOutput  # noqa: PLC0415 - imports rich, which is slow

    return TerminalRunOutput()


class JsonRunOutput:
    """Writes the messages of a worker as JSON log records, with the facts as fields."""

    def show_banner(self, banner: Banner) -> None:
        self._tell(
            "starting",
            f"Mainspring runs jobs from {banner.engine}",
            engine=banner.engine,
            version=banner.version,
            pid=banner.pid,
            handlers=[{"name": name, "queue": queue} for name, queue in banner.handlers],
            queues=banner.queues,
            threads=banner.threads,
            coroutines=banner.coroutines,
            processes=banner.processes,
        )

    def show_http(self, notice: HttpNotice) -> None:
        self._tell("http", "; ".join(notice.lines), **notice.facts)

    def show_ready(self, threads: int, schedules: Sequence[NextFiring]) -> None:
        dates = [{"name": each.name, "next": _date(each)} for each in schedules]
        self._tell("ready", f"{format_count(threads, 'thread')} at work", schedules=dates)

    def show_stopping(self) -> None:
        self._tell("stopping", STOPPING)

    def show_stopped(self) -> None:
        self._tell("stopped", "stopped")

    def _tell(self, event: str, message: str, **facts: Any) -> None:
        logger.info("%s", message, extra={"facts": {"event": event} | facts})


def _date(schedule: NextFiring) -> str | None:
    return None if schedule.next_due is None else schedule.next_due.astimezone(UTC).isoformat()


@click.command("run", cls=Command)
@click.argument(
    "reference",
    cls=Argument,
    required=False,
    metavar="MODULE:APP",
    help="The application, as module:name; the same as --app.",
)
@click.option("--queues", help="Run only jobs of these queues, separated by commas.", metavar="NAMES")
@click.option("--threads", type=NumberRange(1), help="How many handlers run at once on threads.", metavar="NUMBER")
@click.option(
    "--coroutines",
    type=NumberRange(1),
    help="How many coroutine handlers run at once.",
    metavar="NUMBER",
)
@click.option(
    "--processes",
    type=NumberRange(1),
    help="How many child processes run handlers with execution='process'.",
    metavar="NUMBER",
)
@click.option(
    "--grace",
    help="How long running handlers may continue after SIGTERM or Ctrl+C: 30s, 2m; 0 stops at once.",
    metavar="DURATION",
)
@click.option(
    "--reload",
    is_flag=True,
    help="For development: restart the worker when a source file of the application changes.",
)
@click.option(
    "--stall-after",
    cls=Option,
    section=HEALTH,
    help="Report a stall when jobs are due and no worker claims any for this time: 90s, 5m; 0 turns it off.",
    metavar="DURATION",
)
@health_dir_option
@click.option(
    "--http",
    cls=Option,
    section=HTTP,
    help="Serve the dashboard, the HTTP API, metrics and probes at this address, too: 127.0.0.1:8400.",
    metavar="HOST:PORT",
)
@click.option(
    "--store-metrics",
    cls=Option,
    section=HTTP,
    is_flag=True,
    help="Add the metrics of the store to /metrics; needed if no `mainspring serve` runs.",
)
@http_options
@log_options
@app_options
def run(
    *,
    reference: str | None,
    queues: str | None,
    threads: int | None,
    coroutines: int | None,
    processes: int | None,
    grace: str | None,
    reload: bool,
    stall_after: str | None,
    health_dir: str | None,
    http: str | None,
    store_metrics: bool,
    host_names: tuple[str, ...],
    http_limits: tuple[str, ...],
    no_auth: bool,
    read_only: bool,
    log_format: str,
    log_level: str,
    app: str | None,
    url: str | None,
) -> None:
    """Run jobs until SIGTERM or Ctrl+C.

    The first signal lets running handlers finish. A second signal interrupts them at once; their jobs run again
    later.

    Example: mainspring run shop:app --queues orders,mail --threads 16
    """
    chosen_format = LogFormat(log_format)
    start_logging(chosen_format, LogLevel(log_level))
    reloader = Reloader() if reload else None
    server = _http_options(
        http,
        app=app if reference is None else reference,
        url=url,
        store_metrics=store_metrics,
        host_names=host_names,
        http_limits=http_limits,
        no_auth=no_auth,
        read_only=read_only,
    )

    def work() -> bool:
        with listening(
            server
        ) as entry:  # before the application is imported, so that a port in use is told at once
            application = _find(reference, app, url)
            if queues is not None:
                application.queues = _names(queues)
            if threads is not None:
                application.threads = threads
            if coroutines is not None:
                application.coroutines = coroutines
            if processes is not None:
                application.processes = replace(application.processes, count=processes)
            if grace is not None:
                application.grace = parse_duration(grace)
            if stall_after is not None:
                application.stall_after = parse_duration(stall_after)
            output = choose_output(chosen_format)
            foreground = Foreground(
                application,
                environment=os.environ,
                health_dir=health_dir,
                output=output,
                watch=None if reloader is None else lambda stop: SourceWatcher(imported_files, stop),
                beside=None if entry is None else partial(entry.make_server, application, output.show_http),
            )
            return foreground.run()

    try:
        _run_until_signal(work, reloader)
    except MainspringError as error:
        if chosen_format is not LogFormat.JSON:
            raise
        logging.getLogger("mainspring.cli").critical("%s", error)
        raise click.exceptions.Exit(exit_code_for(error)) from error


def _run_until_signal(work: Callable[[], bool], reloader: Reloader | None) -> None:
    """Run the worker by calling `work`; with a reloader, replace the process after a change of a source file.

    `work` returns whether a file has changed. If the application cannot be imported, or if a worker cannot start
    after a reload, the reloader's process logs the error and waits for the next change. Without a reloader, the
    error is raised.
    """
    if reloader is None:
        work()
        return
    try:
        is_changed = work()
    except (AppImportFailed, MainspringError, click.ClickException) as error:
        if not isinstance(error, AppImportFailed) and not reloader.is_restarted:
            raise
        text = error.format_message() if isinstance(error, click.ClickException) else str(error)
        logger.error("the worker cannot start: %s; it is started again when a source file changes", text)
        is_changed = reloader.wait_for_change()
    if is_changed:
        reloader.restart()


def _http_options(address: str | None, **options: Any) -> HttpOptions | None:
    """Return the options of the HTTP server; None without the address of `--http`.

    Raises a usage error if there is no address, but another option of the server.
    """
    if address is not None:
        return HttpOptions(address=address, **options)
    for name in ("store_metrics", "host_names", "http_limits", "no_auth", "read_only"):
        if options[name]:
            is_list = name in ("host_names", "http_limits")
            option = f"--{name.removesuffix('s') if is_list else name}".replace("_", "-")
            raise click.BadParameter(f"{option} needs the HTTP server; add --http 127.0.0.1:8400")
    return None


def _find(reference: str | None, app: str | None, url: str | None) -> Mainspring:
    if reference is not None and app is not None and reference != app:
        raise click.BadParameter(f"two applications are given, {reference!r} and --app {app!r}; give one")
    given = app if reference is None else reference
    if require_selection(given, url).app is None:
        raise click.BadParameter("a worker needs handlers, and only a store is named; add --app module:app")
    return load_application(given, url)


def _names(queues: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in queues.split(",") if name.strip())
    if not names:
        raise click.BadParameter(f"{queues!r} names no queue; leave --queues out to serve all")
    return names
