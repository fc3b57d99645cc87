"""Reads the facts about NATS servers and streams over one connection, without changing anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from msgspec.structs import replace

from mainspring.clock import Clock
from mainspring.doctor.nats_server_writes import find_server_writes, is_strict
from mainspring.engines.nats.jetstream import NOT_FOUND, JetStream, ServerError
from mainspring.engines.nats.overdue import find_overdue
from mainspring.engines.nats.reading import BacklogReader
from mainspring.engines.nats.settings import NatsSettings
from mainspring.engines.nats.storage import StorageProblem
from mainspring.engines.nats.streams import Streams
from mainspring.engines.nats.subject_names import SubjectNames
from mainspring.engines.nats.transaction import TransactionManager
from mainspring.errors import EngineUnavailable
from mainspring.jobs.timestamps import MICROSECONDS

TRIES = 5
TIMEOUT_SECONDS = 3.0
MAX_LANES = 200
MAX_SCHEDULED = 2_000  # how many scheduled messages are read to find overdue ones


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsFacts:
    """The facts about the NATS servers and streams of a store, as `read_facts` found them."""

    settings: NatsSettings
    server: Mapping[str, Any]
    """The INFO message that the server sends to clients: version, name, cluster, max_payload."""
    account: Mapping[str, Any] | None = None
    """The usage and the limits of JetStream; None if JetStream is not enabled, or this user may not read them."""
    stream: Mapping[str, Any] | None = None
    events: Mapping[str, Any] | None = None
    activity: Mapping[str, Any] | None = None
    """The stream of the activity counts; None if there is none, or this user may not ask for it."""
    may_read_activity: bool = True
    """Whether this user may ask for the stream of the activity counts. Jobs do not need it."""
    wanted: Mapping[str, Any] = field(default_factory=dict)
    """The configuration with which this version of Mainspring would create the stream."""
    consumers: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)
    """The consumers of reminders and of the jobs of up to 199 lanes (queue, type, priority), by subject.

    The value is None for a subject without a consumer. The mapping is empty if the consumers cannot be
    read, or if there is no stream.
    """
    round_trip: float = 0.0
    ahead: float = 0.0
    """How many seconds the server's clock is ahead of the local clock; negative if it is behind."""
    denied: Sequence[str] = ()
    """The permission errors that the server has sent to this user."""
    storage_problem: StorageProblem | None = None
    """Why the server stores no messages; None if it has stored a test message, or if that is unknown."""
    overdue: Sequence[int] = ()
    """The times of the overdue ones among the first `MAX_SCHEDULED` scheduled messages."""
    server_writes: Sequence[str] = ()
    """The ways in which the server publishes for this user what the user may not publish: `nats_server_writes`."""
    is_strict: bool = True
    """Whether the server refuses requests with unknown fields; True if that is unknown."""
    monitor: Mapping[str, Any] | None = None
    """The reply of `/varz`; None if the user has given no monitoring address, or it does not respond."""
    routes_need_password: bool | None = None
    """Whether another server needs a password to join; None if it is unknown."""


def read_facts(
    servers: list[str], settings: NatsSettings, clock: Clock, monitor: Mapping[str, Any] | None = None
) -> NatsFacts:
    """Connect to one of the servers, read the facts, and disconnect.

    Facts that this user may not read stay None, and the denials are listed in `NatsFacts.denied`. Raises
    `EngineUnavailable` if no server responds, or if a server refuses a request for another reason.
    """
    quick = replace(settings, timeout=min(settings.timeout or TIMEOUT_SECONDS, TIMEOUT_SECONDS), prepared=True)
    names = SubjectNames(settings.prefix)
    jetstream = JetStream(servers, quick, names.stream, clock)
    jetstream.open()
    try:
        return _FactReader(jetstream, names, settings).read(monitor)
    finally:
        jetstream.close()


