"""`mainspring nats permissions`: prints accounts and users for NATS: submitters, workers and operators."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import click
from msgspec import Struct

from mainspring.cli.commands import Command
from mainspring.cli.options import json_option
from mainspring.cli.output import print_json, print_line
from mainspring.engines.nats.permissions import Service, rights_of
from mainspring.engines.nats.settings import ROLES, Role
from mainspring.engines.nats.subject_names import DEFAULT_PREFIX
from mainspring.errors import EngineUnavailable

SERVERS = "nats://{user}:PASSWORD@HOST:4222"
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
SYSTEM_ACCOUNT = "SYS"
RESPONSE_THRESHOLD = "60s"
"""For how long an account waits for the next reply to a request with many replies; an idle pull waits for 30 s."""


class Grant(Struct, frozen=True, kw_only=True):
    """The account and the NATS user of a role, with what the account imports and what the user may do."""

    prefix: str
    role: Role
    data_account: str
    """The account with the streams of jobs, events, activity and requests."""
    guarded_account: str
    """The account with the stream of guarded records."""
    account: str
    user: str
    password_variable: str
    """The environment variable from which nats-server reads the password."""
    url: str
    """The URL for clients, with placeholders for the password and the host, which the user must replace."""
    services: tuple[Service, ...]
    records: tuple[str, ...]
    replies: str
    notifications: str
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
    help="Keep the data of all prefixes in this account; without this option, each prefix has an account for its "
    "data, which is safer.",
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
    """Print accounts and users for nats-server; each role gets the rights that it needs.

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
    _require_distinct(grants)
    if as_json:
        print_json(grants)
    else:
        print_line(to_configuration(grants, administrators=administrators))


def _require_distinct(grants: Sequence[Grant]) -> None:
    """Raise `click.BadParameter` if two accounts would have the same name."""
    taken: dict[str, str] = {SYSTEM_ACCOUNT: "the system account"}
    wanted = {grant.data_account: "the data" for grant in grants}
    wanted |= {grant.guarded_account: "guarded records" for grant in grants}
    for account, owner in [*wanted.items(), *((grant.account, f"the user {grant.user}") for grant in grants)]:
        if account in taken:
            raise click.BadParameter(
                f"the account {account} would be that of {taken[account]} and of {owner}; choose another "
                "--account or --prefix, or run the command once for each prefix"
            )
        taken[account] = owner


def make_grant(prefix: str, role: Role, account: str | None = None) -> Grant:
    """Return the account and the NATS user for a role of the application with this prefix.

    Without `account`, the account with the data is named after the prefix. Raises `EngineUnavailable` for an
    invalid prefix.
    """
    rights = rights_of(prefix, role)
    user = f"{prefix}-{role}"
    return Grant(
        prefix=prefix,
        role=role,
        data_account=account or _to_variable(prefix),
        guarded_account=f"{account or _to_variable(prefix)}_GUARDED",
        account=_to_variable(f"{prefix}_{role}"),
        user=user,
        password_variable=_to_variable(f"{user}_PASSWORD"),
        url=f"{SERVERS.format(user=user)}?prefix={prefix}&role={role}",
        services=rights.services,
        records=rights.records,
        replies=rights.replies,
        notifications=rights.notifications,
        publish=rights.publish,
        subscribe=rights.subscribe,
    )


def _to_variable(text: str) -> str:
    name = text.upper().replace("-", "_")
    return name if NAME.fullmatch(name) else f"APP_{name}"


