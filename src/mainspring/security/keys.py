"""Key rings: the keys with which jobs are signed and verified.

A key is a text, as `KeyRing.generate` returns it. Keys have ids, such as `2026-11`, which signatures name.

    hmac-sha256:<43 characters>         one secret signs and verifies; needs the standard library only
    ed25519:<43 characters>             signs and verifies; needs the extra `signing`
    ed25519-public:<43 characters>      verifies only; made from the key above by `KeyRing.public`

Invariants
- A ring signs with one key at most, `sign_with`. All of its keys verify. So a key is replaced in three steps: add
  the new one everywhere, sign with it, and remove the old one when no stored job needs it.
- No error, no representation and no log line contains a secret.
"""

from __future__ import annotations

import binascii
import logging
import os
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path
from typing import Any, Literal, TypeAlias

from mainspring.clock import Duration, to_nanoseconds
from mainspring.errors import MissingExtra, NoSigningKey
from mainspring.similar_names import did_you_mean

Algorithm: TypeAlias = Literal["hmac-sha256", "ed25519"]
HMAC, ED25519, ED25519_PUBLIC = "hmac-sha256", "ed25519", "ed25519-public"
ALGORITHMS = (HMAC, ED25519)
KEY_BYTES = 32
BLOCK = 64
"""The bytes of a block of SHA-256."""
HMAC_DIGITS = 32
"""An HMAC is cut to 128 bits, which cannot be guessed: jobs are stored in large numbers, with short signatures."""
_INNER, _OUTER = (bytes(byte ^ mask for byte in range(256)) for mask in (0x36, 0x5C))
MIN_SECRET = 16
"""The fewest bytes of a secret that the caller has made."""
VALID_FOR = timedelta(days=7)
_KEY_ID = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_FILE_FIELDS: dict[str, tuple[tuple[type, ...], str]] = {
    "accept_unsigned": ((bool,), "true or false"),
    "keys": ((dict,), "a table of keys by id"),
    "sign_with": ((str,), "the id of a key, in quotes"),
    "valid_days": ((int, float), "a number of days"),
}
"""The types that each field of a key file may have, and what to write there."""

logger = logging.getLogger("mainspring.signing")

Sign: TypeAlias = Callable[[bytes], str]
Verify: TypeAlias = Callable[[bytes, str], bool]


