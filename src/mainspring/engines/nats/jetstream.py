"""Reads and writes the JetStream stream: API requests, direct reads, atomic batches and pull requests.

If the reply to a `commit` is lost, it returns None, as after a conflict: the caller reads the records again and
finds whether the batch was stored.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple

from mainspring.clock import Clock
from mainspring.engines.nats.client import BatchingClient, ReceivedMessage, encode_message
from mainspring.engines.nats.connection import NO_LEADER, TRY_SECONDS, Connection, loop_time
from mainspring.engines.nats.deliveries import Delivery, FetchRequest, stored_message
from mainspring.engines.nats.replies import CollectedReplies, parse_revision
from mainspring.engines.nats.settings import NatsSettings
from mainspring.engines.nats.storage import StorageProblem, StorageState, problem_of, silent_problem
from mainspring.engines.nats.subject_names import API, USER_INFO, SubjectNames, imported_api
from mainspring.engines.nats.write_batch import MAX_BATCH, NO_MESSAGE, StoredMessage, Write, WriteBatch
from mainspring.errors import EngineUnavailable, LimitExceeded
from mainspring.jobs.timestamps import to_instant

WRONG_LAST_SEQUENCE = (10071, 10164)
BUSY = (10176, 10210, 10211)  # a change of leaders interrupted the batch, or there are too many batches
NOT_ENABLED = (10039, 10076)
NOT_FOUND = (10014, 10037, 10059)
READ_AT_ONCE = 500
HEADER_RESERVE = 1_024
MAX_SUBJECT = 3_800
PAUSE_SECONDS = 0.1
EXPIRED = {"Nats-TTL": "1s"}
IMPOSSIBLE_REVISION = 2**62  # no message has this revision


class ServerError(Exception):
    """Raised if the server refuses a request. `code` is the error code of the server."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error.get('description', 'unknown error')} (code {error.get('err_code', 0)})")
        self.code = int(error.get("err_code", 0))


