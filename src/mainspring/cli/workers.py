"""`mainspring workers`: lists the workers of a store."""

from __future__ import annotations

from mainspring.cli.app_selection import open_app
from mainspring.cli.commands import CommandGroup
from mainspring.cli.json_fields import worker_fields
from mainspring.cli.options import app_options, json_option
from mainspring.cli.output import Cell, Styled, format_distance, print_json, print_message, print_table
from mainspring.jobs.worker_status import Liveness, WorkerStatus

STYLES = {Liveness.ALIVE: "green", Liveness.SILENT: "yellow", Liveness.DEAD: "red"}

workers = CommandGroup("workers", help="List the workers of a store, on all machines.")


@workers.command("list")
@json_option
@app_options
def list_workers(*, as_json: bool, app: str | None, url: str | None) -> None:
    """List the workers of a store, on all machines.

    A silent worker has sent no heartbeat for 45 seconds. A dead worker stays in the list until another worker has
    rescued its jobs.

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
        worker.name,
        Styled(worker.state, STYLES[worker.state]),
        format_distance(worker.heartbeat, now, in_short=True),
        "all" if worker.queues is None else ", ".join(sorted(worker.queues)),
        ", ".join(sorted(worker.types)) or "-",
    ]
