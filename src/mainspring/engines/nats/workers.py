"""Workers and their heartbeats. The record of a worker on the server expires if the worker does not renew it.

The number of a worker is a revision of the stream, so no other worker ever gets the same number. A worker whose
record has expired counts as dead: other workers may have claimed its jobs. A worker that leaves jobs behind stores
their ids in its record, and other workers rescue the jobs at once. A worker that finds another worker dead stores
the ids of the dead worker's jobs in the same way (`presence.py`). A thread renews the records of this process
several times in each lease, and tells the server which messages are still in progress.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from math import ceil
from threading import Event, Lock, Thread
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from mainspring.engines.nats.connection import ConnectionId
from mainspring.engines.nats.jetstream import JetStream
from mainspring.engines.nats.job_records import decode, encode
from mainspring.engines.nats.presence import Presence, Sign
from mainspring.engines.nats.settings import NatsSettings
from mainspring.engines.nats.subject_names import SubjectNames
from mainspring.engines.nats.write_batch import StoredMessage, WriteBatch
from mainspring.errors import EngineUnavailable
from mainspring.jobs.records import RemoteTerms, WorkerInfo, WorkerRecord
from mainspring.jobs.timestamps import MICROSECONDS

BEATS_PER_LEASE = 4
CONFIRMED_SECONDS = 1.0
"""For how many seconds a reply of the server proves that the connection is open.

This time is shorter than `presence.ABSENCE_SECONDS`, so that there is a margin.
"""
WORKERS_PAGE = 1_000  # how many records of workers one request reads
MAX_KNOWN_NAMES = 1_000  # of workers of other processes
MAX_CONFIRMATIONS = 3  # how many heartbeats to try in a row, if an overloaded machine gets the replies too late

logger = logging.getLogger("mainspring.nats")


class HeartbeatThread:
    """A thread that calls a function regularly, `BEATS_PER_LEASE` times in each lease."""

    def __init__(self, lease: float, beat: Callable[[], None]) -> None:
        self._seconds = lease / BEATS_PER_LEASE
        self._beat = beat
        self._stopped = False
        self._woken = Event()
        self._thread: Thread | None = None

    def start(self) -> None:
        """Start the thread. Do nothing if it was started before and `join` was not called since then."""
        if self._thread is None:
            self._stopped = False
            self._woken.clear()
            self._thread = Thread(target=self._run, name="mainspring-heartbeat", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            self._woken.wait(self._seconds)
            self._woken.clear()
            if self._stopped:
                return
            try:
                self._beat()
            except EngineUnavailable as error:
                logger.warning(
                    "a heartbeat of a worker was not stored, or the server did not confirm it (%s); the next one "
                    "follows after %g s; after %g s without one, other workers may claim the jobs of this worker",
                    error,
                    self._seconds,
                    self._seconds * BEATS_PER_LEASE,
                )
            except Exception:  # the thread must go on, to send the next heartbeats
                logger.exception("a heartbeat of a worker failed; the next one follows after %g s", self._seconds)

    def call_now(self) -> None:
        """Make the thread call the function at once, if the thread runs. Any thread may call this method."""
        self._woken.set()

    def stop(self) -> None:
        """Ask the thread to stop. A last call of the function may still be in progress."""
        self._stopped = True
        self._woken.set()

    def join(self) -> None:
        """Wait until the thread has ended. Its last call ends at the latest when the connection is closed."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()


