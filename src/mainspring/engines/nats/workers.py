"""Workers and their heartbeats. A worker has a key on the server that expires if it is not renewed.

The number of a worker is a revision of the stream, so it is never used again. A worker whose key has expired was
declared dead: its jobs may belong to others by now. A worker that leaves jobs behind says so, and they are rescued
at once. A thread renews the key several times in each lease, and tells the server which messages the worker keeps.
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
from mainspring.jobs.crew import WorkerInfo, WorkerState
from mainspring.jobs.instants import MICROSECONDS

BEATS_PER_LEASE = 4

logger = logging.getLogger("mainspring.nats")


class Heartbeat:
    """Calls back regularly until it is closed."""

    def __init__(self, lease: float, beat: Callable[[], None]) -> None:
        self._seconds = lease / BEATS_PER_LEASE
        self._beat = beat
        self._is_over = Event()
        self._thread: Thread | None = None

    def start(self) -> None:
        """Begin, if it does not beat already."""
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
            except Exception:  # it must go on
                logger.exception("the heartbeat stumbled")

    def stop(self) -> None:
        """Beat no more; a last beat may be on its way."""
        self._is_over.set()

    def join(self) -> None:
        """Wait for the end of the last beat, which ends with the link at the latest."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()


class Sign(Struct, frozen=True, array_like=True):
    """A sign of life."""

    name: str
    process: int
    types: tuple[str, ...]
    beat: int
    """When it was given."""
    left_behind: tuple[str, ...] = ()
    """Jobs of a worker that has left without settling them."""
    has_left: bool = False


class Workers:
    """The workers of this process, and what is known of the others."""

    def __init__(self, link: Link, names: Names, settings: NatsSettings) -> None:
        self._link = link
        self._names = names
        self._lock = Lock()  # one sign of ours at a time
        self._lease = round(settings.lease * MICROSECONDS)
        self._ttl = {"Nats-TTL": f"{ceil(settings.lease)}s"}
        self._ours: dict[int, tuple[WorkerInfo, int]] = {}  # with the revision of the last sign
        self._signed: dict[int, tuple[int, int]] = {}  # when that was sent, by our own clocks

    @property
    def numbers(self) -> list[int]:
        """Those of this process."""
        return list(self._ours)

    def is_enrolled(self, worker: int) -> bool:
        """Answer whether it is one of ours, and was not declared dead."""
        return worker in self._ours

    def enroll(self, info: WorkerInfo) -> int:
        """Begin an incarnation."""
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
        sign = Sign(info.name, info.process, info.types, self._link.now())
        draft.put(self._names.worker(number), encode(sign), expected, self._ttl)
        revision = self._link.commit(draft)
        if revision is not None:
            self._signed[number] = signed
        return revision

    def renew(self, worker: int) -> bool:
        """Show that a worker lives; False if its sign was gone."""
        with self._lock:
            if worker not in self._ours:
                return False
            info, revision = self._ours[worker]
            renewed = self._sign(worker, info, revision)
            while renewed is None:  # nobody knows whether the last one was stored: if there is one, it is ours
                entry = self._link.read_one(self._names.worker(worker))
                if not entry.data:
                    del self._ours[worker]
                    return False
                renewed = self._sign(worker, info, entry.revision)
            self._ours[worker] = (info, renewed)
            return True

    def announce(self, worker: int, types: tuple[str, ...]) -> bool:
        """Give a sign with the handlers that a worker knows now; False if its sign was gone."""
        with self._lock:
            if worker not in self._ours:
                return False
            info, revision = self._ours[worker]
            self._ours[worker] = (replace(info, types=types), revision)
        return self.renew(worker)

    def leave(self, worker: int, left_behind: tuple[str, ...]) -> None:
        """End an incarnation; what it left behind is named for those who rescue it."""
        with self._lock:  # a sign that is on its way would come after the last one
            ours = self._ours.pop(worker, None)
            self._signed.pop(worker, None)
            subject = self._names.worker(worker)
            if ours is None or not left_behind:
                self._link.empty(subject)
                return
            info, _ = ours
            sign = Sign(info.name, info.process, info.types, 0, left_behind, has_left=True)
            self._link.store(subject, encode(sign))

    def is_fresh(self, worker: int) -> bool:
        """Answer whether a worker has shown within its lease that it lives: else its jobs may belong to others."""
        if worker not in self._ours:
            return False
        monotonic, wall = self._signed.get(worker, (0, 0))
        # A machine that sleeps stops the one clock, whoever sets the other one moves it: the longer time counts.
        return max(self._link.monotonic() - monotonic, self._link.own_time() - wall) < self._lease

    def forget_one(self, worker: int) -> None:
        """Give no more signs for a worker that was cut off for too long."""
        self._ours.pop(worker, None)

    def forget_ours(self) -> None:
        """Give no more signs: what is still ours becomes that of others when the lease is over."""
        self._ours.clear()

    def forget(self, worker: int) -> None:
        """What a worker had left behind is rescued."""
        self._link.empty(self._names.worker(worker))

    def read_all(self) -> dict[int, Sign]:
        """Return the signs of all workers."""
        found = self._link.scan(f"{self._names.workers}*")
        signs = ((subject.rpartition(".")[2], entry.data) for subject, entry in found)
        return {int(number): decode(data, Sign) for number, data in signs if number.isdigit() and data}

    def states(self) -> list[WorkerState]:
        """Return all workers; one whose sign has vanished is not known any more."""
        return [
            WorkerState(number, WorkerInfo(sign.name, sign.process, sign.types), sign.beat, is_gone=sign.has_left)
            for number, sign in sorted(self.read_all().items())
        ]

    def lease_left(self, worker: int, now: int) -> int:
        """Return for how many microseconds a worker's jobs are still its own."""
        if worker in self._ours:
            return self._lease
        data = self._link.read_one(self._names.worker(worker)).data
        if not data:
            return 0
        sign = decode(data, Sign)
        # The server lets the sign vanish in its own time, a little after the lease is over.
        return 0 if sign.has_left else max(MICROSECONDS // 5, sign.beat + self._lease - now)
