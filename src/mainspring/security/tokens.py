"""Tokens: secrets that name a caller of the HTTP server, and the records that are stored of them.

    msp_<id>_<secret><checksum>         letters and digits only, so that a double click selects all of it

The id is public: lists, logs and `tokens revoke` use it. The secret has 256 random bits. The checksum finds a
token that was cut or mistyped without a look into the store, and lets scanners of source code find tokens that
leaked.

Invariants
- A record has a hash of the secret, never the secret. The hash is SHA-256 without salt and without many rounds:
  these protect secrets that people choose, which can be guessed. 256 random bits cannot.
- The record is found by the public id. The hashes are compared in constant time, also if there is no such id, so
  the time of an answer says nothing about stored tokens.
- No error, no representation and no log line contains a secret.
"""

from __future__ import annotations

import hmac
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from hashlib import sha256
from zlib import crc32

from msgspec import Struct
from msgspec.structs import replace

from mainspring.errors import TokenInvalid
from mainspring.security.permissions import Identity, Permissions, Scope

PREFIX = "msp"
ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
ID_BITS = 59
ID_LENGTH = 10  # 62 ** 10 > 2 ** 59
SECRET_BITS = 256
SECRET_LENGTH = 43  # 62 ** 43 > 2 ** 256
CHECKSUM_LENGTH = 6  # 62 ** 6 > 2 ** 32
MAX_LENGTH = len(PREFIX) + 1 + ID_LENGTH + 1 + SECRET_LENGTH + CHECKSUM_LENGTH
MAX_TOKEN_NAME = 100
MAX_TOKENS = 1_000
"""The largest number of active tokens, neither expired nor revoked, in a store."""
KEPT_AFTER_END = 30 * 86_400 * 1_000_000
"""How many microseconds after its expiry or revocation a token stays in lists."""
_FORM = re.compile(
    rf"{PREFIX}_([0-9A-Za-z]{{{ID_LENGTH}}})_([0-9A-Za-z]{{{SECRET_LENGTH}}})([0-9A-Za-z]{{{CHECKSUM_LENGTH}}})",
    re.ASCII,
)
_ANY_TOKEN = re.compile(rf"{PREFIX}_[0-9A-Za-z]+_[0-9A-Za-z]+", re.ASCII)


class TokenState(StrEnum):
    """Whether a token can be used: only an active one can."""

    ACTIVE = "active"
    EXPIRED = "expired"
    REVOKED = "revoked"


class TokenRecord(Struct, frozen=True, kw_only=True):
    """A token as it is stored. Times are microseconds since 1970."""

    id: str
    name: str
    digest: str
    """The SHA-256 hash of the token, in hexadecimal digits."""
    scopes: tuple[str, ...]
    types: tuple[str, ...] | None = None
    """The job types to which the scopes of the token apply; None for all."""
    queues: tuple[str, ...] | None = None
    """The queues to which the scopes of the token apply; None for all."""
    created: int
    expires: int | None = None
    revoked: int | None = None
    last_used: int | None = None
    """When the token was last used; None if never. Servers store this at most once a minute."""

    def state(self, now: int) -> TokenState:
        """Return the state of the token at `now`; a token that was revoked and has expired is REVOKED."""
        if self.revoked is not None:
            return TokenState.REVOKED
        return TokenState.ACTIVE if self.expires is None or now < self.expires else TokenState.EXPIRED

    def ended(self, now: int) -> int | None:
        """Return when the token was revoked or expired, whichever came first; None if it can be used at `now`."""
        ends = [end for end in (self.revoked, self.expires) if end is not None and end <= now]
        return min(ends, default=None)

    @property
    def permissions(self) -> Permissions:
        """What a caller with this token may do. A scope that this version does not know allows nothing."""
        return Permissions(
            scopes=frozenset(Scope(scope) for scope in self.scopes if scope in set(Scope)),
            types=None if self.types is None else frozenset(self.types),
            queues=None if self.queues is None else frozenset(self.queues),
        )

    @property
    def identity(self) -> Identity:
        """The caller who has this token."""
        return Identity(name=self.name, permissions=self.permissions, token=self.id)


def _encode(number: int, length: int) -> str:
    digits = []
    for _ in range(length):
        number, digit = divmod(number, len(ALPHABET))
        digits.append(ALPHABET[digit])
    return "".join(reversed(digits))


