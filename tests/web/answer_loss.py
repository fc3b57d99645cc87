"""A relay in front of an HTTP server, which loses answers on request, and survives a restart of the server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from socket import SHUT_RDWR, create_connection, socket
from socketserver import BaseRequestHandler, ThreadingTCPServer
from threading import Lock, Thread

from tests.support import PATIENCE

CHUNK = 65_536


class AnswerLoss(ThreadingTCPServer):
    """Relays connections to a server. It can lose answers to requests whose path ends with a certain word."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.port = port
        """The port of the server. A test changes it after a restart."""
        self._lock = Lock()  # guards the following attributes
        self._losses: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()
        """How many requests came, by the last word of their path."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def lose(self, word: str, times: int = 1) -> None:
        """Lose the answers to the next requests whose path ends with this word."""
        with self._lock:
            self._losses[word] += times

    def losses(self) -> int:
        """Return how many answers are still to be lost."""
        with self._lock:
            return self._losses.total()

    def note(self, word: str) -> bool:
        """Count a request, and return whether its answer is lost."""
        with self._lock:
            self.requests[word] += 1
            is_lost = self._losses[word] > 0
            self._losses[word] -= is_lost
            return is_lost


class _Connection(BaseRequestHandler):
    server: AnswerLoss
    request: socket

    def handle(self) -> None:
        with suppress(OSError), create_connection(("127.0.0.1", self.server.port), PATIENCE) as target:
            self._is_lost = False
            upstream = Thread(target=self._send, args=(target,), daemon=True)
            upstream.start()
            while data := target.recv(CHUNK):
                if self._is_lost:
                    break
                self.request.sendall(data)
            for connection in (self.request, target):
                with suppress(OSError):
                    connection.shutdown(SHUT_RDWR)
            upstream.join(PATIENCE)

    def _send(self, target: socket) -> None:
        with suppress(OSError):
            while data := self.request.recv(CHUNK):
                if data.startswith((b"POST", b"GET", b"DELETE")):
                    word = data.split(b" ", 2)[1].rpartition(b"/")[2].decode()
                    self._is_lost = self.server.note(word)
                target.sendall(data)
            target.shutdown(SHUT_RDWR)


@contextmanager
def answer_loss(port: int) -> Iterator[AnswerLoss]:
    """Run a relay during the block."""
    with AnswerLoss(port) as relay:
        thread = Thread(target=relay.serve_forever, daemon=True)
        thread.start()
        try:
            yield relay
        finally:
            relay.shutdown()
            thread.join(PATIENCE)
