"""Decides by the pauses in the store whether a callback may be sent now, and pauses receivers that ask for it.

A receiver is a job type at a host, or a URL for jobs whose URL is an argument. One that answers 429 or 503 is
paused. If three URLs of a job type are paused, the type is paused at this host; if three job types are, the host
is. After the end of a pause one request is sent as a probe, by the worker that has taken the probe over in the
store. A success ends the pause; a failure begins the next one, which is twice as long.

Invariants
- All workers share the records of pauses. A request is put off only by records that were read after its attempt
  began, so that a pause that was lifted puts no job off. Without a record, the last read may be a second old.
- Answers to requests that were sent before a pause change nothing. So a host has few records, and few changes.
- If the store cannot be reached, the pauses hold in this process.

A `ReceiverPauses` has no lock for threads: only the event loop of its client may use it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from mainspring.clock import NANOSECONDS
from mainspring.errors import MainspringError
from mainspring.jobs.callback_pauses import LONGEST_SPREAD, MOST_PAUSES, CallbackPauseRecord, replace_pause
from mainspring.jobs.timestamps import MICROSECONDS

FIRST_PAUSE = 1 * MICROSECONDS
LONGEST_OWN = 60 * MICROSECONDS
"""The longest pause of a receiver that does not say how long it needs."""
PACE = 50_000
"""The time between the returns of two jobs that were put off because of the same pause, in microseconds."""
PROBE_WAIT = 1 * MICROSECONDS
"""How long a job is put off while a probe is sent."""
FRESH_SECONDS = 1.0
"""How old the records may be that let a request pass."""
TOGETHER = 3
"""How many URLs of a job type must be paused so that the type is, and how many job types so that the host is."""

logger = logging.getLogger("mainspring.worker")


class Receiver(NamedTuple):
    """The receiver of a request: host, job type, and the URL if it is an argument of the job."""

    host: str
    type: str
    url: str | None = None

    @property
    def keys(self) -> tuple[tuple[str, str, str], ...]:
        """The keys of the pauses that concern this receiver: of its host, of its type there, and of its URL."""
        return (self.host, "", ""), (self.host, self.type, ""), (self.host, self.type, self.url or "")


class PutOff(NamedTuple):
    """A request must wait because of `pause`: the job is due again after `delay` microseconds."""

    delay: int
    pause: CallbackPauseRecord


Probes = tuple[CallbackPauseRecord, ...]
"""The records of the pauses that a request probes; none for a usual request."""


class PauseStore(Protocol):
    """The records of pauses in the store."""

    def now(self) -> int:
        """Return the time of the store, in microseconds since 1970."""

    async def read(self) -> Sequence[CallbackPauseRecord]:
        """Read all records."""

    async def change(self, before: CallbackPauseRecord | None, after: CallbackPauseRecord | None) -> bool:
        """Replace a record; return False if it has changed since `before` was read."""


class ReceiverPauses:
    """The pauses of receivers, for the requests of one event loop.

    - `store`: the records that all workers share
    - `monotonic_ns`: the monotonic clock, in nanoseconds, for the age of the records
    - `longest`: the longest pause that a receiver can ask for, in microseconds
    - `probe_time`: how long a probe may take, in microseconds; then another worker may send one
    """

    def __init__(
        self, store: PauseStore, monotonic_ns: Callable[[], int], *, longest: int, probe_time: int
    ) -> None:
        self._store = store
        self._monotonic_ns = monotonic_ns
        self._longest = longest
        self._probe_time = probe_time
        self._lock = asyncio.Lock()  # one read or change at a time
        self._known: tuple[CallbackPauseRecord, ...] = ()
        self._requested = 0  # reads that were asked for
        self._served = 0  # those among them that the last read serves
        self._read_at: int | None = None
        self._put_off: dict[tuple[str, str, str, int], int] = {}

    async def enter(self, receiver: Receiver) -> Probes | PutOff:
        """Return the probes that a request to this receiver is, if it may be sent now; else when it may.

        The caller must pass the probes to `leave` after the request.
        """
        if not self._is_fresh():
            await self._read()
        if not self._of(receiver):
            return ()
        await self._read()
        pauses, now = self._of(receiver), self._store.now()
        for pause in pauses:
            if pause.until > now:
                return self._wait(pause, pause.until - now)
            if pause.probe_until > now:
                return self._wait(pause, PROBE_WAIT)
        probes: list[CallbackPauseRecord] = []
        for pause in pauses:
            taken = replace(pause, probe_until=now + self._probe_time)
            if not await self._change(pause, taken):  # another worker was faster
                await self.release(probes)
                return self._wait(pause, PROBE_WAIT)
            probes.append(taken)
        return tuple(probes)

    async def release(self, probes: Sequence[CallbackPauseRecord]) -> None:
        """Let another request be the probe, because this one was not sent to its end."""
        for probe in probes:
            await self._change(probe, replace(probe, probe_until=0))

    async def succeed(self, probes: Probes) -> None:
        """End the pauses that a request has probed, because the receiver has answered neither 429 nor 503."""
        for probe in probes:
            await self._change(probe, None)

    async def fail(
        self, receiver: Receiver, probes: Probes, status: int | None, requested: float | None = None
    ) -> int:
        """Pause a receiver, and return for how many microseconds from now.

        If the receiver is paused already, because of the answer to another request, the pause stays as it is. A
        request that got no answer pauses a receiver only if it was a probe.

        - `status`: the status of the answer, 429 or 503; None if there was no answer
        - `requested`: how many seconds the answer asks for; None for a time that doubles with each pause in a row
        """
        if not probes:
            if status is None:
                return 0
            await self._read()
        now = self._store.now()
        length = self._length(max((probe.strikes for probe in probes), default=0), requested)
        for probe in probes:
            after = replace(
                probe, status=status, since=now, until=now + length, strikes=probe.strikes + 1, probe_until=0
            )
            await self._change(probe, after)
        if not probes:
            stored = self._of(receiver)
            if stored:
                return max(FIRST_PAUSE, *(pause.until - now for pause in stored))
            await self._change(None, CallbackPauseRecord(*receiver, status, now, now + length))
        await self._extend(receiver, status, now, now + length)
        return length

    async def _extend(self, receiver: Receiver, status: int | None, now: int, until: int) -> None:
        """Pause the job type at the host if enough of its URLs are, and the host if enough of its types are."""
        host, type_, _ = receiver
        urls = {pause.url for pause in self._known if (pause.host, pause.type) == (host, type_)}
        if None not in urls and len(urls) >= TOGETHER:
            await self._change(None, CallbackPauseRecord(host, type_, None, status, now, until))
        types = {pause.type for pause in self._known if pause.host == host}
        if None not in types and len(types) >= TOGETHER:
            await self._change(None, CallbackPauseRecord(host, None, None, status, now, until))

    def _length(self, strikes: int, requested: float | None) -> int:
        """Return the length of the next pause of a receiver that had `strikes` pauses in a row before."""
        own = min(LONGEST_OWN, FIRST_PAUSE * 2 ** min(strikes, 10))
        return min(self._longest, own if requested is None else round(requested * MICROSECONDS))

    def _wait(self, pause: CallbackPauseRecord, delay: int) -> PutOff:
        ended = (*pause.key, pause.until)
        if len(self._put_off) >= MOST_PAUSES:
            self._put_off.clear()
        count = self._put_off[ended] = self._put_off.get(ended, 0) + 1
        return PutOff(delay + min(LONGEST_SPREAD, PACE * count), pause)

    def _of(self, receiver: Receiver) -> list[CallbackPauseRecord]:
        keys = receiver.keys
        return [pause for pause in self._known if pause.key in keys]

    def _is_fresh(self) -> bool:
        return self._read_at is not None and self._monotonic_ns() - self._read_at < FRESH_SECONDS * NANOSECONDS

    async def _read(self) -> None:
        """Read the records, or wait for a read that another request begins after this call."""
        self._requested += 1
        mine = self._requested
        async with self._lock:
            if self._served >= mine:
                return
            serves = self._requested
            try:
                self._known = tuple(await self._store.read())
            except MainspringError as error:
                logger.warning("the pauses of callbacks could not be read; those that are known apply: %s", error)
            self._served = serves
            self._read_at = self._monotonic_ns()

    async def _change(self, before: CallbackPauseRecord | None, after: CallbackPauseRecord | None) -> bool:
        async with self._lock:
            try:
                is_done = await self._store.change(before, after)
            except MainspringError as error:
                logger.warning(
                    "a pause of callbacks could not be stored; it holds in this process only: %s", error
                )
                is_done = True
            changed = replace_pause(self._known, before, after) if is_done else None
            if changed is None:
                self._read_at = None
            else:
                self._known = changed
            return is_done
