"""Where a server listens, and the errors if it cannot."""

import errno
import socket

import pytest

from mainspring.errors import CannotListen
from mainspring.web.addresses import HttpAddress, open_listener, parse_address


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:8400", "127.0.0.1", 8400),
        ("localhost", "localhost", 8400),
        (":9000", "127.0.0.1", 9000),
        ("9000", "127.0.0.1", 9000),
        ("[::1]:9000", "::1", 9000),
        ("[::1]", "::1", 8400),
        (" 0.0.0.0:0 ", "0.0.0.0", 0),
        ("jobs.example.com:65535", "jobs.example.com", 65_535),
    ],
)
def test_addresses_are_parsed(text: str, host: str, port: int) -> None:
    assert parse_address(text) == HttpAddress(host, port)


@pytest.mark.parametrize(
    "text",
    ["", "http://127.0.0.1", "127.0.0.1:port", "127.0.0.1:65536", "::1:8400", "[::1", "a b:1", "1:²"],
)
def test_other_texts_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="write a host and a port"):
        parse_address(text)


def test_a_listener_knows_its_port_and_its_url() -> None:
    listener = open_listener(HttpAddress("127.0.0.1", 0))
    try:
        port = listener.address.port
        assert port
        assert listener.is_loopback
        assert listener.url == f"http://127.0.0.1:{port}/"
        with socket.create_connection(("127.0.0.1", port)):
            pass
    finally:
        listener.close()


def test_a_port_in_use_is_told_with_another_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(CannotListen, match=f"another program uses port {port}; stop it, or choose"):
            open_listener(HttpAddress("127.0.0.1", port))


def test_a_host_of_another_machine_is_told() -> None:
    with pytest.raises(CannotListen, match=r"192\.0\.2\.1 is no address of this machine; use 127\.0\.0\.1:8400"):
        open_listener(HttpAddress("192.0.2.1", 8400))


def test_an_unknown_host_is_told() -> None:
    host = f"{'a' * 70}.example"  # no resolver is asked for a label that is too long
    with pytest.raises(CannotListen, match=r"is unknown .*; use an address of this machine, such as 127"):
        open_listener(HttpAddress(host, 8400))


def test_a_port_that_needs_root_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refuse)  # the tests may run as root, who may use every port
    with pytest.raises(CannotListen, match="use a port above 1023"):
        open_listener(HttpAddress("127.0.0.1", 1))
