"""Publishing the vital signs of a worker: into its file, and to systemd.

They come from the control sequence, which must not wait for a disk. So a thread writes them; but it writes only
what it was told, so if the control sequence hangs, what is published grows old.
"""

from __future__ import annotations

import logging
from threading import Condition, Thread
from types import TracebackType

from mainspring.foreground.health_files import HealthFile, remove_gone
from mainspring.foreground.health_folder import VARIABLE
from mainspring.foreground.systemd import Systemd
from mainspring.vital_signs import Health

PATIENCE_SECONDS = 2.0  # with a disk that hangs, at the end

logger = logging.getLogger("mainspring.worker")


class Publisher:
    """Publishes what it is told while the block lasts."""

    def __init__(self, file: HealthFile, systemd: Systemd) -> None:
        self._file = file
        self._systemd = systemd
        self._thread = Thread(target=self._publish_all, name="mainspring-health", daemon=True)
        self._changed = Condition()  # guards what follows
        self._news: Health | None = None
        self._is_over = False
        self._has_failed = False

    def __enter__(self) -> Publisher:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify()
        self._thread.join(PATIENCE_SECONDS)

    def tell(self, health: Health) -> None:
        """Publish it soon; what was not published yet is outdated."""
        with self._changed:
            self._news = health
            self._changed.notify()

    def _publish_all(self) -> None:
        self._clean_up()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._news is not None or self._is_over)
                news, self._news = self._news, None
            if news is None:
                self._file.remove()
                return
            self._publish(news)

    def _clean_up(self) -> None:
        try:
            remove_gone(self._file.folder)
        except OSError as error:
            self._complain(error)

    def _publish(self, health: Health) -> None:
        self._systemd.tell(health)
        try:
            self._file.write(health)
        except OSError as error:
            self._complain(error)

    def _complain(self, error: OSError) -> None:
        if not self._has_failed:
            self._has_failed = True
            logger.warning(
                "`mainspring healthcheck` will not find this worker: %s; name a folder to write to with "
                "--health-dir or %s",
                error,
                VARIABLE,
            )
