"""A process that submits refreshes of all keys, once, and again and again as soon as it is told to."""

import sys
from threading import Event, Thread

from tests.processes.apps.policies import app, refresh
from tests.processes.run_log import say

PAUSE = 0.01  # seconds, in which the workers come to work, too


def submit(keys: int) -> None:
    """Submit one refresh of each key, and say the id of each."""
    for number in range(keys):
        say(f"submitted key{number} {refresh.submit(f'key{number}').id}")


def submit_until_let_go(keys: int) -> None:
    """Go on until the test closes our stdin."""
    is_over = Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        is_over.set()

    Thread(target=wait_for_the_end, daemon=True).start()
    while not is_over.wait(PAUSE):
        submit(keys)


if __name__ == "__main__":
    keys = int(sys.argv[1])
    app.counts()  # opened before it counts
    say("ready")
    sys.stdin.readline()
    submit(keys)
    say("once")
    sys.stdin.readline()
    submit_until_let_go(keys)
    app.close()
