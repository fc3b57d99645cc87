"""The link to the servers: a connection on an event loop in a thread of its own, used by plain calls.

Calls wait for the server up to the timeout of the settings, over reconnections too, and then raise
`EngineUnavailable`. A `commit` that cannot know whether it was stored answers as if somebody had been quicker: the
caller reads again, and finds out.
"""

from __future__ import annotations

import asyncio
import json
import logging
from base64 import b64decode
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import CancelledError
from threading import Thread
from typing import Any, TypeVar

import nats
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from mainspring.clock import Clock
from mainspring.engines.nats.drafts import MOST_PUTS, NOTHING, Draft, Entry, Put
from mainspring.engines.nats.messages import Message, Pull, Pulls, status_of
from mainspring.engines.nats.settings import NatsSettings, without_secrets
from mainspring.errors import EngineUnavailable
from mainspring.jobs.instants import to_instant

T = TypeVar("T")

WRONG_LAST_SEQUENCE = (10071, 10164)
BUSY = (10176, 10201, 10210)  # too many batches at once: they are many who write
NOT_FOUND = (10014, 10037, 10059)
TRY_SECONDS = 2.0  # after which an unanswered request is sent again
READ_AT_ONCE = 500
IMPOSSIBLE = 2**62  # a revision that nothing has
PENDING_BYTES = 64 * 1024 * 1024

logger = logging.getLogger("mainspring.nats")


