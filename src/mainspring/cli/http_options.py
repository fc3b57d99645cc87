"""The options of `serve` and `run` for the HTTP server, and the server that they describe.

The packages of the extra `web` are imported only if a server is wanted.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mainspring.cli.app_selection import find_selection
from mainspring.cli.commands import Option
from mainspring.errors import MissingExtra
from mainspring.foreground.run_output import HttpNotice
from mainspring.security.http_limits import HttpLimits, parse_limits

if TYPE_CHECKING:
    from mainspring.app import Mainspring
    from mainspring.foreground.health_rules import OwnHealth
    from mainspring.web.addresses import Listener
    from mainspring.web.server import HttpServer

HTTP = "HTTP server"

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

host_name_option = click.option(
    "--host-name",
    "host_names",
    cls=Option,
    section=HTTP,
    multiple=True,
    help="A host name of the server, such as jobs.example.com. Requests with unknown host names are refused.",
    metavar="NAME",
)
no_auth_option = click.option(
    "--no-auth",
    cls=Option,
    section=HTTP,
    is_flag=True,
    help="Let every user of this machine do everything, without a token. Works on loopback addresses only.",
)
read_only_option = click.option(
    "--read-only",
    cls=Option,
    section=HTTP,
    is_flag=True,
    help="Refuse every request that would change something, even if its token allows the change.",
)


http_limit_option = click.option(
    "--http-limit",
    "http_limits",
    cls=Option,
    section=HTTP,
    multiple=True,
    help="Change a limit of the server, such as submit_rate=100; may be repeated. See docs/http-operating.md.",
    metavar="NAME=VALUE",
)


def http_options(function: Decorated) -> Decorated:
    """Add the options `--host-name`, `--http-limit`, `--no-auth` and `--read-only` to a command."""
    return host_name_option(http_limit_option(no_auth_option(read_only_option(function))))


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    """The options of the HTTP server on the command line, not parsed yet."""

    address: str
    host_names: tuple[str, ...]
    no_auth: bool
    store_metrics: bool
    app: str | None
    url: str | None
    http_limits: tuple[str, ...] = ()
    read_only: bool = False

    @property
    def token_command(self) -> tuple[str, ...]:
        """The words of the command that makes a token for the same application and store, for messages."""
        selection = find_selection(self.app, self.url)
        options = () if selection is None else selection.options
        return ("mainspring", "tokens", "create", "NAME", "--scope", "admin", *map(shlex.quote, options))


@contextmanager
def listening(options: HttpOptions | None) -> Iterator[HttpEntry | None]:
    """Listen at the address of the options until the end of the `with` block; without options, yield None.

    No server is started: connections wait for one. Raises what `open_entry` raises.
    """
    if options is None:
        yield None
        return
    with open_entry(options) as entry:
        yield entry


@contextmanager
def open_entry(options: HttpOptions) -> Iterator[HttpEntry]:
    """Listen at the address of the options until the end of the `with` block. No server is started.

    Raises `CannotListen` if that is impossible, `MissingExtra` without the extra `web`, and a usage error for a
    wrong option.
    """
    try:
        from mainspring.web.addresses import open_listener, parse_address  # noqa: PLC0415 - needs the extra web
        from mainspring.web.host_names import normal_name  # noqa: PLC0415

        import_module("mainspring.web.server")  # now, before anything has started
        import_module("mainspring.web.asgi")
    except ModuleNotFoundError as error:
        raise MissingExtra(feature="the HTTP server", extra="web") from error
    try:
        address = parse_address(options.address)
        limits = parse_limits(options.http_limits)
        for name in options.host_names:
            normal_name(name)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    listener = open_listener(address)
    try:
        yield HttpEntry(options, listener, limits)
    finally:
        listener.close()


class HttpEntry:
    """Sockets that listen at an address, and the options of the server that can start there."""

    def __init__(self, options: HttpOptions, listener: Listener, limits: HttpLimits) -> None:
        self._options = options
        self._limits = limits
        self._listener = listener

    def make_server(
        self,
        application: Mainspring,
        show: Callable[[HttpNotice], None],
        health: OwnHealth | None = None,
    ) -> HttpServer:
        """Make the HTTP server of an application, which is not started yet, and call `show` with its address.

        Raises `CannotListen` if the address is open to other machines and the store has no token. `health` is that
        of the worker in this process; None if there is none.
        """
        from mainspring.web.access import choose_access  # noqa: PLC0415 - needs the extra web
        from mainspring.web.asgi import build  # noqa: PLC0415
        from mainspring.web.host_names import rule_for  # noqa: PLC0415
        from mainspring.web.server import HttpServer  # noqa: PLC0415

        options, listener = self._options, self._listener
        access = choose_access(application, listener, no_auth=options.no_auth, command=options.token_command)
        asgi = build(
            application,
            access.authenticator,
            hosts=rule_for(listener.ips, [listener.address.host, *options.host_names]),
            worker=health,
            store_metrics=options.store_metrics,
            limits=self._limits,
            read_only=options.read_only,
        )
        command = " ".join(options.token_command)
        show(HttpNotice(url=listener.url, link=access.link, is_open=access.is_open, token_command=command))
        return HttpServer(asgi, listener, limits=self._limits)
