"""Sessions of browsers: a token is exchanged for a random session id, which a cookie keeps.

Invariants
- A session has the id of its token, which is no secret, and never the token itself. The rights are looked up for
  each request, so a token that is revoked or expires ends its sessions.
- The server keeps only a hash of the session id, so a dump of its memory has no id with which one could log in.
- Sessions are in the memory of one process, and end with it. Their number is bounded.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from hashlib import sha256

from mainspring.clock import NANOSECONDS, Clock, SystemClock
from mainspring.web.problems import refuse

LIFETIME_NS = 7 * 86_400 * NANOSECONDS
"""A session ends this long after its login, even if it is used, in nanoseconds."""
IDLE_NS = 12 * 3_600 * NANOSECONDS
"""A session ends after this time without a request, in nanoseconds."""
MAX_SESSIONS = 10_000
MAX_CLIENTS = 10_000
ID_BYTES = 32
DELAY_SECONDS = 1.0
"""How long the answer to a failed login waits, after too many of them, in seconds."""
MAX_DELAYED = 10
"""How many answers to one client address may wait; further failed logins are refused at once."""


def make_id() -> str:
    """Return 256 random bits of the operating system as 64 hexadecimal digits."""
    return os.urandom(ID_BYTES).hex()


@dataclass(slots=True)
class _Session:
    token_id: str
    began: int
    used: int


class Sessions:
    """The sessions of one server. Only the server's event loop may use this.

    - `clock`: measures the age of sessions
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._sessions: OrderedDict[bytes, _Session] = OrderedDict()  # by the hash of the id, the oldest first

    def begin(self, token_id: str) -> str:
        """Begin a session for a token, and return its id for the cookie. If there are 10,000, end the oldest."""
        while len(self._sessions) >= MAX_SESSIONS:
            self._sessions.popitem(last=False)
        session_id, now = make_id(), self._clock.monotonic_ns()
        self._sessions[_hash(session_id)] = _Session(token_id, now, now)
        return session_id

    def token_of(self, session_id: str) -> str | None:
        """Return the id of a session's token, and count this as a use; None if the session is unknown or too old.

        A session that is too old, or was not used for too long, ends here.
        """
        key = _hash(session_id)
        session = self._sessions.get(key)
        if session is None:
            return None
        now = self._clock.monotonic_ns()
        if now - session.began >= LIFETIME_NS or now - session.used >= IDLE_NS:
            del self._sessions[key]
            return None
        session.used = now
        return session.token_id

    def end(self, session_id: str) -> None:
        """End a session; do nothing if there is no such session."""
        self._sessions.pop(_hash(session_id), None)

    def __len__(self) -> int:
        return len(self._sessions)


def _hash(session_id: str) -> bytes:
    return sha256(session_id.encode()).digest()


def csrf_token_of(cookie: str) -> str:
    """Return the CSRF token for the forms of a browser: a hash of the value of its cookie.

    So pages do not contain the cookie, and a page of another site can read neither the cookie nor the token.
    """
    return sha256(b"mainspring csrf " + cookie.encode()).hexdigest()


class LoginThrottle:
    """Delays the answers to failed logins of a client address, after the first `burst` of them.

    It never delays a login that succeeds: tokens have 256 random bits, so a delay protects no token. It slows down
    clients that send a wrong token again and again, which would fill the log.

    - `burst`: how many failed logins are answered at once
    - `seconds`: after this time without a failed login, one more is answered at once
    - `clock`: measures the time
    - `sleep`: waits for a number of seconds
    """

    def __init__(
        self,
        *,
        burst: int = 10,
        seconds: float = 6.0,
        clock: Clock | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._burst = burst
        self._pause = round(seconds * NANOSECONDS)
        self._now: Callable[[], int] = (clock or SystemClock()).monotonic_ns
        self._sleep = sleep
        self._free_at: OrderedDict[str, int] = OrderedDict()  # when all failures of an address are forgotten
        self._waiting: Counter[str] = Counter()  # how many answers to an address are delayed at present

    async def failed(self, address: str) -> None:
        """Count a failed login of a client address, and wait before it is answered.

        Raises `Refused` at once if as many answers to the address wait already as an address may have.
        """
        now = self._now()
        free_at = max(now, self._free_at.pop(address, 0)) + self._pause
        self._free_at[address] = min(free_at, now + (self._burst + 1) * self._pause)
        while len(self._free_at) > MAX_CLIENTS:
            self._free_at.popitem(last=False)
        if free_at - now <= self._burst * self._pause:
            return
        if self._waiting[address] >= MAX_DELAYED:
            raise refuse(
                429,
                "too-many-logins",
                f"{MAX_DELAYED} failed logins of this address wait for their answers; log in with a right token",
                retry_after=f"{DELAY_SECONDS:g}",
            )
        self._waiting[address] += 1
        try:
            await self._sleep(DELAY_SECONDS)
        finally:
            self._waiting[address] -= 1
            if not self._waiting[address]:
                del self._waiting[address]