def to_configuration(grants: Sequence[Grant], *, administrators: bool = False) -> str:
    """Return the accounts and users in the configuration format of nats-server, with client URLs as comments.

    With `administrators`, each account with streams has a user for backups and repairs, and the servers have a
    system account. nats-server reads only one `accounts` block, so all users are in it.
    """
    width = max(len(grant.user) for grant in grants)
    lines = [
        "# Made by `mainspring nats permissions`. Include it in the configuration of every server of the cluster.",
        "# The server reads passwords from its environment; use letters and digits, beginning with a letter.",
        "# The URLs for clients:",
        *(f"#   {grant.user:{width}}  {grant.url}" for grant in grants),
        "accounts {",
    ]
    for account in dict.fromkeys(grant.data_account for grant in grants):
        takers = [grant for grant in grants if grant.data_account == account]
        for is_guarded in (False, True):
            lines += _to_data_account(account, takers, is_guarded=is_guarded, has_administrator=administrators)
    for grant in grants:
        others = [other for other in grants if other.prefix == grant.prefix and other.role != grant.role]
        lines += _to_role_account(grant, others)
    if administrators:
        lines.append(f'  {SYSTEM_ACCOUNT} {{ users: [{{ user: "system", password: $NATS_SYSTEM_PASSWORD }}] }}')
    lines.append("}")
    if administrators:
        lines.append(f"system_account: {SYSTEM_ACCOUNT}")
    return "\n".join(lines)


def _to_data_account(
    account: str, grants: Sequence[Grant], *, is_guarded: bool, has_administrator: bool
) -> Iterator[str]:
    name = grants[0].guarded_account if is_guarded else account
    yield f"  {name} {{"
    yield "    jetstream: enabled"
    if has_administrator:
        # A push consumer delivers only to subjects that a client subscribes to. So the administrator subscribes to
        # replies only, and no consumer can deliver to the JetStream API or to a stream.
        password = f"${_to_variable(f'{account}_ADMINISTRATOR_PASSWORD')}"
        yield "    users: ["
        yield f'      {{ user: "{name.lower()}-administrator", password: {password}, permissions: {{'
        yield '          subscribe: { allow: ["_INBOX.>"] }'
        yield "      } }"
        yield "    ]"
    yield "    exports: ["
    services = {service.subject: service for grant in grants for service in grant.services}
    for subject, service in services.items():
        takers = [grant.account for grant in grants if any(subject == own.subject for own in grant.services)]
        many = f', response_type: stream, threshold: "{RESPONSE_THRESHOLD}"' if service.is_streamed else ""
        if service.is_guarded is is_guarded:
            yield f'      {{ service: "{subject}"{many}, accounts: [{", ".join(takers)}] }}'
    if not is_guarded:
        yield from (f'      {{ stream: "{grant.replies}", accounts: [{grant.account}] }}' for grant in grants)
    yield "    ]"
    if not is_guarded:
        yield "    imports: ["
        for grant in grants:
            for subject in grant.records:
                yield f'      {{ stream: {{ account: {grant.account}, subject: "{subject}" }} }}'
        yield "    ]"
    yield "  }"


def _to_role_account(grant: Grant, others: Sequence[Grant]) -> Iterator[str]:
    yield f"  {grant.account} {{"
    yield "    users: ["
    yield f'      {{ user: "{grant.user}", password: ${grant.password_variable}, permissions: {{'
    for verb, subjects in (("publish", grant.publish), ("subscribe", grant.subscribe)):
        yield f"          {verb}: {{ allow: ["
        yield from (f'            "{subject}"' for subject in subjects)
        yield "          ] }"
    yield "      } }"
    yield "    ]"
    yield "    exports: ["
    for subject in grant.records:
        yield f'      {{ stream: "{subject}", accounts: [{grant.data_account}] }}'
    if others:
        listeners = ", ".join(other.account for other in others)
        yield f'      {{ stream: "{grant.notifications}", accounts: [{listeners}] }}'
    yield "    ]"
    yield "    imports: ["
    for service in grant.services:
        source = grant.guarded_account if service.is_guarded else grant.data_account
        renamed = f', to: "{service.to}"' if service.to != service.subject else ""
        yield f'      {{ service: {{ account: {source}, subject: "{service.subject}" }}{renamed} }}'
    yield f'      {{ stream: {{ account: {grant.data_account}, subject: "{grant.replies}" }} }}'
    for other in others:
        stream = f'{{ account: {other.account}, subject: "{other.notifications}" }}'
        yield f'      {{ stream: {stream}, prefix: "{grant.prefix}.heard.{other.role}" }}'
    yield "    ]"
    yield "  }"
