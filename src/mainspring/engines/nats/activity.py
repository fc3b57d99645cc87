"""The history of activity on NATS: a separate stream, to which each process sends what it counted.

A message is a batch of counts. The stream keeps messages for eight days and up to a size, and drops the oldest
ones. A process that is asked for the history reads the new messages into its projection, which adds them up.

No job depends on this stream. A process without the permission to write to it, or with a server whose operator has
not created it yet, works without the history.
"""

from __future__ import annotations

import logging

import msgspec

from mainspring.engines.nats.jetstream import NOT_FOUND, JetStream, ServerError
from mainspring.engines.nats.job_records import decode, encode
from mainspring.engines.nats.projector import Projector
from mainspring.engines.nats.subject_names import SubjectNames
from mainspring.engines.nats.write_batch import WriteBatch
from mainspring.errors import EngineUnavailable
from mainspring.jobs.activity_rows import ActivityBatch, ActivityCount

PAGE_SIZE = 1_000

logger = logging.getLogger("mainspring.nats")


class NatsActivity:
    """Sends batches of counts, and reads the history from the projection. Any thread may use it."""

    def __init__(self, jetstream: JetStream, names: SubjectNames, projector: Projector) -> None:
        self._jetstream = jetstream
        self._names = names
        self._projector = projector

    def record(self, batch: ActivityBatch) -> None:
        """Store a batch of counts. If the same batch is sent again, the server or the projection ignores it.

        Raises `EngineUnavailable` if the server does not confirm the batch.
        """
        message = WriteBatch()
        headers = {"Nats-Msg-Id": f"{batch.sender}.{batch.number}"}
        message.put(self._names.activity, encode(batch), headers=headers)
        if self._jetstream.commit(message) is None:
            raise self._jetstream.unavailable("the server has not confirmed a batch of counts", remedy="try again")

    def read(self, since: int, until: int, step: int) -> list[ActivityCount]:
        """Copy all stored batches to the projection, and return its counts from `since` to `until`.

        See `Engine.activity`. If the stream of the activity was created again, the older counts are deleted.
        """
        projection = self._projector.open()
        with self._projector.lock:
            position = projection.activity_position()
            last = self._last_sequence()
            if last < position:  # the stream was created again
                projection.apply_activity([], 0, self._jetstream.now())
                position = 0
            while position < last:
                found = self._jetstream.scan(
                    self._names.activity, after=position, most=PAGE_SIZE, stream=self._names.activity_stream
                )
                if not found:
                    break
                position = found[-1][1].revision
                batches = [batch for _, entry in found if (batch := _decode(entry.data)) is not None]
                projection.apply_activity(batches, position, self._jetstream.now())
        return projection.activity(since, until, step=step)

    def _last_sequence(self) -> int:
        """Return the number of the last message of the activity stream; 0 if there is no such stream."""
        try:
            return self._jetstream.last_sequence(self._names.activity_stream)
        except ServerError as error:
            if error.code in NOT_FOUND:
                return 0
            raise EngineUnavailable(
                engine=f"NATS at {self._jetstream.address}",
                reason=f"the stream of the activity cannot be read: {error}",
                remedy="check that the servers of the stream run, and that the account of this user has JetStream",
            ) from error


def _decode(data: bytes) -> ActivityBatch | None:
    try:
        return decode(data, ActivityBatch)
    except msgspec.MsgspecError as error:
        logger.warning(
            "stored counts of submits and attempts cannot be decoded; the history of activity lacks them: %s",
            error,
        )
        return None
