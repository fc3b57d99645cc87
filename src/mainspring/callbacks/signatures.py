"""Signs requests by Standard Webhooks: `v1` is HMAC-SHA256, `v1a` is ed25519.

Invariants
- The signature covers the id, the time and the body: `id.time.body`. The id has no dot.
- A secret has one or more keys, and the request has one signature for each. During a rotation, the receiver
  accepts the request with its old key and with its new one.
- No key is part of a job, a message, a log line or a `repr`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from urllib.parse import quote

from mainspring.callbacks.allow_list import CallbackUrl, UrlPattern, parse_patterns
from mainspring.errors import MissingExtra

HMAC_PREFIX = "whsec_"
ED25519_PREFIX = "whsk_"
PUBLIC_PREFIX = "whpk_"
FEWEST_BYTES = 24
SEED_BYTES = 32

Signer = Callable[[bytes], str]


class CallbackSecret:
    """A secret of a receiver: one key, or several during a rotation.

    - `keys`: texts `whsec_…` sign with HMAC-SHA256 (`v1`), texts `whsk_…` with ed25519 (`v1a`); bytes are a key
      for HMAC. Put the newest first.
    - `urls`: the URLs that this secret may be used for, in the form of an allow-list; empty for all. A receiver
      that gets a request with the signature of another one could send it on.
    """

    __slots__ = ("_signers", "_urls")

    def __init__(self, *keys: str | bytes, urls: Iterable[str] = ()) -> None:
        if not keys:
            raise ValueError(f"a callback secret needs a key; make one with CallbackSecret.generate(), {FORM}")
        self._signers = tuple(map(_signer, keys))
        self._urls: tuple[UrlPattern, ...] = parse_patterns(urls, "urls")

    @staticmethod
    def generate() -> str:
        """Make a new random key for HMAC-SHA256: `whsec_…`. Give it to the receiver, too."""
        return HMAC_PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()

    def fits(self, url: CallbackUrl) -> bool:
        """Return whether this secret may sign requests to a URL."""
        return not self._urls or any(pattern.matches(url) for pattern in self._urls)

    def headers(self, message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
        """Return the three `webhook-*` headers that sign a request. `timestamp` is the Unix time in seconds."""
        signed = b"%s.%d.%s" % (message_id.encode(), timestamp, body)
        return {
            "webhook-id": message_id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": " ".join(sign(signed) for sign in self._signers),
        }

    def __repr__(self) -> str:
        return f"<CallbackSecret with {len(self._signers)} hidden keys>"


FORM = f"a text {HMAC_PREFIX}… or {ED25519_PREFIX}…"


def to_secret(name: str, given: Any) -> CallbackSecret:
    """Make a `CallbackSecret` of an entry of `CallbackPolicy(secrets=...)`: a key, a list of keys, or one already.

    Raises `TypeError` or `ValueError`, which names the secret and shows no key, for anything else.
    """
    if isinstance(given, CallbackSecret):
        return given
    keys: Sequence[Any] = (given,) if isinstance(given, str | bytes) else given
    if not isinstance(keys, Sequence):
        raise TypeError(
            f"the callback secret {name!r} must be {FORM}, or a list of them, got a {type(given).__name__}"
        )
    try:
        return CallbackSecret(*keys)
    except (TypeError, ValueError) as error:
        raise type(error)(f"callback secret {name!r}: {error}") from None


def to_message_id(job_id: str) -> str:
    """Return the `webhook-id` of a request: its job's id, with dots and special characters percent-encoded."""
    return quote(job_id, safe="").replace(".", "%2E")


def _signer(key: object) -> Signer:
    if isinstance(key, bytes):
        return _hmac_signer(key)
    if not isinstance(key, str):
        raise TypeError(f"a key of a callback secret must be {FORM}, got a {type(key).__name__}")
    if key.startswith(HMAC_PREFIX):
        return _hmac_signer(_decode(key.removeprefix(HMAC_PREFIX)))
    if key.startswith(ED25519_PREFIX):
        return _ed25519_signer(_decode(key.removeprefix(ED25519_PREFIX)))
    if key.startswith(PUBLIC_PREFIX):
        raise ValueError(
            f"the key begins with {PUBLIC_PREFIX}: it is a public one, which verifies; use {ED25519_PREFIX}…"
        )
    raise ValueError(
        f"a key must begin with {HMAC_PREFIX} or {ED25519_PREFIX}, which tells its kind; make one with "
        "CallbackSecret.generate()"
    )


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("the key is not base64; make one with CallbackSecret.generate()") from None


def _hmac_signer(key: bytes) -> Signer:
    if len(key) < FEWEST_BYTES:
        raise ValueError(
            f"the key has {len(key)} bytes, the least is {FEWEST_BYTES}; make one with CallbackSecret.generate()"
        )
    return lambda signed: "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()


def _ed25519_signer(key: bytes) -> Signer:
    if len(key) not in (SEED_BYTES, 2 * SEED_BYTES):
        raise ValueError(
            f"the ed25519 key has {len(key)} bytes after base64 decoding; it must have {SEED_BYTES} (the seed) or "
            f"{2 * SEED_BYTES} (seed and public key)"
        )
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415 - few applications sign so
            Ed25519PrivateKey,
        )
    except ModuleNotFoundError as error:
        raise MissingExtra(feature="a callback secret whsk_… (ed25519)", extra="signing") from error
    sign = Ed25519PrivateKey.from_private_bytes(key[:SEED_BYTES]).sign
    return lambda signed: "v1a," + base64.b64encode(sign(signed)).decode()
