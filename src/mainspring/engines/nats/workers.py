"""Workers and their heartbeats. A worker has a record on the server that expires if it is not renewed.

The number of a worker is a revision of the stream, so it is never used again. A worker whose record has expired
counts as dead: other workers may have claimed its jobs. A worker that leaves jobs behind stores their ids, and
other workers rescue them at once. A thread renews the record several times in each lease, and tells the server
which messages are still in progress.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import ceil
from threading import Event, Lock, Thread

from msgspec import Struct
from msgspec.structs import replace

from mainspring.engines.nats.drafts import Draft
from mainspring.engines.nats.link import Link
from mainspring.engines.nats.naming import Names
from mainspring.engines.nats.settings import NatsSettings
from mainspring.engines.nats.stored import decode, encode
from mainspring.errors import EngineUnavailable
from mainspring.jobs.records import WorkerInfo, WorkerRecord
from mainspring.jobs.timestamps import MICROSECONDS

BEATS_PER_LEASE = 4

logger = logging.getLogger("mainspring.nats")


class Heartbeat:
    """Calls a function regularly, on its own thread, until it is stopped."""

    def __init__(self, lease: float, beat: Callable[[], None]) -> None:
        self._seconds = lease / BEATS_PER_LEASE
        self._beat = beat
        self._is_over = Event()
        self._thread: Thread | None = None

    def start(self) -> None:
        """Start the thread, if it does not run already."""
        if self._thread is None:
            self._is_over.clear()
            self._thread = Thread(target=self._run, name="mainspring-heartbeat", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while not self._is_over.wait(self._seconds):
            try:
                self._beat()
            except EngineUnavailable as error:
                logger.warning("no sign of life could be given: %s", error)
            except Exception:  # the heartbeat must continue
                logger.exception("the heartbeat stumbled")

    def stop(self) -> None:
        """Stop; a last call may still be in progress."""
        self._is_over.set()

    def join(self) -> None:
        """Wait for the last call, which ends with the link at the latest."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()


class HeartbeatRecord(Struct, frozen=True, array_like=True):
    """The heartbeat of a worker, as it is stored."""

    name: str
    process: int
    types: tuple[str, ...]
    beat: int
    """When it was sent."""
    left_behind: tuple[str, ...] = ()
    """Jobs of a worker that has left without settling them."""
    has_left: bool = False


