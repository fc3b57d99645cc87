"""`mainspring nats`: starts NATS servers for development, and makes what production servers need."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from threading import Event
from typing import Any

import click
from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table

from mainspring.cli.commands import CommandGroup
from mainspring.cli.nats_certificates import certificates
from mainspring.cli.nats_permissions import permissions
from mainspring.cli.nats_servers import NatsServers
from mainspring.cli.options import NumberRange
from mainspring.cli.output import print_message

CHECK_SECONDS = 1.0  # seconds between two checks whether the servers run
CHECKS_UNTIL_RESTART = 5  # checks until a killed node is restarted; until then the cluster runs without it

nats = CommandGroup(
    "nats", help="Start NATS servers for development; permissions and certificates for production."
)


@nats.command("dev")
@click.option("--nodes", type=int, default=1, help="Start one server, or a cluster of three.", metavar="1|3")
@click.option(
    "--port",
    type=NumberRange(1, 65_533),
    default=4222,
    help="The port of the first server; the others of a cluster have the next ports.",
    metavar="NUMBER",
)
@click.option(
    "--store",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the data in this folder; without this option, the data is removed at the end.",
    metavar="FOLDER",
)
@click.option(
    "--include",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Include this file in the configuration of the servers, to try permissions out.",
    metavar="FILE",
)
@click.option("--sync-always", is_flag=True, help="Confirm a write only when it is on the disk.")
@click.option("--json", "as_json", is_flag=True, help="Print the addresses as one line of JSON.")
def dev(
    *, nodes: int, port: int, store: Path | None, include: Path | None, sync_always: bool, as_json: bool
) -> None:
    """Run NATS with JetStream on this machine until Ctrl+C or SIGTERM.

    Example: mainspring nats dev --nodes 3 --store nats-data
    """
    if nodes not in {1, 3}:
        raise click.BadParameter(
            f"a cluster of {nodes} servers is not supported; give 1 or 3", param_hint="--nodes"
        )
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    console = Console(highlight=False, soft_wrap=True)
    try:
        with NatsServers(nodes=nodes, port=port, store=store, sync_always=sync_always, include=include) as servers:
            if as_json:
                click.echo(json.dumps(_describe(servers)))
            else:
                _show(console, servers, is_kept=store is not None)
            away: dict[str, int] = {}
            while not Event().wait(CHECK_SECONDS):  # returns True when a signal has arrived
                _restart_killed(servers, away)
    except KeyboardInterrupt:
        if not as_json:
            console.print("stopped")


nats.add_command(permissions)
nats.add_command(certificates)


def _restart_killed(servers: NatsServers, away: dict[str, int]) -> None:
    """Restart nodes of a cluster that have ended, five checks after the check that found it.

    `away` has the number of checks until the restart, by the name of the node. Raises `EngineUnavailable` if no
    node runs.
    """
    if not any(node.process.is_running for node in servers.nodes):
        servers.require_running()
    for node in servers.nodes:
        if node.process.is_running:
            continue
        if node.name not in away:
            away[node.name] = CHECKS_UNTIL_RESTART
            print_message(
                f"{node.name} has ended; the others continue, and it is restarted in {CHECKS_UNTIL_RESTART} s"
            )
        elif away[node.name] > 1:
            away[node.name] -= 1
        else:
            del away[node.name]
            node.process.start()
            print_message(f"{node.name} was restarted, pid {node.process.pid}")


def _describe(servers: NatsServers) -> dict[str, Any]:
    return {
        "url": servers.url,
        "version": servers.version,
        "store": str(servers.store),
        "nodes": [
            {
                "name": node.name,
                "url": node.url,
                "monitor": node.monitor_url,
                "pid": node.process.pid,
                "log": str(node.process.log),
            }
            for node in servers.nodes
        ],
    }


def _show(console: Console, servers: NatsServers, *, is_kept: bool) -> None:
    console.print(f"[bold]NATS {servers.version}[/] with JetStream is ready")
    table = Table("node", "url", "monitor", "pid", box=None)
    for node in servers.nodes:
        table.add_row(node.name, node.url, node.monitor_url, str(node.process.pid))
    console.print(table)
    console.print(f"store: {servers.store} ({'kept' if is_kept else 'removed at the end'})", style="dim")
    code = f'\nfrom mainspring import Mainspring\n\napp = Mainspring("{servers.url}")\n'
    console.print(
        Syntax("", "python", background_color="default").highlight(code)
    )  # printed as text, because the console would crop it
    console.print("stop with Ctrl+C or SIGTERM")
