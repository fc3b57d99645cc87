"""`mainspring nats certificates`: who verifies whom with the files, who can read them, and what is never replaced.

`tests/deploy/test_strangers.py` uses the files with servers.
"""

from __future__ import annotations

import stat
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeAlias

import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.x509.oid import ExtendedKeyUsageOID

from mainspring.cli.nats import nats
from mainspring.engines.nats.settings import NatsSettings, parse_url
from mainspring.errors import EngineUnavailable, MissingExtra
from mainspring.security.certificates import client_context, make_certificates

NOW = datetime(2026, 11, 19, 12, tzinfo=UTC)
SERVERS = [["nats-1", "10.0.0.1", "::1"], ["nats-2.example.org"]]
Run: TypeAlias = Callable[..., str]


@pytest.fixture
def made(tmp_path: Path) -> Path:
    folder = tmp_path / "certificates"
    make_certificates(folder, SERVERS, ["worker"], now=NOW, days=100)
    return folder


def read(file: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(file.read_bytes())


def is_signed_by(file: Path, authority: Path) -> bool:
    try:
        read(file).verify_directly_issued_by(read(authority))
    except (InvalidSignature, ValueError):
        return False
    return True


def uses_of(file: Path) -> set[x509.ObjectIdentifier]:
    return set(read(file).extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)


def test_only_the_owner_can_read_a_key_and_enter_a_folder(made: Path) -> None:
    keys = sorted(made.rglob("*.key"))
    assert len(keys) == 2 + 2 * len(SERVERS) + 1
    assert {stat.S_IMODE(key.stat().st_mode) for key in keys} == {0o600}
    folders = [made, *(path for path in made.rglob("*") if path.is_dir())]
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in folders} == {0o700}


def test_a_server_has_the_files_that_it_needs_and_no_key_of_an_authority(made: Path) -> None:
    names = {"authority.pem", "server.pem", "server.key", "route-authority.pem", "route.pem", "route.key"}
    for server in SERVERS:
        assert {path.name for path in (made / "servers" / server[0]).iterdir()} == names
    assert {path.name for path in (made / "clients" / "worker").iterdir()} == {
        *("authority.pem", "client.pem", "client.key")
    }


def test_the_certificate_of_a_client_is_none_for_routes(made: Path) -> None:
    server, client = made / "servers" / "nats-1", made / "clients" / "worker"
    assert is_signed_by(client / "client.pem", server / "authority.pem")
    assert is_signed_by(server / "server.pem", client / "authority.pem")
    assert is_signed_by(server / "route.pem", made / "servers" / "nats-2.example.org" / "route-authority.pem")
    for file in (client / "client.pem", server / "server.pem"):
        assert not is_signed_by(file, server / "route-authority.pem")
    assert uses_of(client / "client.pem") == {ExtendedKeyUsageOID.CLIENT_AUTH}
    assert uses_of(server / "server.pem") == {ExtendedKeyUsageOID.SERVER_AUTH}
    assert uses_of(server / "route.pem") == {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH}


def test_a_certificate_names_the_hosts_and_addresses_and_ends(made: Path) -> None:
    for name in ("server.pem", "route.pem"):
        certificate = read(made / "servers" / "nats-1" / name)
        hosts = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert hosts.get_values_for_type(x509.DNSName) == ["nats-1"]
        assert [str(address) for address in hosts.get_values_for_type(x509.IPAddress)] == ["10.0.0.1", "::1"]
        assert certificate.not_valid_after_utc == NOW + timedelta(days=100)
        assert certificate.not_valid_before_utc < NOW


def test_further_certificates_are_of_the_same_authorities_and_end_with_them(made: Path) -> None:
    late = NOW + timedelta(days=3_600)
    assert make_certificates(made, [["nats-3"]], [], now=late, days=365) == [made / "servers" / "nats-3"]
    authority = made / "authority" / "routes.pem"
    assert is_signed_by(made / "servers" / "nats-3" / "route.pem", authority)
    ends = read(made / "servers" / "nats-3" / "route.pem").not_valid_after_utc
    assert ends == read(authority).not_valid_after_utc == NOW + timedelta(days=3_650)
    with pytest.raises(ValueError, match="has expired at 2036-11-16; make new certificates"):
        make_certificates(made, [["nats-4"]], [], now=ends, days=1)


