"""Presence: finds workers whose process has died, seconds after its connection ended, before their leases end.

Each process with workers subscribes to a subject of its own, and declares this subject in the heartbeats of its
workers, with the id of its server and the number of its connection. About once a second, other processes send a
probe, a message to this subject. No process answers a probe. But if no connection is subscribed to the subject,
the server reports "no responders" at once.

An observing process finds a worker dead if all of these conditions hold:

- Three probes in a row found no subscriber, and at least two seconds passed from the first to the last probe. If
  the server reports nothing, the worker may be alive, because a suspended process still has its connection. Then
  the worker keeps its jobs until its lease ends.
- For each of these probes, the server of the worker's connection confirmed that the connection is closed, and
  every server of the cluster that had answered lately answered again. A server that was restarted has a new id and
  cannot confirm that; neither can a server that no route leads to. Then the worker keeps its jobs until its lease
  ends.
- The observing process was connected all the time, and the worker has sent no heartbeat in that time.
- Both processes are in the same account of the servers. Messages and lists of connections do not pass from one
  account to another. While users move to other accounts, the worker keeps its jobs until its lease ends.

So a worker that is connected, or that reconnects within two seconds, keeps its jobs. A worker whose connection is
closed for longer loses its jobs, even if the worker is alive. Such a worker starts no jobs once its connection has
been unconfirmed for one second: see `WorkerRegistry.may_start`.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from secrets import token_hex
from threading import Lock
from typing import NamedTuple

import msgspec
import nats.errors
from msgspec import Struct
from nats.aio.msg import Msg

from mainspring.engines.nats.client import BatchingClient, encode_message
from mainspring.engines.nats.connection import ConnectionId, loop_time
from mainspring.engines.nats.jetstream import JetStream
from mainspring.engines.nats.subject_names import CONNECTIONS, SubjectNames
from mainspring.jobs.timestamps import MICROSECONDS

ABSENCE_SECONDS = 2.0
"""A worker whose connection is found closed for this long counts as dead and loses its jobs."""
MIN_PROBES = 3
PROBE_SECONDS = 1.05  # from one probe to the next
ANSWER_SECONDS = 1.0
SERVERS_SECONDS = 0.5
ROLL_CALL_SECONDS = 30.0
SERVER_KEPT_SECONDS = 300.0  # how long after its last answer a server is still expected to answer
WATCHED = 3
"""How many other processes each process watches at most."""
CHECK_AGAIN = 30 * MICROSECONDS

logger = logging.getLogger("mainspring.nats")


class Presence(Struct, frozen=True, array_like=True):
    """The part of a heartbeat that says to which subject a process is subscribed, and over which connection."""

    token: str
    """The last token of the subject to which the process is subscribed."""
    server: str
    """The id of the server that the process is connected to. The id changes when the server restarts."""
    connection: int
    """The number that this server has given to the connection of the process."""
    account: str = ""
    """The account of the process on the servers; empty if the process does not know it, as in earlier versions."""


class OwnPresence:
    """The presence of this process: a subject to which it is subscribed while it is connected.

    Heartbeats declare it, so that other processes can test it, but only after a test message to the subject has
    arrived.
    """

    def __init__(self, jetstream: JetStream, names: SubjectNames) -> None:
        self._jetstream = jetstream
        self.token = token_hex(8)
        self._account = ""
        self._subject = names.presence + self.token
        self._lock = Lock()  # guards the following attributes; held during a check
        self._client: BatchingClient | None = None  # the client that has the subscription
        self._checked: ConnectionId | None = None
        self._check_at = 0
        self._is_heard = False
        self._is_warned = False
        self._arrived: asyncio.Future[bool] | None = None  # on the loop only

    def declare(self) -> Presence | None:
        """Return the presence of this process: the subject to which it is subscribed, and its connection.

        Return None if this process is not connected, or does not receive messages to its subject. The first call
        on each connection subscribes, and waits for a test message; so does a later call, at least `CHECK_AGAIN`
        after a test that failed. So do not call this method on the event loop.
        """
        with self._lock:
            connection = self._jetstream.connection_id
            if connection is None:
                return None
            now = self._jetstream.monotonic()
            if connection != self._checked or (not self._is_heard and now >= self._check_at):
                self._account = self._jetstream.run_on_loop(
                    self._jetstream.read_account(self._jetstream.seconds_left(ANSWER_SECONDS))
                )
                self._is_heard = self._jetstream.run_on_loop(self._check())
                self._checked, self._check_at = connection, now + CHECK_AGAIN
                self._warn()
            return Presence(self.token, *connection, self._account) if self._is_heard else None

    def is_observable(self, presence: Presence) -> bool:
        """Return whether this process can find out if another one is connected: both are in the same account.

        Processes of earlier versions do not declare their account. They use no account of a role.
        """
        is_earlier = not presence.account and not self._jetstream.has_imported_api
        return presence.token != self.token and (is_earlier or presence.account == self._account)

    def _warn(self) -> None:
        if not self._is_heard and self._jetstream.is_connected and not self._is_warned:
            logger.warning(
                "%s: a test message to %r did not arrive; if this process dies, its jobs wait for the end of "
                "their lease: grant the user the permissions that `mainspring nats permissions` prints",
                self._jetstream.address,
                self._subject,
            )
            self._is_warned = True

    async def _check(self) -> bool:
        """Subscribe, unless this client is subscribed already; return whether a test message arrives."""
        client = self._jetstream.client
        if client is None or not client.is_connected:
            return False
        self._arrived = arrived = asyncio.get_running_loop().create_future()
        if self._client is not client:
            await client.subscribe(self._subject, cb=self._receive)
            self._client = client
        seconds = self._jetstream.seconds_left(ANSWER_SECONDS)
        absence = asyncio.ensure_future(self._jetstream.is_absent(self._subject, seconds))
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
    """The subject and connection that a worker has declared (its presence), with the revision of that
    heartbeat.
    """

    worker: int
    revision: int
    presence: Presence


class Absence(Struct):
    """The number of probes in a row, since the last heartbeat of a worker, that found its connection closed."""

    revision: int
    """The revision of the worker's last heartbeat."""
    first: float
    """The time at which the answer to the first of these probes arrived."""
    count: int = 0


