"""`mainspring healthcheck`: reports the health of the workers on this machine, for probes and supervisors.

It reads the health files of the workers and does not query the store. So it is fast, also when the store hangs.
It never imports an application.
"""

from __future__ import annotations

import os
from typing import Any

import click

from mainspring.cli.app_selection import find_selection
from mainspring.cli.commands import Command
from mainspring.cli.exit_codes import ExitCode
from mainspring.cli.options import app_options, health_dir_option, json_option, parse_duration
from mainspring.cli.output import print_json, print_line, print_message
from mainspring.clock import NANOSECONDS, SystemClock
from mainspring.engines.registry import provider_for
from mainspring.foreground.health_files import HealthRecord, choose_folder, read_health_files
from mainspring.foreground.health_rules import HealthLevel, find_problem
from mainspring.plurals import format_count


@click.command("healthcheck", cls=Command)
@click.option("--live", is_flag=True, help="Check only that workers are alive; one that is not must be restarted.")
@click.option(
    "--ready", is_flag=True, help="Check that the workers are alive and started, and that their store answers."
)
@click.option("--pid", type=int, help="Check only the worker with this process id.", metavar="NUMBER")
@click.option(
    "--within",
    default="15s",
    help="How old the last health report and the last answer of the store may be.",
    metavar="DURATION",
)
@health_dir_option
@json_option
@app_options
def healthcheck(
    *,
    live: bool,
    ready: bool,
    pid: int | None,
    within: str,
    health_dir: str | None,
    as_json: bool,
    app: str | None,
    url: str | None,
) -> None:
    """Check the workers on this machine; exit with 1 if one is unhealthy or none runs.

    Without --live and --ready, a worker is healthy if it is ready and does not report a stall: due jobs that no
    worker claims.

    Example: mainspring healthcheck --live
    """
    level = HealthLevel.READY if ready else HealthLevel.LIVE if live else HealthLevel.HEALTHY
    store = _store(app, url)
    try:
        signs = read_health_files(choose_folder(health_dir, os.environ))
    except OSError as error:  # such as the folder of another user
        raise click.BadParameter(f"the health files cannot be read: {error}") from error
    signs = [sign for sign in signs if store in (None, sign.worker.store) and pid in (None, sign.worker.pid)]
    allowed = round(parse_duration(within).total_seconds() * NANOSECONDS)
    now = SystemClock().monotonic_ns()
    problems = [problem_of(sign, level, now, allowed) for sign in signs]
    if as_json:
        fields = [_fields(sign, problem, now) for sign, problem in zip(signs, problems, strict=True)]
        print_json({"healthy": bool(signs) and not any(problems), "workers": fields})
    elif not signs:
        print_message(f"mainspring: {_no_worker(store, pid)}")
    else:
        for sign, problem in zip(signs, problems, strict=True):
            _print_worker(sign, problem)
    if not signs or any(problems):
        raise click.exceptions.Exit(ExitCode.FAILURE)


def problem_of(sign: HealthRecord, level: HealthLevel, now: int, allowed: int) -> str | None:
    """Return the problem that keeps a worker below a level of health, with a remedy; None if it has the level.

    `now` is the monotonic time, and `allowed` is how old the last health report and the last answer of the store
    may be; both are in nanoseconds.
    """
    if sign.is_stale:
        return "was killed or has crashed; start it again"
    found = find_problem(sign.health, level, engine=sign.worker.engine, now=now, allowed=allowed)
    return None if found is None else found.text


def _store(app: str | None, url: str | None) -> str | None:
    """Return the name of the store whose workers are checked; None for the workers of all stores.

    If an application is named without `--url`, return None: the command does not import the application, so it
    does not know its store.
    """
    selection = find_selection(app, url)
    return (
        None
        if selection is None or selection.url is None
        else provider_for(selection.url).store_name(selection.url)
    )


def _no_worker(store: str | None, pid: int | None) -> str:
    which = "" if pid is None else f" with pid {pid}"
    where = "" if store is None else f" on {store}"
    return (
        f"no worker{which} of this user runs here{where}; start one with `mainspring run`, or name its folder "
        "with --health-dir"
    )


def _print_worker(sign: HealthRecord, problem: str | None) -> None:
    name = f"worker {sign.worker.pid} on {sign.worker.engine}"
    if problem is None:
        print_line(f"{name}: {sign.health.state}, has leased {format_count(sign.health.jobs, 'job')}")
    else:
        print_message(f"mainspring: {name}: {' '.join(problem.split())}")


def _fields(sign: HealthRecord, problem: str | None, now: int) -> dict[str, Any]:
    worker, health = sign.worker, sign.health
    return {
        "pid": worker.pid,
        "engine": worker.engine,
        "store": worker.store,
        "since": worker.since,
        "state": "gone" if sign.is_stale else str(health.state),
        "healthy": problem is None,
        "problem": problem,
        "last_turn_seconds": (now - health.turned_ns) / NANOSECONDS,
        "last_answer_seconds": None if health.answered_ns is None else (now - health.answered_ns) / NANOSECONDS,
        "store_trouble": health.trouble,
        "stall": health.stall,
        "jobs": health.jobs,
    }
