"""Sessions of browsers: a token is exchanged for a random session id, which a cookie keeps.

Invariants
- A session has the id of its token, which is no secret, and never the token itself. The rights are looked up for
  each request, so a token that is revoked or expires ends its sessions.
- The server keeps only a hash of the session id, so a dump of its memory has no id with which one could log in.
- Sessions are in the memory of one process, and end with it. Their number is bounded.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256

from mainspring.clock import NANOSECONDS, Clock, SystemClock

LIFETIME_NS = 7 * 86_400 * NANOSECONDS
"""A session ends this long after its login, even if it is used, in nanoseconds."""
IDLE_NS = 12 * 3_600 * NANOSECONDS
"""A session ends after this time without a request, in nanoseconds."""
MAX_SESSIONS = 10_000
MAX_CLIENTS = 10_000
ID_BYTES = 32


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
    """Limits the failed logins of each client address: `burst` of them at once, then one in `seconds`.

    - `burst`: how many failed logins are possible at once
    - `seconds`: after this time, one more is possible
    - `clock`: measures the time
    """

    def __init__(self, *, burst: int = 10, seconds: float = 6.0, clock: Clock | None = None) -> None:
        self._burst = burst
        self._pause = round(seconds * NANOSECONDS)
        self._now: Callable[[], int] = (clock or SystemClock()).monotonic_ns
        self._free_at: OrderedDict[str, int] = OrderedDict()  # when all failures of an address are forgotten

    def seconds_left(self, address: str) -> int:
        """Return after how many seconds a client address may try to log in again; 0 if it may now."""
        excess = self._free_at.get(address, 0) - self._now() - (self._burst - 1) * self._pause
        return -(-excess // NANOSECONDS) if excess > 0 else 0

    def failed(self, address: str) -> None:
        """Count a failed login of a client address."""
        now = self._now()
        self._free_at[address] = max(now, self._free_at.pop(address, 0)) + self._pause
        while len(self._free_at) > MAX_CLIENTS:
            self._free_at.popitem(last=False)
