"""A worker that takes others for dead after a second of silence, so that a test need not wait for 45."""

import logging

from mainspring.engines.sqlite import rescue
from tests.processes.apps.jobs import app

if __name__ == "__main__":
    logging.basicConfig(format="%(levelname)s %(message)s")
    rescue.STALE_NS = 1_000_000_000
    app.run()