class HeartbeatRecord(Struct, frozen=True, array_like=True):
    """The heartbeat of a worker, as it is stored."""

    name: str
    process: int
    types: tuple[str, ...]
    beat: int
    """The instant at which the heartbeat was sent, by the server's clock; 0 if the worker has left or died."""
    left_behind: tuple[str, ...] = ()
    """The ids of the jobs of a worker that has left without settling them, or has died."""
    has_left: bool = False
    presence: Presence | None = None
    """The subject and the connection by which other workers probe the process. Version 0.1 stores no presence."""
    queues: tuple[str, ...] | None = None
    """The queues that the worker serves; None for all. Version 0.1 does not store them."""
    timeouts: dict[str, int] = {}
    """The timeouts of the worker's handlers in microseconds, by job type. Version 0.1 does not store them."""
    remote: RemoteTerms | None = None
    """The terms of a remote worker; None for other workers."""
    leases: dict[str, str] = {}
    """For a remote worker: the reply subjects of the messages of its jobs, by job id."""
    slots: dict[str, int] = {}
    """How many handlers the worker runs at once, by kind; empty if it does not tell."""
    version: str = ""
    """The version of Mainspring; empty if the worker does not tell."""


class HeartbeatEntry(NamedTuple):
    """A stored heartbeat, and the revision of its record."""

    record: HeartbeatRecord
    revision: int


class StoredHeartbeats:
    """Reads and deletes the stored heartbeats of workers.

    Processes of earlier versions keep theirs in the main stream, and read only those. While such workers live,
    this process reads both, and writes a copy of its own ones for them. It does so without a role only: with
    one, processes of these versions cannot connect, and a submitter could write heartbeats in the main stream.
    """

    def __init__(self, jetstream: JetStream, names: SubjectNames, settings: NatsSettings) -> None:
        self._jetstream = jetstream
        self._names = names
        self._reads_earlier = settings.role is None
        self._has_earlier = False

    def read(self, worker: int) -> tuple[str, StoredMessage]:
        """Return the subject of the heartbeat of a worker, and its message; `NO_MESSAGE` if there is none."""
        subject = self._names.worker(worker)
        message = self._jetstream.read_one(subject)
        if not message.data and self._reads_earlier:
            earlier = self._names.earlier_worker(worker)
            message_of_earlier = self._jetstream.read_one(earlier)
            if message_of_earlier.data:
                return earlier, message_of_earlier
        return subject, message

    def find(self, worker: int) -> HeartbeatRecord | None:
        """Return the last heartbeat of a worker; None if the server has none any more."""
        _, message = self.read(worker)
        return decode(message.data, HeartbeatRecord) if message.data else None

    def read_all(self) -> dict[int, HeartbeatEntry]:
        """Return the stored heartbeats of all workers, by worker number."""
        found = self._scan(self._names.workers)
        if self._reads_earlier:
            earlier = self._scan(self._names.earlier_workers)
            self._has_earlier = not earlier.keys() <= found.keys()
            found = earlier | found
        return found

    def _scan(self, prefix: str) -> dict[int, HeartbeatEntry]:
        last = dict(self._jetstream.scan_all(f"{prefix}*", most=WORKERS_PAGE))
        entries = ((subject.rpartition(".")[2], entry) for subject, entry in last.items())
        return {
            int(number): HeartbeatEntry(decode(entry.data, HeartbeatRecord), entry.revision)
            for number, entry in entries
            if number.isdigit() and entry.data
        }

    def copy(self, worker: int, data: bytes, ttl: Mapping[str, str]) -> None:
        """Send a copy of a heartbeat to workers of earlier versions, if there are any, without waiting."""
        if self._has_earlier:
            self._jetstream.send([(self._names.earlier_worker(worker), data, "", ttl)])

    def delete(self, worker: int) -> None:
        """Delete the heartbeat of a worker, without waiting for the server."""
        self._jetstream.drop(self._names.worker(worker))
        if self._has_earlier:
            self._jetstream.purge(self._names.earlier_worker(worker))


