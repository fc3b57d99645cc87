"""The limits of the HTTP server: sizes, times and numbers beyond which it refuses a request with a clear error."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from mainspring.similar_names import did_you_mean

MAX_CLAIMED_JOBS = 1_000
"""How many jobs a heartbeat of a remote worker may name. It must name all jobs of the worker."""
SHORTEST_LEASE = 1.0
"""The shortest lease of a remote worker, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """The limits of the HTTP server.

    If it is mounted into another server, the limits of connections do not apply.
    """

    max_header: int = 16_384
    """The largest size of the request line and all header fields, in bytes."""
    max_body: int = 8 * 1024 * 1024
    """The largest size of the body of a request, in bytes."""
    body_seconds: float = 60.0
    """Within this time the whole body of a request must arrive."""
    header_seconds: float = 10.0
    """Within this time the whole header of a request must arrive: counted from the connection, or, for a later
    request of the same connection, from its first byte."""
    write_seconds: float = 30.0
    """A client that reads nothing of its answer for this time is disconnected."""
    idle_seconds: float = 30.0
    """A connection without a request is closed after this time."""
    connections: int = 1_000
    """How many connections are served at once. Requests of further connections are answered with 503, and
    connections beyond twice this number are closed."""
    grace_seconds: float = 10.0
    """How long a stopping server waits for the answers of accepted requests."""
    event_readers: int = 100
    """How many clients may read events at once."""
    waiting_claims: int = 500
    """How many claims of remote workers may wait for jobs at once. A worker has at most one."""
    caller_share: float = 0.2
    """Which share of `event_readers` and of `waiting_claims` one caller may use. Each caller has at least one."""
    caller_workers: int = 200
    """How many remote workers that are alive one caller may have."""
    caller_schedules: int = 100
    """How many schedules one caller may have stored. Together they make at most `submit_rate` jobs per second."""
    claimed_jobs: int = MAX_CLAIMED_JOBS
    """How many jobs a remote worker may have claimed and not settled. A heartbeat names at most 1,000."""
    longest_lease: float = 300.0
    """The longest lease of a remote worker, in seconds. The longer one of a worker that enrolled before is
    shortened to this by its next claim or heartbeat."""
    max_batch: int = 10_000
    """How many jobs one request may submit."""
    max_depth: int = 64
    """How many levels of arrays and objects a body may have."""
    max_ratio: float = 100.0
    """How many bytes one byte of a compressed body may become. `max_body` applies to the result, too."""
    submit_rate: float = 1_000.0
    """How many jobs per second a token may submit, on average, to one server process."""
    submit_burst: int = 20_000
    """How many jobs a token may submit at once, faster than `submit_rate`, after a time without submits."""
    idempotency_seconds: float = 86_400.0
    """How long the answer to a request with an `Idempotency-Key` is kept."""
    idempotency_keys: int = 100_000
    """How many idempotency keys of one token the store keeps. Further requests with a new key are refused."""
    schedule_seconds: float = 10.0
    """The least time between two occurrences of a schedule that is stored over HTTP."""
    retry_attempts: int = 100
    """How many attempts the `retry` of a job that is submitted over HTTP may ask for."""
    retry_seconds: float = 1.0
    """The least delay before the second attempt that the `retry` of a job that is submitted over HTTP may ask for,
    before jitter."""

    def share_of(self, limit: str) -> int:
        """Return how many of the places of a limit that all callers share one caller may use, at least one."""
        return max(1, int(getattr(self, limit) * min(1.0, self.caller_share)))

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise ValueError(f"the HTTP limit {each.name} must be a positive number, got {value!r}")
            if each.type == "int" and not isinstance(value, int):
                raise ValueError(f"the HTTP limit {each.name} must be a whole number, got {value!r}")
        if self.longest_lease < SHORTEST_LEASE:
            raise ValueError(
                f"the HTTP limit longest_lease must be at least {SHORTEST_LEASE:g} s, got {self.longest_lease:g}: "
                "a worker sends its heartbeats three times in a lease; raise it"
            )
        if self.claimed_jobs > MAX_CLAIMED_JOBS:
            raise ValueError(
                f"the HTTP limit claimed_jobs must be at most {MAX_CLAIMED_JOBS:,}, got {self.claimed_jobs:,}: a "
                "heartbeat names all jobs of a worker; lower it, and enroll several workers to run more jobs"
            )
        if self.submit_burst < self.max_batch:
            raise ValueError(
                f"submit_burst={self.submit_burst} is less than max_batch={self.max_batch}, so that a full batch "
                "could never be submitted; raise submit_burst, or lower max_batch"
            )


def parse_limits(given: Iterable[str]) -> HttpLimits:
    """Parse limits such as `max_batch=1000`; raise `ValueError` for an unknown name or a wrong value."""
    kinds = {each.name: int if each.type == "int" else float for each in fields(HttpLimits)}
    values: dict[str, float] = {}
    for text in given:
        name, _, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if name not in kinds:
            hint = did_you_mean(name, list(kinds)) or f"the limits are {', '.join(kinds)}"
            raise ValueError(f"{text!r} names no limit of the HTTP server; {hint}")
        if name in values:
            raise ValueError(f"the limit {name} is given twice; give it once")
        try:
            values[name] = kinds[name](value)
        except ValueError:
            kind = "whole number" if kinds[name] is int else "number"
            raise ValueError(f"{text!r} has no {kind} as its value; write {name}=100") from None
    return HttpLimits(**values)  # type: ignore[arg-type] # each value has the type of its field