class KeyRing:
    """The keys of an application: `Mainspring(..., signing=KeyRing.from_file("keys.toml"))`.

    - `keys`: keys by id: texts of `KeyRing.generate` or `KeyRing.public`, or secrets of your own for HMAC
    - `sign_with`: the id of the key that signs; None if the application only verifies
    - `valid_for`: how long after its due time a job may still start; its id is remembered as long, so that a copy
      of the signed job is refused
    - `accept_unsigned`: run jobs without any signature, too, while an application begins to sign its jobs. Jobs
      with a wrong signature never run.
    """

    def __init__(
        self,
        keys: Mapping[str, str | bytes],
        *,
        sign_with: str | None = None,
        valid_for: Duration = VALID_FOR,
        accept_unsigned: bool = False,
    ) -> None:
        if not keys:
            raise ValueError(
                "a key ring needs at least one key, got none; "
                "KeyRing({'2026-11': KeyRing.generate('hmac-sha256')}, sign_with='2026-11')"
            )
        self._keys = {_require_id(name): _Key(name, key) for name, key in keys.items()}
        if sign_with is not None and sign_with not in self._keys:
            known = ", ".join(map(repr, self._keys))
            raise ValueError(
                f"sign_with={sign_with!r} is not a key of this ring; "
                f"{did_you_mean(str(sign_with), self._keys) or f'its keys are {known}'}"
            )
        if sign_with is not None and self._keys[sign_with].is_public:
            raise ValueError(
                f"the key {sign_with!r} is {ED25519_PUBLIC}, which can only verify; sign_with needs the key that "
                f"begins with {ED25519}:"
            )
        self.sign_with = sign_with
        self.valid_for = to_nanoseconds(valid_for, "valid_for") // 1_000
        """How many microseconds after its due time a job may still start."""
        if self.valid_for <= 0:
            raise ValueError(
                f"valid_for must be greater than zero, got {valid_for!r}; pass a timedelta, or seconds"
            )
        self.accept_unsigned = accept_unsigned

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> KeyRing:
        """Read the keys that sign and verify jobs from a TOML file, as `mainspring keys create` writes it.

        Raises `FileNotFoundError`, `ValueError` for a wrong field or value, or `TypeError` for a key that is no
        text. Logs a warning if other users of the machine may read the secret keys in the file.
        """
        import tomllib  # noqa: PLC0415 - few processes read a key file

        file = Path(path)
        try:
            text = file.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise FileNotFoundError(
                f"there is no key file {str(file)!r}; `mainspring keys create --file {file}` makes one"
            ) from None
        try:
            data = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"the key file {str(file)!r} is not valid TOML: {error}") from None
        unknown = set(data).difference(_FILE_FIELDS)
        if unknown:
            raise ValueError(
                f"the key file {str(file)!r} has the unknown field {min(unknown)!r}; the fields are "
                f"{', '.join(sorted(_FILE_FIELDS))}"
            )
        for name, value in data.items():
            types, what = _FILE_FIELDS[name]
            if type(value) not in types:
                raise ValueError(f"{name} in the key file {str(file)!r} must be {what}, not {value!r}")
        options: dict[str, Any] = {"sign_with": data.get("sign_with")}
        if "valid_days" in data:
            options["valid_for"] = timedelta(days=data["valid_days"])
        if "accept_unsigned" in data:
            options["accept_unsigned"] = data["accept_unsigned"]
        ring = cls(data.get("keys", {}), **options)
        if ring.has_secrets and file.stat().st_mode & 0o077:
            logger.warning(
                "other users of this machine may read the secret keys in %s; run `chmod 600 %s`", file, file
            )
        return ring

    @staticmethod
    def generate(algorithm: Algorithm = "hmac-sha256") -> str:
        """Return a new secret key. Its text names the algorithm: `hmac-sha256:...` or `ed25519:...`."""
        if algorithm not in ALGORITHMS:
            raise ValueError(f"algorithm must be 'hmac-sha256' or 'ed25519', got {algorithm!r}")
        return f"{algorithm}:{_to_text(os.urandom(KEY_BYTES))}"

    @staticmethod
    def public(key: str) -> str:
        """Return the public key of an ed25519 key, for processes that verify and must not sign.

        Raises `ValueError` for any other key, and `MissingExtra` if the extra `signing` is not installed.
        """
        found = _Key("key", key)
        if found.algorithm != ED25519:
            raise ValueError(
                f"only an ed25519 key has a public key, and this one is {found.algorithm}; who can verify with "
                "HMAC can also sign"
            )
        return f"{ED25519_PUBLIC}:{_to_text(found.public_bytes())}"

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of all keys of the ring, in the order in which they were given."""
        return tuple(self._keys)

    @property
    def has_secrets(self) -> bool:
        """Whether at least one key of the ring is secret, so that it could sign."""
        return not all(key.is_public for key in self._keys.values())

    def algorithm_of(self, key_id: str) -> str:
        """Return the algorithm of a key: `hmac-sha256`, `ed25519` or `ed25519-public`.

        Raises `KeyError` if the ring does not have the key.
        """
        return self._keys[key_id].algorithm

    def sign(self, data: bytes) -> str:
        """Sign data with the key `sign_with` and return hexadecimal digits; raise `NoSigningKey` without a key."""
        if self.sign_with is None:
            raise NoSigningKey(what="this")
        return self._keys[self.sign_with].sign(data)

    def verify(self, key_id: str, data: bytes, signature: str) -> bool:
        """Return whether `signature` is that of `data` with the key; False if the ring does not have the key."""
        key = self._keys.get(key_id)
        return key is not None and key.verify(data, signature)

    def verifier(self, key_id: str) -> Verify:
        """Return a function that gets data and a signature, and returns whether the key has signed the data.

        Raises `KeyError` if the ring does not have the key.
        """
        return self._keys[key_id].verify

    def __contains__(self, key_id: object) -> bool:
        return key_id in self._keys

    def __repr__(self) -> str:
        return f"KeyRing({', '.join(self._keys)}; sign_with={self.sign_with!r})"


class _Key:
    """One key. The package `cryptography` is imported when an ed25519 key is used first."""

    __slots__ = ("_name", "_private_key", "_secret", "_verifier", "algorithm", "sign", "verify")

    def __init__(self, name: str, key: str | bytes) -> None:
        self._name = name
        self.algorithm, self._secret = _parse(name, key)
        self._private_key: Any = None
        self._verifier: Verify | None = None
        self.sign: Sign
        self.verify: Verify
        if self.algorithm == HMAC:
            self.sign, self.verify = _make_hmac(self._secret)
        else:
            self.sign, self.verify = self._sign_ed25519, self._verify_ed25519

    @property
    def is_public(self) -> bool:
        return self.algorithm == ED25519_PUBLIC

    def _sign_ed25519(self, data: bytes) -> str:
        if self._private_key is None:
            self._private_key = _private(self._secret)
        signature: bytes = self._private_key.sign(data)
        return signature.hex()

    def _verify_ed25519(self, data: bytes, signature: str) -> bool:
        if self._verifier is None:
            self._verifier = _make_ed25519(self.public_bytes())
        return self._verifier(data, signature)

    def public_bytes(self) -> bytes:
        return self._secret if self.is_public else _private(self._secret).public_key().public_bytes_raw()

    def __repr__(self) -> str:
        return f"<key {self._name} {self.algorithm}>"


def _make_hmac(secret: bytes) -> tuple[Sign, Verify]:
    """Return a function that signs and one that verifies with HMAC-SHA256 (RFC 2104), cut to 128 bits.

    The key is hashed once; each signature copies the states of both hashes. This is faster than `hmac.digest`, and
    a worker verifies every job.
    """
    padded = (sha256(secret).digest() if len(secret) > BLOCK else secret).ljust(BLOCK, b"\0")
    copy_inner, copy_outer = sha256(padded.translate(_INNER)).copy, sha256(padded.translate(_OUTER)).copy

    def sign(data: bytes) -> str:
        inner, outer = copy_inner(), copy_outer()
        inner.update(data)
        outer.update(inner.digest())
        return outer.hexdigest()[:HMAC_DIGITS]

    def verify(data: bytes, signature: str) -> bool:  # the same steps again: a call of `sign` would take longer
        inner, outer = copy_inner(), copy_outer()
        inner.update(data)
        outer.update(inner.digest())
        try:
            return compare_digest(outer.hexdigest()[:HMAC_DIGITS], signature)
        except TypeError:  # it has other characters than ASCII
            return False

    return sign, verify


def _make_ed25519(public: bytes) -> Verify:
    """Return a function that verifies signatures with the bytes of an ed25519 public key."""
    verify = _ed25519().Ed25519PublicKey.from_public_bytes(public).verify
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - the line before reports a missing one

    def is_right(data: bytes, signature: str) -> bool:
        try:
            decoded = bytes.fromhex(signature)
            verify(decoded, data)
        except (InvalidSignature, ValueError):
            return False
        return decoded.hex() == signature  # the only text of this signature

    return is_right


def _ed25519() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415 - slow, and an extra
    except ModuleNotFoundError as error:
        raise MissingExtra(feature="an ed25519 key", extra="signing") from error
    return ed25519


def _private(secret: bytes) -> Any:
    return _ed25519().Ed25519PrivateKey.from_private_bytes(secret)


def _require_id(name: object) -> str:
    if not isinstance(name, str) or _KEY_ID.fullmatch(name) is None:
        raise ValueError(
            f"the id of a key must have 1 to 64 letters, digits, '-' and '_', such as '2026-11', got {name!r}"
        )
    return name


def _parse(name: str, key: object) -> tuple[str, bytes]:
    """Return the algorithm and the bytes of a key. No error shows a part of the key."""
    if isinstance(key, str):
        algorithm, colon, text = key.partition(":")
        if colon and algorithm in (HMAC, ED25519, ED25519_PUBLIC):
            return algorithm, _to_bytes(name, algorithm, text)
        key = key.encode()
    if not isinstance(key, bytes):
        raise TypeError(f"the key {name!r} must be a str or bytes, got {type(key).__name__}")
    if len(key) < MIN_SECRET:
        raise ValueError(
            f"the key {name!r} is a secret of {len(key)} bytes, which can be guessed; use "
            "KeyRing.generate('hmac-sha256')"
        )
    return HMAC, key


def _to_bytes(name: str, algorithm: str, text: str) -> bytes:
    try:
        key = binascii.a2b_base64(text.replace("-", "+").replace("_", "/") + "=" * (-len(text) % 4))
    except ValueError:
        key = b""
    if _to_text(key) != text or len(key) != KEY_BYTES:
        raise ValueError(
            f"the key {name!r} cannot be read: after '{algorithm}:' it must have 43 letters, digits, '-' and '_'; "
            "was it cut? Copy it again, or make a new one: KeyRing.generate(), for a public key KeyRing.public()"
        )
    return key


def _to_text(key: bytes) -> str:
    return binascii.b2a_base64(key, newline=False).decode().replace("+", "-").replace("/", "_").rstrip("=")