def _random_bits(number: int) -> int:
    """Return a random integer of `number` bits, as `secrets.randbits` does; that module is slow to import."""
    return int.from_bytes(os.urandom(-(-number // 8))) >> (-number % 8)


def _checksum(text: str) -> str:
    return _encode(crc32(text.encode()), CHECKSUM_LENGTH)


def hash_token(token: str) -> str:
    """Return the SHA-256 hash of a token, in hexadecimal digits. The store has it instead of the token."""
    return sha256(token.encode()).hexdigest()


def make_token(
    name: str,
    permissions: Permissions,
    *,
    created: int,
    expires: int | None = None,
    random_bits: Callable[[int], int] | None = None,
) -> tuple[str, TokenRecord]:
    """Make a random token; return its text, which is stored nowhere, and its record, which the caller stores."""
    random_bits = random_bits or _random_bits
    token_id = _encode(random_bits(ID_BITS), ID_LENGTH)
    body = f"{PREFIX}_{token_id}_{_encode(random_bits(SECRET_BITS), SECRET_LENGTH)}"
    token = body + _checksum(body)
    return token, TokenRecord(
        id=token_id,
        name=name,
        digest=hash_token(token),
        scopes=tuple(sorted(permissions.scopes)),
        types=None if permissions.types is None else tuple(sorted(permissions.types)),
        queues=None if permissions.queues is None else tuple(sorted(permissions.queues)),
        created=created,
        expires=expires,
    )


def parse_token(text: str) -> str:
    """Return the public id of a token; raise `TokenInvalid` if the text is no token, or its checksum is wrong."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise TokenInvalid(
            problem="this is not a token of Mainspring, or not all of it",
            remedy=f"copy the whole token: {PREFIX}_ and {MAX_LENGTH - len(PREFIX) - 1} more characters",
        )
    if not hmac.compare_digest(_checksum(text[:-CHECKSUM_LENGTH]), found[3]):
        raise TokenInvalid(
            problem="the token has a wrong character: its checksum does not match",
            remedy="copy the token again; upper and lower case matter",
        )
    return found[1]


_NO_DIGEST = "0" * 64  # compared if there is no such token, so that this takes as long


def authenticate(token: str, records: Mapping[str, TokenRecord], now: int) -> TokenRecord:
    """Return the record of a token; raise `TokenInvalid` if it is malformed, unknown, expired or revoked.

    - `token`: the token that the caller has sent
    - `records`: the stored tokens, by id
    - `now`: the time, in microseconds
    """
    record = records.get(parse_token(token))
    expected = _NO_DIGEST if record is None else record.digest
    is_same = hmac.compare_digest(hash_token(token).encode(), expected.encode())
    if record is None or not is_same:
        raise TokenInvalid(
            problem="the token is unknown here",
            remedy="check that this is the right server, or make one: mainspring tokens create NAME --scope read",
        )
    state = record.state(now)
    if state is not TokenState.ACTIVE:
        raise TokenInvalid(
            problem=f"the token {record.name!r} is {state}",
            remedy="make another: mainspring tokens create NAME --scope read",
        )
    return record


def removal_reason(*, is_revoked: bool) -> str:
    """Return why a remote worker is removed whose token has ended: see `RemoveWorker.reason`."""
    return f"was removed because its token {'was revoked' if is_revoked else 'has expired'}"


def hide_tokens(text: str) -> str:
    """Return a text for logs, in which `***` stands for the secret of each token. Prefix and id are kept."""
    return _ANY_TOKEN.sub(lambda found: found[0][: len(PREFIX) + 1 + ID_LENGTH] + "_***", text)


def revoke(record: TokenRecord, at: int) -> TokenRecord:
    """Return the record of a token as revoked at `at`; a token that was revoked before keeps its earlier time."""
    return record if record.revoked is not None else replace(record, revoked=at)


def merge_uses(records: Iterable[TokenRecord], uses: Mapping[str, int]) -> list[TokenRecord]:
    """Return records of tokens with the time of their last use, sorted by name and creation.

    `uses` has later uses by token id; the latest one is kept.
    """
    merged = [
        replace(record, last_used=max(uses[record.id], record.last_used or 0)) if record.id in uses else record
        for record in records
    ]
    return sorted(merged, key=lambda record: (record.name, record.created, record.id))


def without_old(records: Sequence[TokenRecord], now: int) -> list[TokenRecord]:
    """Return records without those of tokens that expired or were revoked more than 30 days ago."""
    return [record for record in records if (ended := record.ended(now)) is None or now - ended <= KEPT_AFTER_END]
