"""A draft: what is to change on the server as one, each part only if it is still as its author has seen it.

The server takes the messages of a draft all or none (an atomic batch), so a job's record, its place in a line and
its message in the queue never contradict each other, whoever dies when.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

from msgspec import Struct

MOST_PUTS = 1_000
"""What the server takes as one."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Entry(Struct, frozen=True, gc=False):
    """What a subject holds; revision 0: nothing."""

    revision: int
    data: bytes


NOTHING = Entry(0, b"")


class Put(Struct, frozen=True, gc=False):
    """A message to be stored."""

    subject: str
    data: bytes
    expected: int | None = None
    """The revision that must be there, 0 for none; None: whatever is there is replaced."""
    headers: Mapping[str, str] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether it stands for nothing: a schedule has no data either, but does something."""
        return not self.data and "Nats-Schedule" not in (self.headers or ())


class Draft:
    """Messages to be stored as one, and what to do once they are."""

    def __init__(self) -> None:
        self.puts: list[Put] = []
        self._places: dict[str, int] = {}
        self._afterwards: list[Callable[[], object]] = []
        self.purges: list[str] = []
        """Subjects that are of no more use: emptied afterwards, and no harm is done if not."""
        self.sends: list[tuple[str, bytes]] = []
        """Messages that nobody answers: acknowledgements and news."""

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
        """Add a message; return its place in the draft. A second one to the same subject replaces the first."""
        place = self._places.setdefault(subject, len(self.puts))
        if place == len(self.puts):
            self.puts.append(Put(subject, data, expected, headers))
        else:
            self.puts[place] = Put(subject, data, expected, headers)
        return place

    def schedule(self, subject: str, target: str, instant: int, data: bytes = b"") -> None:
        """Let the server publish something at an instant in microseconds."""
        self.put(subject, data, None, schedule_headers(target, instant))

    def purge(self, *subjects: str) -> None:
        """Empty subjects afterwards, of what they hold now; what was to be put there is not."""
        for subject in subjects:
            place = self._places.pop(subject, None)
            if place is not None:
                del self.puts[place]
                self._places = {put.subject: number for number, put in enumerate(self.puts)}
        self.purges.extend(subjects)

    def send(self, subject: str, data: bytes = b"") -> None:
        """Send a message afterwards."""
        self.sends.append((subject, data))

    def then(self, act: Callable[[], object]) -> None:
        """Do something once the draft is stored."""
        self._afterwards.append(act)

    @property
    def has_more(self) -> bool:
        """Whether there is something to do afterwards."""
        return bool(self._afterwards)

    def settle(self) -> None:
        """It was stored: do what was to be done then."""
        for act in self._afterwards:
            act()


def schedule_headers(target: str, instant: int) -> dict[str, str]:
    """Return the headers of a message that the server is to publish at an instant in microseconds."""
    at = (EPOCH + timedelta(microseconds=max(0, instant))).isoformat().replace("+00:00", "Z")
    return {"Nats-Schedule": f"@at {at}", "Nats-Schedule-Target": target}