@pytest.mark.parametrize(
    ("servers", "clients", "said"),
    [
        ([["nats-1"]], [], "nats-1 exists already; remove it"),
        ([["nats-3"]], ["worker"], "worker exists already; remove it"),
        ([["nats-3"], ["nats-3", "10.0.0.3"]], [], "'nats-3' was given twice"),
        ([["nats-3", "a b"]], [], "'a b' is neither a host name nor an address"),
        ([["../nats-3"]], [], "'../nats-3' is neither a host name nor an address"),
        ([["nats-3"]], [".."], "'..' is neither a host name nor an address"),
    ],
)
def test_nothing_is_made_if_something_is_wrong(
    servers: list[list[str]], clients: list[str], said: str, made: Path
) -> None:
    before = {path: path.stat().st_mtime_ns for path in made.rglob("*")}
    with pytest.raises(ValueError, match=said):
        make_certificates(made, servers, clients, now=NOW, days=1)
    assert {path: path.stat().st_mtime_ns for path in made.rglob("*")} == before


def test_an_authority_without_its_key_is_not_replaced(made: Path) -> None:
    (made / "authority" / "routes.key").unlink()
    with pytest.raises(ValueError, match=r"routes\.key is missing; bring it back"):
        make_certificates(made, [["nats-3"]], [], now=NOW, days=1)
    assert not (made / "servers" / "nats-3").exists()


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(MissingExtra, match=r"pip install 'mainspring\[signing\]'"):
        make_certificates(tmp_path, SERVERS, [], now=NOW, days=1)
    assert list(tmp_path.iterdir()) == []


def test_a_client_says_which_of_its_files_is_missing(tmp_path: Path) -> None:
    make_certificates(tmp_path, [], ["worker"], now=NOW, days=1)
    folder = tmp_path / "clients" / "worker"
    assert client_context(folder).check_hostname
    (folder / "client.key").unlink()
    _, settings = parse_url(f"nats://127.0.0.1?certificates={folder}", NatsSettings())
    with pytest.raises(EngineUnavailable, match=r"client\.key.*; give a client's folder of `mainspring nats cert"):
        settings.tls_context()


def test_a_context_and_a_folder_are_not_given_together(made: Path) -> None:
    context = client_context(made / "clients" / "worker")
    with pytest.raises(EngineUnavailable, match="tls= was given, too"):
        parse_url(f"nats://127.0.0.1?certificates={made}", NatsSettings(tls=context))


# -- the command


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def run(*options: str, fails: bool = False) -> str:
        done = CliRunner().invoke(nats, ["certificates", str(tmp_path / "made"), *options])
        assert (done.exit_code != 0) is fails, done.output
        return done.output

    return run


def test_the_command_prints_the_folders_and_says_what_to_keep_away(run: Run, tmp_path: Path) -> None:
    said = run("--server", "nats-1, 10.0.0.1", "--client", "worker", "--client", "operator")
    folders = [tmp_path / "made" / name for name in ("authority", "servers/nats-1")]
    folders += [tmp_path / "made" / "clients" / name for name in ("worker", "operator")]
    assert said.splitlines()[:4] == [str(folder) for folder in folders]
    assert "keep " in said and "away from servers and clients" in said  # noqa: PT018 - one sentence
    more = run("--server", "nats-2", "--json")
    assert str(tmp_path / "made" / "servers" / "nats-2") in more


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "name at least one --server or --client"),
        (["--server", "a b"], "'a b' is neither a host name nor an address"),
        (["--server", "nats-1", "--days", "4000"], "4000 is too large, the maximum is 3,650"),
    ],
)
def test_wrong_usage_is_explained(options: list[str], said: str, run: Run) -> None:
    assert said in run(*options, fails=True)
