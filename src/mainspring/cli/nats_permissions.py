"""`mainspring nats permissions`: prints the permissions that submitters, workers and operators need on NATS."""

from __future__ import annotations

import re

import click
from msgspec import Struct

from mainspring.cli.commands import Command
from mainspring.cli.options import json_option
from mainspring.cli.output import print_json, print_line
from mainspring.engines.nats.permissions import permissions_of
from mainspring.engines.nats.settings import ROLES, Role
from mainspring.engines.nats.subject_names import DEFAULT_PREFIX
from mainspring.errors import EngineUnavailable

SERVERS = "nats://{user}:PASSWORD@HOST:4222"
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
SYSTEM_ACCOUNT = "SYS"


class Grant(Struct, frozen=True, kw_only=True):
    """The NATS user of a role: its account and name, its permissions, and the URL for clients."""

    prefix: str
    role: Role
    account: str
    user: str
    password_variable: str
    """The environment variable from which nats-server reads the password."""
    url: str
    """The URL for clients, with placeholders for the password and the host, which the user must replace."""
    publish: tuple[str, ...]
    subscribe: tuple[str, ...]


@click.command("permissions", cls=Command)
@click.option(
    "--prefix",
    "prefixes",
    multiple=True,
    default=[DEFAULT_PREFIX],
    help="The prefix in the URL of the application; may be repeated.",
    metavar="PREFIX",
)
@click.option(
    "--role", type=click.Choice(ROLES), help="Print only this role: submitter, worker or operator.", metavar="ROLE"
)
@click.option(
    "--account",
    help="Put all users into this account; without this option, each prefix has its own account, which is safer.",
    metavar="NAME",
)
@click.option(
    "--administrators",
    is_flag=True,
    help="Print also an administrator for the streams of each account, and the system account with its user.",
)
@json_option
def permissions(
    *, prefixes: tuple[str, ...], role: Role | None, account: str | None, administrators: bool, as_json: bool
) -> None:
    """Print accounts and users for nats-server; each role gets the permissions that it needs.

    Include the output in the configuration of the server. The server reads the passwords from its environment. The
    comments in the output contain the URLs for clients. The command reads and changes nothing.

    Example: mainspring nats permissions --prefix shop > shop-accounts.conf
    """
    if account is not None and not NAME.fullmatch(account):
        raise click.BadParameter(f"account {account!r} is no name; use letters, digits, '_' and '-', as in SHOP")
    try:
        grants = [
            make_grant(name, given, account)
            for name in dict.fromkeys(prefixes)
            for given in ([role] if role else ROLES)
        ]
    except EngineUnavailable as error:  # the prefix is invalid
        raise click.BadParameter(str(error)) from None
    if administrators and (as_json or role):
        raise click.UsageError(
            "--administrators is a part of the complete configuration; leave out --json and --role"
        )
    if as_json:
        print_json(grants)
    else:
        print_line(to_configuration(grants, administrators=administrators))


def make_grant(prefix: str, role: Role, account: str | None = None) -> Grant:
    """Return the NATS user for a role of the application with this prefix, with its permissions.

    Without `account`, the account is named after the prefix. Raises `EngineUnavailable` for an invalid prefix.
    """
    permissions = permissions_of(prefix, role)
    user = f"{prefix}-{role}"
    return Grant(
        prefix=prefix,
        role=role,
        account=account or _to_variable(prefix),
        user=user,
        password_variable=_to_variable(f"{prefix}_{role}_PASSWORD"),
        url=f"{SERVERS.format(user=user)}?prefix={prefix}&role={role}",
        publish=permissions.publish,
        subscribe=permissions.subscribe,
    )


def _to_variable(text: str) -> str:
    name = text.upper().replace("-", "_")
    return name if NAME.fullmatch(name) else f"APP_{name}"


def to_configuration(grants: list[Grant], *, administrators: bool = False) -> str:
    """Return the accounts and users in the configuration format of nats-server, with client URLs as comments.

    With `administrators`, each account has a user without restrictions, for backups and repairs of its streams,
    and the servers have a system account. nats-server reads only one `accounts` block, so all users are in it.
    """
    by_account: dict[str, list[Grant]] = {}
    for grant in grants:
        by_account.setdefault(grant.account, []).append(grant)
    width = max(len(grant.user) for grant in grants)
    lines = [
        "# Made by `mainspring nats permissions`. Include it in the configuration of every server of the cluster.",
        "# The server reads passwords from its environment; use letters and digits, beginning with a letter.",
        "# The URLs for clients:",
        *(f"#   {grant.user:{width}}  {grant.url}" for grant in grants),
        "accounts {",
    ]
    for account, users in by_account.items():
        lines += [f"  {account} {{", "    jetstream: enabled", "    users: ["]
        lines += [line for grant in users for line in _to_user(grant)]
        if administrators:
            password = f"${_to_variable(f'{account}_ADMINISTRATOR_PASSWORD')}"
            lines.append(f'      {{ user: "{account.lower()}-administrator", password: {password} }}')
        lines += ["    ]", "  }"]
    if administrators:
        lines.append(f'  {SYSTEM_ACCOUNT} {{ users: [{{ user: "system", password: $NATS_SYSTEM_PASSWORD }}] }}')
    lines.append("}")
    if administrators:
        lines.append(f"system_account: {SYSTEM_ACCOUNT}")
    return "\n".join(lines)


def _to_user(grant: Grant) -> list[str]:
    lines = [f'      {{ user: "{grant.user}", password: ${grant.password_variable}, permissions: {{']
    for verb, subjects in (("publish", grant.publish), ("subscribe", grant.subscribe)):
        lines += [
            f"          {verb}: {{ allow: [",
            *(f'            "{subject}"' for subject in subjects),
            "          ] }",
        ]
    return [*lines, "      } }"]
