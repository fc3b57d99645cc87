"""The settings of callbacks: which URLs may be called, with which secrets, and how many requests at once.

Invariants
- Nothing may be called that `allow` does not list.
- The same check runs when a job is declared or submitted and before each request: a policy that was tightened
  applies to jobs that already wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mainspring.callbacks.allow_list import CallbackUrl, UrlPattern, parse_patterns, parse_url
from mainspring.callbacks.signatures import CallbackSecret, to_secret
from mainspring.clock import Duration, to_nanoseconds
from mainspring.errors import CallbackRefused
from mainspring.jobs.ids import require_id
from mainspring.runners.validation import require_instance, require_positive
from mainspring.similar_names import did_you_mean


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CallbackPolicy:
    """Which URLs callbacks may call, and how: `Mainspring(callbacks=CallbackPolicy(allow=[...]))`.

    Every URL is checked when a job is declared or submitted, and again before each request. Address literals,
    credentials in the URL and redirects are never allowed.
    """

    allow: Sequence[str] = ()
    """The URLs that may be called: `https://hooks.example.com/orders/*`. `/*` at the end allows every longer path,
    and `*.` at the start of the host every name below it. Nothing else is allowed; the default allows nothing."""
    allow_http: bool = False
    """Whether `allow` may list URLs without TLS: `http://…`."""
    allow_private: bool = False
    """Whether a host may have an address of a private network or of this machine. Link-local addresses and those
    of metadata services stay forbidden."""
    max_bytes: int = 65_536
    """How many bytes of an answer's body are read, after decompression."""
    timeout: Duration = 20
    """How long a request may take, from the name lookup to the end of the answer, unless the job type says
    otherwise."""
    secrets: Mapping[str, str | bytes | Sequence[str | bytes] | CallbackSecret] = field(
        default_factory=dict, repr=False
    )
    """The secrets that sign requests, by name: a key `whsec_…` for each receiver, or a list of keys during a
    rotation. Jobs have only the name."""
    in_flight: int = 1_000
    """How many requests a worker has in flight at once. They have slots of their own, beside `coroutines`."""
    per_host: int | None = 100
    """How many jobs of one type may have a request to one host in flight, over all workers; None for no limit. It
    must be less than `in_flight`, so that a slow receiver delays no other."""
    longest_pause: Duration = 300
    """How long a receiver that answers 429 or 503 gets no requests at most, whatever its `Retry-After` says."""
    _patterns: tuple[UrlPattern, ...] = field(init=False, repr=False, default=())
    _secrets: dict[str, CallbackSecret] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_patterns", parse_patterns(self.allow, "allow"))
        require_instance(self.allow_http, bool, "allow_http", "True")
        require_instance(self.allow_private, bool, "allow_private", "True")
        for pattern in self._patterns:
            if pattern.scheme == "http" and not self.allow_http:
                raise ValueError(
                    f"the allow-list entry {pattern.text!r} has no TLS; use https, or set allow_http=True"
                )
        require_positive(self.max_bytes, "max_bytes", "bytes")
        require_positive(self.in_flight, "in_flight", "requests at once")
        if self.per_host is not None:
            require_positive(self.per_host, "per_host", "requests at once")
            if self.per_host >= self.in_flight:
                raise ValueError(
                    f"per_host must be less than in_flight, got {self.per_host:,} and {self.in_flight:,}: one "
                    "slow host could use up all requests; lower per_host, or raise in_flight"
                )
        for name in ("timeout", "longest_pause"):
            if to_nanoseconds(getattr(self, name), name) == 0:
                raise ValueError(f"{name} must be greater than zero, got 0; pass seconds or a timedelta")
        if not isinstance(self.secrets, Mapping):
            raise TypeError("secrets must be a dict of names and keys, such as {'shop': 'whsec_…'}")
        named = {require_id(name, "secret"): to_secret(name, given) for name, given in self.secrets.items()}
        object.__setattr__(self, "_secrets", named)

    @property
    def most_of_host(self) -> int | None:
        """How many requests one worker may have in flight to one host, over all job types; None for no limit.

        `per_host` limits each job type only, so this is the larger one of `per_host` and half of `in_flight`.
        """
        return None if self.per_host is None else max(self.per_host, self.in_flight // 2)

    def check(self, url: Any) -> CallbackUrl:
        """Return the parts of a URL that may be called; raise `CallbackRefused` for any other."""
        parts = parse_url(url)
        if any(pattern.matches(parts) for pattern in self._patterns):
            return parts
        raise CallbackRefused(
            url=parts.shown,
            reason="no entry of the allow-list matches it",
            remedy=f"add an entry: {remedy_for(parts)}",
        )

    def secret(self, name: str, url: CallbackUrl) -> CallbackSecret:
        """Return a secret by its name; raise `CallbackRefused` if there is none, or if it is not for `url`."""
        found = self._secrets.get(name)
        if found is None:
            raise CallbackRefused(
                url=url.shown,
                reason=f"there is no secret {str(name)[:100]!r}",
                remedy=did_you_mean(name, tuple(self._secrets))
                or f"add it: CallbackPolicy(secrets={{{name!r}: 'whsec_…'}})",
            )
        if not found.fits(url):
            raise CallbackRefused(
                url=url.shown,
                reason=f"the secret {name!r} is for other URLs",
                remedy="use the secret of this receiver, or add the URL to CallbackSecret(..., urls=[...])",
            )
        return found


def remedy_for(url: CallbackUrl) -> str:
    """Return Python code, for messages, that allows callbacks to a URL."""
    options = ", allow_http=True" if url.scheme == "http" else ""
    entry = url.text.partition("?")[0]
    return f"Mainspring(callbacks=CallbackPolicy(allow=[{entry!r}]{options}))"


def refuse_without_policy(url: Any) -> CallbackRefused:
    """Return the error for a callback to `url` in an application without `Mainspring(callbacks=...)`.

    Raises `CallbackRefused` if the URL itself is invalid.
    """
    parts = parse_url(url)
    return CallbackRefused(
        url=parts.shown,
        reason="nothing may be called until it is allowed, and this application has no policy for callbacks",
        remedy=f"allow it: {remedy_for(parts)}",
    )
