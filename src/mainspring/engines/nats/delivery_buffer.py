"""The delivery buffer: keeps the messages that were delivered to this process until a worker claims their jobs.

While a worker has free slots, each of its lanes has an idle pull: the server delivers the next message at once,
which wakes the worker. The worker then fetches as many messages as it has free slots. If no worker of this process
takes the message of a job within `KEEP_SECONDS`, it goes back to the server, so that an idle worker elsewhere gets
it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from threading import Lock

from mainspring.engines.nats.deliveries import IN_PROGRESS, Delivery, FetchRequest, nak
from mainspring.engines.nats.jetstream import JetStream
from mainspring.engines.nats.job_records import StoredJob
from mainspring.engines.nats.subject_names import SubjectNames
from mainspring.jobs.timestamps import MICROSECONDS

KEEP_SECONDS = 0.25
"""The message of a job that no worker of this process takes within this time goes back to the server."""
PAUSE_SECONDS = 0.25


class DeliveryBuffer:
    """Messages from the server that wait for a worker of this process: of jobs, and apart from these, reminders.

    A reminder asks any worker to do something at a given time, such as to expire a job.
    """

    def __init__(
        self,
        jetstream: JetStream,
        names: SubjectNames,
        wake: Callable[[], None],
        on_consumer_lost: Callable[[], None],
    ) -> None:
        self._jetstream = jetstream
        self._names = names
        self._wake = wake
        self._lock = Lock()
        self._jobs: dict[str, Delivery] = {}  # by subject: a newer delivery replaces an older one
        self._dues: dict[str, int] = {}  # due times of jobs for which no worker had a free slot
        self._reminders: list[Delivery] = []
        self._idle_consumers: tuple[str, ...] = ()
        self._on_consumer_lost = on_consumer_lost
        jetstream.pulls.on_delivery = self._receive
        jetstream.pulls.on_end = self._note_end

    # -- on the loop

    def _note_end(self, *, is_expired: bool) -> None:
        """Renew an idle pull that has expired.

        If it ended otherwise, its consumer or the leader may be gone: look up the consumers again later.
        """
        if is_expired:
            self._jetstream.pulls.start_idle(self._idle_consumers)
        else:
            asyncio.get_running_loop().call_later(PAUSE_SECONDS, self._look_up_consumers_again)

    def _look_up_consumers_again(self) -> None:
        self._on_consumer_lost()
        self._wake()

    def _receive(self, delivery: Delivery) -> None:
        with self._lock:
            if delivery.subject.startswith(self._names.reminders):
                self._reminders.append(delivery)
            else:
                self._keep(delivery)
        self._start_return_timer()
        self._wake()

    def _start_return_timer(self) -> None:
        asyncio.get_running_loop().call_later(KEEP_SECONDS, self._return_late)

    def _return_late(self) -> None:
        """Return jobs to the server that no worker of this process has taken in time."""
        limit = asyncio.get_running_loop().time() - KEEP_SECONDS
        with self._lock:
            late = [delivery for delivery in self._jobs.values() if delivery.received <= limit]
            now = self._jetstream.now()
            replies = []
            for delivery in late:
                del self._jobs[delivery.subject]
                wait = self._dues.pop(delivery.subject, now) - now
                delay = max(0, wait) / MICROSECONDS / 2  # the server delivers the job again before it is due
                replies.append((delivery.reply, nak(delay)))
        self._jetstream.send(replies)

    def _keep(self, delivery: Delivery) -> None:
        """Keep the newest delivery of a job: it replaces an older one, whose message the server has deleted."""
        other = self._jobs.get(delivery.subject)
        if other is None or other.revision <= delivery.revision:
            self._jobs[delivery.subject] = delivery

    # -- on any thread

    def start_idle_pulls(self, consumers: Iterable[str]) -> None:
        """Start an idle pull on each of these consumers that has none. From now on, only these are renewed."""
        chosen = tuple(consumers)
        self._idle_consumers = chosen
        if chosen:
            self._jetstream.call_soon(lambda: self._jetstream.pulls.start_idle(chosen))

    @property
    def idle_consumers(self) -> tuple[str, ...]:
        """The consumers whose idle pulls are renewed."""
        return self._idle_consumers

    def restart_idle_pulls(self) -> None:
        """Start the idle pulls again after a reconnection, because the server has forgotten them."""
        self.start_idle_pulls(self._idle_consumers)

    def take_jobs(self, lanes: Iterable[str], until: int | None) -> list[Delivery]:
        """Remove and return the messages of these lanes (queue, type and priority), given as prefixes of subjects.

        Jobs that are known to be due later than `until` stay in the buffer: the worker has no slot for them.
        """
        prefixes = tuple(lanes)
        with self._lock:
            found = [
                delivery
                for delivery in self._jobs.values()
                if delivery.subject.startswith(prefixes)
                and (until is None or self._dues.get(delivery.subject, until) <= until)
            ]
            for delivery in found:
                del self._jobs[delivery.subject]
                self._dues.pop(delivery.subject, None)
            return found

    def put_back(self, deliveries: Iterable[tuple[Delivery, StoredJob | None]]) -> None:
        """Keep deliveries for a worker with free slots; if none takes them in time, they go back to the server.

        Each delivery comes with its job, whose due time `take_jobs` compares; None if the job is unknown.
        """
        with self._lock:
            kept = list(deliveries)
            for delivery, job in kept:
                self._keep(delivery)
                if job is not None:
                    self._dues[delivery.subject] = job.due
        if kept:
            self._jetstream.call_soon(self._start_return_timer)

    def take_reminders(self) -> list[Delivery]:
        """Remove and return the delivered reminders: messages for any worker, such as that a job expires now."""
        with self._lock:
            found, self._reminders = self._reminders, []
            return found

    def fetch(self, requests: list[FetchRequest]) -> list[Delivery]:
        """Fetch and return deliveries that these consumers have right now, at most `FetchRequest.most` of each.

        Consumers that were just found to have none are not asked (`PullRequests.is_drained`). So the caller must
        start an idle pull on each of the consumers.
        """
        wanted = [request for request in requests if not self._jetstream.pulls.is_drained(request.consumer)]
        return self._jetstream.fetch(wanted) if wanted else []

    def progress_replies(self) -> list[tuple[str, bytes]]:
        """Return the messages that tell the server that buffered deliveries are still in progress."""
        with self._lock:
            return [(delivery.reply, IN_PROGRESS) for delivery in (*self._jobs.values(), *self._reminders)]

    def return_all(self) -> None:
        """Return all deliveries to the server, and renew no idle pulls."""
        with self._lock:
            replies = [delivery.reply for delivery in (*self._jobs.values(), *self._reminders)]
            self._jobs.clear()
            self._dues.clear()
            self._reminders.clear()
        self._idle_consumers = ()
        self._jetstream.send([(reply, nak(0)) for reply in replies])
