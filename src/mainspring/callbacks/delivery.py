"""Makes one attempt of a callback: sends the request of the running job, and returns the answer.

An attempt has the outcomes of any handler, so limits, events, metrics and explanations apply to callbacks, too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC
from typing import TYPE_CHECKING, Any

from mainspring.callbacks.allow_list import CallbackUrl
from mainspring.callbacks.answers import NoAnswer, judge, to_result
from mainspring.callbacks.hosts import HostGate
from mainspring.callbacks.policy import CallbackPolicy
from mainspring.callbacks.requests import CallbackRequest, SendingJob, make_request
from mainspring.clock import Clock
from mainspring.errors import MissingExtra
from mainspring.jobs.context import JobContext, current_job, runs_job
from mainspring.jobs.retry import Snooze
from mainspring.jobs.trace_fields import TRACEPARENT, trace_headers

if TYPE_CHECKING:
    import asyncio

    from mainspring.callbacks.client import CallbackClient

OTHER_FILES = 256
"""How many of the files that a process may open are left for other uses than requests of callbacks."""

logger = logging.getLogger("mainspring.worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallbackTarget:
    """The part of a request that its job type or its arguments set: everything but the data of the running job."""

    url: CallbackUrl
    method: str
    headers: tuple[Mapping[str, str], ...]
    body: Any = None
    secret: str | None = None
    """The name of the secret that signs the request."""
    success: Collection[int] | None = None
    """The codes that complete a job; None for 200 to 299."""
    stop: Collection[int] = ()
    """Codes that make a dead letter without further attempts, beside 410."""
    at_most_once: bool = False
    at_once: int = 0
    """The declared `concurrency` of the job type, in requests; 0 if it has none, so that `per_host` applies."""


class Deliverer:
    """Sends the callbacks of an application: it has a client for each event loop, and the pauses of hosts.

    - `policy`: the settings of callbacks
    - `clock`: the time for signatures and pauses
    - `agent`: the value of the header `User-Agent`
    """

    def __init__(self, policy: CallbackPolicy, clock: Clock, agent: str) -> None:
        self.policy = policy
        self._clock = clock
        self._agent = agent
        self._clients: dict[asyncio.AbstractEventLoop, tuple[CallbackClient, HostGate]] = {}

    def load(self) -> None:
        """Import the HTTP client, when a worker starts, and warn if too few files may be open for `in_flight`.

        Raises `MissingExtra` if the package of the client is not installed.
        """
        _import_client()
        most = self.most_requests()
        if most < self.policy.in_flight:
            logger.warning(
                "this worker sends at most %d requests of callbacks at once instead of %d, because its process "
                "may open %d files; raise the limit (ulimit -n, LimitNOFILE= of systemd), or set "
                "CallbackPolicy(in_flight=%d)",
                most,
                self.policy.in_flight,
                _most_files(),
                most,
            )

    def most_requests(self) -> int:
        """Return how many requests this process may have in flight: `in_flight`, or less if it may open few files.

        A request needs a file, and `OTHER_FILES` are left for other uses. At least one request is allowed.
        """
        files = _most_files()
        return self.policy.in_flight if files is None else max(1, min(self.policy.in_flight, files - OTHER_FILES))

    async def deliver(self, target: CallbackTarget) -> dict[str, Any]:
        """Send the request of the running job, and return the answer if it is a success.

        If the host is paused or has enough requests in flight, send nothing and raise `Snooze`; the request of an
        at-most-once job is sent nevertheless. Raises `NoAnswer` if no answer comes, `CallbackRefused` for a
        forbidden address, and the exceptions of `judge` for an answer that is no success.
        """
        import asyncio  # noqa: PLC0415 - the event loop has imported it

        job = current_job()
        client, gate = self._parts(asyncio.get_running_loop())
        host = target.url.origin
        delay = gate.enter(host, target.at_once)
        if delay is not None and target.at_most_once:  # such a job cannot start again: it is sent now
            delay, gate = None, HostGate(None, self._clock.monotonic_ns)
            gate.enter(host)
        if delay is not None:
            job.progress(
                0, note=f"{host} has asked for a pause, or this worker has enough requests to it in flight"
            )
            raise Snooze(delay)
        try:
            answer = await client.send(self._request(target, job))
            what = f"{target.method} {target.url.shown}"
            now = self._clock.now()
            judge(answer, what, host=host, gate=gate, now=now, success=target.success, stop=target.stop)
            return to_result(answer)
        except asyncio.CancelledError:
            if not job.cancelled:
                raise
            raise NoAnswer(f"{target.url.shown} has not answered") from None  # a timeout, or a request to stop
        finally:
            gate.leave(host)

    def _parts(self, loop: asyncio.AbstractEventLoop) -> tuple[CallbackClient, HostGate]:
        parts = self._clients.get(loop)
        if parts is None:
            for closed in [other for other in self._clients if other.is_closed()]:
                del self._clients[closed]
            gate = HostGate(self.policy.most_of_host, self._clock.monotonic_ns)
            parts = self._clients[loop] = (_import_client()(self.policy), gate)
        return parts

    def _request(self, target: CallbackTarget, job: JobContext) -> CallbackRequest:
        due = job.due.astimezone(UTC).isoformat().replace("+00:00", "Z")
        return make_request(
            target.url,
            target.method,
            (_trace_of(job, target), *target.headers),
            target.body,
            job=SendingJob(job.id, job.type, job.attempt, due),
            agent=self._agent,
            secret=None if target.secret is None else self.policy.secret(target.secret, target.url),
            timestamp=int(self._clock.now().timestamp()),
        )


def _trace_of(job: JobContext, target: CallbackTarget) -> dict[str, str]:
    """Return the trace headers for a request; none if the headers of submit or declaration name a trace."""
    given = {name.lower() for mapping in target.headers for name in mapping}
    return {} if TRACEPARENT in given else trace_headers(job.headers)


def require_job(name: str) -> None:
    """Raise `RuntimeError` if no job runs here: the callback was called as a function instead of submitted."""
    if not runs_job():
        raise RuntimeError(f"{name} is a callback, which only a worker sends; use {name}.submit(body=...)")


def _most_files() -> int | None:
    """Return how many files this process may have open; None if the system has no limit, or shows none."""
    try:
        import resource  # noqa: PLC0415 - not on every system
    except ModuleNotFoundError:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def _import_client() -> Callable[[CallbackPolicy], CallbackClient]:
    try:
        from mainspring.callbacks.client import CallbackClient  # noqa: PLC0415 - only a worker needs it
    except ModuleNotFoundError as error:
        raise MissingExtra(feature="a worker that sends callbacks", extra="web") from error
    return CallbackClient
