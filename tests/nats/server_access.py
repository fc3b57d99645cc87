"""Ways to authenticate at a NATS server: the settings of the server, and the credentials of a client.

Each function makes one, with new keys: `access = token()`, then `server = make_nats_server(access)` and
`nats.connect(server.urls, **access.connect)`. JWTs are made here, in version 2 of their format.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nkeys
import trustme

ISSUED_AT = 1_700_000_000  # seconds; any instant in the past will do
USER = "producer"


@dataclass(frozen=True, kw_only=True)
class ServerAccess:
    """Credentials: `settings` are for the server, all other fields for the client."""

    settings: dict[str, Any]
    scheme: str = "nats"
    user: str | None = None
    password: str | None = None
    token: str | None = None
    nkey_file: Path | None = None
    creds_file: Path | None = None
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    connect: dict[str, Any] = field(default_factory=dict)
    """The same as arguments for `nats.connect`."""


OPEN = ServerAccess(settings={})
"""No authentication."""


def user_and_password() -> ServerAccess:
    """A user with a password."""
    password = secrets.token_hex(8)
    return ServerAccess(
        settings={"authorization": {"users": [{"user": USER, "password": password}]}},
        user=USER,
        password=password,
        connect={"user": USER, "password": password},
    )


def token() -> ServerAccess:
    """A token that all clients share."""
    value = secrets.token_hex(8)
    return ServerAccess(settings={"authorization": {"token": value}}, token=value, connect={"token": value})


def nkey(folder: Path) -> ServerAccess:
    """A key pair; the server knows the public half only."""
    pair = _make_pair(nkeys.PREFIX_BYTE_USER)
    file = folder / "user.nk"
    file.write_bytes(pair.seed)
    return ServerAccess(
        settings={"authorization": {"users": [{"nkey": _public(pair)}]}},
        nkey_file=file,
        connect={"nkeys_seed": str(file)},
    )


def creds(folder: Path) -> ServerAccess:
    """A user of an account of an operator, by JWTs: the server knows the operator and the accounts."""
    operator, account, system, user = (
        _make_pair(prefix)
        for prefix in (
            nkeys.PREFIX_BYTE_OPERATOR,
            nkeys.PREFIX_BYTE_ACCOUNT,
            nkeys.PREFIX_BYTE_ACCOUNT,
            nkeys.PREFIX_BYTE_USER,
        )
    )
    no_limits = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1)
    no_limits_of_jetstream = dict.fromkeys(("mem_storage", "disk_storage", "streams", "consumer"), -1)
    limits = no_limits | {"wildcards": True}
    file = folder / "user.creds"
    user_limits = {"subs": -1, "data": -1, "payload": -1}
    user_jwt = _make_jwt(account, user, "user", {"pub": {}, "sub": {}, **user_limits})
    file.write_text(
        f"-----BEGIN NATS USER JWT-----\n{user_jwt}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user.seed.decode()}\n------END USER NKEY SEED------\n"
    )
    account_jwt = _make_jwt(operator, account, "account", {"limits": limits | no_limits_of_jetstream})
    return ServerAccess(
        settings={
            "operator": _make_jwt(operator, operator, "operator", {"system_account": _public(system)}),
            "system_account": _public(system),
            "resolver": "MEMORY",
            "resolver_preload": {
                _public(account): account_jwt,
                _public(system): _make_jwt(operator, system, "account", {"limits": limits}),
            },
        },
        creds_file=file,
        connect={"user_credentials": str(file)},
    )


def tls(folder: Path, *, verify_clients: bool = False) -> ServerAccess:
    """A server with a certificate of an authority of ours; with `verify_clients`, clients need one, too."""
    authority = trustme.CA()
    files = {name: folder / f"{name}.pem" for name in ("ca", "server", "server-key", "client", "client-key")}
    authority.cert_pem.write_to_path(str(files["ca"]))
    _write_certificate(authority.issue_cert("127.0.0.1", "localhost"), files["server"], files["server-key"])
    _write_certificate(authority.issue_cert("client@mainspring"), files["client"], files["client-key"])
    context = ssl.create_default_context(cafile=files["ca"])
    if verify_clients:
        context.load_cert_chain(files["client"], files["client-key"])
    return ServerAccess(
        settings={
            "tls": {
                "cert_file": str(files["server"]),
                "key_file": str(files["server-key"]),
                "ca_file": str(files["ca"]),
                "verify": verify_clients,
            }
        },
        scheme="tls",
        ca_file=files["ca"],
        cert_file=files["client"] if verify_clients else None,
        key_file=files["client-key"] if verify_clients else None,
        connect={"tls": context},
    )


def _write_certificate(certificate: trustme.LeafCert, file: Path, key_file: Path) -> None:
    file.write_bytes(b"".join(blob.bytes() for blob in certificate.cert_chain_pems))
    certificate.private_key_pem.write_to_path(str(key_file))


def _make_pair(prefix: int) -> Any:
    return nkeys.from_seed(bytearray(nkeys.encode_seed(secrets.token_bytes(32), prefix)))


def _public(pair: Any) -> str:
    return str(pair.public_key.decode().rstrip("="))


def _make_jwt(issuer: Any, subject: Any, kind: str, about: dict[str, Any]) -> str:
    claims = {
        "iat": ISSUED_AT,
        "iss": _public(issuer),
        "name": kind,
        "sub": _public(subject),
        "nats": {**about, "type": kind, "version": 2},
    }
    claims["jti"] = base64.b32encode(hashlib.sha256(_encode(claims)).digest()).decode().rstrip("=")
    signed = b".".join(map(_to_base64, (_encode({"typ": "JWT", "alg": "ed25519-nkey"}), _encode(claims))))
    return b".".join((signed, _to_base64(issuer.sign(signed)))).decode()


def _encode(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _to_base64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")