class SilenceWatch:
    """Finds remote workers whose record has not changed for their lease, as this process has seen it.

    The time before this process has seen a record does not count, because there may have been no server that a
    worker could send its heartbeats to. A pause of this process counts as a third of a lease at most.
    """

    def __init__(self, monotonic: Callable[[], int]) -> None:
        self._monotonic = monotonic  # in microseconds
        self._checked = monotonic()
        self._silences: dict[int, tuple[int, int]] = {}  # by worker: the revision, and how long it has not changed

    def find_silent(self, entries: Mapping[int, HeartbeatEntry]) -> list[int]:
        """Compare the records with those of the last call; return the remote workers silent for a whole lease."""
        now = self._monotonic()
        passed, self._checked = now - self._checked, now
        before, self._silences = self._silences, {}
        silent: list[int] = []
        for number, (record, revision) in entries.items():
            if record.remote is None or record.has_left:
                continue
            gap = min(passed, record.remote.lease // 3)
            known, silence = before.get(number, (revision, -gap))
            silence = silence + gap if known == revision else 0
            self._silences[number] = (revision, silence)
            if silence >= record.remote.lease:
                silent.append(number)
        return silent


class WorkerRegistry:
    """The workers of this process, and the heartbeats of all workers."""

    def __init__(
        self,
        jetstream: JetStream,
        names: SubjectNames,
        settings: NatsSettings,
        declare_presence: Callable[[], Presence | None],
    ) -> None:
        self._jetstream = jetstream
        self._names = names
        self._declare_presence = declare_presence
        self._stored = StoredHeartbeats(jetstream, names, settings)
        self._lock = Lock()  # held while a heartbeat is sent, so that only one is sent at a time
        self._lease = round(settings.lease * MICROSECONDS)
        self._ttl = {"Nats-TTL": f"{ceil(settings.lease)}s"}
        self._changing = Lock()  # guards `_ours` against a removal during a heartbeat; held briefly
        self._ours: dict[int, tuple[WorkerInfo, int]] = {}  # by number, with the revision of the last heartbeat
        self._names_of_others: dict[int, str] = {}  # names of workers of other processes, and of remote workers
        self._removals: dict[int, str | None] = {}  # by worker that has left: why it was removed, if it was
        self._sent: dict[int, tuple[int, int]] = {}  # local monotonic and wall-clock time of the last heartbeat

    @property
    def numbers(self) -> list[int]:
        """The numbers of the workers of this process."""
        return list(self._ours)

    def is_enrolled(self, worker: int) -> bool:
        """Return whether a worker belongs to this process and was not declared dead."""
        return worker in self._ours

    def name_of(self, worker: int) -> str:
        """Return the name of a worker; its number, if the server has no heartbeat of it any more."""
        ours = self._ours.get(worker)
        if ours is not None:
            return ours[0].name
        known = self._names_of_others.get(worker)
        if known is None:
            record = self._stored.find(worker)
            known = str(worker) if record is None else record.name
            if len(self._names_of_others) >= MAX_KNOWN_NAMES:
                self._names_of_others.clear()
            self._names_of_others[worker] = known
        return known

    def removal_of(self, worker: int) -> str | None:
        """Return why a remote worker was removed; None if it was not, or if its record is gone."""
        if worker in self._removals:
            return self._removals[worker]
        record = self._stored.find(worker)
        removed = None if record is None or record.remote is None else record.remote.removed
        if record is None or record.has_left:  # the worker never comes back, so that this never changes
            if len(self._removals) >= MAX_KNOWN_NAMES:
                self._removals.clear()
            self._removals[worker] = removed
        return removed

    def enroll(self, info: WorkerInfo) -> int:
        """Store the record of a worker of this process, and return its number."""
        number = self._jetstream.store(self._names.worker_numbers, b"")
        self._jetstream.purge(self._names.worker_numbers)
        self._stored.read_all()  # finds workers of earlier versions, which need a copy of the heartbeats
        revision = self._send_heartbeat(number, info, 0)
        while revision is None:
            revision = self._send_heartbeat(
                number, info, self._jetstream.read_one(self._names.worker(number)).revision
            )
        with self._lock:
            self._ours[number] = (info, revision)
        return number

    def _send_heartbeat(self, number: int, info: WorkerInfo, expected: int) -> int | None:
        presence = self._declare_presence()
        sent = (self._jetstream.monotonic(), self._jetstream.local_time())
        batch = WriteBatch()
        record = HeartbeatRecord(
            info.name,
            info.process,
            info.types,
            self._jetstream.now(),
            presence=presence,
            queues=info.queues,
            timeouts=info.timeouts,
            slots=info.slots,
            version=info.version,
        )
        data = encode(record)
        batch.put(self._names.worker(number), data, expected, self._ttl)
        revision = self._jetstream.commit(batch)
        self._stored.copy(number, data, self._ttl)
        if revision is not None:
            self._sent[number] = sent
        return revision

    def renew(self, worker: int) -> bool:
        """Store a heartbeat of a worker, and return True.

        Return False if the last heartbeat has expired, if another worker has declared this worker dead, or if it
        is no worker of this process. Then its heartbeats stop. While the record is stored, no worker takes the
        jobs of this worker, however old its last heartbeat is.
        """
        with self._lock:
            if worker not in self._ours:
                return False
            info, revision = self._ours[worker]
            renewed = self._send_heartbeat(worker, info, revision)
            while renewed is None:  # the last heartbeat may have been stored although its reply was lost
                entry = self._jetstream.read_one(self._names.worker(worker))
                if not entry.data or decode(entry.data, HeartbeatRecord).has_left:
                    self._log_loss(worker, is_expired=not entry.data)
                    self.drop(worker)
                    return False
                renewed = self._send_heartbeat(worker, info, entry.revision)
            with self._changing:
                if worker not in self._ours:  # the worker was dropped meanwhile
                    return False
                self._ours[worker] = (info, renewed)
            return True

    def _log_loss(self, worker: int, *, is_expired: bool) -> None:
        since = self._sent.get(worker, (0, 0))[0]
        seconds = (self._jetstream.monotonic() - since) / MICROSECONDS
        if is_expired:
            logger.error(
                "the heartbeat of worker %d has expired: the server has stored none for %.0f s, and the lease is "
                "%g s; this process was suspended, or the server could not be reached or stored nothing",
                worker,
                seconds,
                self._lease / MICROSECONDS,
            )
        else:
            logger.error("another worker has found the connection of worker %d closed, and takes its jobs", worker)

    def announce(self, worker: int, info: WorkerInfo) -> bool:
        """Replace the handlers and queues in the record of a worker, by a heartbeat; return what `renew`
        returns.
        """
        with self._lock:
            if worker not in self._ours:
                return False
            self._ours[worker] = (info, self._ours[worker][1])
        return self.renew(worker)

    def leave(self, worker: int, left_behind: tuple[str, ...]) -> None:
        """Remove the record of a worker.

        If the worker leaves jobs behind, store their ids instead, so that other workers rescue the jobs.
        """
        with self._lock:  # otherwise a heartbeat in progress could replace this record
            ours = self._ours.pop(worker, None)
            self._sent.pop(worker, None)
            subject = self._names.worker(worker)
            if ours is None or not left_behind:
                self._stored.delete(worker)
                return
            info, _ = ours
            record = HeartbeatRecord(info.name, info.process, info.types, 0, left_behind, has_left=True)
            self._jetstream.store(subject, encode(record))

    def has_lease(self, worker: int) -> bool:
        """Return whether the last heartbeat of a worker of this process is younger than a lease.

        If the heartbeat is older, other workers may claim the jobs of the worker. Return False for a worker of
        another process.
        """
        if worker not in self._ours:
            return False
        monotonic, wall = self._sent.get(worker, (0, 0))
        # The monotonic clock stops while the machine sleeps, and the wall clock may be set. So the longer time
        # counts.
        return max(self._jetstream.monotonic() - monotonic, self._jetstream.local_time() - wall) < self._lease

    def may_start(self, worker: int, connection: ConnectionId | None) -> bool:
        """Return whether a worker may start the jobs that it has just claimed, because it still counts as alive.

        Two seconds after the connection of a worker was closed, other workers may claim its jobs. `connection` is
        the connection over which the claim began. If it is still open, and the server has replied to a request of
        the last `CONFIRMED_SECONDS`, return True. Otherwise send a heartbeat, and return whether the server stores
        it and replies in time. Return False if the last heartbeat is older than a lease.
        """
        if not self.has_lease(worker):
            return False
        if connection == self._jetstream.connection_id and self._is_confirmed():
            return connection is not None
        for _ in range(MAX_CONFIRMATIONS):
            try:
                if not self._jetstream.is_connected or not self.renew(worker):
                    return False
            except EngineUnavailable:
                return False
            if self._is_confirmed():
                return True
        return False

    def _is_confirmed(self) -> bool:
        return self._jetstream.unconfirmed_seconds < CONFIRMED_SECONDS

    def declare_dead(self, worker: int, revision: int, left_behind: tuple[str, ...]) -> bool:
        """Store that a worker has died, with the ids of its jobs, and return True.

        Return False if the worker has sent another heartbeat since `revision`, or has left, or if the server's
        reply was lost.
        """
        subject, entry = self._stored.read(worker)
        if entry.revision != revision or not entry.data:
            return False
        record = decode(entry.data, HeartbeatRecord)
        batch = WriteBatch()
        batch.put(subject, encode(replace(record, beat=0, left_behind=left_behind, has_left=True)), revision)
        return self._jetstream.commit(batch) is not None

    def drop(self, worker: int) -> None:
        """Stop the heartbeats of a worker whose last one has expired, or which others have declared dead."""
        with self._changing:
            self._ours.pop(worker, None)

    def drop_all(self) -> None:
        """Stop all heartbeats. Other workers may claim the jobs of this process when the leases have ended."""
        with self._changing:
            self._ours.clear()

    def delete(self, worker: int) -> None:
        """Delete the record of a worker whose jobs were rescued."""
        self._stored.delete(worker)

    def read_all(self) -> dict[int, HeartbeatEntry]:
        """Return the stored heartbeats of all workers, by worker number."""
        return self._stored.read_all()

    def states(self) -> list[WorkerRecord]:
        """Return all workers, except those whose heartbeats have expired.

        `is_gone` is True for workers that have left or died, and whose jobs must still be rescued.
        """
        return [
            WorkerRecord(
                number,
                WorkerInfo(
                    record.name,
                    record.process,
                    record.types,
                    record.queues,
                    record.timeouts,
                    record.slots,
                    record.version,
                    record.remote,
                ),
                record.beat,
                is_gone=record.has_left,
            )
            for number, (record, _) in sorted(self.read_all().items())
        ]

    def signs(self, entries: dict[int, HeartbeatEntry]) -> list[Sign]:
        """Return the presence (subject and connection) of each worker that declares one and has not left."""
        return [
            Sign(number, revision, record.presence)
            for number, (record, revision) in entries.items()
            if record.presence is not None and not record.has_left
        ]

    def lease_left(self, worker: int, now: int) -> int:
        """Return how many microseconds of a worker's lease are left; 0 if other workers may claim its jobs.

        A worker of this process has a whole lease, and another one whose record exists at least a fifth of a
        second.
        """
        if worker in self._ours:
            return self._lease
        record = self._stored.find(worker)
        if record is None:
            return 0
        # The server deletes an expired heartbeat a little after the lease has ended. A sweep deletes a remote one.
        lease = self._lease if record.remote is None else record.remote.lease
        return 0 if record.has_left else max(MICROSECONDS // 5, record.beat + lease - now)

    def has_no_record_of(self, worker: int, job_id: str) -> bool:
        """Return whether a worker is a remote one whose record does not list a job that it owns.

        If so, a process has claimed the job for the worker, and has died before it stored the lease.
        """
        record = self._stored.find(worker)
        return record is not None and record.remote is not None and job_id not in record.leases