class _FactReader:
    def __init__(self, jetstream: JetStream, names: SubjectNames, settings: NatsSettings) -> None:
        self._jetstream = jetstream
        self._names = names
        self._settings = settings
        self._streams = Streams(jetstream, names, settings)
        self._denied: list[str] = []

    def read(self, monitor: Mapping[str, Any] | None) -> NatsFacts:
        account = self._request("INFO")
        stream = self._request(f"STREAM.INFO.{self._names.stream}") if account is not None else None
        events = self._request(f"STREAM.INFO.{self._names.events_stream}") if account is not None else None
        activity, may_read_activity = self._activity() if stream is not None else (None, True)
        round_trip, ahead = self._measure() if stream is not None else (0.0, 0.0)
        consumers = self._consumers() if stream is not None else {}
        storage_problem: StorageProblem | None = None
        overdue: list[int] = []
        server_writes: tuple[str, ...] = ()
        is_api_strict = True
        if stream is not None:
            self._test_write()
            server_writes = find_server_writes(self._jetstream, self._names)
            is_api_strict = is_strict(self._jetstream, self._names)
            self._record_denial()
            storage_problem, overdue = self._test_storage(), self._find_overdue()
            # Read the stream's state again, because its replicas have had time to catch up.
            stream = self._request(f"STREAM.INFO.{self._names.stream}")
        return NatsFacts(
            settings=self._settings,
            server=self._jetstream.server,
            account=account,
            stream=stream,
            events=events,
            activity=activity,
            may_read_activity=may_read_activity,
            wanted=self._streams.stream_config(),
            consumers=consumers,
            round_trip=round_trip,
            ahead=ahead,
            denied=tuple(self._denied),
            storage_problem=storage_problem,
            overdue=overdue,
            server_writes=server_writes,
            is_strict=is_api_strict,
            monitor=monitor,
        )

    def _request(self, verb: str) -> dict[str, Any] | None:
        try:
            return self._jetstream.api(verb)
        except ServerError as error:
            if error.code in NOT_FOUND or verb == "INFO":
                return None
            raise EngineUnavailable(
                engine=f"NATS at {self._jetstream.address}",
                reason=f"the server refused the request {verb}: {error}",
                remedy="read the log of the server",
            ) from error
        except EngineUnavailable:
            self._record_denial()
            if not self._denied:
                raise
            return None

    def _activity(self) -> tuple[dict[str, Any] | None, bool]:
        """Return the stream of the activity counts, None if there is none, and whether this user may ask for it.

        A denial is not reported with the others, because all jobs can be read without this right.
        """
        try:
            return self._jetstream.api(f"STREAM.INFO.{self._names.activity_stream}"), True
        except ServerError as error:
            return None, error.code in NOT_FOUND
        except EngineUnavailable:
            self._jetstream.denied = None
            return None, False

    def _measure(self) -> tuple[float, float]:
        """Return the median round trip and how far the server's clock is ahead, both in seconds."""
        trips = []
        for _ in range(TRIES):
            before = self._jetstream.monotonic()
            self._jetstream.api(f"STREAM.INFO.{self._names.stream}")
            trips.append((self._jetstream.monotonic() - before) / MICROSECONDS)
        self._streams.measure_time()
        return median(trips), (self._jetstream.now() - self._jetstream.local_time()) / MICROSECONDS

    def _consumers(self) -> dict[str, dict[str, Any] | None]:
        try:
            lanes = BacklogReader(TransactionManager(self._jetstream, self._names), self._streams).lanes()
            subjects = [f"{self._names.reminders}>", *lanes.values()][:MAX_LANES]
            return {subject: self._streams.consumer_info(subject) for subject in subjects}
        except EngineUnavailable:
            self._record_denial()
            return {}

    def _test_write(self) -> None:
        """Publish a message that the stream always rejects, to find out whether the server denies publishing."""
        with suppress(ServerError, EngineUnavailable):
            self._jetstream.wait_until_processed(self._names.settings)
        self._record_denial()

    def _test_storage(self) -> StorageProblem | None:
        """Return why the server stores no messages; None if it does, or if this user may not write.

        The test message is deleted afterwards.
        """
        if self._denied:
            return None
        problem = self._jetstream.test_storage(self._names.storage_test)
        if self._settings.may_purge:
            self._jetstream.purge(self._names.storage_test)
        return problem

    def _find_overdue(self) -> list[int]:
        try:
            return find_overdue(self._jetstream, self._names, MAX_SCHEDULED)
        except EngineUnavailable:
            self._record_denial()
            return []

    def _record_denial(self) -> None:
        denied, self._jetstream.denied = self._jetstream.denied, None
        if denied is not None:
            self._denied.append(denied)
