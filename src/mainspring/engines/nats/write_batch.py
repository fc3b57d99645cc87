"""A batch of writes: messages that the server stores all or none.

A message may require that its subject still has the revision that the transaction has read. So the record of a
job, its place in a waiting line and its message in the queue never contradict each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

from msgspec import Struct

MAX_BATCH = 1_000
"""The largest number of messages in one batch of the server."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class StoredMessage(Struct, frozen=True, gc=False):
    """The message that the stream has for a subject. Revision 0 means that there is none."""

    revision: int
    data: bytes
    limiter: str = ""
    """The subject of the limiter of its job, if a hand-over has stored the message."""
    ttl: str = ""
    """The time to live with which the message was stored, if a scan has read it; empty if it does not expire."""


NO_MESSAGE = StoredMessage(0, b"")


class Write(Struct, frozen=True, gc=False):
    """A message to store, perhaps only if its subject has an expected revision."""

    subject: str
    data: bytes
    expected: int | None = None
    """The revision that the subject must have, 0 for none; None to replace any message."""
    headers: Mapping[str, str] | None = None


class WriteBatch:
    """Messages that the server stores as one batch, and actions for after the commit."""

    def __init__(self) -> None:
        self.writes: list[Write] = []
        self._indexes: dict[str, int] = {}  # of the writes, by subject
        self._callbacks: list[Callable[[], object]] = []
        self.purges: list[str] = []
        """The subjects to purge after the commit. A lost purge does no harm."""
        self.sends: list[tuple[str, bytes]] = []
        """Messages to send after the commit, without waiting for a reply: acknowledgements and notifications."""
        self.events: list[tuple[str, str, bytes]] = []
        """Events to send after the commit: the subject of the job's record, and the message."""

    def __contains__(self, subject: str) -> bool:
        return subject in self._indexes

    def __len__(self) -> int:
        return len(self.writes)

    def put(
        self,
        subject: str,
        data: bytes,
        expected: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> int:
        """Add a message to the batch and return its index.

        A second message to the same subject replaces the first.
        """
        index = self._indexes.setdefault(subject, len(self.writes))
        if index == len(self.writes):
            self.writes.append(Write(subject, data, expected, headers))
        else:
            self.writes[index] = Write(subject, data, expected, headers)
        return index

    def schedule(self, subject: str, target: str, instant: int, data: bytes = b"") -> None:
        """Add a message to `subject` that the server publishes to `target` at an instant, in microseconds."""
        self.put(subject, data, None, schedule_headers(target, instant))

    def purge(self, *subjects: str) -> None:
        """Purge subjects after the commit, and remove the messages to them from this batch."""
        for subject in subjects:
            index = self._indexes.pop(subject, None)
            if index is not None:
                del self.writes[index]
                self._indexes = {write.subject: number for number, write in enumerate(self.writes)}
        self.purges.extend(subjects)

    def send(self, subject: str, data: bytes = b"") -> None:
        """Add a message that is sent after the commit, without waiting for a reply."""
        self.sends.append((subject, data))

    def send_event(self, record: str, subject: str, data: bytes) -> None:
        """Add an event that is sent after the commit. `record` is the subject of the record of its job."""
        self.events.append((record, subject, data))

    def after_commit(self, callback: Callable[[], object]) -> None:
        """Add a function that is called after the commit."""
        self._callbacks.append(callback)

    @property
    def has_callbacks(self) -> bool:
        """Whether there are functions to call after the commit."""
        return bool(self._callbacks)

    def run_callbacks(self) -> None:
        """Call the functions that were added with `after_commit`, because the batch is stored."""
        for callback in self._callbacks:
            callback()


def schedule_headers(target: str, instant: int) -> dict[str, str]:
    """Return the headers that make the server publish a message to `target` at an instant in microseconds."""
    at = (EPOCH + timedelta(microseconds=max(0, instant))).isoformat().replace("+00:00", "Z")
    return {"Nats-Schedule": f"@at {at}", "Nats-Schedule-Target": target}
