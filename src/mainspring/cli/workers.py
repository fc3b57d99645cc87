"""`mainspring workers`: lists the workers of a store, directs remote ones, and removes workers."""

from __future__ import annotations

import click

from mainspring.cli.app_selection import open_app
from mainspring.cli.commands import Argument, CommandGroup
from mainspring.cli.json_fields import worker_fields
from mainspring.cli.options import app_options, json_option
from mainspring.cli.output import Cell, Styled, format_distance, print_json, print_line, print_message, print_table
from mainspring.errors import WorkerNotFound
from mainspring.jobs.commands import DirectWorker
from mainspring.jobs.records import Direction
from mainspring.jobs.worker_status import Liveness, WorkerStatus

STYLES = {Liveness.ALIVE: "green", Liveness.SILENT: "yellow", Liveness.DEAD: "red"}

workers = CommandGroup(
    "workers", help="List the workers of a store, on all machines; direct or remove remote ones."
)


@workers.command("list")
@json_option
@app_options
def list_workers(*, as_json: bool, app: str | None, url: str | None) -> None:
    """List the workers of a store, on all machines.

    A silent worker has sent no heartbeat for 45 seconds; a remote worker, for its lease. A dead worker stays in
    the list until another worker has rescued its jobs.

    Example: mainspring workers list --app shop:app
    """
    with open_app(app, url) as application:
        found = application.workers()
        now = application.manager().engine.now()
    if as_json:
        print_json({"workers": [worker_fields(worker) for worker in found]})
    elif found:
        print_table(
            ("NUMBER", "NAME", "STATE", "HEARTBEAT", "QUEUES", "HANDLERS"),
            [_row(worker, now) for worker in found],
            uncut=("NUMBER", "STATE", "HEARTBEAT"),
            droppable=("HEARTBEAT", "HANDLERS", "QUEUES"),
            right_aligned=("NUMBER",),
        )
    else:
        print_message("no workers; mainspring run module:app starts one")


def _row(worker: WorkerStatus, now: int) -> list[Cell]:
    return [
        str(worker.number),
        f"{worker.name} (remote)" if worker.is_remote else worker.name,
        Styled(worker.state, STYLES[worker.state]),
        format_distance(worker.heartbeat, now, in_short=True),
        "all" if worker.queues is None else ", ".join(sorted(worker.queues)),
        ", ".join(sorted(worker.types)) or "-",
    ]


@workers.command("direct")
@click.argument("number", cls=Argument, type=int, metavar="NUMBER", help="The number of a remote worker.")
@click.argument(
    "direction",
    cls=Argument,
    type=click.Choice([str(each) for each in Direction]),
    help="run, quiet (claim no more jobs) or terminate.",
)
@json_option
@app_options
def direct_worker(*, number: int, direction: str, as_json: bool, app: str | None, url: str | None) -> None:
    """Ask a remote worker to run, to be quiet (to claim no more jobs) or to terminate.

    The worker gets the direction with the answer to its next claim or heartbeat.

    Example: mainspring workers direct 7 quiet
    """
    with open_app(app, url) as application:
        remote = {each.number for each in application.workers() if each.is_remote and each.state != Liveness.DEAD}
        if number not in remote:
            raise WorkerNotFound(number=number)
        (is_changed,) = application.manager().arrange([DirectWorker(number, Direction(direction))])
    if as_json:
        print_json({"number": number, "direction": direction, "changed": is_changed})
    else:
        print_line(f"worker {number} is asked to {'be quiet' if direction == Direction.QUIET else direction}")


@workers.command("remove")
@click.argument("number", cls=Argument, type=int, metavar="NUMBER", help="The number of a worker.")
@json_option
@app_options
def remove_worker(*, number: int, as_json: bool, app: str | None, url: str | None) -> None:
    """Remove a remote worker, or another one that is silent or dead. Its jobs run elsewhere.

    A remote worker loses its jobs at once, and no attempt is used up. Its program can enroll again as long as its
    token is valid: mainspring tokens revoke NAME takes the token away, too.

    Example: mainspring workers remove 7
    """
    with open_app(app, url) as application:
        left = application.manager().remove_worker(number)
    if as_json:
        print_json({"number": number, "released": left})
    else:
        print_line(f"worker {number} is removed; jobs that run elsewhere: {len(left)}")
