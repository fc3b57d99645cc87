"""The endpoint of events: a stream of server-sent events (WHATWG HTML, section 9.2).

Invariants
- A caller gets only events of jobs that it may read. The token is checked again every few seconds, whether there
  are events or not, so that the stream of a revoked token ends.
- Each event has the position as its id. A client that connects again with `Last-Event-ID` misses nothing: either
  the stream continues there, or its first event is `reset`. Filtered streams send ids without events now and then,
  so that the position of the client stays current.
- The reader leaves the hub as soon as the client is gone, and the stream ends as soon as the server stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta, Struct
from starlette.responses import Response

from mainspring.errors import MainspringError
from mainspring.jobs.events import Event, EventKind
from mainspring.jobs.timestamps import to_datetime
from mainspring.security.asgi_types import AsgiScope, Receive, Send
from mainspring.security.permissions import Identity, Permissions, Scope
from mainspring.similar_names import did_you_mean
from mainspring.web.api.decoding import invalid_value
from mainspring.web.api.endpoint import EVENT_STREAM, AnswerType, ApiAnswer, ApiCall, Endpoint, Instant
from mainspring.web.credentials import Authenticator
from mainspring.web.event_hub import EventHub, EventReader, HubEvent
from mainspring.web.guard import header_of
from mainspring.web.problems import Refused

if TYPE_CHECKING:
    from mainspring.app import Mainspring

KEEP_ALIVE_SECONDS = 15.0
"""After this time without an event the stream sends a comment, so that no proxy takes it for idle."""
CHECK_SECONDS = 3.0
"""After this time a token is checked again. The list of tokens may be a second old, so that the stream of a token
that was revoked ends within five seconds."""
RETRY_MILLISECONDS = 2_000
"""After this time a browser whose stream has ended connects again."""
HEADERS = [
    (b"content-type", f"{EVENT_STREAM}; charset=utf-8".encode()),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]
RESET_REASON = "events are missing, because the store does not hold them any more; read the jobs again"


class EventQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The filters of a stream of events."""

    queue: Annotated[str | None, Meta(description="Only events of jobs in this queue.")] = None
    type: Annotated[str | None, Meta(description="Only events of jobs of this type.")] = None
    kind: Annotated[
        str | None,
        Meta(description="Only events of these kinds, separated by commas.", examples=["failed,completed"]),
    ] = None
    job: Annotated[str | None, Meta(description="Only events of the job with this id.")] = None


class EventView(Struct, frozen=True, kw_only=True):
    """An event of a job or of a schedule."""

    kind: EventKind
    at: Annotated[Instant, Meta(description="When it happened.")]
    job_id: Annotated[str, Meta(description="The id of the job; for `skipped`, the name of the schedule.")]
    type: str
    queue: str
    note: Annotated[str | None, Meta(description="The first line of an error, or the progress.")]


class ResetView(Struct, frozen=True, kw_only=True):
    """The data of the event `reset`, which says that the stream misses events."""

    reason: str


class EventFilter:
    """Decides which events a stream has: those that match the client's filters and that the client may read."""

    def __init__(self, query: EventQuery, type: str | None) -> None:
        self._queue = query.queue
        self._type = type
        self._job = query.job
        self._kinds = None if query.kind is None else _kinds(query.kind)

    def accepts(self, permissions: Permissions) -> Callable[[Event], bool] | None:
        """Return a function that says which events a caller with these permissions gets; None if it gets all."""
        queue, type_, job, kinds = self._queue, self._type, self._job, self._kinds
        is_free = permissions.types is None and permissions.queues is None
        if is_free and (queue, type_, job, kinds) == (None, None, None, None):
            return None

        def accept(event: Event) -> bool:
            return (
                (queue is None or event.queue == queue)
                and (type_ is None or event.type == type_)
                and (job is None or event.id == job)
                and (kinds is None or event.kind in kinds)
                and (is_free or permissions.allows(Scope.READ, type=event.type, queue=event.queue))
            )

        return accept


def _kinds(text: str) -> frozenset[EventKind]:
    found = set()
    for name in text.split(","):
        try:
            found.add(EventKind(name.strip()))
        except ValueError:
            known = [kind.value for kind in EventKind]
            hint = did_you_mean(name[:100], known) or f"the kinds are {', '.join(known)}"
            raise invalid_value(f"{name[:100]!r} is no kind of event; {hint}") from None
    return frozenset(found)


def encode(found: HubEvent) -> bytes:
    """Return an event of the hub as a server-sent event; a `HubEvent` without an event becomes `reset`.

    The bytes are kept in the `HubEvent`, so that it is encoded once for all streams.
    """
    if found.frame is None:
        event = found.event
        if event is None:
            data, name = msgspec.json.encode(ResetView(reason=RESET_REASON)), b"event: reset\n"
        else:
            view = EventView(
                kind=event.kind,
                at=to_datetime(event.at),
                job_id=event.id,
                type=event.type,
                queue=event.queue,
                note=event.note,
            )
            data, name = msgspec.json.encode(view), b""
        found.frame = b"id: %b\n%bdata: %b\n\n" % (found.position.encode(), name, data)
    return found.frame


