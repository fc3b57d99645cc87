"""Reads and writes the JetStream stream: API requests, direct reads, atomic batches (drafts) and pulls.

A `commit` whose answer is lost returns None, as if another process had been faster: the caller reads again, and
finds out whether it was stored.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from mainspring.clock import Clock
from mainspring.engines.nats.connection import NO_LEADER, TRY_SECONDS, Connection, loop_time
from mainspring.engines.nats.drafts import MOST_PUTS, NOTHING, Draft, Put, StreamEntry
from mainspring.engines.nats.messages import Message, Pull, status_of
from mainspring.engines.nats.settings import NatsSettings
from mainspring.engines.nats.wire import WireClient, to_wire
from mainspring.errors import LimitExceeded

WRONG_LAST_SEQUENCE = (10071, 10164)
BUSY = (10176, 10210, 10211)  # a batch was torn by a change of leaders, or there are many at once
NOT_ENABLED = (10039, 10076)
NOT_FOUND = (10014, 10037, 10059)
READ_AT_ONCE = 500
ROOM_FOR_HEADERS = 1_024
MAX_SUBJECT = 3_800
PAUSE_SECONDS = 0.1
FADING = "60s"
MORE_ROOM = "give JetStream more room: max_file_store of the servers, or the limits of the account"
IMPOSSIBLE = 2**62  # a revision that nothing has


class ServerError(Exception):
    """The server has refused a request, with this error code."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error.get('description', 'unknown error')} (code {error.get('err_code', 0)})")
        self.code = int(error.get("err_code", 0))


