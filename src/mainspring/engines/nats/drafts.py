"""The writes of a transaction (a draft): messages that the server stores all or none, as an atomic batch.

A message may require that its subject still has the revision that its author has read. A job's record, its place
in a line and its message in the queue never contradict each other, whichever process dies at whatever moment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

from msgspec import Struct

MOST_PUTS = 1_000
"""The largest batch that the server takes."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class StreamEntry(Struct, frozen=True, gc=False):
    """The message of a subject; revision 0: there is none."""

    revision: int
    data: bytes


NOTHING = StreamEntry(0, b"")


class Put(Struct, frozen=True, gc=False):
    """A message to be stored."""

    subject: str
    data: bytes
    expected: int | None = None
    """The revision that the subject must have, 0 for none; None: any message is replaced."""
    headers: Mapping[str, str] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether it clears its subject. A schedule has no data either, but is not empty."""
        return not self.data and "Nats-Schedule" not in (self.headers or ())


class Draft:
    """Messages to be stored as one batch, and actions for after the commit."""

    def __init__(self) -> None:
        self.puts: list[Put] = []
        self._places: dict[str, int] = {}
        self._afterwards: list[Callable[[], object]] = []
        self.purges: list[str] = []
        """Subjects that are emptied after the commit; a lost purge does no harm."""
        self.sends: list[tuple[str, bytes]] = []
        """Messages that are sent after the commit and not answered: acknowledgements and notes."""

    def __contains__(self, subject: str) -> bool:
        return subject in self._places

    def __len__(self) -> int:
        return len(self.puts)

    def put(
        self,
        subject: str,
        data: bytes,
        expected: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> int:
        """Add a message; return its index. A second message to the same subject replaces the first."""
        place = self._places.setdefault(subject, len(self.puts))
        if place == len(self.puts):
            self.puts.append(Put(subject, data, expected, headers))
        else:
            self.puts[place] = Put(subject, data, expected, headers)
        return place

    def schedule(self, subject: str, target: str, instant: int, data: bytes = b"") -> None:
        """Make the server publish a message to `target` at an instant in microseconds."""
        self.put(subject, data, None, schedule_headers(target, instant))

    def purge(self, *subjects: str) -> None:
        """Delete what subjects hold now, after the commit; drop messages to them from the draft."""
        for subject in subjects:
            place = self._places.pop(subject, None)
            if place is not None:
                del self.puts[place]
                self._places = {put.subject: number for number, put in enumerate(self.puts)}
        self.purges.extend(subjects)

    def send(self, subject: str, data: bytes = b"") -> None:
        """Send a message after the commit."""
        self.sends.append((subject, data))

    def then(self, act: Callable[[], object]) -> None:
        """Call a function after the commit."""
        self._afterwards.append(act)

    @property
    def has_more(self) -> bool:
        """Whether there are functions to call after the commit."""
        return bool(self._afterwards)

    def settle(self) -> None:
        """Call the functions that were added with `then`: the draft is stored."""
        for act in self._afterwards:
            act()


def schedule_headers(target: str, instant: int) -> dict[str, str]:
    """Return the headers that make the server publish a message to `target` at an instant in microseconds."""
    at = (EPOCH + timedelta(microseconds=max(0, instant))).isoformat().replace("+00:00", "Z")
    return {"Nats-Schedule": f"@at {at}", "Nats-Schedule-Target": target}