class Workers:
    """The workers of this process, and the heartbeats of all workers."""

    def __init__(self, link: Link, names: Names, settings: NatsSettings) -> None:
        self._link = link
        self._names = names
        self._lock = Lock()  # one heartbeat of ours at a time
        self._lease = round(settings.lease * MICROSECONDS)
        self._ttl = {"Nats-TTL": f"{ceil(settings.lease)}s"}
        self._changing = Lock()  # guards the removal of workers against the end of a heartbeat; held for moments
        self._ours: dict[int, tuple[WorkerInfo, int]] = {}  # with the revision of the last heartbeat
        self._signed: dict[int, tuple[int, int]] = {}  # when it was sent, by our monotonic and wall clock

    @property
    def numbers(self) -> list[int]:
        """The numbers of the workers of this process."""
        return list(self._ours)

    def is_enrolled(self, worker: int) -> bool:
        """Return whether a worker belongs to this process and was not declared dead."""
        return worker in self._ours

    def enroll(self, info: WorkerInfo) -> int:
        """Register a worker, and return its number."""
        number = self._link.store(f"{self._names.workers}new", b"")
        self._link.empty(f"{self._names.workers}new")
        revision = self._sign(number, info, 0)
        while revision is None:
            revision = self._sign(number, info, self._link.read_one(self._names.worker(number)).revision)
        with self._lock:
            self._ours[number] = (info, revision)
        return number

    def _sign(self, number: int, info: WorkerInfo, expected: int) -> int | None:
        signed = (self._link.monotonic(), self._link.own_time())
        draft = Draft()
        sign = HeartbeatRecord(info.name, info.process, info.types, self._link.now())
        draft.put(self._names.worker(number), encode(sign), expected, self._ttl)
        revision = self._link.commit(draft)
        if revision is not None:
            self._signed[number] = signed
        return revision

    def renew(self, worker: int) -> bool:
        """Store a heartbeat; False if the last one has expired."""
        with self._lock:
            if worker not in self._ours:
                return False
            info, revision = self._ours[worker]
            renewed = self._sign(worker, info, revision)
            while renewed is None:  # the last one may have been stored: if there is one, it is ours
                entry = self._link.read_one(self._names.worker(worker))
                if not entry.data:
                    self.forget_one(worker)
                    return False
                renewed = self._sign(worker, info, entry.revision)
            with self._changing:
                if worker not in self._ours:  # it was given up while the server was asked
                    return False
                self._ours[worker] = (info, renewed)
            return True

    def announce(self, worker: int, types: tuple[str, ...]) -> bool:
        """Store a heartbeat with the types that a worker has handlers for; False if the last one has expired."""
        with self._lock:
            if worker not in self._ours:
                return False
            info, revision = self._ours[worker]
            self._ours[worker] = (replace(info, types=types), revision)
        return self.renew(worker)

    def leave(self, worker: int, left_behind: tuple[str, ...]) -> None:
        """Remove a worker, or store the ids of the jobs that it leaves behind, so that they are rescued."""
        with self._lock:  # else a heartbeat in progress could be stored after the last one
            ours = self._ours.pop(worker, None)
            self._signed.pop(worker, None)
            subject = self._names.worker(worker)
            if ours is None or not left_behind:
                self._link.empty(subject)
                return
            info, _ = ours
            sign = HeartbeatRecord(info.name, info.process, info.types, 0, left_behind, has_left=True)
            self._link.store(subject, encode(sign))

    def is_fresh(self, worker: int) -> bool:
        """Return whether a worker sent a heartbeat within its lease; else others may have claimed its jobs."""
        if worker not in self._ours:
            return False
        monotonic, wall = self._signed.get(worker, (0, 0))
        # The monotonic clock stops while the machine sleeps, the wall clock may be set: the longer time counts.
        return max(self._link.monotonic() - monotonic, self._link.own_time() - wall) < self._lease

    def forget_one(self, worker: int) -> None:
        """Stop the heartbeats of a worker that was cut off for too long."""
        with self._changing:
            self._ours.pop(worker, None)

    def forget_ours(self) -> None:
        """Stop all heartbeats: other workers may claim our jobs when the lease is over."""
        with self._changing:
            self._ours.clear()

    def forget(self, worker: int) -> None:
        """Delete the record of a worker whose jobs were rescued."""
        self._link.empty(self._names.worker(worker))

    def read_all(self) -> dict[int, HeartbeatRecord]:
        """Return the heartbeats of all workers, by number."""
        found = self._link.scan(f"{self._names.workers}*")
        signs = ((subject.rpartition(".")[2], entry.data) for subject, entry in found)
        return {int(number): decode(data, HeartbeatRecord) for number, data in signs if number.isdigit() and data}

    def states(self) -> list[WorkerRecord]:
        """Return all workers, except those whose heartbeats have expired."""
        return [
            WorkerRecord(number, WorkerInfo(sign.name, sign.process, sign.types), sign.beat, is_gone=sign.has_left)
            for number, sign in sorted(self.read_all().items())
        ]

    def lease_left(self, worker: int, now: int) -> int:
        """Return for how many microseconds a worker still owns its jobs."""
        if worker in self._ours:
            return self._lease
        data = self._link.read_one(self._names.worker(worker)).data
        if not data:
            return 0
        sign = decode(data, HeartbeatRecord)
        # The server deletes an expired heartbeat a little after the lease is over.
        return 0 if sign.has_left else max(MICROSECONDS // 5, sign.beat + self._lease - now)
