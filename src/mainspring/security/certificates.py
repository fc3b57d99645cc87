"""Makes the private authorities and certificates of a NATS cluster, and reads those of a client.

- There are two authorities. One signs the certificates that servers and clients show each other, the other signs
  those of routes, so that no client can use its certificate to join the cluster as a server.
- A private key can be read by its owner only, from the moment its file exists. No file is replaced.
- A server and a client get a folder each, with all files that they need and no others. The keys of the authorities
  are in a folder of their own, because only `make_certificates` needs them.

The package `cryptography` is imported when certificates are made.
"""

from __future__ import annotations

import ipaddress
import os
import re
import ssl
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mainspring.errors import MissingExtra

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

AUTHORITY = "authority.pem"
"""In the folder of a server or a client: the authority that has signed the certificate of the other side."""
ROUTE_AUTHORITY = "route-authority.pem"
CLIENT, SERVER, ROUTE = "client", "server", "route"
"""The names, without `.pem` and `.key`, of the certificates in these folders, and of their keys."""
AUTHORITY_DAYS = 3_650
SKEW = timedelta(hours=1)
"""How long before they were made certificates are valid, because clocks of machines may differ."""
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_MAX_COMMON_NAME = 64


class _Authority(NamedTuple):
    certificate: x509.Certificate
    key: EllipticCurvePrivateKey


class _Validity(NamedTuple):
    since: datetime
    until: datetime


def client_context(folder: str | Path) -> ssl.SSLContext:
    """Return a TLS context that trusts the authority in a client's folder, and shows the client's certificate.

    Raises `OSError` (or `ssl.SSLError`, its subclass) if a file is missing or cannot be used.
    """
    path = Path(folder)
    files = [path / AUTHORITY, path / f"{CLIENT}.pem", path / f"{CLIENT}.key"]
    for file in files:
        file.open("rb").close()  # ssl would not name the file
    context = ssl.create_default_context(cafile=files[0])
    context.load_cert_chain(files[1], files[2])
    return context


def make_certificates(
    folder: Path, servers: Sequence[Sequence[str]], clients: Sequence[str], *, now: datetime, days: int
) -> list[Path]:
    """Make certificates for servers and clients, with their keys; return the folders that were made, in order.

    `servers` has the host names and addresses of each server; the first one names its folder below `servers`.
    Clients have folders below `clients`. The authorities in `folder` are used, and made if there are none. The
    certificates of servers and clients are valid for `days`, but no longer than their authority.

    Raises `ValueError` and makes nothing if a name is invalid or a folder exists already, or if the authorities
    have no keys or have expired, and `MissingExtra` without the package `cryptography`.
    """
    _require_cryptography()
    for name in (*(name for names in servers for name in names), *clients):
        _require_name(name)
    server_folders = [folder / "servers" / names[0] for names in servers]
    client_folders = [folder / "clients" / name for name in clients]
    _require_new([*server_folders, *client_folders])
    authorities = folder / "authority"
    made = [] if authorities.exists() else [authorities]
    if made:
        _make_folder(authorities)
    open_authority = _make_authority if made else _read_authority
    both, routes = (open_authority(authorities / name, now) for name in ("clients-and-servers", "routes"))
    validity = _Validity(now - SKEW, now + timedelta(days=days))
    for names, target in zip(servers, server_folders, strict=True):
        _make_folder(target)
        _issue(both, target / SERVER, names, validity, server=True)
        _issue(routes, target / ROUTE, names, validity, server=True, client=True)
        _write(target / AUTHORITY, _to_pem(both.certificate))
        _write(target / ROUTE_AUTHORITY, _to_pem(routes.certificate))
    for target in client_folders:
        _make_folder(target)
        _issue(both, target / CLIENT, [target.name], validity, client=True)
        _write(target / AUTHORITY, _to_pem(both.certificate))
    return [*made, *server_folders, *client_folders]


def _require_cryptography() -> None:
    try:
        import cryptography  # noqa: F401, PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise MissingExtra(feature="making certificates", extra="signing") from error


def _require_name(name: str) -> None:
    if _NAME.fullmatch(name) is None and _to_address(name) is None:
        raise ValueError(
            f"{name!r} is neither a host name nor an address; use letters, digits, '.', '-' and '_', "
            "such as nats-1.example.org, or an address such as 10.0.0.1"
        )