class JetStream(Connection):
    """A connection that reads, writes and pulls messages of a stream. Any thread may use it, once it is open."""

    def __init__(self, servers: list[str], settings: NatsSettings, stream: str, clock: Clock) -> None:
        super().__init__(servers, settings, clock)
        self._stream = stream
        names = SubjectNames(settings.prefix)
        self._guarded, self._guarded_stream = names.guarded, names.guarded_stream
        self._batch_count = 0
        self.pulls.stream = stream
        self.api_subject = self.pulls.api_subject = API
        """The subject of the JetStream API; the account of a role imports it under another name."""
        self.reads_leader = False
        """Whether a read of several records asks the leader, because replicas may lag behind.

        A read of one record always asks the leader.
        """
        self.storage = StorageState(
            self.address, seconds=lambda: self.monotonic() / 1e6, answered=lambda: self._inbox.confirmed
        )
        """Whether the server stores the messages of this process."""
        self.last_record = 0
        """The revision of the last job record that this process has stored."""

    def unavailable(self, reason: str, *, remedy: str | None = None) -> EngineUnavailable:
        """Return the error of a request; while the server stores nothing, the error says so."""
        problem = self.storage.problem
        if problem is None or remedy is not None:
            return super().unavailable(reason, remedy=remedy)
        return super().unavailable(f"{reason}; {problem.text}", remedy=problem.remedy)

    # -- requests

    async def _after_connect(self) -> None:
        """Find out under which subject this user reaches the JetStream API.

        An account of a role has no JetStream of its own. The server then answers that, and the account imports the
        requests that the role may send: see `permissions.py`.
        """
        if self.settings.role is None:
            return
        with suppress(EngineUnavailable):  # the request that needs the API reports the problem
            reply = await self._request_json(f"{API}.INFO", b"", loop_time() + TRY_SECONDS)
            is_imported = reply.get("error", {}).get("err_code") in NOT_ENABLED
            self.api_subject = imported_api(self.settings.prefix) if is_imported else API
            self.pulls.api_subject = self.api_subject

    @property
    def has_imported_api(self) -> bool:
        """Whether this user is in the account of a role, which imports the JetStream API."""
        return self.api_subject != API

    async def read_account(self, seconds: float) -> str:
        """Return the name of this user's account; an empty text if the server does not tell it in time.

        A user with a role in an account with JetStream, as earlier versions printed them, may not ask.
        """
        if self.settings.role is not None and not self.has_imported_api:
            return ""
        try:
            reply = await self.request(USER_INFO, b"", loop_time() + seconds)
            return str(json.loads(reply.data).get("data", {}).get("account", ""))
        except (EngineUnavailable, ValueError):
            return ""

    def api(self, verb: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Call the JetStream API and return the reply; raise `ServerError` if the server refuses.

        Raise `EngineUnavailable` if no reply comes before the timeout.
        """
        return self.run_on_loop(self.api_async(verb, body))

    async def api_async(self, verb: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Call the JetStream API as `api` does, for coroutines on the event loop."""
        data = json.dumps(body).encode() if body else b""
        reply = await self._request_json(f"{self.api_subject}.{verb}", data, self._deadline())
        if "error" in reply:
            raise ServerError(reply["error"])
        return reply

    def find_each(self, verbs: Sequence[str]) -> list[dict[str, Any] | None]:
        """Send many requests to the JetStream API at once, and return the replies.

        A reply is None if the object of the request does not exist. Raise `ServerError` if the server refuses a
        request for another reason.
        """
        return self.run_on_loop(self._find_each(verbs)) if verbs else []

    async def _find_each(self, verbs: Sequence[str]) -> list[dict[str, Any] | None]:
        return list(await asyncio.gather(*map(self._find, verbs)))

    async def _find(self, verb: str) -> dict[str, Any] | None:
        try:
            return await self.api_async(verb)
        except ServerError as error:
            if error.code in NOT_FOUND:
                return None
            raise

    async def _request_json(self, subject: str, data: bytes, deadline: float | None) -> dict[str, Any]:
        """Return a reply of the JetStream API. Repeat the request until the deadline while the servers have no
        leader.
        """
        while True:
            reply = dict(json.loads((await self.request(subject, data, deadline)).data))
            error = reply.get("error", {})
            is_final = error.get("code") != NO_LEADER or error.get("err_code") in NOT_ENABLED
            if is_final or (deadline and loop_time() > deadline):
                return reply
            await asyncio.sleep(PAUSE_SECONDS)

    # -- reading

    def read(self, subjects: Iterable[str]) -> dict[str, StoredMessage]:
        """Return the last message of each subject of the main or the guarded stream.

        A subject without a message has `NO_MESSAGE`.
        """
        wanted = list(dict.fromkeys(subjects))
        return self.run_on_loop(self._read(wanted)) if wanted else {}

    def read_one(self, subject: str) -> StoredMessage:
        """Return the last message of one subject, as `read` does; `NO_MESSAGE` if there is none."""
        return self.read([subject])[subject]

    async def _read(self, subjects: list[str]) -> dict[str, StoredMessage]:
        found = dict.fromkeys(subjects, NO_MESSAGE)
        deadline = self._deadline()
        if self.reads_leader or len(subjects) == 1:
            entries = await asyncio.gather(*(self._read_leader(subject, deadline) for subject in subjects))
            return dict(zip(subjects, entries, strict=True))
        guarded = [subject for subject in subjects if subject.startswith(self._guarded)]
        others = (
            [subject for subject in subjects if not subject.startswith(self._guarded)] if guarded else subjects
        )
        for group, stream in ((others, self._stream), (guarded, self._guarded_stream)):
            for start in range(0, len(group), READ_AT_ONCE):
                body = {"multi_last": group[start : start + READ_AT_ONCE]}
                for subject, entry in await self.collect(body, stream):
                    found[subject] = entry
        return found

    def stream_of(self, subject: str) -> str:
        """Return the name of the stream that stores a subject: the main or the guarded one."""
        return self._guarded_stream if subject.startswith(self._guarded) else self._stream

    def read_each(self, subjects: Sequence[str], stream: str) -> dict[str, StoredMessage]:
        """Return the last message of each subject of the given stream, as its leader has it.

        A subject without a message has `NO_MESSAGE`.
        """
        return self.run_on_loop(self._read_each(subjects, stream)) if subjects else {}

    async def _read_each(self, subjects: Sequence[str], stream: str) -> dict[str, StoredMessage]:
        deadline = self._deadline()
        entries = await asyncio.gather(*(self._read_leader(subject, deadline, stream) for subject in subjects))
        return dict(zip(subjects, entries, strict=True))

    async def _read_leader(self, subject: str, deadline: float | None, stream: str | None = None) -> StoredMessage:
        message = await self._get_message({"last_by_subj": subject}, deadline, stream or self.stream_of(subject))
        return NO_MESSAGE if message is None else decode_api_message(message)

    async def _get_message(
        self, body: dict[str, Any], deadline: float | None, stream: str
    ) -> dict[str, Any] | None:
        """Return the message that `body` asks for, from the leader of the stream; None if there is no such one."""
        subject = f"{self.api_subject}.STREAM.MSG.GET.{stream}"
        reply = await self._request_json(subject, json.dumps(body).encode(), deadline)
        if "error" not in reply:
            return dict(reply["message"])
        if reply["error"].get("err_code") in NOT_FOUND:
            return None
        raise ServerError(reply["error"])

    def read_next(self, subject: str, *, after: int) -> list[tuple[str, StoredMessage]]:
        """Return the first message after a revision whose subject matches a wildcard; [] if there is none.

        The leader of the stream replies, so it does not miss a message that a replica lacks, as `scan` may.
        """
        return self.run_on_loop(self._read_next(subject, after))

    async def _read_next(self, subject: str, after: int) -> list[tuple[str, StoredMessage]]:
        body = {"next_by_subj": subject, "seq": after + 1}
        message = await self._get_message(body, self._deadline(), self.stream_of(subject))
        return [] if message is None else [(message["subject"], decode_api_message(message))]

    async def collect(self, body: dict[str, Any], stream: str | None = None) -> list[tuple[str, StoredMessage]]:
        """Send a request for a direct read, and return the messages, in the order of the stream."""
        messages = await self._collect(body, stream)
        return [(message.header(b"Nats-Subject") or "", stored_message(message)) for message in messages]

    async def _collect(self, body: dict[str, Any], stream: str | None = None) -> list[ReceivedMessage]:
        deadline = self._deadline()
        while deadline is None or loop_time() < deadline:
            if self._connected().is_connected:
                subject = f"{self.api_subject}.DIRECT.GET.{stream or self._stream}"
                found = await self.pulls.collect(subject, body, self._try_seconds(deadline))
                if found is not None:
                    return found
            await asyncio.sleep(0.05)  # there is no connection, no leader or no reply
        raise self.unavailable(
            f"a read did not succeed before the timeout of {self.settings.timeout:g} s: no connection, no reply, "
            "or no leader"
        )

    def scan(
        self, subject: str, *, after: int = 0, most: int = 1_000, stream: str | None = None
    ) -> list[tuple[str, StoredMessage]]:
        """Return up to `most` messages after the revision `after` whose subjects match a wildcard, in stored
        order. A replica may answer, so the latest messages may be missing.
        """
        body = {"next_by_subj": subject, "seq": after + 1, "batch": most}
        found = self.run_on_loop(self.collect(body, stream or self.stream_of(subject)))
        if len(found) == most:
            self.restart_deadline()  # the caller may read many pages
        return found

    def scan_scheduled(self, subject: str, *, after: int, most: int) -> list[ScheduledMessage]:
        """Return up to `most` scheduled messages after the revision `after` whose subjects match a wildcard."""
        body = {"next_by_subj": subject, "seq": after + 1, "batch": most}
        found = self.run_on_loop(self._collect(body))
        if len(found) == most:
            self.restart_deadline()  # the caller may read many pages
        return [_scheduled(message) for message in found]

    def scan_all(self, subject: str, *, most: int = 1_000) -> Iterator[tuple[str, StoredMessage]]:
        """Yield all messages whose subjects match a wildcard, in stored order, reading at most `most` at once.

        A message that was replaced meanwhile comes again. The last messages come from the leader of the stream.
        """
        position = 0
        while page := self.scan(subject, after=position, most=most):
            yield from page
            position = page[-1][1].revision
            if len(page) < most:
                break
        # in a cluster, the replica that has answered may lack the last messages, which the leader has
        while self.reads_leader and (page := self.read_next(subject, after=position)):
            yield from page
            position = page[0][1].revision

    def scan_each(self, places: Sequence[tuple[str, int]], *, most: int) -> list[list[tuple[str, StoredMessage]]]:
        """Return at most `most` messages of each subject after its own revision. All requests are sent at once."""
        bodies = [{"next_by_subj": subject, "seq": after + 1, "batch": most} for subject, after in places]
        return self.run_on_loop(self._collect_each(bodies)) if bodies else []

    async def _collect_each(self, bodies: Sequence[dict[str, Any]]) -> list[list[tuple[str, StoredMessage]]]:
        return list(await asyncio.gather(*map(self.collect, bodies)))

    def count(self, subject: str, stream: str) -> int:
        """Return how many messages of a stream match a subject with a wildcard.

        A replica may answer, a little late.
        """
        return self.run_on_loop(self._count(subject, stream))

    async def _count(self, subject: str, stream: str) -> int:
        # the first message of a batch says how many would follow
        body = json.dumps({"next_by_subj": subject, "seq": 1, "batch": 1}).encode()
        reply = await self.request(f"{self.api_subject}.DIRECT.GET.{stream}", body, self._deadline())
        return 0 if reply.status is not None else 1 + int(reply.header(b"Nats-Num-Pending") or 0)

    # -- writing

    def commit(self, batch: WriteBatch) -> int | None:
        """Store a batch; return the revision of its first message, or 0 if it has no messages.

        The messages get consecutive revisions. Return None if a subject has another revision than expected, or if
        no reply came, so that it is unknown whether the batch was stored. Raise `LimitExceeded` if a message or
        its subject is too large, `EngineUnavailable` if the server cannot store the batch before the timeout, and
        `ServerError` if it refuses the batch.

        Unless the result is None, `sends` are sent afterwards. `purges` are sent, too, if messages were stored and
        the role may purge. The method does not wait for replies to them.
        """
        first: int | None = 0
        self._require_size(batch.writes)
        if batch.writes:
            first = self.run_on_loop(self._commit(batch.writes))
        if first and self.settings.may_purge:
            # Purge only messages older than the batch: at the time of the purge, a subject may have a newer one.
            self.send([*batch.sends, *(self._purge(subject, before=first) for subject in batch.purges)])
        elif first is not None:
            self.send(batch.sends)
        return first

    async def _commit(self, writes: Sequence[Write]) -> int | None:
        if len(writes) > MAX_BATCH:
            raise ValueError(f"a batch has {len(writes)} messages, the limit of the server is {MAX_BATCH}")
        deadline = self._deadline()
        pause, reason = 0.002, ""
        sent = loop_time()
        while deadline is None or loop_time() < deadline:
            client = self._connected()
            if not client.is_connected:
                await asyncio.sleep(0.05)
                continue
            inbox, future = self._inbox.register(*(write.subject for write in writes))
            await self._publish(client, writes, inbox)
            reply = await self._inbox.wait(inbox, future, self._try_seconds(deadline))
            if reply is None:
                self.storage.unanswered(sent)
                return None  # it is unknown whether the batch was stored
            if reply.status == NO_LEADER:
                await asyncio.sleep(0.1)
                continue
            body = json.loads(reply.data)
            if "error" not in body:
                self.storage.stored()
                return int(body["seq"]) - len(writes) + 1
            error = body["error"]
            self.storage.refused(error)
            if error.get("err_code") in WRONG_LAST_SEQUENCE:
                return None
            if error.get("err_code") not in BUSY and error.get("code") != NO_LEADER:
                raise ServerError(error)
            # the server is busy, without a leader, or full
            reason = f"; the server reported: {error.get('description')}"
            await asyncio.sleep(pause)
            pause = min(0.1, 2 * pause)
        raise self.unavailable(
            f"a change was not stored before the timeout of {self.settings.timeout:g} s{reason}"
        )

    def _require_size(self, writes: Sequence[Write]) -> None:
        """Raise `LimitExceeded` if a message or its subject is too large for the server, before any of them is
        sent.
        """
        limit = self.max_payload - HEADER_RESERVE
        for write in writes:
            # the server would close this connection, which the whole process uses
            if len(write.subject) > MAX_SUBJECT:
                raise LimitExceeded(
                    what=f"the subject {write.subject[:60]}..., in characters,",
                    size=len(write.subject),
                    limit=MAX_SUBJECT,
                    remedy="use shorter names for queue, handler and id",
                )
            if len(write.data) > limit:
                raise LimitExceeded(
                    what=f"the message {write.subject}, in bytes,",
                    size=len(write.data),
                    limit=limit,
                    remedy="store large data elsewhere and pass a key, or raise max_payload of the server",
                )

    def store_each(self, writes: Sequence[Write]) -> list[int | None]:
        """Store messages, each on its own; return the revision of each, or None if it may not have been stored."""
        self._require_size(writes)
        messages = [(write.subject, write.data, _headers_of(write)) for write in writes]
        sent = self.monotonic() / 1e6
        replies = self._ask_each(messages)
        revisions = [parse_revision(reply) for reply in replies]
        if None not in revisions:
            self.storage.stored()
        elif b"" in replies:
            self.storage.unanswered(sent)
        else:
            for reply in replies:
                self.storage.refused(json.loads(reply).get("error", {}))
        return revisions

    def test_storage(self, subject: str) -> StorageProblem | None:
        """Store an empty message, which expires at once; return why the server does not store it, or None."""
        reply = self._ask_each([(subject, b"", {"Nats-TTL": "1s"})])[0]
        if not reply:
            return silent_problem() if self.is_connected else None
        return problem_of(json.loads(reply).get("error"))

    def ask(self, subject: str) -> bytes:
        """Send a request without data, and block this thread until the reply comes; return the data of the reply.

        Return b"" if no reply comes. `api` is slower, and repeats the request until the server replies.
        """
        return self._ask_each([(subject, b"", None)])[0]

    def _ask_each(self, messages: Sequence[tuple[str, bytes, dict[str, str] | None]]) -> list[bytes]:
        """Send messages, and block this thread until all replies have come; return their data, or b"" for none."""
        loop = self._loop
        if loop is None:
            raise self.unavailable("the connection is closed", remedy="open the engine first")
        seconds = self._seconds_left()
        inbox = self._inbox.subject_for_many()
        replies = CollectedReplies(len(messages), loop.time())
        try:  # a KeyboardInterrupt may come right after the first call
            self._inbox.collect(inbox, replies)
            data = b"".join(
                [
                    encode_message(subject, data, f"{inbox}.{index}", headers)
                    for index, (subject, data, headers) in enumerate(messages)
                ]
            )
            self.call_soon(self._write_now, data, replies)
            replies.wait(seconds)
        finally:
            self._inbox.stop_collecting(inbox)
        return replies.data

    def _write_now(self, data: bytes, replies: CollectedReplies) -> None:
        client = self._client
        if client is None or not client.is_connected:
            replies.end()
        else:
            client.write_now(data)

    async def _publish(self, client: BatchingClient, writes: Sequence[Write], inbox: str) -> None:
        last = len(writes)
        self._batch_count += 1
        batch = f"{self._inbox.subject[-22:]}{self._batch_count}"
        messages = []
        for number, write in enumerate(writes, 1):
            headers = _headers_of(write) or {}
            if last > 1:
                headers["Nats-Batch-Id"] = batch
                headers["Nats-Batch-Sequence"] = str(number)
                if number == last:
                    headers["Nats-Batch-Commit"] = "1"
            messages.append(encode_message(write.subject, write.data, inbox if number == last else "", headers))
        await client.write(messages)

    def purge(self, subject: str) -> None:
        """Purge a subject without waiting for the reply. A lost purge does no harm."""
        self.send([self._purge(subject)])

    def drop(self, subject: str) -> None:
        """Replace the message of a subject with an empty one that expires at once, without waiting for the reply.

        No role may purge guarded records.
        """
        self.send([(subject, b"", "", EXPIRED)])

    def purge_all_but(self, subject: str, newest: int) -> None:
        """Purge the messages whose subjects match a wildcard, except the last `newest` of them together.

        Do not wait for the reply: a lost purge does no harm.
        """
        body = json.dumps({"filter": subject, "keep": newest}).encode()
        self.send([(f"{self.api_subject}.STREAM.PURGE.{self._stream}", body)])

    def purge_before(self, subjects: Sequence[tuple[str, int]]) -> None:
        """Purge the messages of each subject that are older than the given revision.

        Do nothing if the role of this process may not purge. Do not wait for the reply: a lost purge does no harm.
        """
        if subjects and self.settings.may_purge:
            self.send([self._purge(subject, before=before) for subject, before in subjects])

    def _purge(self, subject: str, before: int | None = None) -> tuple[str, bytes]:
        body = {"filter": subject} if before is None else {"filter": subject, "seq": before}
        return f"{self.api_subject}.STREAM.PURGE.{self._stream}", json.dumps(body).encode()

    def store(self, subject: str, data: bytes) -> int:
        """Store one message, which replaces any message of its subject; return its revision.

        Repeat this until the server confirms it, or raise `EngineUnavailable` after the timeout.
        """
        batch = WriteBatch()
        batch.put(subject, data)
        with self.shared_deadline():
            while True:  # a commit after the timeout raises the error
                revision = self.commit(batch)
                if revision is not None:
                    return revision

    def note_record(self, revision: int) -> None:
        """Store in `last_record` the revision of a job record that this process has stored, if it is higher."""
        self.last_record = max(self.last_record, revision)

    def last_sequence(self, stream: str) -> int:
        """Return the sequence number of the last message of a stream."""
        return int(self.api(f"STREAM.INFO.{stream}")["state"]["last_seq"])

    def sequence_range(self, stream: str) -> tuple[int, int]:
        """Return the sequence numbers of the first and the last message of a stream.

        The first is the last plus one if the stream is empty.
        """
        state = self.api(f"STREAM.INFO.{stream}")["state"]
        return int(state["first_seq"]), int(state["last_seq"])

    def wait_until_processed(self, subject: str) -> None:
        """Wait until the server has processed the messages that this process has sent before.

        The process sends a message to `subject` that the server must refuse, and waits for the refusal.
        """
        self.run_on_loop(self._commit([Write(subject, b"", expected=IMPOSSIBLE_REVISION)]))

    # -- pulling

    def fetch(self, requests: Sequence[FetchRequest]) -> list[Delivery]:
        """Return messages that these consumers have right now, at most `FetchRequest.most` of each.

        Return an empty list while there is no connection.
        """
        if not requests or not self.is_connected:
            return []
        return self.run_on_loop(self.pulls.fetch(requests, self._seconds_left()))


class ScheduledMessage(NamedTuple):
    """A message that the server publishes to another subject at a given time."""

    subject: str
    revision: int
    data: bytes
    target: str
    instant: int | None
    """In microseconds since 1970; None if the message is not scheduled, as the mark of a deleted one."""


def _scheduled(message: ReceivedMessage) -> ScheduledMessage:
    stored = stored_message(message)
    schedule = message.header(b"Nats-Schedule") or ""
    instant = None
    if schedule.startswith("@at "):
        at = datetime.fromisoformat(schedule.removeprefix("@at "))
        instant = to_instant(at, "the time of a scheduled message")
    subject, target = message.header(b"Nats-Subject") or "", message.header(b"Nats-Schedule-Target") or ""
    return ScheduledMessage(subject, stored.revision, stored.data, target, instant)


def _headers_of(write: Write) -> dict[str, str] | None:
    if write.expected is None:
        return dict(write.headers) if write.headers else None
    return {**(write.headers or {}), "Nats-Expected-Last-Subject-Sequence": str(write.expected)}


def decode_api_message(message: dict[str, Any]) -> StoredMessage:
    """Decode a message that the JetStream API returned: its sequence number and its data, without its headers."""
    return StoredMessage(int(message["seq"]), b64decode(message.get("data", "")))
