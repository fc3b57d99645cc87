"""What other tests wait with: they see what happens, whichever way the kernel tells it, and do not hang."""

import socket
from itertools import count

import pytest

from mainspring.testing.polling import eventually
from tests.support import PATIENCE, wait_for_end_of


def test_what_comes_true_is_noticed() -> None:
    looks = count(1)
    assert eventually(lambda: next(looks) == 5)
    assert next(looks) == 6


def test_what_does_not_come_true_is_given_up() -> None:
    looks = count()
    assert not eventually(lambda: next(looks) < 0, patience=0)
    assert next(looks) == 1


@pytest.mark.parametrize("unread", [b"", b"hello"], ids=["end of file", "reset"])
def test_a_connection_ends_with_an_end_of_file_or_with_a_reset(unread: bytes) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname(), PATIENCE) as connection,
    ):
        other, _ = server.accept()
        connection.sendall(unread)
        other.settimeout(PATIENCE)
        assert not unread or other.recv(1, socket.MSG_PEEK), "it has not arrived"
        other.close()  # with something unread, the kernel sends a reset
        wait_for_end_of(connection)