class EventStreamResponse(Response):
    """The stream of server-sent events that answers one client.

    - `hub`: has the events
    - `authenticator`: checks the token again, every few seconds
    - `identity`: the caller
    - `wanted`: the filter of the client
    - `after`: the position after which the client continues; None to begin now
    """

    media_type = EVENT_STREAM

    def __init__(
        self,
        hub: EventHub,
        authenticator: Authenticator,
        identity: Identity,
        wanted: EventFilter,
        after: str | None,
    ) -> None:
        super().__init__()
        self._hub = hub
        self._authenticator = authenticator
        self._identity = identity
        self._wanted = wanted
        self._after = after

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Send events until the client is gone, its token is not valid any more, or the server stops.

        Send only headers for the method HEAD. Raises `Refused` if there are too many readers, or the server stops
        already.
        """
        start = {"type": "http.response.start", "status": 200, "headers": HEADERS}
        if scope["method"] == "HEAD":
            await send(start)
            await send({"type": "http.response.body", "body": b""})
            return
        async with self._hub.reader(self._identity.caller, self._after) as reader:
            await send(start)
            loop = asyncio.get_running_loop()
            tasks = [loop.create_task(self._send_events(reader, scope, send)), loop.create_task(_gone(receive))]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
        with suppress(OSError):  # the client is gone
            for task in tasks:
                if not task.cancelled():
                    task.result()
            await send({"type": "http.response.body", "body": b""})

    async def _send_events(self, reader: EventReader, scope: AsgiScope, send: Send) -> None:
        now = asyncio.get_running_loop().time
        accepts = self._wanted.accepts(self._identity.permissions)
        body = b"retry: %d\nid: %b\n\n" % (RETRY_MILLISECONDS, reader.position.encode())
        checked = now()
        while True:
            await send({"type": "http.response.body", "body": body, "more_body": True})
            sent, body = now(), b""
            while not body:
                await asyncio.sleep(0)  # `send` does not give up control while the client reads fast enough
                until = min(sent + KEEP_ALIVE_SECONDS, checked + CHECK_SECONDS)
                found = await reader.next(max(0.0, until - now()))
                if found is None:
                    return
                if now() - checked >= CHECK_SECONDS:
                    permissions = await self._check(scope)
                    if permissions is None:
                        return
                    accepts, checked = self._wanted.accepts(permissions), now()
                body = b"".join(
                    [
                        encode(each)
                        for each in found
                        if each.event is None or accepts is None or accepts(each.event)
                    ]
                )
                if not body and now() - sent >= KEEP_ALIVE_SECONDS:
                    body = b": keep-alive\nid: %b\n\n" % reader.position.encode()

    async def _check(self, scope: AsgiScope) -> Permissions | None:
        """Return the current rights of the caller; None if its token is invalid by now, or may not read."""
        try:
            identity = await self._authenticator.identify(scope)
        except (Refused, MainspringError):
            return None
        return identity.permissions if identity.permissions.has(Scope.READ) else None


async def _gone(receive: Receive) -> None:
    """Wait until the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


class EventEndpoints:
    """The endpoint that streams events."""

    async def follow(self, call: ApiCall[None, EventQuery]) -> ApiAnswer:
        """Answer a stream of the events that match the filters and that the caller may read.

        The stream begins now, or after the event that the header `Last-Event-ID` names. Raises `Refused` for an
        unknown kind of event.
        """
        query, state = call.query, call.request.app.state
        type_ = None if query.type is None else call.app.registry.full_name(query.type)
        response = EventStreamResponse(
            state.event_hub,
            state.authenticator,
            call.identity,
            EventFilter(query, type_),
            header_of(call.request.scope, b"last-event-id") or None,
        )
        return ApiAnswer(content=response)


def endpoints(_app: Mainspring) -> list[Endpoint]:
    """Return the declaration of the endpoint that streams events."""
    events = EventEndpoints()
    return [
        Endpoint(
            name="follow_events",
            method="GET",
            path="/events",
            subject="events",
            summary="Follow the events of jobs, as server-sent events.",
            description=(
                "The stream has the events of all processes from now on, as far as the token may read their jobs. "
                "The data of an event is an object as below, and its id is its position. A client that connects "
                "again sends the last id as `Last-Event-ID`, and the stream continues there. If that is not "
                "possible, the first event is `reset`: read the jobs again. A comment is sent after 15 seconds "
                "without an event."
            ),
            scopes=(Scope.READ,),
            serve=events.follow,
            query=EventQuery,
            headers={"Last-Event-ID": "The id of the last event that the client has: the stream continues there."},
            answers={
                200: AnswerType(
                    type=EventView,
                    description="A stream of events, which ends when the server stops.",
                    example={
                        "kind": "failed",
                        "at": "2026-11-17T19:26:40.123456Z",
                        "job_id": "order-42",
                        "type": "shop.cancel_order",
                        "queue": "orders",
                        "note": "ValueError: no such order",
                    },
                    media_type=EVENT_STREAM,
                )
            },
            problems=("invalid-value", "too-many-event-readers", "too-many-own-readers", "stopping"),
        ),
    ]
