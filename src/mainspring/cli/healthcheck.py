"""`mainspring healthcheck`: reports the health of the workers on this machine, for probes and supervisors.

It reads the health files of the workers and does not query the store. So it is fast, also when the store hangs.
It never imports an application.
"""

from __future__ import annotations

import os
from enum import IntEnum
from typing import Any

import click

from mainspring.cli.commands import Command
from mainspring.cli.exits import ExitCode
from mainspring.cli.options import app_options, health_dir_option, json_option, to_duration
from mainspring.cli.output import counted, say, show_json, write
from mainspring.cli.target import find_target
from mainspring.clock import NANOSECONDS, SystemClock
from mainspring.engines.registry import provider_for
from mainspring.foreground.health_files import Sign, choose_folder, read_signs
from mainspring.worker_health import WorkerState


class Wanted(IntEnum):
    """The level of health that is required of a worker."""

    LIVE = 1
    READY = 2
    CONTENT = 3


@click.command("healthcheck", cls=Command)
@click.option("--live", is_flag=True, help="Check only that they are alive; if one is not, restart it.")
@click.option("--ready", is_flag=True, help="Check that they are alive and started, and that the store answers.")
@click.option("--pid", type=int, help="Check only the worker with this process id.", metavar="NUMBER")
@click.option(
    "--within", default="15s", help="The oldest accepted heartbeat and answer of the store.", metavar="DURATION"
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
    wanted = Wanted.READY if ready else Wanted.LIVE if live else Wanted.CONTENT
    store = _store(app, url)
    try:
        signs = read_signs(choose_folder(health_dir, os.environ))
    except OSError as error:  # another user's folder, or no folder
        raise click.BadParameter(f"the signs of life cannot be read: {error}") from error
    signs = [sign for sign in signs if store in (None, sign.worker.store) and pid in (None, sign.worker.pid)]
    allowed = round(to_duration(within).total_seconds() * NANOSECONDS)
    now = SystemClock().monotonic_ns()
    problems = [problem_of(sign, wanted, now, allowed) for sign in signs]
    if as_json:
        fields = [_fields(sign, problem, now) for sign, problem in zip(signs, problems, strict=True)]
        show_json({"healthy": bool(signs) and not any(problems), "workers": fields})
    elif not signs:
        say(f"mainspring: {_no_worker(store, pid)}")
    else:
        for sign, problem in zip(signs, problems, strict=True):
            _tell(sign, problem)
    if not signs or any(problems):
        raise click.exceptions.Exit(ExitCode.REFUSED)


def problem_of(sign: Sign, wanted: Wanted, now: int, allowed: int) -> str | None:
    """Return the problem of a worker and its remedy as text; None if it has the required level of health."""
    health = sign.health
    age = now - health.turned_ns
    if sign.is_gone:
        return "was killed, or crashed: it left without a word; start it again"
    if not 0 <= age <= allowed:
        return f"has given no sign of life {_since(age)}: it hangs, or was stopped; restart it"
    if wanted is Wanted.LIVE:
        return None
    if health.state is not WorkerState.READY:
        return "has not started yet; wait for it" if health.state is WorkerState.STARTING else "is stopping"
    if health.trouble is not None:
        return f"cannot use its store: {health.trouble}"
    silence = now - (health.answered_ns or 0)
    if silence > allowed:
        return f"has had no answer of its store for {_seconds(silence)}; check {sign.worker.engine}"
    return health.stall if wanted is Wanted.CONTENT else None


def _store(app: str | None, url: str | None) -> str | None:
    """Return the name of the store if it is known without importing an application; None: workers of any store."""
    target = find_target(app, url)
    return None if target is None or target.url is None else provider_for(target.url).store_name(target.url)


def _no_worker(store: str | None, pid: int | None) -> str:
    which = "" if pid is None else f" with pid {pid}"
    where = "" if store is None else f" on {store}"
    return (
        f"no worker{which} of this user runs here{where}; start one with `mainspring run`, or name its folder "
        "with --health-dir"
    )


def _tell(sign: Sign, problem: str | None) -> None:
    name = f"worker {sign.worker.pid} on {sign.worker.engine}"
    if problem is None:
        write(f"{name}: {sign.health.state}, {counted(sign.health.jobs, 'job')} in hand")
    else:
        say(f"mainspring: {name}: {' '.join(problem.split())}")


def _fields(sign: Sign, problem: str | None, now: int) -> dict[str, Any]:
    worker, health = sign.worker, sign.health
    return {
        "pid": worker.pid,
        "engine": worker.engine,
        "store": worker.store,
        "since": worker.since,
        "state": "gone" if sign.is_gone else str(health.state),
        "healthy": problem is None,
        "problem": problem,
        "last_turn_seconds": (now - health.turned_ns) / NANOSECONDS,
        "last_answer_seconds": None if health.answered_ns is None else (now - health.answered_ns) / NANOSECONDS,
        "store_trouble": health.trouble,
        "stall": health.stall,
        "jobs": health.jobs,
    }


def _seconds(nanoseconds: int) -> str:
    return f"{nanoseconds / NANOSECONDS:.0f} s"


def _since(nanoseconds: int) -> str:
    return f"for {_seconds(nanoseconds)}" if nanoseconds >= 0 else "since before the last boot"
