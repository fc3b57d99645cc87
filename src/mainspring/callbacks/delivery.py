"""Makes one attempt of a callback: sends the request of the running job, and returns the answer.

An attempt has the outcomes of any handler, so limits, events, metrics and explanations apply to callbacks, too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import TYPE_CHECKING, Any, NamedTuple

from mainspring.callbacks.allow_list import CallbackUrl
from mainspring.callbacks.answers import NoAnswer, ReceiverAnswer, is_busy, judge, retry_after, to_result
from mainspring.callbacks.hosts import FULL_DELAY, HostGate
from mainspring.callbacks.pauses import Probes, PutOff, Receiver, ReceiverPauses
from mainspring.callbacks.policy import CallbackPolicy
from mainspring.callbacks.requests import CallbackRequest, SendingJob, make_request
from mainspring.clock import Clock, Duration, to_nanoseconds
from mainspring.errors import MissingExtra
from mainspring.jobs.callback_pauses import PUT_OFF, CallbackPauseRecord, receiver_url
from mainspring.jobs.commands import ChangeCallbackPause
from mainspring.jobs.context import JobContext, current_job, runs_job
from mainspring.jobs.handle import ManagerProvider
from mainspring.jobs.retry import Snooze
from mainspring.jobs.timestamps import MICROSECONDS, to_datetime
from mainspring.jobs.trace_fields import TRACEPARENT, trace_headers

if TYPE_CHECKING:
    import asyncio

    from mainspring.callbacks.client import CallbackClient

OTHER_FILES = 256
"""How many of the files that a process may open are left for other uses than requests of callbacks."""

PROBE_MARGIN = 10 * MICROSECONDS
"""How much longer than the timeout of a request its worker may keep the probe of a paused receiver."""

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
    names_url: bool = False
    """Whether the URL is an argument of the job, so that pauses concern it and not the job type."""


class StoredPauses:
    """The records of pauses in the store of an application, for its event loops."""

    def __init__(self, source: ManagerProvider) -> None:
        self._source = source

    def now(self) -> int:
        """Return the time of the store, in microseconds since 1970."""
        return self._source.manager().engine.now()

    async def read(self) -> Sequence[CallbackPauseRecord]:
        """Read all records."""
        return await self._source.off_loop.read(self._source.manager().engine.callback_pauses)

    async def change(self, before: CallbackPauseRecord | None, after: CallbackPauseRecord | None) -> bool:
        """Replace a record; return False if it has changed since `before` was read.

        Also return False if the application was closed meanwhile: a call must not open it again.
        """
        if not self._source.is_open:
            return False
        arrange = self._source.manager().arrange
        (is_done,) = await self._source.off_loop.write(arrange, [ChangeCallbackPause(before, after)])
        return is_done


class _LoopParts(NamedTuple):
    client: CallbackClient
    gate: HostGate
    pauses: ReceiverPauses


class Deliverer:
    """Sends the callbacks of an application: it has a client for each event loop, which knows the pauses.

    - `policy`: the settings of callbacks
    - `clock`: the time for signatures
    - `agent`: the value of the header `User-Agent`
    - `source`: returns the application, whose store has the pauses
    """

    def __init__(
        self, policy: CallbackPolicy, clock: Clock, agent: str, source: Callable[[], ManagerProvider]
    ) -> None:
        self.policy = policy
        self._clock = clock
        self._agent = agent
        self._source = source
        self._clients: dict[asyncio.AbstractEventLoop, _LoopParts] = {}

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

        If the receiver is paused or has enough requests in flight, send nothing and raise `Snooze`; the request of
        an at-most-once job is sent nevertheless. Raises `NoAnswer` if no answer comes, `CallbackRefused` for a
        forbidden address, and the exceptions of `judge` for an answer that is no success.
        """
        import asyncio  # noqa: PLC0415 - the event loop has imported it

        job = current_job()
        try:
            return await self._deliver(self._parts(asyncio.get_running_loop()), target, job)
        except asyncio.CancelledError:
            if not job.cancelled:
                raise
            raise NoAnswer(f"{target.url.shown} has not answered") from None  # a timeout, or a request to stop

    async def _deliver(self, parts: _LoopParts, target: CallbackTarget, job: JobContext) -> dict[str, Any]:
        host = target.url.origin
        receiver = Receiver(host, job.type, receiver_url(target.url.text) if target.names_url else None)
        if target.at_most_once:  # such a job cannot start again: it is sent now
            return await self._send(parts, target, job, receiver, ())
        if not parts.gate.enter(host, target.at_once):
            job.progress(0, note=f"this worker has enough requests to {host} in flight")
            raise Snooze(FULL_DELAY)
        try:
            probes = await parts.pauses.enter(receiver)
            if isinstance(probes, PutOff):
                job.progress(0, note=_describe(receiver, probes.pause))
                raise Snooze(probes.delay / MICROSECONDS)
            return await self._send(parts, target, job, receiver, probes)
        finally:
            parts.gate.leave(host)

    async def _send(
        self, parts: _LoopParts, target: CallbackTarget, job: JobContext, receiver: Receiver, probes: Probes
    ) -> dict[str, Any]:
        import asyncio  # noqa: PLC0415 - the event loop has imported it

        try:
            answer = await parts.client.send(self._request(target, job))
        except NoAnswer:
            await parts.pauses.fail(receiver, probes, None)
            raise
        except asyncio.CancelledError:
            if job.cancelled:  # a timeout, or a request to stop
                await parts.pauses.fail(receiver, probes, None)
            else:
                await parts.pauses.release(probes)
            raise
        except BaseException:
            await parts.pauses.release(probes)
            raise
        pause = await self._pause(parts, target, receiver, probes, answer)
        what = f"{target.method} {target.url.shown}"
        now = self._clock.now()
        judge(answer, what, now=now, pause=pause, success=target.success, stop=target.stop)
        return to_result(answer)

    async def _pause(
        self,
        parts: _LoopParts,
        target: CallbackTarget,
        receiver: Receiver,
        probes: Probes,
        answer: ReceiverAnswer,
    ) -> float | None:
        """Pause the receiver if its answer asks for it, and return for how many seconds; else end its pause."""
        if not is_busy(answer.status, target.success, target.stop):
            await parts.pauses.succeed(probes)
            return None
        requested = retry_after(answer.headers.get("retry-after"), self._clock.now())
        return await parts.pauses.fail(receiver, probes, answer.status, requested) / MICROSECONDS

    def _parts(self, loop: asyncio.AbstractEventLoop) -> _LoopParts:
        parts = self._clients.get(loop)
        if parts is None:
            for closed in [other for other in self._clients if other.is_closed()]:
                del self._clients[closed]
            policy = self.policy
            pauses = ReceiverPauses(
                StoredPauses(self._source()),
                self._clock.monotonic_ns,
                longest=_microseconds(policy.longest_pause),
                probe_time=_microseconds(policy.timeout) + PROBE_MARGIN,
            )
            parts = self._clients[loop] = _LoopParts(
                _import_client()(policy), HostGate(policy.most_of_host), pauses
            )
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


def _describe(receiver: Receiver, pause: CallbackPauseRecord) -> str:
    """Return the note of a job that is put off, which `pauses_of_job` reads."""
    whom = "" if pause.type is None else f" for {pause.url or f'jobs of the type {receiver.type!r}'}"
    return (
        f"{PUT_OFF}{receiver.host} gets no requests{whom} until {to_datetime(pause.until):%Y-%m-%d %H:%M:%S} UTC"
    )


def _microseconds(duration: Duration) -> int:
    return to_nanoseconds(duration, "duration") // 1_000


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
