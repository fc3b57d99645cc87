"""Presence: finds workers whose process has died, seconds after its connection ended and long before their lease.

Each process with workers listens on a subject of its own, and declares it in the heartbeats of its workers, with
the server and the number of its connection. Once a second other workers send a message there. No process answers
it. But if no connection listens, the server says so at once ("no responders").

A worker is dead if all of this holds:

- Three such messages in a row found no listener, and at least two seconds passed between the first and the last.
  Silence is a sign of life: a process that is suspended still has its connection. Its lease decides.
- Each time, the server of that connection confirmed that it is closed, and no server that was there lately was
  missing. A server that was restarted has another id and cannot confirm anything; neither can a server behind a
  broken route. Then the lease decides.
- The observing process was connected all the time, and the worker has sent no heartbeat.

So a worker that is connected, or that reconnects within two seconds, keeps its jobs. A worker whose connection is
closed for longer loses them, though it may be alive: it starts no job from the first second on, see
`WorkerRegistry.may_start`.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from secrets import token_hex
from threading import Lock
from typing import NamedTuple

import msgspec
from msgspec import Struct
from nats.aio.msg import Msg

from mainspring.engines.nats.client import BatchingClient, encode_message
from mainspring.engines.nats.connection import ConnectionId, loop_time
from mainspring.engines.nats.deliveries import status_of, unsubscribe
from mainspring.engines.nats.jetstream import JetStream
from mainspring.engines.nats.subject_names import CONNECTIONS, SubjectNames
from mainspring.jobs.timestamps import MICROSECONDS

ABSENCE_SECONDS = 2.0
"""A worker that is gone for this long loses its jobs."""
MIN_PROBES = 3
PROBE_SECONDS = 1.05  # from one probe to the next
ANSWER_SECONDS = 1.0
SERVERS_SECONDS = 0.5
ROLL_CALL_SECONDS = 30.0
SERVER_KEPT_SECONDS = 300.0  # for so long a server that does not answer any more is missed
WATCHED = 3
"""How many other processes each process watches."""
CHECK_AGAIN = 30 * MICROSECONDS

logger = logging.getLogger("mainspring.nats")


class Presence(Struct, frozen=True, array_like=True):
    """A declaration in a heartbeat: where a process listens, and over which connection."""

    token: str
    """The last token of the subject on which the process listens."""
    server: str
    """The id of the server that it is connected to; it changes when the server restarts."""
    connection: int
    """The number of the connection on that server."""


class OwnPresence:
    """The presence of this process. It is declared only after a message to the own subject has arrived."""

    def __init__(self, jetstream: JetStream, names: SubjectNames) -> None:
        self._jetstream = jetstream
        self.token = token_hex(8)
        self._subject = names.presence + self.token
        self._lock = Lock()  # guards what follows; held during a check
        self._client: BatchingClient | None = None  # the client that has the subscription
        self._checked: ConnectionId | None = None
        self._check_at = 0
        self._is_heard = False
        self._is_warned = False
        self._arrived: asyncio.Future[bool] | None = None  # on the loop only

    def declare(self) -> Presence | None:
        """Return the presence over the current connection; None if it is not connected, or messages do not arrive.

        Not on the loop: the first call on each connection waits for a message to arrive.
        """
        with self._lock:
            connection = self._jetstream.connection_id
            if connection is None:
                return None
            now = self._jetstream.monotonic()
            if connection != self._checked or (not self._is_heard and now >= self._check_at):
                self._is_heard = self._jetstream.run_on_loop(self._check())
                self._checked, self._check_at = connection, now + CHECK_AGAIN
                self._warn()
            return Presence(self.token, *connection) if self._is_heard else None

    def _warn(self) -> None:
        if not self._is_heard and self._jetstream.is_connected and not self._is_warned:
            logger.warning(
                "%s: this user cannot receive messages on %r; if this process dies, its jobs wait for the end of "
                "their lease: grant what `mainspring nats permissions` prints",
                self._jetstream.address,
                self._subject,
            )
            self._is_warned = True

    async def _check(self) -> bool:
        """Subscribe, unless done before, and return whether a message of this process arrives."""
        client = self._jetstream.client
        if client is None or not client.is_connected:
            return False
        self._arrived = arrived = asyncio.get_running_loop().create_future()
        if self._client is not client:
            await client.subscribe(self._subject, cb=self._receive)
            self._client = client
        absence = asyncio.ensure_future(self._jetstream.is_absent(self._subject, ANSWER_SECONDS))
        try:
            await asyncio.wait([arrived, absence], return_when=asyncio.FIRST_COMPLETED)
            return arrived.done()
        finally:
            absence.cancel()
            self._arrived = None

    async def _receive(self, _message: Msg) -> None:
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(True)


class Sign(NamedTuple):
    """A heartbeat of a worker that declares its presence."""

    worker: int
    revision: int
    presence: Presence


class Absence(Struct):
    """How often a worker was found absent in a row, since its last heartbeat."""

    revision: int
    """Of that heartbeat."""
    first: float
    """When the first answer arrived."""
    count: int = 0


class AbsenceCounter:
    """Counts in a row how often workers were absent. Without I/O; times are seconds of any steady clock."""

    def __init__(self) -> None:
        self._absences: dict[int, Absence] = {}

    def absent(self, sign: Sign, *, sent: float, answered: float) -> bool:
        """Record that no process listened to a message; return whether the worker is dead.

        The server looks for listeners some time between `sent` and `answered`. So the time from the first answer
        to the last message is the shortest that the worker can have been absent.
        """
        absence = self._absences.get(sign.worker)
        if absence is None or absence.revision != sign.revision:
            absence = self._absences[sign.worker] = Absence(sign.revision, answered)
        absence.count += 1
        return absence.count >= MIN_PROBES and sent - absence.first >= ABSENCE_SECONDS

    def present(self, sign: Sign) -> None:
        """Record that a worker may be present."""
        self._absences.pop(sign.worker, None)

    def keep(self, workers: Iterable[int]) -> None:
        """Forget all other workers."""
        kept = set(workers)
        self._absences = {worker: absence for worker, absence in self._absences.items() if worker in kept}

    def clear(self) -> None:
        """Start all counts again."""
        self._absences.clear()


class _ServerIdentity(Struct):
    name: str
    id: str
    cluster: str = ""


class _ConnectionList(Struct):
    num_connections: int


class ServerAnswer(Struct):
    """The answer of one server to the question which connections it has."""

    server: _ServerIdentity
    data: _ConnectionList | None = None


_decoder = msgspec.json.Decoder(ServerAnswer)


class ServerRoster:
    """The servers that have answered lately, by name. Without I/O."""

    def __init__(self) -> None:
        self._answered: dict[str, float] = {}

    def add(self, names: Iterable[str], now: float) -> None:
        """Record that servers have answered."""
        self._answered.update(dict.fromkeys(names, now))

    def names(self, now: float) -> set[str]:
        """Return the servers that must answer."""
        return {name for name, at in self._answered.items() if now - at < SERVER_KEPT_SECONDS}


def find_answer(
    presence: Presence, answers: Mapping[str, ServerAnswer], expected: set[str]
) -> ServerAnswer | None:
    """Return the answer of the server of a connection; None if it, or another server of its cluster, is missing.

    If a server is missing, the worker may have moved there. Answers and expected servers are given by name.
    """
    own = next((answer for answer in answers.values() if answer.server.id == presence.server), None)
    if own is None or (own.server.cluster and not expected <= answers.keys()):
        return None
    return own


def is_closed(presence: Presence, answers: Mapping[str, ServerAnswer], expected: set[str]) -> bool:
    """Return whether the servers confirm that a connection is closed."""
    answer = find_answer(presence, answers, expected)
    return answer is not None and answer.data is not None and answer.data.num_connections == 0


def choose_watched(signs: Iterable[Sign], own: int) -> list[list[Sign]]:
    """Return the workers of the processes that this process watches: those after its own worker in a ring."""
    by_token: dict[str, list[Sign]] = {}
    for sign in sorted(signs):
        by_token.setdefault(sign.presence.token, []).append(sign)
    processes = list(by_token.values())
    after = [process for process in processes if process[0].worker > own]
    before = [process for process in processes if process[0].worker <= own]
    return (after + before)[:WATCHED]


class PresenceMonitor:
    """Watches the workers of other processes, on the loop of the connection, from the first `watch` to `stop`."""

    def __init__(self, jetstream: JetStream, names: SubjectNames, own: OwnPresence) -> None:
        self._jetstream = jetstream
        self._names = names
        self._own = own
        self._task: asyncio.Task[None] | None = None  # on the loop only, like the counts and the roster
        self._counter = AbsenceCounter()
        self._roster = ServerRoster()
        self._roll_call_at = 0.0
        self._is_warned = False
        self._signs: list[list[Sign]] = []  # replaced as a whole, so it needs no lock
        self._lock = Lock()
        self._dead: dict[int, int] = {}  # revisions of the last heartbeats, by worker
        self.on_death: Callable[[], None] = lambda: None
        """Called on the loop when `take_dead` has something to return."""

    # -- on any thread

    def stop(self) -> None:
        """Watch no worker any more."""
        self._signs = []
        self._jetstream.call_soon(self._stop)

    def watch(self, signs: Iterable[Sign], own: int) -> None:
        """Watch some of these workers from now on, as they were just read; `own` is a worker of this process."""
        self._signs = choose_watched((sign for sign in signs if sign.presence.token != self._own.token), own)
        if self._signs:
            self._jetstream.call_soon(self._start)

    def take_dead(self) -> dict[int, int]:
        """Return the workers that were found dead, each once, with the revision of its last heartbeat."""
        with self._lock:
            dead, self._dead = self._dead, {}
            return dead

    # -- on the loop

    def reset(self) -> None:
        """Start all counts again: the connection of this process was lost."""
        self._counter.clear()
        with self._lock:
            self._dead.clear()

    def _start(self) -> None:
        if self._task is None or self._task.done():
            self.reset()
            self._task = asyncio.get_running_loop().create_task(self._run())

    def _stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()

    async def _run(self) -> None:
        while True:
            began = loop_time()
            try:
                await self._probe_all(self._signs)
            except Exception:  # the next round must follow
                logger.exception("%s: looking for dead workers failed", self._jetstream.address)
            await asyncio.sleep(max(0.0, began + PROBE_SECONDS - loop_time()))

    async def _probe_all(self, watched: list[list[Sign]]) -> None:
        self._counter.keep(sign.worker for process in watched for sign in process)
        if not watched or not self._jetstream.is_connected:
            return
        await asyncio.gather(self._call_roll(), *(self._probe(process) for process in watched))

    async def _call_roll(self) -> None:
        if loop_time() >= self._roll_call_at:
            self._roll_call_at = loop_time() + ROLL_CALL_SECONDS
            await self._ask_servers(None, set())

    async def _probe(self, process: list[Sign]) -> None:
        presence, connection = process[0].presence, self._jetstream.connection_id
        sent = loop_time()
        is_absent = await self._jetstream.is_absent(self._names.presence + presence.token, ANSWER_SECONDS)
        answered = loop_time()
        is_absent = is_absent and await self._is_closed(process)
        if not is_absent or connection is None or connection != self._jetstream.connection_id:
            for sign in process:
                self._counter.present(sign)
            return
        dead = {
            sign.worker: sign.revision
            for sign in process
            if self._counter.absent(sign, sent=sent, answered=answered)
        }
        if dead:
            with self._lock:
                self._dead.update(dead)
            self.on_death()

    async def _is_closed(self, process: list[Sign]) -> bool:
        presence = process[0].presence
        expected = self._roster.names(loop_time())
        answers = await self._ask_servers(presence, expected)
        if not answers and not self._is_warned:
            self._is_warned = True
            logger.warning(
                "%s: worker %d has lost its connection, but no server answers to %r; its jobs wait for the end of "
                "its lease: grant what `mainspring nats permissions` prints",
                self._jetstream.address,
                process[0].worker,
                CONNECTIONS,
            )
        return is_closed(presence, answers, expected)

    async def _ask_servers(self, presence: Presence | None, expected: set[str]) -> dict[str, ServerAnswer]:
        """Ask all servers for a connection; return their answers by name, after a while if some are missing."""
        answers: dict[str, ServerAnswer] = {}
        done = asyncio.Event()

        async def receive(message: Msg) -> None:
            if status_of(message) is not None:  # no server answers this account
                done.set()
                return
            answer = _decoder.decode(message.data)
            answers[answer.server.name] = answer
            if presence is not None and find_answer(presence, answers, expected) is not None:
                done.set()

        client = self._jetstream.client
        if client is None or not client.is_connected:
            return {}
        inbox = client.new_inbox()
        subscription = await client.subscribe(inbox, cb=receive)
        body = json.dumps({"cid": presence.connection if presence else 0, "limit": 1}).encode()
        try:
            await client.write([encode_message(CONNECTIONS, body, inbox)])
            await asyncio.wait_for(done.wait(), SERVERS_SECONDS)
        except TimeoutError:
            pass
        finally:
            await unsubscribe(subscription)
        self._roster.add(answers, loop_time())
        return answers
