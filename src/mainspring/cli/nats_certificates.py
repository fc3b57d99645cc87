"""`mainspring nats certificates`: makes the authorities and certificates with which a NATS cluster uses TLS."""

from __future__ import annotations

from pathlib import Path

import click

from mainspring.cli.commands import Argument, Command
from mainspring.cli.options import NumberRange, json_option
from mainspring.cli.output import print_json, print_line, print_message
from mainspring.clock import SystemClock
from mainspring.security.certificates import AUTHORITY_DAYS, make_certificates

DEFAULT_DAYS = 825


@click.command("certificates", cls=Command)
@click.argument(
    "folder",
    cls=Argument,
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="The folder for the files; authorities that are there are used again.",
)
@click.option(
    "--server",
    "servers",
    multiple=True,
    help="The host names and addresses of a server, separated by commas; the first one names its folder. May be "
    "repeated.",
    metavar="HOSTS",
)
@click.option(
    "--client",
    "clients",
    multiple=True,
    help="The name of a client, for instance of a role; it names its folder. May be repeated.",
    metavar="NAME",
)
@click.option(
    "--days",
    type=NumberRange(1, AUTHORITY_DAYS),
    default=DEFAULT_DAYS,
    help="For how many days the certificates are valid.",
    metavar="NUMBER",
)
@json_option
def certificates(
    *, folder: Path, servers: tuple[str, ...], clients: tuple[str, ...], days: int, as_json: bool
) -> None:
    """Make private authorities, and certificates with keys for servers, routes and clients of NATS.

    Each server and each client gets a folder with all files that it needs. Nothing is overwritten; run the command
    again for further servers and clients. Only its owner can read a key.

    Example: mainspring nats certificates certificates --server nats-1,10.0.0.1 --client worker
    """
    if not servers and not clients:
        raise click.UsageError("there is nothing to make: name at least one --server or --client")
    hosts = [[name.strip() for name in given.split(",")] for given in servers]
    try:
        made = make_certificates(folder, hosts, clients, now=SystemClock().now(), days=days)
    except (ValueError, OSError) as error:
        raise click.UsageError(str(error)) from error
    if as_json:
        print_json([{"folder": str(path)} for path in made])
        return
    for path in made:
        print_line(str(path))
    print_message(
        f"copy each folder to the machine that it is for; keep {folder / 'authority'} away from servers and "
        "clients, because who has its keys can make certificates"
    )
