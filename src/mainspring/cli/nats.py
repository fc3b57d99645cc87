"""`mainspring nats`: starts NATS servers for development, and makes what production servers need."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from secrets import token_hex
from threading import Event
from typing import Any
from urllib.parse import quote

import click
from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table

from mainspring.cli.commands import CommandGroup
from mainspring.cli.nats_certificates import certificates
from mainspring.cli.nats_permissions import Grant, make_grant, permissions, to_configuration
from mainspring.cli.nats_servers import NatsServers
from mainspring.cli.options import NumberRange
from mainspring.cli.output import print_message
from mainspring.engines.nats.settings import ROLES, Role
from mainspring.engines.nats.subject_names import DEFAULT_PREFIX
from mainspring.errors import EngineUnavailable

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
@click.option(
    "--roles",
    "prefix",
    is_flag=False,
    flag_value=DEFAULT_PREFIX,
    help="Separate submitters, workers and operators, as `nats permissions` does; without a prefix, that of URLs "
    "without one.",
    metavar="[PREFIX]",
)
@click.option("--sync-always", is_flag=True, help="Confirm a write only when it is on the disk.")
@click.option("--json", "as_json", is_flag=True, help="Print the addresses as one line of JSON.")
def dev(
    *,
    nodes: int,
    port: int,
    store: Path | None,
    include: Path | None,
    prefix: str | None,
    sync_always: bool,
    as_json: bool,
) -> None:
    """Run NATS with JetStream on this machine until Ctrl+C or SIGTERM.

    Example: mainspring nats dev --nodes 3 --store nats-data
    """
    if nodes not in {1, 3}:
        raise click.BadParameter(
            f"a cluster of {nodes} servers is not supported; give 1 or 3", param_hint="--nodes"
        )
    if prefix is not None and include is not None:
        raise click.UsageError("--roles includes a file of its own; give --include or --roles")
    users = {} if prefix is None else _make_users(prefix)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    console = Console(highlight=False, soft_wrap=True)
    try:
        with ExitStack() as stack:
            if users:
                include = stack.enter_context(_configuration_of(users))
            servers = stack.enter_context(
                NatsServers(nodes=nodes, port=port, store=store, sync_always=sync_always, include=include)
            )
            urls = {grant.role: _url_of(grant, password, servers) for grant, password in users.items()}
            if as_json:
                click.echo(json.dumps(_describe(servers) | ({"roles": urls} if urls else {})))
            else:
                _show(console, servers, urls, is_kept=store is not None)
            away: dict[str, int] = {}
            while not Event().wait(CHECK_SECONDS):  # returns True when a signal has arrived
                _restart_killed(servers, away)
    except KeyboardInterrupt:
        if not as_json:
            console.print("stopped")


nats.add_command(permissions)


def _make_users(prefix: str) -> dict[Grant, str]:
    """Return the users of all roles below a prefix, with their passwords."""
    try:
        grants = [make_grant(prefix, role) for role in ROLES]
    except EngineUnavailable as error:  # the prefix is invalid
        raise click.BadParameter(str(error), param_hint="--roles") from None
    return {grant: os.environ.get(grant.password_variable) or f"p{token_hex(8)}" for grant in grants}


@contextmanager
def _configuration_of(users: Mapping[Grant, str]) -> Iterator[Path]:
    """Yield a file with the accounts of these users, which only this user of the machine can read."""
    text = to_configuration(list(users))
    for grant, password in users.items():
        text = text.replace(f"${grant.password_variable}", json.dumps(password))
    with tempfile.TemporaryDirectory(prefix="mainspring-roles-") as folder:
        file = Path(folder) / "accounts.conf"
        file.write_text(text)
        yield file


def _url_of(grant: Grant, password: str, servers: NatsServers) -> str:
    login = f"{grant.user}:{quote(password, safe='')}"
    hosts = ",".join(f"{login}@{url.partition('://')[2]}" for url in servers.urls)
    return f"nats://{hosts}?prefix={grant.prefix}&role={grant.role}"


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


def _show(console: Console, servers: NatsServers, urls: Mapping[Role, str], *, is_kept: bool) -> None:
    console.print(f"[bold]NATS {servers.version}[/] with JetStream is ready")
    table = Table("node", "url", "monitor", "pid", box=None)
    for node in servers.nodes:
        table.add_row(node.name, node.url, node.monitor_url, str(node.process.pid))
    console.print(table)
    console.print(f"store: {servers.store} ({'kept' if is_kept else 'removed at the end'})", style="dim")
    if urls:
        console.print("first let the operator create the streams: mainspring queues list --url URL")
        for role, url in urls.items():
            console.print(f"{role}: {url}", markup=False)
    code = f'\nfrom mainspring import Mainspring\n\napp = Mainspring("{urls.get("worker", servers.url)}")\n'
    console.print(
        Syntax("", "python", background_color="default").highlight(code)
    )  # printed as text, because the console would crop it
    console.print("stop with Ctrl+C or SIGTERM")