class AbsenceCounter:
    """Counts for each worker how many probes (test messages) in a row found its connection closed.

    This class does no I/O. Times are seconds of any monotonic clock.
    """

    def __init__(self) -> None:
        self._absences: dict[int, Absence] = {}

    def absent(self, sign: Sign, *, sent: float, answered: float) -> bool:
        """Record that a probe found no subscriber to the subject of a worker.

        Return whether the worker counts as dead. It counts as dead after `MIN_PROBES` such probes and
        `ABSENCE_SECONDS`. A newer heartbeat of the worker starts the count again.

        The server looks for subscribers at some time between `sent` and `answered`. So the worker was absent at
        least from the answer to the first probe until the last probe was sent.
        """
        absence = self._absences.get(sign.worker)
        if absence is None or absence.revision != sign.revision:
            absence = self._absences[sign.worker] = Absence(sign.revision, answered)
        absence.count += 1
        return absence.count >= MIN_PROBES and sent - absence.first >= ABSENCE_SECONDS

    def present(self, sign: Sign) -> None:
        """Reset the count of a worker, because it may be connected."""
        self._absences.pop(sign.worker, None)

    def keep(self, workers: Iterable[int]) -> None:
        """Delete the counts of all workers that are not in `workers`."""
        kept = set(workers)
        self._absences = {worker: absence for worker, absence in self._absences.items() if worker in kept}

    def clear(self) -> None:
        """Delete all counts, so that they start again."""
        self._absences.clear()


class _ServerIdentity(Struct):
    name: str
    id: str
    cluster: str = ""


class _ConnectionList(Struct):
    num_connections: int


class ServerAnswer(Struct):
    """The answer of one server to a request for a list of its connections."""

    server: _ServerIdentity
    data: _ConnectionList | None = None


_decoder = msgspec.json.Decoder(ServerAnswer)


class ServerRoster:
    """The names of the servers that have answered within `SERVER_KEPT_SECONDS`. This class does no I/O."""

    def __init__(self) -> None:
        self._answered: dict[str, float] = {}

    def add(self, names: Iterable[str], now: float) -> None:
        """Record that servers have answered."""
        self._answered.update(dict.fromkeys(names, now))

    def names(self, now: float) -> set[str]:
        """Return the names of the servers that are expected to answer, because they have answered lately."""
        return {name for name, at in self._answered.items() if now - at < SERVER_KEPT_SECONDS}


