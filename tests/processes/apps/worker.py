"""A worker in the foreground, as a user starts it."""

import logging

from tests.processes.apps.jobs import app

if __name__ == "__main__":
    logging.basicConfig(format="%(levelname)s %(message)s")
    app.run()