class Link(Connection):
    """A connection that reads, commits and pulls. Usable from any thread, once it is open."""

    def __init__(self, servers: list[str], settings: NatsSettings, stream: str, clock: Clock) -> None:
        super().__init__(servers, settings, clock)
        self._stream = stream
        self._drafts = 0
        self.pulls.stream = stream
        self.reads_leader = False
        """Whether replicas may lag behind, so that records are read from the leader."""
        self.last_record = 0
        """The revision of the last job record that this process has stored."""

    # -- requests

    def api(self, verb: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Call the JetStream API; raises `ServerError` if the server refuses."""
        return self.wait_for(self.api_async(verb, body))

    async def api_async(self, verb: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Call the JetStream API, on the loop."""
        data = json.dumps(body).encode() if body else b""
        answer = await self._ask(f"$JS.API.{verb}", data, self._deadline())
        if "error" in answer:
            raise ServerError(answer["error"])
        return answer

    def find_each(self, verbs: Sequence[str]) -> list[dict[str, Any] | None]:
        """Send many requests to the JetStream API at once; None for each object that does not exist."""
        return self.wait_for(self._find_each(verbs)) if verbs else []

    async def _find_each(self, verbs: Sequence[str]) -> list[dict[str, Any] | None]:
        return list(await asyncio.gather(*map(self._find, verbs)))

    async def _find(self, verb: str) -> dict[str, Any] | None:
        try:
            return await self.api_async(verb)
        except ServerError as error:
            if error.code in NOT_FOUND:
                return None
            raise

    async def _ask(self, subject: str, data: bytes, deadline: float | None) -> dict[str, Any]:
        """Return an answer of the API; repeat the request while the servers have no leader."""
        while True:
            answer = dict(json.loads((await self.request(subject, data, deadline)).data))
            error = answer.get("error", {})
            is_final = error.get("code") != NO_LEADER or error.get("err_code") in NOT_ENABLED
            if is_final or (deadline and loop_time() > deadline):
                return answer
            await asyncio.sleep(PAUSE_SECONDS)

    # -- reading

    def read(self, subjects: Iterable[str]) -> dict[str, StreamEntry]:
        """Return the messages of subjects; `NOTHING` for those without one."""
        wanted = list(dict.fromkeys(subjects))
        return self.wait_for(self._read(wanted)) if wanted else {}

    def read_one(self, subject: str) -> StreamEntry:
        """Return the message of a subject; `NOTHING` if there is none."""
        return self.read([subject])[subject]

    async def _read(self, subjects: list[str]) -> dict[str, StreamEntry]:
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

    async def _read_leader(self, subject: str, deadline: float | None) -> StreamEntry:
        body = json.dumps({"last_by_subj": subject}).encode()
        answer = await self._ask(f"$JS.API.STREAM.MSG.GET.{self._stream}", body, deadline)
        if "error" in answer:
            if answer["error"].get("err_code") in NOT_FOUND:
                return NOTHING
            raise ServerError(answer["error"])
        return decode_api_message(answer["message"])

    async def collect(self, body: dict[str, Any], stream: str | None = None) -> list[tuple[str, StreamEntry]]:
        """Return the messages of a direct read, in the order of the stream."""
        deadline = self._deadline()
        while deadline is None or loop_time() < deadline:
            if self._connected().is_connected:
                found = await self.pulls.collect(f"$JS.API.DIRECT.GET.{stream or self._stream}", body, TRY_SECONDS)
                if found is not None:
                    return found
            else:
                await asyncio.sleep(0.05)
        raise self.unavailable("a read was not answered in time")

    def scan(
        self, subject: str, *, after: int = 0, most: int = 1_000, stream: str | None = None
    ) -> list[tuple[str, StreamEntry]]:
        """Return up to `most` messages of subjects with wildcards, in the order in which they were stored."""
        body = {"next_by_subj": subject, "seq": after + 1, "batch": most}
        return self.wait_for(self.collect(body, stream))

    def scan_each(self, places: Sequence[tuple[str, int]], *, most: int) -> list[list[tuple[str, StreamEntry]]]:
        """Return messages of each of these subjects after its own revision; all are requested at once."""
        bodies = [{"next_by_subj": subject, "seq": after + 1, "batch": most} for subject, after in places]
        return self.wait_for(self._collect_each(bodies)) if bodies else []

    async def _collect_each(self, bodies: Sequence[dict[str, Any]]) -> list[list[tuple[str, StreamEntry]]]:
        return list(await asyncio.gather(*map(self.collect, bodies)))

    # -- writing

    def commit(self, draft: Draft) -> int | None:
        """Store a draft as one; return the revision of its first message, or None if another process was faster.

        The messages of a draft have consecutive revisions. The sends and purges of the draft follow the commit.
        """
        first: int | None = 0
        puts = draft.puts if self.settings.may_purge else _fading(draft)
        self._require_size(puts)
        if puts:
            first = self.wait_for(self._commit(puts))
        if first and self.settings.may_purge:
            # Purge only messages older than the draft: at the time of the purge, a subject may have a newer one.
            # An empty message of the draft itself is purged, too.
            emptied = {put.subject for put in draft.puts if put.is_empty}
            behind = first + len(draft.puts)
            purges = [
                self._purge(subject, before=behind if subject in emptied else first) for subject in draft.purges
            ]
            self.send([*draft.sends, *purges])
        elif first is not None:
            self.send(draft.sends)
        return first

    async def _commit(self, puts: Sequence[Put]) -> int | None:
        if len(puts) > MOST_PUTS:
            raise ValueError(f"a draft has {len(puts)} messages, and the server takes {MOST_PUTS} as one")
        deadline = self._deadline()
        pause, said = 0.002, ""
        while deadline is None or loop_time() < deadline:
            client = self._connected()
            if not client.is_connected:
                await asyncio.sleep(0.05)
                continue
            inbox, future = self._inbox.expect(*(put.subject for put in puts))
            await self._publish(client, puts, inbox)
            answer = await self._inbox.wait(inbox, future, self._patience(deadline))
            if answer is None:
                return None  # unknown whether it was stored
            if status_of(answer) == NO_LEADER:
                await asyncio.sleep(0.1)
                continue
            body = json.loads(answer.data)
            if "error" not in body:
                return int(body["seq"]) - len(puts) + 1
            error = body["error"]
            if error.get("err_code") in WRONG_LAST_SEQUENCE:
                return None
            if error.get("err_code") not in BUSY and error.get("code") != NO_LEADER:
                raise ServerError(error)
            said = f"; it said: {error.get('description')}"  # busy, without a leader, or full
            await asyncio.sleep(pause)
            pause = min(0.1, 2 * pause)
        remedy = MORE_ROOM if "resources" in said else None
        raise self.unavailable(f"a change was not stored in {self.settings.timeout:g} s{said}", remedy=remedy)

    def _require_size(self, puts: Sequence[Put]) -> None:
        """Refuse messages that are too large for the server, before any is sent."""
        limit = self.max_payload - ROOM_FOR_HEADERS
        for put in puts:
            if len(put.subject) > MAX_SUBJECT:  # the server would close the connection of the whole process
                raise LimitExceeded(
                    what=f"the subject {put.subject[:60]}..., in characters,",
                    size=len(put.subject),
                    limit=MAX_SUBJECT,
                    remedy="use shorter names for queue, handler and id",
                )
            if len(put.data) > limit:
                raise LimitExceeded(
                    what=f"the message {put.subject}, in bytes,",
                    size=len(put.data),
                    limit=limit,
                    remedy="keep large data elsewhere and pass a key, or raise max_payload of the server",
                )

    def store_each(self, puts: Sequence[Put]) -> list[int | None]:
        """Store messages one by one; return the revision of each, or None if it is not known to be stored."""
        self._require_size(puts)
        return self.wait_for(self._store_each(puts))

    async def _store_each(self, puts: Sequence[Put]) -> list[int | None]:
        client = self._connected()
        if not client.is_connected:
            return [None] * len(puts)
        inbox, answers = self._inbox.expect_many(len(puts))
        await client.write(
            [
                to_wire(put.subject, put.data, f"{inbox}.{place}", _headers_of(put))
                for place, put in enumerate(puts)
            ]
        )
        return await self._inbox.wait_for_many(inbox, answers, self._patience(self._deadline()))

    async def _publish(self, client: WireClient, puts: Sequence[Put], inbox: str) -> None:
        last = len(puts)
        self._drafts += 1
        batch = f"{self._inbox.subject[-22:]}{self._drafts}"
        messages = []
        for number, put in enumerate(puts, 1):
            headers = _headers_of(put) or {}
            if last > 1:
                headers["Nats-Batch-Id"] = batch
                headers["Nats-Batch-Sequence"] = str(number)
                if number == last:
                    headers["Nats-Batch-Commit"] = "1"
            messages.append(to_wire(put.subject, put.data, inbox if number == last else "", headers))
        await client.write(messages)

    def empty(self, subject: str) -> None:
        """Purge a subject, soon; a lost purge does no harm."""
        self.send([self._purge(subject)])

    def _purge(self, subject: str, before: int | None = None) -> tuple[str, bytes]:
        body = {"filter": subject} if before is None else {"filter": subject, "seq": before}
        return f"$JS.API.STREAM.PURGE.{self._stream}", json.dumps(body).encode()

    def store(self, subject: str, data: bytes) -> int:
        """Store one message unconditionally; return its revision."""
        draft = Draft()
        draft.put(subject, data)
        while True:
            revision = self.commit(draft)
            if revision is not None:
                return revision

    def note_record(self, revision: int) -> None:
        """Record the revision of a job record that was stored."""
        self.last_record = max(self.last_record, revision)

    def last_sequence(self, stream: str) -> int:
        """Return the sequence number of the last message of a stream."""
        return int(self.api(f"STREAM.INFO.{stream}")["state"]["last_seq"])

    def wait_for_order(self, subject: str) -> None:
        """Wait until the server has processed our messages to a stream: send one more, which it must refuse."""
        self.wait_for(self._commit([Put(subject, b"", expected=IMPOSSIBLE)]))

    # -- pulling

    def fetch(self, pulls: Sequence[Pull]) -> list[Message]:
        """Return the messages that several consumers have right now."""
        return self.wait_for(self.pulls.fetch(pulls, TRY_SECONDS)) if pulls and self.is_connected else []


def _fading(draft: Draft) -> list[Put]:
    """Return the messages of a draft without purges: the empty ones of purged subjects expire instead."""
    purged = set(draft.purges)
    return [
        replace(put, headers={**(put.headers or {}), "Nats-TTL": FADING})
        if put.is_empty and put.subject in purged
        else put
        for put in draft.puts
    ]


def _headers_of(put: Put) -> dict[str, str] | None:
    if put.expected is None:
        return dict(put.headers) if put.headers else None
    return {**(put.headers or {}), "Nats-Expected-Last-Subject-Sequence": str(put.expected)}


def decode_api_message(message: dict[str, Any]) -> StreamEntry:
    """Decode a message in the format of the API."""
    return StreamEntry(int(message["seq"]), b64decode(message.get("data", "")))
