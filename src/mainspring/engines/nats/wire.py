"""The wire: many messages in one write, and a client that reads headers quickly.

`nats-py` publishes one message at a time, at 8 microseconds each; a draft of a thousand is assembled here and
handed over as one, at one microsecond each. That uses parts of the client that are not public,
`_send_command` and the flusher, as `publish` does, and what the server said of itself, which
also decides about TLS; `tests/nats` would show at once if they changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from nats.aio.client import Client
from nats.errors import Error

LINE = b"NATS/1.0\r\n"
NO_TLS = "TLS is asked for, and the server has none; nothing was sent to it"


class WireClient(Client):
    """A client for messages whose headers are well-formed, as those of the server are."""

    @property
    def server(self) -> dict[str, Any]:
        """What the server says of itself when one connects."""
        return dict(self._server_info)

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:  # noqa: FBT001, FBT002 - its name
        """Refuse to go on without the encryption that was asked for; the password is sent after this."""
        await super()._process_info(info, initial_connection)
        is_wanted = "tls" in self.options or (self._current_server and self._current_server.uri.scheme == "tls")
        if is_wanted and initial_connection and not info.get("tls_required"):
            if not info.get("tls_available"):
                raise Error(NO_TLS)
            self._server_info["tls_required"] = True  # the client encrypts what the server requires only

    @staticmethod
    def _parse_header_lines(raw: bytes) -> dict[str, str]:
        headers = {}
        for line in raw.decode("utf-8", "replace").split("\r\n"):
            name, separator, value = line.partition(":")
            if separator:
                headers[name] = value.strip()
        return headers

    async def write(self, messages: Iterable[bytes]) -> None:
        """Send messages that are on the wire's format already, in one piece."""
        await self._send_command(b"".join(messages))
        if self._flush_queue is not None and self._flush_queue.empty():
            await self._flush_pending()


def to_wire(subject: str, data: bytes, reply: str = "", headers: Mapping[str, str] | None = None) -> bytes:
    """Write a message as it goes to the server. Subjects and headers are ours: tokens and numbers."""
    if not headers:
        return b"PUB %s %s %d\r\n%s\r\n" % (subject.encode(), reply.encode(), len(data), data)
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()]).encode()
    size = len(LINE) + len(lines) + 2
    head = f"HPUB {subject} {reply} {size} {size + len(data)}\r\n".encode()
    return b"".join((head, LINE, lines, b"\r\n", data, b"\r\n"))
