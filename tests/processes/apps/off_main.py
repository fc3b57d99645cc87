"""`app.run()` on a thread that cannot listen for signals."""

from threading import Thread

from tests.processes.apps.jobs import app
from tests.processes.run_log import say


def run() -> None:
    """Say why not."""
    try:
        app.run()
    except RuntimeError as error:
        say(f"RuntimeError: {error}")


if __name__ == "__main__":
    thread = Thread(target=run)
    thread.start()
    thread.join()
