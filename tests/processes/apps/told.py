"""A worker that learns of jobs only by being woken, and of deaths only by locks: it does not look by itself."""

import logging

from mainspring.engines.sqlite import rescue, worker_files
from tests.processes.apps.jobs import app

HOUR = 3_600

if __name__ == "__main__":
    logging.basicConfig(format="%(levelname)s %(message)s")
    worker_files.POLL_SECONDS = HOUR
    rescue.STALE_NS = HOUR * 1_000_000_000
    app.run()
