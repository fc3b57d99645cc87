"""The limits of the HTTP server: sizes, times and numbers beyond which it refuses a request with a clear error."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """The limits of the HTTP server. Mounted into another server, only those of a request apply."""

    max_header: int = 16_384
    """The largest size of the request line and all header fields, in bytes."""
    max_body: int = 8 * 1024 * 1024
    """The largest size of the body of a request, in bytes."""
    body_seconds: float = 60.0
    """Within this time the whole body of a request must arrive."""
    header_seconds: float = 10.0
    """Within this time the header of a request must arrive, from the connection or the first byte on."""
    write_seconds: float = 30.0
    """A client that reads nothing of its answer for this time is disconnected."""
    idle_seconds: float = 30.0
    """A connection without a request is closed after this time."""
    connections: int = 1_000
    """How many connections are served at once. Twice as many are answered with an error, more are closed."""
    event_readers: int = 100
    """How many clients may read events at once."""
    grace_seconds: float = 10.0
    """How long a stopping server waits for the answers of accepted requests."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise ValueError(f"{each.name} must be a positive number, got {value!r}")