def find_answer(
    presence: Presence, answers: Mapping[str, ServerAnswer], expected: set[str]
) -> ServerAnswer | None:
    """Return the answer of the server that a process named in its last heartbeat (`presence.server`).

    The answer says whether the connection is still open there. Return None if that server has not answered. In a
    cluster, return None until all expected servers have answered, because the process may have reconnected to one
    that has not. `answers` has the answers by server name, and `expected` the names of servers.
    """
    own = next((answer for answer in answers.values() if answer.server.id == presence.server), None)
    if own is None or (own.server.cluster and not expected <= answers.keys()):
        return None
    return own


def is_closed(presence: Presence, answers: Mapping[str, ServerAnswer], expected: set[str]) -> bool:
    """Return whether the servers confirm that the connection of a process is closed; False if that is unknown."""
    answer = find_answer(presence, answers, expected)
    return answer is not None and answer.data is not None and answer.data.num_connections == 0


def choose_watched(signs: Iterable[Sign], own: int) -> list[list[Sign]]:
    """Return the workers of at most `WATCHED` processes that this process watches, as one list for each process.

    All processes form a ring, in the order of their worker numbers. This process, which has the worker `own`,
    watches the processes that follow it in the ring.
    """
    by_token: dict[str, list[Sign]] = {}
    for sign in sorted(signs):
        by_token.setdefault(sign.presence.token, []).append(sign)
    processes = list(by_token.values())
    after = [process for process in processes if process[0].worker > own]
    before = [process for process in processes if process[0].worker <= own]
    return (after + before)[:WATCHED]


class PresenceMonitor:
    """Finds dead workers of other processes by probes: messages to a subject that the process subscribes to.

    It runs on the event loop, from the first `watch` to `stop`.
    """

    def __init__(self, jetstream: JetStream, names: SubjectNames, own: OwnPresence) -> None:
        self._jetstream = jetstream
        self._names = names
        self._own = own
        self._task: asyncio.Task[None] | None = None  # used on the loop only, like the counts and the roster
        self._counter = AbsenceCounter()
        self._roster = ServerRoster()
        self._roll_call_at = 0.0
        self._is_warned = False
        self._signs: list[list[Sign]] = []  # replaced as a whole, so it needs no lock
        self._lock = Lock()
        self._dead: dict[int, int] = {}  # the revisions of last heartbeats, by worker
        self.on_death: Callable[[], None] = lambda: None
        """Called on the event loop when `take_dead` has workers to return."""

    # -- on any thread

    def stop(self) -> None:
        """Stop watching workers."""
        self._signs = []
        self._jetstream.call_soon(self._stop)

    def watch(self, signs: Iterable[Sign], own: int) -> None:
        """Watch the workers that `choose_watched` selects; `own` is the number of a worker of this process.

        `signs` has the subjects and connections that workers have declared. The caller has just read them from the
        server; they replace those of the last call.
        """
        self._signs = choose_watched((sign for sign in signs if self._own.is_observable(sign.presence)), own)
        if self._signs:
            self._jetstream.call_soon(self._start)

    def take_dead(self) -> dict[int, int]:
        """Take the workers that were found dead since the last call, with the revisions of their heartbeats."""
        with self._lock:
            dead, self._dead = self._dead, {}
            return dead

    # -- on the loop

    def reset(self) -> None:
        """Delete all counts and the dead workers that were found, because this process has lost its connection."""
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
            except Exception:  # the task must go on, to send the next probes
                logger.exception(
                    "%s: the search for dead workers failed; it is repeated after %g s",
                    self._jetstream.address,
                    PROBE_SECONDS,
                )
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
                "%s: worker %d seems to have lost its connection, but no server answers a request to the subject "
                "%r, which would confirm it; so its jobs wait for the end of their lease: grant this user the "
                "permissions that `mainspring nats permissions` prints",
                self._jetstream.address,
                process[0].worker,
                CONNECTIONS,
            )
        return is_closed(presence, answers, expected)

    async def _ask_servers(self, presence: Presence | None, expected: set[str]) -> dict[str, ServerAnswer]:
        """Ask all servers whether they have the connection of a process; return the answers by server name.

        With `presence=None`, only learn which servers answer. Return as soon as `find_answer` finds the answer of
        the process's server, otherwise after `SERVERS_SECONDS`.
        """
        answers: dict[str, ServerAnswer] = {}
        done = asyncio.Event()

        async def receive(message: Msg) -> None:
            if "Status" in (message.headers or {}):  # the account of this user gets no answers from servers
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
            with suppress(nats.errors.Error):  # the connection is lost, and the subscription with it
                await subscription.unsubscribe()
        self._roster.add(answers, loop_time())
        return answers