def _to_address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _require_new(folders: Sequence[Path]) -> None:
    for target in folders:
        if target.exists():
            raise ValueError(f"{target} exists already; remove it to make new certificates, or give another name")
        if folders.count(target) > 1:
            raise ValueError(f"{target.name!r} was given twice; give each server and each client its own name")


def _read_authority(base: Path, now: datetime) -> _Authority:
    from cryptography import x509  # noqa: PLC0415 - an extra
    from cryptography.hazmat.primitives.serialization import load_pem_private_key  # noqa: PLC0415 - an extra

    file, key_file = Path(f"{base}.pem"), Path(f"{base}.key")
    for path in (file, key_file):
        if not path.exists():
            raise ValueError(f"{path} is missing; bring it back, or make all certificates anew in another folder")
    certificate = x509.load_pem_x509_certificate(file.read_bytes())
    if certificate.not_valid_after_utc <= now:
        raise ValueError(
            f"the authority {file} has expired at {certificate.not_valid_after_utc:%Y-%m-%d}; make new "
            "certificates for all servers and clients in another folder"
        )
    key: Any = load_pem_private_key(key_file.read_bytes(), password=None)
    return _Authority(certificate, key)


def _make_authority(base: Path, now: datetime) -> _Authority:
    from cryptography import x509  # noqa: PLC0415 - an extra
    from cryptography.hazmat.primitives import hashes  # noqa: PLC0415 - an extra

    key = _make_key(base)
    subject = _to_name(f"Mainspring, {base.name}")
    certificate = (
        _begin(subject, subject, key, _Validity(now - SKEW, now + timedelta(days=AUTHORITY_DAYS)))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    _write(Path(f"{base}.pem"), _to_pem(certificate))
    return _Authority(certificate, key)


def _issue(
    authority: _Authority,
    base: Path,
    names: Sequence[str],
    validity: _Validity,
    *,
    server: bool = False,
    client: bool = False,
) -> None:
    """Make a key and a certificate for these names, for use as a server, a client, or both."""
    from cryptography import x509  # noqa: PLC0415 - an extra
    from cryptography.hazmat.primitives import hashes  # noqa: PLC0415 - an extra
    from cryptography.x509.oid import ExtendedKeyUsageOID  # noqa: PLC0415 - an extra

    key = _make_key(base)
    issuer = authority.certificate
    until = min(validity.until, issuer.not_valid_after_utc)
    uses = [ExtendedKeyUsageOID.SERVER_AUTH] if server else []
    uses += [ExtendedKeyUsageOID.CLIENT_AUTH] if client else []
    addresses = [(name, _to_address(name)) for name in names]
    hosts = [x509.DNSName(name) if address is None else x509.IPAddress(address) for name, address in addresses]
    issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    certificate = (
        _begin(_to_name(names[0]), issuer.subject, key, validity._replace(until=until))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .add_extension(issuer_key, critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    _write(Path(f"{base}.pem"), _to_pem(certificate))


def _begin(
    subject: x509.Name, issuer: x509.Name, key: EllipticCurvePrivateKey, validity: _Validity
) -> x509.CertificateBuilder:
    from cryptography import x509  # noqa: PLC0415 - an extra

    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(validity.since)
        .not_valid_after(validity.until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509  # noqa: PLC0415 - an extra

    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _to_name(text: str) -> x509.Name:
    from cryptography import x509  # noqa: PLC0415 - an extra
    from cryptography.x509.oid import NameOID  # noqa: PLC0415 - an extra

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:_MAX_COMMON_NAME])])


def _to_pem(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding  # noqa: PLC0415 - an extra

    return certificate.public_bytes(Encoding.PEM)


def _make_key(base: Path) -> EllipticCurvePrivateKey:
    """Make a private key, and write it to a new file that only its owner can read."""
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415 - an extra
    from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415 - an extra
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    key = ec.generate_private_key(ec.SECP256R1())
    _write(Path(f"{base}.key"), key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), mode=0o600)
    return key


def _make_folder(folder: Path) -> None:
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)


def _write(file: Path, data: bytes, mode: int = 0o644) -> None:
    """Write a new file; raise `FileExistsError` if there is one."""
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as opened:
        opened.write(data)
