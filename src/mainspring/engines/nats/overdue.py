"""Finds scheduled messages that the server has not published in time, and stores them again.

While its storage limit is reached, server 2.15.1 takes a scheduled message that is due, cannot store its copy, and
keeps the message. The message then counts as being published until it is replaced or the server restarts, however
much storage is free again. Most of these messages deliver delayed jobs and retries; others are reminders.

Invariants
- Only a message whose time has passed by `OVERDUE` is stored again, and only if no process has replaced or removed
  it since it was read. So a job gets no second message because of this, unless the server publishes very late.
  Then a worker drops the second one, like every message of a job that does not wait.
- A pass reads all scheduled messages, page by page. The worker with the lowest number begins one every
  `PASS_SECONDS`, a page in each sweep. A worker whose process knows that a server has refused to store something
  hurries: it begins a pass when the server stores messages again, with many pages in each sweep.
"""

from __future__ import annotations

import logging

from mainspring.engines.nats.jetstream import JetStream, ScheduledMessage
from mainspring.engines.nats.subject_names import SubjectNames
from mainspring.engines.nats.write_batch import Write, schedule_headers
from mainspring.jobs.timestamps import MICROSECONDS
from mainspring.plurals import format_count

OVERDUE = 5 * MICROSECONDS
"""A scheduled message that the server has not published for so long after its time is stored again."""
PAGE = 500
PASS_SECONDS = 60
HURRY_SECONDS = 0.25
"""How long one sweep reads pages if it hurries; it always reads one."""

logger = logging.getLogger("mainspring.nats")


def is_overdue(instant: int, now: int) -> bool:
    """Return whether the server should have published long ago what was due at an instant."""
    return instant <= now - OVERDUE


class OverdueMessages:
    """Stores scheduled messages again that the server should have published. One thread at a time uses it."""

    def __init__(self, jetstream: JetStream, names: SubjectNames) -> None:
        self._jetstream = jetstream
        self._names = names
        self._position: int | None = None  # the revision up to which the present pass has read; None without one
        self._next_pass = 0
        self._is_hurrying = False
        self._stored_again = 0  # in all passes
        self._reported = 0  # how many of these the log has reported
        self.must_hurry = True
        """Whether a server may have refused to store messages since the last hurried pass began."""
        jetstream.storage.on_change = self._announce

    def _announce(self) -> None:
        """Let the workers of all processes hurry, because the server stores nothing, or stores messages again."""
        self.must_hurry = True
        self._jetstream.send([(f"{self._names.notifications}storage", b"")])

    def repair(self, *, is_first: bool) -> int:
        """Continue the present pass, or begin the next one if it is time; return how many were stored again.

        `is_first`: whether the worker that calls has the lowest number of all workers.
        """
        if self._jetstream.storage.problem is not None:
            self.must_hurry = True  # nothing can be stored now
            return 0
        if self.must_hurry:
            self._position, self._is_hurrying, self.must_hurry = 0, True, False
        elif self._position is None and is_first and self._jetstream.monotonic() >= self._next_pass:
            self._position, self._is_hurrying = 0, False
        if self._position is None:
            return 0
        before = self._stored_again
        end = self._jetstream.monotonic() + HURRY_SECONDS * MICROSECONDS
        while self._read_page() and self._is_hurrying and self._jetstream.monotonic() < end:
            pass
        return self._stored_again - before

    def _read_page(self) -> bool:
        """Read the next page, and store its overdue messages again; return whether there are more pages."""
        assert self._position is not None
        page = self._jetstream.scan_scheduled(self._names.all_scheduled, after=self._position, most=PAGE)
        now = self._jetstream.now()
        self._store_again([each for each in page if each.instant is not None and is_overdue(each.instant, now)])
        if len(page) == PAGE:
            self._position = page[-1].revision
            return True
        self._end_pass()
        return False

    def _store_again(self, overdue: list[ScheduledMessage]) -> None:
        writes = [
            Write(each.subject, each.data, each.revision, schedule_headers(each.target, each.instant or 0))
            for each in overdue
        ]
        if writes:
            revisions = self._jetstream.store_each(writes)
            self._stored_again += len(revisions) - revisions.count(None)

    def _end_pass(self) -> None:
        self._position = None
        self._next_pass = self._jetstream.monotonic() + PASS_SECONDS * MICROSECONDS
        number, self._reported = self._stored_again - self._reported, self._stored_again
        if number:
            logger.warning(
                "%s: %s overdue, because the server did not publish it in time, for example while its storage was "
                "full; jobs that waited for this start now",
                self._jetstream.address,
                format_count(number, "scheduled message was", "scheduled messages were"),
            )


def find_overdue(jetstream: JetStream, names: SubjectNames, most: int) -> list[int]:
    """Return the times of the overdue ones among the first `most` scheduled messages."""
    page = jetstream.scan_scheduled(names.all_scheduled, after=0, most=most)
    now = jetstream.now()
    return [each.instant for each in page if each.instant is not None and is_overdue(each.instant, now)]
