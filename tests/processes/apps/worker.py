"""A worker in the foreground, as a user starts it.

`impatient` lets it take others for dead after a second of silence, so that a test need not wait for 45.
`told` lets it learn of jobs only by wake-ups, and of deaths only by locks: it does not look by itself.
"""

import logging
import sys

from mainspring.engines.sqlite import rescue, worker_files
from tests.processes.apps.jobs import app

HOUR = 3_600

if __name__ == "__main__":
    logging.basicConfig(format="%(levelname)s %(message)s")
    if sys.argv[1:] == ["impatient"]:
        rescue.STALE_NS = 1_000_000_000
    elif sys.argv[1:] == ["told"]:
        worker_files.POLL_SECONDS = HOUR
        rescue.STALE_NS = HOUR * 1_000_000_000
    app.run()
