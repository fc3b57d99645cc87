"""Limits how many jobs a caller submits per second, with a token bucket for each caller in this process.

A batch of n jobs counts n. Each server process counts by itself, so with several processes a caller may submit as
many times more: this limit protects a server and its store against one caller. A limit that all processes share
is a quota of the queue, `app.queue(name, submit_rate=...)`.

The answers to submits have the headers `RateLimit-Policy` and `RateLimit` of
draft-ietf-httpapi-ratelimit-headers-11, so that a client can slow down before it is refused.
"""

from __future__ import annotations

from collections import OrderedDict
from math import ceil, floor

from mainspring.clock import NANOSECONDS, Clock, SystemClock
from mainspring.plurals import format_count
from mainspring.security.http_limits import HttpLimits
from mainspring.web.problems import Problem, Refused

POLICY = "submits"
MAX_CALLERS = 10_000


class _Bucket:
    __slots__ = ("at_ns", "tokens")

    def __init__(self, tokens: float, at_ns: int) -> None:
        self.tokens = tokens
        self.at_ns = at_ns


class SubmitRates:
    """The token buckets that limit how many jobs each caller of one server process may submit.

    Only one event loop may use this.

    - `limits`: the rate and the burst
    - `clock`: the clock that refills the buckets
    """

    def __init__(self, limits: HttpLimits, clock: Clock | None = None) -> None:
        self._rate = limits.submit_rate
        self._burst = limits.submit_burst
        self._clock = clock or SystemClock()
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()  # the last used one is the last
        window = max(1, ceil(self._burst / self._rate))
        self._policy = f'"{POLICY}";q={self._burst};w={window}'

    def meter(self, caller: str) -> SubmitMeter:
        """Return a meter that counts the jobs of one request of a caller."""
        return SubmitMeter(self, caller)

    def spend(self, caller: str, jobs: int) -> dict[str, str]:
        """Count jobs that a caller submits; return the `RateLimit` headers of the answer.

        If the caller's rate does not admit so many jobs now, raise `Refused` with 429, and count nothing.
        """
        bucket = self._filled(caller)
        if jobs > bucket.tokens:
            raise self._refused(bucket, jobs)
        bucket.tokens -= jobs
        return self._headers(bucket)

    def _filled(self, caller: str) -> _Bucket:
        now = self._clock.monotonic_ns()
        bucket = self._buckets.pop(caller, None) or _Bucket(self._burst, now)
        seconds = max(0, now - bucket.at_ns) / NANOSECONDS
        bucket.tokens = min(self._burst, bucket.tokens + seconds * self._rate)
        bucket.at_ns = now
        self._buckets[caller] = bucket
        while len(self._buckets) > MAX_CALLERS:
            self._buckets.popitem(last=False)
        return bucket

    def _headers(self, bucket: _Bucket) -> dict[str, str]:
        refill = ceil((self._burst - bucket.tokens) / self._rate)
        state = f'"{POLICY}";r={floor(bucket.tokens)};t={max(0, refill)}'
        return {"RateLimit-Policy": self._policy, "RateLimit": state}

    def _refused(self, bucket: _Bucket, jobs: int) -> Refused:
        if jobs > self._burst:
            remedy, headers = f"submit at most {self._burst:,} at once", {}
        else:
            seconds = max(1, ceil((jobs - bucket.tokens) / self._rate))
            remedy, headers = f"try again in {seconds} s", {"Retry-After": str(seconds)}
        return Refused(
            Problem(
                status=429,
                type="submit-rate",
                detail=f"this token may submit {self._rate:g} jobs per second on average, and "
                f"{floor(bucket.tokens):,} at this moment; the request has {format_count(jobs, 'job')}; {remedy}",
                headers={**headers, **self._headers(bucket)},
            )
        )


class SubmitMeter:
    """Counts the jobs that one request submits against its caller's rate, and has the `RateLimit` headers."""

    def __init__(self, rates: SubmitRates, caller: str) -> None:
        self._rates = rates
        self._caller = caller
        self.headers: dict[str, str] = {}
        """The `RateLimit` headers of the answer; empty if the request has submitted no jobs."""

    def count(self, jobs: int = 1) -> None:
        """Count jobs before they are submitted; raise `Refused` (429) if the caller's rate does not admit them."""
        self.headers = self._rates.spend(self._caller, jobs)
