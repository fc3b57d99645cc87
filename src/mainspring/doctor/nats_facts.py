"""Reads the facts about NATS servers and streams over one connection, without changing anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from msgspec.structs import replace

from mainspring.clock import Clock
from mainspring.engines.nats.link import NOT_FOUND, Link, ServerError
from mainspring.engines.nats.naming import Names
from mainspring.engines.nats.reading import Backlogs
from mainspring.engines.nats.settings import NatsSettings
from mainspring.engines.nats.streams import Streams
from mainspring.engines.nats.workspace import Workshop
from mainspring.errors import EngineUnavailable
from mainspring.jobs.timestamps import MICROSECONDS

TRIES = 5
PATIENCE = 3.0  # seconds to wait for a response
MOST_LANES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsFacts:
    """The facts about the servers and the streams of a store."""

    settings: NatsSettings
    server: Mapping[str, Any]
    """The INFO message that clients receive: version, name, cluster, max_payload."""
    account: Mapping[str, Any] | None = None
    """Usage and limits of JetStream; None: it is not enabled."""
    stream: Mapping[str, Any] | None = None
    events: Mapping[str, Any] | None = None
    wanted: Mapping[str, Any] = field(default_factory=dict)
    """The configuration with which this Mainspring would create the stream."""
    consumers: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)
    """The consumers by the subject of their lane; None: the lane has none."""
    round_trip: float = 0.0
    ahead: float = 0.0
    """The seconds by which the server's clock is ahead of the local one."""
    denied: Sequence[str] = ()
    """The operations that the server has denied."""
    monitor: Mapping[str, Any] | None = None
    """The answer of `/varz`, if the user has given the monitoring address."""


def visit(
    servers: list[str], settings: NatsSettings, clock: Clock, monitor: Mapping[str, Any] | None = None
) -> NatsFacts:
    """Connect and read the facts; raises `EngineUnavailable` if no server responds."""
    patient = replace(settings, timeout=min(settings.timeout or PATIENCE, PATIENCE), prepared=True)
    names = Names(settings.prefix)
    link = Link(servers, patient, names.stream, clock)
    link.open()
    try:
        return _FactsVisit(link, names, settings).gather(monitor)
    finally:
        link.close()


class _FactsVisit:
    def __init__(self, link: Link, names: Names, settings: NatsSettings) -> None:
        self._link = link
        self._names = names
        self._settings = settings
        self._streams = Streams(link, names, settings)
        self._denied: list[str] = []

    def gather(self, monitor: Mapping[str, Any] | None) -> NatsFacts:
        account = self._ask("INFO")
        stream = self._ask(f"STREAM.INFO.{self._names.stream}") if account is not None else None
        events = self._ask(f"STREAM.INFO.{self._names.events_stream}") if account is not None else None
        round_trip, ahead = self._measure() if stream is not None else (0.0, 0.0)
        consumers = self._consumers() if stream is not None else {}
        if stream is not None:
            self._try_to_write()
            stream = self._ask(f"STREAM.INFO.{self._names.stream}")  # its servers have had time to catch up
        return NatsFacts(
            settings=self._settings,
            server=self._link.server,
            account=account,
            stream=stream,
            events=events,
            wanted=self._streams.wanted(),
            consumers=consumers,
            round_trip=round_trip,
            ahead=ahead,
            denied=tuple(self._denied),
            monitor=monitor,
        )

    def _ask(self, verb: str) -> dict[str, Any] | None:
        try:
            return self._link.api(verb)
        except ServerError as error:
            if error.code in NOT_FOUND or verb == "INFO":
                return None
            raise EngineUnavailable(
                engine=f"NATS at {self._link.address}",
                reason=f"{verb} was refused: {error}",
                remedy="look at the log of the server",
            ) from error
        except EngineUnavailable:
            self._note_denial()
            if not self._denied:
                raise
            return None

    def _measure(self) -> tuple[float, float]:
        """Return the median round trip and how far the server's clock is ahead, both in seconds."""
        trips = []
        for _ in range(TRIES):
            before = self._link.monotonic()
            self._link.api(f"STREAM.INFO.{self._names.stream}")
            trips.append((self._link.monotonic() - before) / MICROSECONDS)
        self._streams.measure_time()
        return median(trips), (self._link.now() - self._link.own_time()) / MICROSECONDS

    def _consumers(self) -> dict[str, dict[str, Any] | None]:
        try:
            lanes = Backlogs(Workshop(self._link, self._names), self._streams).lanes()
            subjects = [f"{self._names.chores}>", *lanes.values()][:MOST_LANES]
            return {subject: self._streams.look_at_consumer(subject) for subject in subjects}
        except EngineUnavailable:
            self._note_denial()
            return {}

    def _try_to_write(self) -> None:
        """Publish a message that the stream always rejects; if the publish itself is denied, note that."""
        with suppress(ServerError, EngineUnavailable):
            self._link.wait_for_order(self._names.settings)
        self._note_denial()

    def _note_denial(self) -> None:
        denied, self._link.denied = self._link.denied, None
        if denied is not None:
            self._denied.append(denied)
