"""The declarations of pages and actions, and what their coroutines get.

To add a page, write a module with a function `pages(app)` that returns `Page`s and a function `actions(app)` that
returns `Action`s, add it to `site.py`, and put its template into the folder `templates`. A template extends
`base.html`. The live parts of a page are blocks of its template, named in `Page.live`, each inside of an element
with the attribute `data-live` and the name of the block.

Invariants
- The scopes of a declaration are checked before its coroutine runs.
- Pages read and change jobs, queues and schedules by the operations of the API (`PageCall.api`), which check the
  rights for the type and the queue, and write the audit. So a page does nothing that its caller may not do there.
- The context of a live block depends on the page, its parameters and the rights of the caller, not on the name of
  the caller or its cookie: browsers with the same rights share it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar
from urllib.parse import quote, unquote_to_bytes, urlencode

from starlette.requests import Request
from starlette.responses import Response

from mainspring.security.permissions import Identity, Scope
from mainspring.web.dashboard.snapshots import Snapshots, Source
from mainspring.web.guard import route_path
from mainspring.web.problems import refuse

if TYPE_CHECKING:
    from mainspring.app import Mainspring

T = TypeVar("T")

MAX_FIELDS = 1_000
"""The largest number of fields that a form may have."""
MAX_PIECE = 65_536
"""How many bytes of a form are decoded in one step."""


class Operations(Protocol):
    """Performs the operations of the HTTP API for pages, within this process. `ApiRouter` implements it."""

    async def invoke(
        self,
        name: str,
        request: Request,
        identity: Identity,
        *,
        path: Mapping[str, str],
        query: Mapping[str, Any],
        body: Any = None,
    ) -> Any:
        """Perform the operation of an endpoint with the rights of a caller; return the content of its answer.

        `ApiRouter.invoke` describes the parameters.
        """

    def is_write(self, name: str) -> bool:
        """Return whether the endpoint with this name may change something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageCall:
    """One request for a page, after the caller was identified."""

    app: Mainspring
    identity: Identity
    """The caller of the page, with its rights."""
    path: Mapping[str, str]
    """The values of the parameters in the path, decoded."""
    request: Request
    snapshots: Snapshots
    operations: Operations
    now: datetime
    """The time by the clock of the store."""
    is_read_only: bool = False
    """Whether the server refuses all changes."""

    @property
    def query(self) -> dict[str, str]:
        """The parameters of the query string; the last value of one that is given several times."""
        return dict(self.request.query_params)

    @property
    def is_live(self) -> bool:
        """Whether the call updates the live blocks of an open page, instead of loading the page."""
        return route_path(self.request.scope).startswith("/live/")

    @property
    def root(self) -> str:
        """The path at which the application is mounted, without a slash at its end."""
        return str(self.request.scope.get("root_path", "")).rstrip("/")

    def url(self, *parts: object, **query: object) -> str:
        """Return the path of a page: `url("jobs", job_id)`, `url("jobs", status="failed")`.

        Each part is encoded, so an id may contain a slash. Parameters that are None or empty are left out.
        """
        path = "/".join(quote(str(part), safe="") for part in parts)
        given = [(name, value) for name, value in query.items() if value not in (None, "", [], ())]
        return f"{self.root}/{path}" + (f"?{urlencode(given, doseq=True)}" if given else "")

    def may(self, scope: str, *, type: str | None = None, queue: str | None = None) -> bool:
        """Return whether the caller may do an action of this scope, so that a page shows its button.

        A `type` or `queue` of None means all of them. On a read-only server, only reading is allowed.
        """
        wanted = Scope(scope)
        if self.is_read_only and wanted is not Scope.READ:
            return False
        return self.identity.allows(wanted, type=type, queue=queue)

    def has(self, scope: str) -> bool:
        """Return whether the caller has a scope or `admin`, even if only for certain types and queues.

        On a read-only server, return False for every scope but `read`.
        """
        wanted = Scope(scope)
        if self.is_read_only and wanted is not Scope.READ:
            return False
        return self.identity.permissions.has(wanted)

    async def get(self, source: Source[T]) -> T:
        """Return the answer of a source. All pages share it as long as the source says, a second by default."""
        return await self.snapshots.get(source)

    def peek(self, source: Source[T]) -> T | None:
        """Return the last answer of a slow source, however old, without waiting; None if there is none yet.

        If the answer is missing or older than the source allows, begin to read it.
        """
        return self.snapshots.peek(source)

    async def api(
        self,
        name: str,
        *,
        path: Mapping[str, str] | None = None,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
    ) -> Any:
        """Perform an operation of the API with the rights of the caller, and return the content of its answer.

        Raises `Refused`, `NotAllowed` and other errors, which become an error page or a message. Only actions
        may use operations that change something.

        - `name`: the name of the endpoint, such as `get_job`
        - `path`, `query`: its parameters
        - `body`: its body, as msgspec encodes it
        """
        if self.operations.is_write(name) and not isinstance(self, ActionCall):
            raise TypeError(f"a page calls the operation {name}, which may change something; use an Action")
        return await self.operations.invoke(
            name, self.request, self.identity, path=path or {}, query=query or {}, body=body
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionCall(PageCall):
    """One form that a browser has sent, after the caller and the CSRF token were checked."""

    form: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The values of all fields; a field with several values, such as selected rows, has several."""

    def value(self, name: str, default: str = "") -> str:
        """Return the value of a form field, the last one if there are several; `default` if there is none."""
        return self.form.get(name, (default,))[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The result of an action: a message, and the page that is shown next."""

    message: str
    """What was done, as a sentence: `Canceled job order-42.`"""
    location: str | None = None
    """The path of the next page, made by `call.url`; None for the page that the field `next` of the form names."""
    kind: str = "ok"
    """How the message is shown: `ok`, `warning` or `error`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """The result of an action that shows a page, such as its form again with the typed values and errors."""

    page: str
    """The name of the page that is shown."""
    context: Mapping[str, Any]
    """The context of the page's template."""
    status: int = 422


PageLoader = Callable[[PageCall], Awaitable[Mapping[str, Any] | Response]]
ActionServer = Callable[[ActionCall], Awaitable[Done | Again | Response]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardPage:
    """The declaration of a page of the dashboard."""

    name: str
    """A name, such as `jobs`. The template is `<name>.html`, unless `template` says otherwise."""
    path: str
    """The path, with parameters in braces: `/jobs/{id}`."""
    title: str
    """The title in the browser's tab. The context may have a better one, as `title`."""
    scopes: tuple[Scope, ...]
    """The caller needs one of these scopes, for any types and queues."""
    load: PageLoader
    """A coroutine function that returns the context of the template, or a whole response, such as a redirect."""
    live: tuple[str, ...] = ()
    """The blocks of the template that are sent again when they change, at most once a second."""
    section: str = ""
    """The name of the page whose entry in the navigation is marked; by default that of this page."""
    template: str = ""

    @property
    def template_name(self) -> str:
        """The file name of the page's template."""
        return self.template or f"{self.name}.html"


Page: TypeAlias = DashboardPage
"""A short name of `DashboardPage`, for declarations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """The declaration of an action: a change that a form makes.

    A browser sends the form with POST and the field `csrf`; `next` names the page that is shown next.
    """

    name: str
    path: str
    """The path, with parameters in braces: `/jobs/{id}/cancel`."""
    scopes: tuple[Scope, ...]
    """The caller needs one of these scopes, for any types and queues."""
    serve: ActionServer
    """A coroutine function that makes the change, and returns `Done`, or `Again` to show a page, or a response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NavEntry:
    """An entry of the navigation of all pages."""

    name: str
    """The name of the page that the entry opens."""
    label: str
    path: str
    key: str
    """The key that opens the page when it is pressed after `g`."""
    scopes: tuple[Scope, ...] = (Scope.READ,)
    """The scopes of the page; a caller with none of them does not see the entry."""

    def is_for(self, identity: Identity) -> bool:
        """Return whether a caller has one of the scopes of the page, so that it sees the entry."""
        return any(identity.permissions.has(scope) for scope in self.scopes)


def parse_form(body: bytes) -> dict[str, tuple[str, ...]]:
    """Return the fields of a form that was sent, each with all its values in order.

    Raises `Refused` if the form is not UTF-8 or has too many fields.
    """
    if body.count(b"&") >= MAX_FIELDS:
        raise refuse(
            422, "invalid-body", f"the form has more than {MAX_FIELDS:,} fields, which is the limit; send fewer"
        )
    form: dict[str, list[str]] = {}
    try:
        for field in filter(None, body.split(b"&")):
            name, _, value = field.partition(b"=")
            form.setdefault(_unquoted(name), []).append(_unquoted(value).replace("\r\n", "\n"))
    except UnicodeDecodeError:
        raise refuse(
            422, "invalid-body", "the form is not encoded in UTF-8; reload the page, and send the form from there"
        ) from None
    return {name: tuple(values) for name, values in form.items()}


def _unquoted(data: bytes) -> str:
    """Decode a name or a value of a form, in pieces: no other thread would run while a large one is split."""
    pieces, start = [], 0
    while start < len(data):
        end = start + MAX_PIECE
        if end < len(data) and b"%" in data[end - 2 : end]:
            end = data.rindex(b"%", end - 2, end)  # not in the middle of an escape
        pieces.append(unquote_to_bytes(data[start:end].replace(b"+", b" ")))
        start = end
    return b"".join(pieces).decode()
