"""The connection to the NATS servers. It runs on an event loop in its own thread, and all threads may use it.

When the connection is lost, the client reconnects by itself. A request is sent again until the server replies. If
the timeout of the settings passes first, the request raises `EngineUnavailable`.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Thread
from typing import Any, NamedTuple, TypeAlias, TypeVar, TypeVarTuple

import nats.errors
from nats.aio.msg import Msg

from mainspring.clock import Clock
from mainspring.engines.nats.client import NO_TLS, BatchingClient, ReceivedMessage, encode_message
from mainspring.engines.nats.deliveries import PullRequests
from mainspring.engines.nats.replies import DeniedSubject, ReplyInbox, parse_denied_subject
from mainspring.engines.nats.server_clock import TimeBounds, TimeSample, narrowed
from mainspring.engines.nats.settings import NatsSettings, without_secrets
from mainspring.errors import EngineUnavailable
from mainspring.jobs.timestamps import to_instant

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

# A context variable, because a task on the event loop gets a copy of the caller's context.
_shared_deadline: ContextVar[float | None] = ContextVar("deadline", default=None)

TRY_SECONDS = 2.0  # an unanswered request is sent again after this time
NO_RESPONDERS = NO_LEADER = 503  # no connection is subscribed; from the API of a stream: the stream has no leader
PENDING_BYTES = 64 * 1024 * 1024
CREDENTIALS_REMEDY = (
    "check user and password, token, nkey or credentials, that the server knows them, and the certificate of this "
    "client if the server asks for one"
)
TLS_REMEDY = (
    "give the server a certificate (`tls` in its configuration), or connect without TLS: nats:// and no tls="
)
TLS_ALERT = "_ALERT_"  # the server has refused the handshake, for instance without the certificate of a client
NOT_TRUSTED = "CERTIFICATE_VERIFY_FAILED"
NOT_TRUSTED_REMEDY = (
    "give the authority that has signed the certificate of the server (certificates= in the URL, or tls=), and an "
    "address that the certificate names"
)
NO_REPLY = "the server does not reply"
QUIET_SECONDS = 2.0  # a first connection that takes longer than this is logged

OutgoingMessage: TypeAlias = tuple[str, bytes] | tuple[str, bytes, str] | tuple[str, bytes, str, Mapping[str, str]]
"""A subject and data, and perhaps the subject for replies and headers."""

logger = logging.getLogger("mainspring.nats")


class ConnectionId(NamedTuple):
    """The identity of a connection. It is unique among all connections to all servers."""

    server: str
    """The id of the server. The id changes when the server restarts."""
    number: int


class Connection:
    """A connection to the NATS servers, with requests and the server's time.

    Any thread may use the connection, once it is open.
    """

    def __init__(self, servers: list[str], settings: NatsSettings, clock: Clock) -> None:
        self.servers = servers
        self.settings = settings
        self.address = without_secrets(servers)
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: Thread | None = None
        self._client: BatchingClient | None = None
        self._inbox = ReplyInbox(self.permission_error)
        self._time: TimeBounds | None = None
        self.on_connection: Callable[[bool], None] = lambda _is_connected: None
        self.pulls = PullRequests(self._publish_soon)
        self._last_error: str | None = None  # the last error that the client reported
        self._refusal: str | None = None  # why a server closed the connection: its reason, or only that it did
        self.denied: str | None = None
        """The last permission error of the server, as text; None if there was none."""
        self.optional_subjects: tuple[str, ...] = ()
        """Prefixes, in lower case, of subjects that this process can do without: their denial is no error."""

    # -- opening and closing

    def open(self) -> None:
        """Connect to a server; raise `EngineUnavailable` if no server accepts the connection in time."""
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="mainspring-nats", daemon=True)
        self._thread.start()
        try:
            self.run_on_loop(self._connect(), self.settings.timeout or 60)
        except EngineUnavailable:
            self.close()
            raise

    async def _connect(self) -> None:
        settings = self.settings
        options: dict[str, Any] = {
            "user": settings.user,
            "password": settings.password,
            "token": settings.token,
            "user_credentials": settings.credentials,
            "nkeys_seed_str": settings.nkeys_seed,
            "tls": settings.tls_context(),
        }
        client = BatchingClient()
        seconds = settings.timeout or 60
        slow_warning = asyncio.get_running_loop().call_later(QUIET_SECONDS, self._log_slow_connect, seconds)
        try:
            await asyncio.wait_for(self._connect_client(client, options), max(0.1, seconds - 0.5))
        except (OSError, nats.errors.Error, TimeoutError, ValueError) as error:
            await _close(client)
            reason = self._refusal or self._last_error or str(error) or NO_REPLY
            raise self.unavailable(f"no connection: {reason}", remedy=self._remedy_for(reason)) from error
        finally:
            slow_warning.cancel()
        client.options["max_reconnect_attempts"] = -1  # after the first connection, reconnect without a limit
        self._client = client
        await self._inbox.open(client)
        await self.pulls.subscribe(client)
        await self._after_connect()

    async def _after_connect(self) -> None:
        """Prepare a new connection, on the event loop, before other requests use it."""

    def _remedy_for(self, reason: str) -> str | None:
        """Return what to do about a connection that was not accepted; None if the reason is none of the usual."""
        if NOT_TRUSTED in reason:
            return NOT_TRUSTED_REMEDY
        if self._refusal or TLS_ALERT in reason:
            return CREDENTIALS_REMEDY
        return TLS_REMEDY if reason == NO_TLS else None

    def _log_slow_connect(self, seconds: float) -> None:
        logger.warning(
            "NATS at %s has not accepted the connection yet; still trying, for %g s in all", self.address, seconds
        )

    async def _connect_client(self, client: BatchingClient, options: dict[str, Any]) -> None:
        seconds: dict[str, Any] = {
            "reconnect_time_wait": 0.25,
            "connect_timeout": min(5, self.settings.timeout or 5),
        }
        await client.connect(
            servers=self.servers,
            name="mainspring",
            inbox_prefix=self.settings.inbox.encode(),
            allow_reconnect=True,
            max_reconnect_attempts=2,
            ping_interval=5,
            max_outstanding_pings=2,
            pending_size=PENDING_BYTES,
            skip_subject_validation=True,  # all subjects consist of valid tokens, so they need no check
            error_cb=self._on_error,
            disconnected_cb=self._on_disconnect,
            reconnected_cb=self._on_reconnect,
            **seconds,
            **{name: value for name, value in options.items() if value is not None},
        )

    def close(self) -> None:
        """Disconnect from the server, and end the thread of the event loop; do nothing if it has ended.

        Requests that wait for a reply fail.
        """
        loop, self._loop = self._loop, None
        if loop is None or self._thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._disconnect(), loop).result(timeout=10)
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        late = asyncio.all_tasks(loop)  # requests that other threads have started during this call
        for task in late:
            task.cancel()
        if late:
            loop.run_until_complete(asyncio.wait(late))
        loop.close()

    async def _disconnect(self) -> None:
        client, self._client = self._client, None
        self._inbox.fail_all()
        if client is not None:
            try:
                await asyncio.wait_for(client.flush(), 1)
            except (nats.errors.Error, TimeoutError):
                logger.debug(
                    "%s: the server did not confirm all messages in time; the connection is closed anyway",
                    self.address,
                )
            await _close(client)
        current = asyncio.current_task()
        for task in asyncio.all_tasks():
            if task is not current:
                task.cancel()

    async def _on_error(self, error: Exception) -> None:
        text = str(error)
        self._last_error = text or NO_REPLY
        if "uthorization" in text:
            self._refusal = text
        elif isinstance(error, ConnectionResetError):  # the server's reason may arrive later, or not at all
            self._refusal = self._refusal or text
        level = logging.DEBUG
        if "ermissions" in text:
            denied = parse_denied_subject(text)
            is_optional = denied is not None and denied.subject.startswith(self.optional_subjects)
            if not is_optional:
                self.denied = text
            is_reported = denied is not None and self._fail_denied_requests(denied)
            level = logging.DEBUG if is_reported or is_optional else logging.ERROR
        logger.log(level, "%s: %s", self.address, text or type(error).__name__)

    def _fail_denied_requests(self, denied: DeniedSubject) -> bool:
        """Fail the requests to a denied subject; return whether a caller gets the error.

        If no caller gets the error, it must be logged.
        """
        is_reported = self._inbox.fail_denied(denied)
        return self.pulls.fail_denied(denied.subject, self.permission_error) or is_reported

    async def _on_disconnect(self) -> None:
        if self._client is not None:
            logger.warning("the connection to NATS at %s is lost; reconnecting", self.address)
            self.pulls.drop_all()
            self._inbox.fail_all()
            self.on_connection(False)

    async def _on_reconnect(self) -> None:
        logger.warning("reconnected to NATS at %s", self.address)
        self.pulls.drop_idle()  # pull requests that were sent before are lost
        await self._after_connect()
        self.on_connection(True)

    @property
    def is_connected(self) -> bool:
        """Whether the connection to a server is up right now."""
        return self._client is not None and self._client.is_connected

    @property
    def connection_id(self) -> ConnectionId | None:
        """The identity of the current connection; None while there is no connection."""
        client = self._client
        if client is None or not client.is_connected:
            return None
        server = client.server
        return ConnectionId(str(server.get("server_id", "")), int(server.get("client_id", 0)))

    @property
    def unconfirmed_seconds(self) -> float:
        """The seconds since the last request that got a reply was sent.

        For at most this long, the connection may have been closed without this process noticing. The value is
        infinite if this process has closed the connection.
        """
        loop = self._loop
        return math.inf if loop is None else loop.time() - self._inbox.confirmed

    @property
    def client(self) -> BatchingClient | None:
        """The client, for use on the event loop; None if the connection is closed."""
        return self._client

    @property
    def version(self) -> str:
        """The version of the connected server; empty if the connection is closed."""
        if self._client is None:
            return ""
        version = self._client.connected_server_version
        return f"{version.major}.{version.minor}.{version.patch}"

    @property
    def server(self) -> dict[str, Any]:
        """The INFO message of the server: its id, name and cluster; empty if the connection is closed."""
        return self._client.server if self._client else {}

    @property
    def max_payload(self) -> int:
        """The largest message that the server accepts, in bytes; 1 MiB if the connection is closed."""
        return self._client.max_payload if self._client else 1_048_576

    # -- time

    def now(self) -> int:
        """Return the earliest time that the server may have, in microseconds since 1970.

        Until the first sample (`add_time`), return the local time.
        """
        bounds = self._time
        return self.local_time() if bounds is None else bounds.earliest_at(self.monotonic())

    def latest(self) -> int:
        """Return the latest time that the server may have; until the first sample, the local time."""
        bounds = self._time
        return self.local_time() if bounds is None else bounds.latest_at(self.monotonic())

    def monotonic(self) -> int:
        """Return the local monotonic clock, in microseconds."""
        return self._clock.monotonic_ns() // 1_000

    @property
    def has_time(self) -> bool:
        """Whether the server's time is known, because there was a sample."""
        return self._time is not None

    def local_time(self) -> int:
        """Return the time of the local wall clock, in microseconds since 1970."""
        return to_instant(self._clock.now(), "now")

    def add_time(self, sample: TimeSample) -> TimeBounds:
        """Narrow the bounds of the server's time by a sample, and return them.

        From then on, `now` does not depend on the local wall clock, which may be wrong or may be set.
        """
        self._time = bounds = narrowed(self._time, sample)
        return bounds

    # -- threads

    def run_on_loop(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine on the event loop, wait at most `timeout` seconds, and return its result.

        If `timeout` is None, there is no limit. Raises what the coroutine raises, and `EngineUnavailable` if the
        time is over, or if the connection is closed. The coroutine is not canceled when the time is over.
        """
        loop = self._loop
        if loop is None:
            work.close()
            raise self.unavailable("the connection is closed", remedy="open the engine first")
        future = None
        try:
            future = asyncio.run_coroutine_threadsafe(work, loop)
            return future.result(timeout)
        except KeyboardInterrupt:
            if future is not None:
                future.cancel()
            raise
        except (TimeoutError, CancelledError) as error:
            raise self.unavailable("the server did not reply in time, or the connection was closed") from error
        except RuntimeError as error:
            if not loop.is_closed():
                raise
            work.close()
            raise self.unavailable("the connection was closed", remedy="open the engine again") from error

    def call_soon(self, callback: Callable[[*Arguments], None], *arguments: *Arguments) -> None:
        """Call a function with these arguments on the event loop as soon as possible, from any thread.

        Do nothing if the loop is closed.
        """
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(callback, *arguments)

    def call_after(self, seconds: float, callback: Callable[[], None]) -> None:
        """Call a function on the event loop after some seconds.

        Any thread may call this. Do nothing if the loop is closed.
        """

        def start_timer() -> None:
            asyncio.get_running_loop().call_later(seconds, callback)

        self.call_soon(start_timer)

    def unavailable(self, reason: str, *, remedy: str | None = None) -> EngineUnavailable:
        """Return an `EngineUnavailable` error with this reason and the server's last permission error."""
        return EngineUnavailable(
            engine=f"NATS at {self.address}",
            reason=reason if self.denied is None else f"{reason}; the server reported: {self.denied}",
            remedy=remedy or "check that nats-server runs with JetStream (-js) and can be reached",
        )

    def permission_error(self, subject: str) -> EngineUnavailable:
        """Return the error for a missing permission: to publish to a subject, or to subscribe to the inbox."""
        action = "subscribe" if subject == self._inbox.subject else "publish"
        return EngineUnavailable(
            engine=f"NATS at {self.address}",
            reason=f"this user has no permission to {action} to {subject!r}",
            remedy=f"grant the rights that `mainspring nats permissions --prefix {self.settings.prefix}` prints, "
            "and name the role of the user in the URL, such as ?role=worker",
        )

    # -- requests

    def _try_seconds(self, deadline: float | None) -> float:
        """Return how many seconds a coroutine waits for a reply before it sends the request again."""
        return TRY_SECONDS if deadline is None else min(TRY_SECONDS, deadline - loop_time())

    def seconds_left(self, most: float) -> float:
        """Return how many seconds this call may wait for something that it can do without: at most `most`."""
        deadline = self._deadline()
        return most if deadline is None else min(most, max(0.05, deadline - self._deadline_time()))

    def _seconds_left(self) -> float:
        """Return how many seconds a thread waits for a reply before it sends the request again."""
        shared = _shared_deadline.get()
        return TRY_SECONDS if shared is None else min(TRY_SECONDS, shared - self._deadline_time())

    def _deadline_time(self) -> float:
        """Return the time of deadlines: that of the event loop, whatever clock the engine has."""
        loop = self._loop
        return self.monotonic() / 1e6 if loop is None else loop.time()

    def _deadline(self) -> float | None:
        timeout = self.settings.timeout
        if timeout is None:
            return None
        shared = _shared_deadline.get()
        return self._deadline_time() + timeout if shared is None else shared

    @contextmanager
    def shared_deadline(self) -> Iterator[None]:
        """Apply one timeout to all requests in a `with` block together, instead of one timeout to each request.

        Inside of a call that has one timeout already, that timeout applies.
        """
        if _shared_deadline.get() is not None:
            yield
            return
        try:  # the change is inside the block, because a KeyboardInterrupt may come right after it
            self.begin_deadline()
            yield
        finally:
            self.end_deadline()

    def begin_deadline(self) -> None:
        """Apply one timeout to all requests of this thread together, until `end_deadline` is called."""
        timeout = self.settings.timeout
        _shared_deadline.set(None if timeout is None else self._deadline_time() + timeout)

    def end_deadline(self) -> None:
        """End the timeout of `begin_deadline`."""
        _shared_deadline.set(None)

    def restart_deadline(self) -> None:
        """Begin the timeout of this call again, because a long operation has made progress.

        Do nothing outside of `begin_deadline` and `shared_deadline`.
        """
        timeout = self.settings.timeout
        if timeout is not None and _shared_deadline.get() is not None:
            _shared_deadline.set(self._deadline_time() + timeout)

    def _connected(self) -> BatchingClient:
        if self._client is None:
            raise self.unavailable("the connection is closed", remedy="open the engine first")
        return self._client

    async def request(self, subject: str, data: bytes, deadline: float | None) -> ReceivedMessage:
        """Send a request until the server replies, and return the reply.

        `deadline` is a time of the event loop's clock; None for no limit. Raises `EngineUnavailable` if the
        deadline passes first, if the connection is closed, or if this user has no permission for the request.
        """
        while deadline is None or loop_time() < deadline:
            client = self._connected()
            if client.is_connected:
                inbox, future = self._inbox.register(subject)
                await client.write([encode_message(subject, data, inbox)])
                reply = await self._inbox.wait(inbox, future, self._try_seconds(deadline))
                if reply is not None and reply.status != NO_LEADER:
                    return reply
                if reply is not None:
                    await asyncio.sleep(0.1)  # the servers have no leader at the moment
            else:
                await asyncio.sleep(0.05)
        raise self.unavailable(
            f"the request {subject} did not succeed before the timeout of {self.settings.timeout:g} s: no "
            "connection, no reply, or no leader"
        )

    async def is_absent(self, subject: str, seconds: float) -> bool:
        """Send a message to a subject; return whether the server reports in time that it has no subscribers.

        Return False if that is unknown: there is no connection, no reply, or no permission.
        """
        client = self._client
        if client is None or not client.is_connected:
            return False
        try:
            inbox, future = self._inbox.register(subject)
            await client.write([encode_message(subject, b"", inbox)])
            reply = await self._inbox.wait(inbox, future, seconds)
        except (EngineUnavailable, nats.errors.Error):  # permission is denied, or the connection is lost
            return False
        return reply is not None and reply.status == NO_RESPONDERS

    # -- messages without a reply

    def send(self, messages: Sequence[OutgoingMessage]) -> None:
        """Send messages (subject, data, and perhaps reply and headers) soon, without waiting for a reply.

        Messages are dropped while there is no connection.
        """
        if messages:
            self.call_soon(lambda: self._publish_soon(messages))

    def _publish_soon(self, messages: Sequence[OutgoingMessage]) -> None:
        _keep_reference(asyncio.ensure_future(self._publish_all(messages)))

    async def _publish_all(self, messages: Sequence[OutgoingMessage]) -> None:
        client = self._client
        if client is None or not client.is_connected:
            return  # drop the messages, because no sender relies on them
        try:
            await client.write([encode_message(*message) for message in messages])
        except nats.errors.Error as error:
            logger.debug("%s: messages that need no reply were not sent: %r", self.address, error)

    # -- notifications

    def subscribe(self, subject: str, on_message: Callable[[str, bytes], None]) -> None:
        """Subscribe to a subject that no stream stores: `on_message` gets the subject and data of each message.

        `on_message` is called on the event loop. Raises `EngineUnavailable` if the connection is closed.
        """

        async def receive(message: Msg) -> None:
            on_message(message.subject, message.data)

        async def subscribe() -> None:
            await self._connected().subscribe(subject, cb=receive)

        self.run_on_loop(subscribe(), self.settings.timeout)

    def subscribe_soon(self, subject: str, on_message: Callable[[str, bytes], None]) -> None:
        """Subscribe as `subscribe` does, without waiting. The event loop may call this."""

        async def receive(message: Msg) -> None:
            on_message(message.subject, message.data)

        async def subscribe() -> None:
            if self._client is not None:
                await self._client.subscribe(subject, cb=receive)

        self.call_soon(lambda: _keep_reference(asyncio.ensure_future(subscribe())))


async def _close(client: BatchingClient) -> None:
    """Close a client, but give up after 2 seconds, because a close may hang after a failed handshake."""
    try:
        await asyncio.wait_for(client.close(), 2)
    except (TimeoutError, OSError, nats.errors.Error) as error:
        logger.debug("a connection to NATS could not be closed properly: %r", error)


def loop_time() -> float:
    """Return the current time of the running event loop's clock."""
    return asyncio.get_running_loop().time()


_tasks: set[asyncio.Future[Any]] = set()


def _keep_reference(task: asyncio.Future[Any]) -> None:
    """Keep a task from being garbage-collected while it runs."""
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
