"""`mainspring tokens`: makes, lists and revokes the tokens of the HTTP server."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import fields
from datetime import datetime, timedelta
from typing import Any

import click

from mainspring.cli.app_selection import open_app
from mainspring.cli.commands import Argument, CommandGroup
from mainspring.cli.options import app_options, json_option, parse_duration, parse_instant
from mainspring.cli.output import (
    Cell,
    Styled,
    escape_control,
    format_distance,
    print_json,
    print_line,
    print_message,
    print_table,
)
from mainspring.jobs.handlers import HandlerRegistry
from mainspring.jobs.tokens import TokenInfo
from mainspring.security.permissions import Scope
from mainspring.security.tokens import TokenState
from mainspring.similar_names import did_you_mean

STYLES = {TokenState.ACTIVE: "green", TokenState.EXPIRED: "yellow", TokenState.REVOKED: "red"}

tokens = CommandGroup("tokens", help="Make, list and revoke the tokens of the HTTP server.")


def token_fields(token: TokenInfo) -> dict[str, Any]:
    """Return the fields of a token, without its secret, for JSON output."""
    return {field.name: getattr(token, field.name) for field in fields(token)}


def parse_expiry(text: str) -> datetime | timedelta:
    """Parse the time when a token expires: a duration from now, `90d`, or an instant, `2027-01-01`.

    Raises a usage error for other text.
    """
    try:
        return parse_duration(text)
    except click.BadParameter:
        pass
    try:
        return parse_instant(text)
    except click.BadParameter as error:
        raise click.BadParameter(
            f"{text!r} is neither a duration nor an instant; write 90d, 12h, or 2027-01-01T02:00:00Z"
        ) from error


@tokens.command("create")
@click.argument("name", cls=Argument, metavar="NAME", help="A name of the token, for lists and logs.")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    required=True,
    type=click.Choice([str(scope) for scope in Scope], case_sensitive=False),
    help="What the token allows; repeat the option for several scopes. admin allows everything.",
    metavar="SCOPE",
)
@click.option(
    "--type",
    "types",
    multiple=True,
    help="Allow only jobs of this job type; may be repeated. With --app, the short name is enough.",
    metavar="NAME",
)
@click.option(
    "--queue", "queues", multiple=True, help="Allow only jobs of this queue; may be repeated.", metavar="NAME"
)
@click.option(
    "--expires",
    type=parse_expiry,
    help="When the token expires: 90d, 12h, or 2027-01-01T02:00:00Z; without this option, never.",
    metavar="TIME",
)
@json_option
@app_options
def create_token(
    *,
    name: str,
    scopes: tuple[str, ...],
    types: tuple[str, ...],
    queues: tuple[str, ...],
    expires: datetime | timedelta | None,
    as_json: bool,
    app: str | None,
    url: str | None,
) -> None:
    """Make a token, and print it. It cannot be printed again: the store has only a hash of it.

    The scopes are submit, read, work, operate, admin and callback. Without --type and --queue, they apply to all
    jobs.

    Example: mainspring tokens create shop-frontend --scope submit --type cancel_order --expires 90d
    """
    with open_app(app, url, creates_store=True) as application:
        full_names = [application.registry.full_name(each) for each in types]
        made = application.tokens.create(
            name, scopes=scopes, types=full_names or None, queues=queues or None, expires=expires
        )
        _report_unknown_types(full_names, application.registry)
    if as_json:
        print_json({"token": made.secret} | token_fields(made.info))
        return
    print_line(made.secret)
    print_message(
        f"token {made.info.name!r} allows {_rights(made.info)}; it is not shown again. Send it as "
        "Authorization: Bearer, and keep it out of logs and source code"
    )


def _report_unknown_types(types: Iterable[str], registry: HandlerRegistry) -> None:
    known = [handler.name for handler in registry.all()]
    for name in types:
        if known and name not in registry:
            remedy = did_you_mean(name, known) or f"its handlers are {', '.join(sorted(known))}"
            print_message(f"mainspring: the application has no handler {name!r}; {remedy}")


@tokens.command("list")
@json_option
@app_options
def list_tokens(*, as_json: bool, app: str | None, url: str | None) -> None:
    """List the tokens, with their last use. Secrets are not stored, so none is shown.

    Tokens that have expired or were revoked stay in the list for 30 days.

    Example: mainspring tokens list --app shop:app
    """
    with open_app(app, url) as application:
        found = application.tokens.list()
        now = application.manager().engine.now()
    if as_json:
        print_json({"tokens": [token_fields(token) for token in found]})
    elif found:
        print_table(
            ("NAME", "ID", "STATE", "ALLOWS", "EXPIRES", "LAST USE"),
            [_row(token, now) for token in found],
            uncut=("ID", "STATE"),
            droppable=("LAST USE", "EXPIRES", "ALLOWS"),
        )
    else:
        print_message("no tokens; mainspring tokens create NAME --scope read makes one")


def _row(token: TokenInfo, now: int) -> list[Cell]:
    return [
        token.name,
        token.id,
        Styled(token.state, STYLES[token.state]),
        _rights(token),
        "never" if token.expires is None else format_distance(token.expires, now, in_short=True),
        "never" if token.last_used is None else format_distance(token.last_used, now, in_short=True),
    ]


def _rights(token: TokenInfo) -> str:
    parts = [", ".join(token.scopes)]
    parts += [f"types {', '.join(token.types)}"] if token.types is not None else []
    parts += [f"queues {', '.join(token.queues)}"] if token.queues is not None else []
    return "; ".join(parts)


@tokens.command("revoke")
@click.argument("names", cls=Argument, nargs=-1, required=True, metavar="NAME", help="The names or ids of tokens.")
@json_option
@app_options
def revoke_tokens(*, names: tuple[str, ...], as_json: bool, app: str | None, url: str | None) -> None:
    """Revoke tokens. All servers of the store refuse them within a second.

    Example: mainspring tokens revoke shop-frontend
    """
    with open_app(app, url) as application:
        revoked = [application.tokens.revoke(name) for name in names]
    if as_json:
        print_json({"tokens": [token_fields(token) for token in revoked]})
        return
    for token in revoked:
        print_line(f"{escape_control(shlex.quote(token.name))} ({token.id}) revoked")
