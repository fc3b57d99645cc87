"""The heartbeat: a thread that tells the server, some times in each lease, that we live and what we still have."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Event, Thread

from mainspring.errors import EngineUnavailable

BEATS_PER_LEASE = 4

logger = logging.getLogger("mainspring.nats")


class Heartbeat:
    """Calls back regularly until it is closed."""

    def __init__(self, lease: float, beat: Callable[[], None]) -> None:
        self._seconds = lease / BEATS_PER_LEASE
        self._beat = beat
        self._is_over = Event()
        self._thread: Thread | None = None

    def start(self) -> None:
        """Begin, if it does not beat already."""
        if self._thread is None:
            self._is_over.clear()
            self._thread = Thread(target=self._run, name="mainspring-heartbeat", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while not self._is_over.wait(self._seconds):
            try:
                self._beat()
            except EngineUnavailable as error:
                logger.warning("no sign of life could be given: %s", error)
            except Exception:  # it must go on
                logger.exception("the heartbeat stumbled")

    def stop(self) -> None:
        """Beat no more; a last beat may be on its way."""
        self._is_over.set()

    def join(self) -> None:
        """Wait for the end of the last beat, which ends with the link at the latest."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
