"""A web-like process that submits, asks and submits in bulk until its stdin is closed."""

import sys
from threading import Event, Thread

from tests.processes.apps.jobs import app, work
from tests.processes.run_log import say


def submit_until(is_over: Event) -> None:
    """Submit jobs and say their ids; whatever goes wrong ends up on stderr."""
    number = 0
    while not is_over.is_set():
        number += 1
        handle = work.submit(number)
        ids = [handle.id]
        if number % 10 == 0:
            handle.status()
            ids += work.submit_many([(number,)] * 10)
            app.counts()
        say("\n".join(f"submitted {job_id}" for job_id in ids))


if __name__ == "__main__":
    is_over = Event()

    def wait_for_the_end() -> None:
        """Wait until the test lets go."""
        sys.stdin.read()
        is_over.set()

    Thread(target=wait_for_the_end, daemon=True).start()
    submit_until(is_over)
    app.close()