class ServerError(Exception):
    """The server has refused a request."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error.get('description', 'unknown error')} (code {error.get('err_code', 0)})")
        self.code = int(error.get("err_code", 0))


class Link:
    """Requests, drafts and pulls. From any thread, once it is open."""

    def __init__(self, servers: list[str], settings: NatsSettings, stream: str, clock: Clock) -> None:
        self.servers = servers
        self.settings = settings
        self.address = without_secrets(servers)
        self._stream = stream
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: Thread | None = None
        self._client: Client | None = None
        self._answers: dict[str, asyncio.Future[Msg]] = {}
        self._inbox = ""
        self._count = 0
        self._offset = 0
        self._drafts = 0
        self.reads_leader = False
        """Whether replicas may lag behind, so that only the leader is asked."""
        self.on_connection: Callable[[bool], None] = lambda _is_there: None
        self.pulls = Pulls(self._publish_later)
        self.pulls.stream = stream
        self.denied: str | None = None
        self.last_record = 0
        """The revision of the last job record that we have stored."""
        """The last thing that the server has forbidden."""

    # -- opening and closing

    def open(self) -> None:
        """Connect; raises `EngineUnavailable` if no server answers in time."""
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="mainspring-nats", daemon=True)
        self._thread.start()
        try:
            self.wait_for(self._connect(), self.settings.timeout or 60)
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
            "tls": settings.tls,
        }
        try:
            self._client = await nats.connect(
                servers=self.servers,
                name="mainspring",
                inbox_prefix=settings.inbox_prefix.encode(),
                allow_reconnect=True,
                max_reconnect_attempts=-1,
                reconnect_time_wait=0.25,
                connect_timeout=min(5, settings.timeout or 5),
                ping_interval=5,
                max_outstanding_pings=2,
                pending_size=PENDING_BYTES,
                error_cb=self._note_error,
                disconnected_cb=self._note_disconnect,
                reconnected_cb=self._note_reconnect,
                **{name: value for name, value in options.items() if value is not None},
            )
        except (OSError, nats.errors.Error, TimeoutError, ValueError) as error:
            raise self.unavailable(str(error) or type(error).__name__) from error
        self._inbox = self._client.new_inbox()
        await self._client.subscribe(f"{self._inbox}.*", cb=self._answer)
        await self.pulls.subscribe(self._client)

    def close(self) -> None:
        """Disconnect, and end the thread."""
        loop, self._loop = self._loop, None
        if loop is None or self._thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._disconnect(), loop).result(timeout=10)
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        loop.close()

    async def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            try:
                await asyncio.wait_for(client.flush(), 1)
            except (nats.errors.Error, TimeoutError):
                logger.debug("%s: closed without a last flush", self.address)
            await client.close()
        me = asyncio.current_task()
        for task in asyncio.all_tasks():
            if task is not me:
                task.cancel()

    async def _note_error(self, error: Exception) -> None:
        text = str(error)
        if "ermissions" in text:
            self.denied = text
            logger.error("%s: %s", self.address, text)
        else:
            logger.debug("%s: %s", self.address, text)

    async def _note_disconnect(self) -> None:
        if self._client is not None:
            logger.warning("the connection to %s is lost; trying to get it back", self.address)
            self.pulls.forget()
            self.on_connection(False)

    async def _note_reconnect(self) -> None:
        logger.warning("connected to %s again", self.address)
        self.on_connection(True)

    @property
    def is_connected(self) -> bool:
        """Whether a server is there right now."""
        return self._client is not None and self._client.is_connected

    @property
    def version(self) -> str:
        """The version of the server."""
        if self._client is None:
            return ""
        version = self._client.connected_server_version
        return f"{version.major}.{version.minor}.{version.patch}"

    @property
    def max_payload(self) -> int:
        """How many bytes a message may have."""
        return self._client.max_payload if self._client else 1_048_576

    # -- time

    def now(self) -> int:
        """Return the server's time, in microseconds."""
        return to_instant(self._clock.now(), "now") + self._offset

    def own_time(self) -> int:
        """Return what our own clock says."""
        return to_instant(self._clock.now(), "now")

    def set_time(self, server: int, before: int, after: int) -> None:
        """Take over the server's time: what it said between two readings of our clock."""
        self._offset = server - (before + after) // 2

    # -- threads

    def wait_for(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Let the loop do something, and wait for it."""
        loop = self._loop
        if loop is None:
            work.close()
            raise self.unavailable("it is closed", remedy="open the engine first")
        try:
            return asyncio.run_coroutine_threadsafe(work, loop).result(timeout)
        except (TimeoutError, CancelledError) as error:
            raise self.unavailable("it did not answer in time") from error

    def call_later(self, act: Callable[[], None]) -> None:
        """Let the loop do something soon. From any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(act)

    def start_task(self, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Let the loop do something for as long as the link is open."""
        self.call_later(lambda: _keep(asyncio.ensure_future(make())))

    def unavailable(self, reason: str, *, remedy: str | None = None) -> EngineUnavailable:
        """Make the error that says what is wrong with this server."""
        return EngineUnavailable(
            engine=f"NATS at {self.address}",
            reason=reason if self.denied is None else f"{reason}; it said: {self.denied}",
            remedy=remedy or "check that nats-server runs with JetStream (-js) and can be reached",
        )

    # -- requests

    async def _answer(self, message: Msg) -> None:
        future = self._answers.pop(message.subject, None)
        if future is not None and not future.done():
            future.set_result(message)

    def _expect(self) -> tuple[str, asyncio.Future[Msg]]:
        self._count += 1
        subject = f"{self._inbox}.{self._count}"
        future = self._answers[subject] = asyncio.get_running_loop().create_future()
        return subject, future

    async def _await(self, subject: str, future: asyncio.Future[Msg], deadline: float | None) -> Msg | None:
        """Return the answer; None if there is none for a while, or no connection any more."""
        limit = TRY_SECONDS if deadline is None else min(TRY_SECONDS, deadline - _time())
        try:
            return await asyncio.wait_for(future, max(0.001, limit))
        except TimeoutError:
            return None
        finally:
            self._answers.pop(subject, None)

    def _deadline(self) -> float | None:
        timeout = self.settings.timeout
        return None if timeout is None else _time() + timeout

    def _connected(self) -> Client:
        if self._client is None:
            raise self.unavailable("it is closed", remedy="open the engine first")
        return self._client

    async def request(self, subject: str, data: bytes, deadline: float | None) -> Msg:
        """Send a request until it is answered, or it is too late."""
        while deadline is None or _time() < deadline:
            client = self._connected()
            if client.is_connected:
                inbox, future = self._expect()
                await client.publish(subject, data, reply=inbox)
                answer = await self._await(inbox, future, deadline)
                if answer is not None and status_of(answer) != 503:
                    return answer
                if answer is not None:
                    await asyncio.sleep(0.1)  # no leader for now
            else:
                await asyncio.sleep(0.05)
        raise self.unavailable(f"{subject} was not answered in {self.settings.timeout:g} s")

    def api(self, verb: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Ask the JetStream API; raises `ServerError` for what it refuses."""
        return self.wait_for(self.api_async(verb, body))

    async def api_async(self, verb: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Ask the JetStream API, on the loop."""
        data = json.dumps(body).encode() if body else b""
        answer = json.loads((await self.request(f"$JS.API.{verb}", data, self._deadline())).data)
        if "error" in answer:
            raise ServerError(answer["error"])
        return dict(answer)

    # -- reading

    def read(self, subjects: Iterable[str]) -> dict[str, Entry]:
        """Return what subjects hold; `NOTHING` for those that hold nothing."""
        wanted = list(dict.fromkeys(subjects))
        return self.wait_for(self._read(wanted)) if wanted else {}

    def read_one(self, subject: str) -> Entry:
        """Return what a subject holds."""
        return self.read([subject])[subject]

    async def _read(self, subjects: list[str]) -> dict[str, Entry]:
        found = dict.fromkeys(subjects, NOTHING)
        deadline = self._deadline()
        if self.reads_leader or len(subjects) == 1:
            entries = await asyncio.gather(*(self._read_leader(subject, deadline) for subject in subjects))
            return dict(zip(subjects, entries, strict=True))
        for start in range(0, len(subjects), READ_AT_ONCE):
            body = {"multi_last": subjects[start : start + READ_AT_ONCE]}
            for subject, entry in await self.collect(body):
                found[subject] = entry
        return found

    async def _read_leader(self, subject: str, deadline: float | None) -> Entry:
        body = json.dumps({"last_by_subj": subject}).encode()
        answer = json.loads((await self.request(f"$JS.API.STREAM.MSG.GET.{self._stream}", body, deadline)).data)
        if "error" in answer:
            if answer["error"].get("err_code") in NOT_FOUND:
                return NOTHING
            raise ServerError(answer["error"])
        return decode_api_message(answer["message"])

    async def collect(self, body: dict[str, Any], stream: str | None = None) -> list[tuple[str, Entry]]:
        """Return the messages that a direct read finds, in their order."""
        deadline = self._deadline()
        while deadline is None or _time() < deadline:
            if self._connected().is_connected:
                found = await self.pulls.collect(f"$JS.API.DIRECT.GET.{stream or self._stream}", body, TRY_SECONDS)
                if found is not None:
                    return found
            else:
                await asyncio.sleep(0.05)
        raise self.unavailable("a read was not answered in time")

    def scan(
        self, subject: str, *, after: int = 0, most: int = 1_000, stream: str | None = None
    ) -> list[tuple[str, Entry]]:
        """Return messages of subjects with wildcards, in the order in which they were stored."""
        body = {"next_by_subj": subject, "seq": after + 1, "batch": most}
        return self.wait_for(self.collect(body, stream))

    # -- writing

    def commit(self, draft: Draft) -> int | None:
        """Store a draft as one; return the revision of its first message, or None if somebody was quicker.

        The messages of a draft have revisions in a row. What is to be sent and emptied afterwards follows.
        """
        first: int | None = 0
        if draft.puts:
            first = self.wait_for(self._commit(draft.puts))
        if first:
            # Only what is older than the draft: by the time of the purge the subject may hold something new.
            purges = [self._purge(subject, before=first) for subject in draft.purges]
            self.send([*draft.sends, *purges])
        elif first is not None:
            self.send(draft.sends)
        return first

    async def _commit(self, puts: Sequence[Put]) -> int | None:
        if len(puts) > MOST_PUTS:
            raise ValueError(f"a draft has {len(puts)} messages, and the server takes {MOST_PUTS} as one")
        deadline = self._deadline()
        pause = 0.002
        while deadline is None or _time() < deadline:
            client = self._connected()
            if not client.is_connected:
                await asyncio.sleep(0.05)
                continue
            inbox, future = self._expect()
            await self._publish(client, puts, inbox)
            answer = await self._await(inbox, future, deadline)
            if answer is None:
                return None  # it may have been stored, or not
            if status_of(answer) == 503:
                await asyncio.sleep(0.1)
                continue
            body = json.loads(answer.data)
            if "error" not in body:
                return int(body["seq"]) - len(puts) + 1
            code = body["error"].get("err_code")
            if code in WRONG_LAST_SEQUENCE:
                return None
            if code not in BUSY:
                raise ServerError(body["error"])
            await asyncio.sleep(pause)
            pause = min(0.1, 2 * pause)
        raise self.unavailable(f"a change was not stored in {self.settings.timeout:g} s")

    async def _publish(self, client: Client, puts: Sequence[Put], inbox: str) -> None:
        last = len(puts)
        self._drafts += 1
        batch = f"{self._inbox[-22:]}{self._drafts}"
        for number, put in enumerate(puts, 1):
            headers = dict(put.headers or ())
            if put.expected is not None:
                headers["Nats-Expected-Last-Subject-Sequence"] = str(put.expected)
            if last > 1:
                headers["Nats-Batch-Id"] = batch
                headers["Nats-Batch-Sequence"] = str(number)
                if number == last:
                    headers["Nats-Batch-Commit"] = "1"
            await client.publish(put.subject, put.data, inbox if number == last else "", headers or None)

    def send(self, messages: Sequence[tuple[str, bytes]]) -> None:
        """Send messages that nobody answers, soon."""
        if messages:
            self.call_later(lambda: self._publish_later(messages))

    def empty(self, subject: str) -> None:
        """Let a subject hold nothing, soon; no harm is done if it stays."""
        self.send([self._purge(subject)])

    def _purge(self, subject: str, before: int | None = None) -> tuple[str, bytes]:
        body = {"filter": subject} if before is None else {"filter": subject, "seq": before}
        return f"$JS.API.STREAM.PURGE.{self._stream}", json.dumps(body).encode()

    def _publish_later(self, messages: Sequence[tuple[str, bytes] | tuple[str, bytes, str]]) -> None:
        _keep(asyncio.ensure_future(self._publish_all(messages)))

    async def _publish_all(self, messages: Sequence[tuple[str, bytes] | tuple[str, bytes, str]]) -> None:
        client = self._client
        if client is None or not client.is_connected:
            return  # whoever needed it finds out
        try:
            for message in messages:
                await client.publish(*message)
        except nats.errors.Error as error:
            logger.debug("%s: %s", self.address, error)

    def store(self, subject: str, data: bytes) -> int:
        """Store one message, whatever was there before; return its revision."""
        draft = Draft()
        draft.put(subject, data)
        while True:
            revision = self.commit(draft)
            if revision is not None:
                return revision

    def last_sequence(self, stream: str) -> int:
        """Return the number of the last message of a stream."""
        return int(self.api(f"STREAM.INFO.{stream}")["state"]["last_seq"])

    def wait_for_order(self, subject: str) -> None:
        """Wait until the server has taken in what we have sent to a stream: it refuses this, in its turn."""
        self.wait_for(self._commit([Put(subject, b"", expected=IMPOSSIBLE)]))

    # -- news

    def subscribe(self, subject: str, on_message: Callable[[str, bytes], None]) -> None:
        """Call back, on the loop's thread, for every message that is not kept."""

        async def receive(message: Msg) -> None:
            on_message(message.subject, message.data)

        async def subscribe() -> None:
            await self._connected().subscribe(subject, cb=receive)

        self.wait_for(subscribe(), self.settings.timeout)

    # -- pulling

    def fetch(self, pulls: Sequence[Pull]) -> list[Message]:
        """Return what is there right now, from several consumers."""
        return self.wait_for(self.pulls.fetch(pulls, TRY_SECONDS)) if pulls and self.is_connected else []


def _time() -> float:
    return asyncio.get_running_loop().time()


def decode_api_message(message: dict[str, Any]) -> Entry:
    """Read a message as the API writes it."""
    return Entry(int(message["seq"]), b64decode(message.get("data", "")))


_tasks: set[asyncio.Future[Any]] = set()


def _keep(task: asyncio.Future[Any]) -> None:
    """Keep a task from being collected while it runs."""
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
