"""The NATS client: `nats-py`, with many messages in one write and a faster parser of headers.

`nats-py` publishes one message at a time, at 8 microseconds each. This module encodes a thousand messages and
sends them in one write, at one microsecond for each message. It uses parts of the client that are not public:
`_send_command` and the flusher, as `publish` does, and the server's INFO, which also decides about TLS.
`tests/nats` fails at once if they change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from nats.aio.client import Client
from nats.errors import Error

HEADER_VERSION = b"NATS/1.0\r\n"
NO_TLS = "the settings ask for TLS, but the server offers no TLS; no credentials were sent"


class BatchingClient(Client):
    """A NATS client that sends many messages in one write.

    It expects well-formed headers, as the server sends them.
    """

    @property
    def server(self) -> dict[str, Any]:
        """The INFO message that the server sends to a new connection."""
        return dict(self._server_info)

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:  # noqa: FBT001, FBT002 - its name
        """Refuse a server without the requested encryption. The client sends the password after this check."""
        await super()._process_info(info, initial_connection)
        is_wanted = "tls" in self.options or (self._current_server and self._current_server.uri.scheme == "tls")
        if is_wanted and initial_connection and not info.get("tls_required"):
            if not info.get("tls_available"):
                raise Error(NO_TLS)
            self._server_info["tls_required"] = True  # the client encrypts only if the server requires it

    @staticmethod
    def _parse_header_lines(raw: bytes) -> dict[str, str]:
        headers = {}
        for line in raw.decode("utf-8", "replace").split("\r\n"):
            name, separator, value = line.partition(":")
            if separator:
                headers[name] = value.strip()
        return headers

    async def write(self, messages: Iterable[bytes]) -> None:
        """Send encoded messages to the server in one write."""
        await self._send_command(b"".join(messages))
        if self._flush_queue is not None and self._flush_queue.empty():
            await self._flush_pending()


def encode_message(subject: str, data: bytes, reply: str = "", headers: Mapping[str, str] | None = None) -> bytes:
    """Encode a message as a PUB or HPUB command of the NATS protocol. Subjects and headers need no escapes."""
    if not headers:
        return b"PUB %s %s %d\r\n%s\r\n" % (subject.encode(), reply.encode(), len(data), data)
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()]).encode()
    size = len(HEADER_VERSION) + len(lines) + 2
    head = f"HPUB {subject} {reply} {size} {size + len(data)}\r\n".encode()
    return b"".join((head, HEADER_VERSION, lines, b"\r\n", data, b"\r\n"))
