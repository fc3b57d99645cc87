"""A worker whose application hears of each dead letter. It is killed again and again."""

import logging
import os
from pathlib import Path

from mainspring import DeadLetter, Mainspring, Retry
from tests.processes.run_log import recorded, say, work_for

app = Mainspring(os.environ.get("MAINSPRING_URL", "sqlite:///jobs.db"), threads=4)
ALERTS = Path("alerts.txt")


@app.on_dead_letter
@app.job(retry=Retry(max_attempts=20, base=0.1, factor=1, jitter=0))
def alert(letter: DeadLetter) -> None:
    """Write the id and the reason of a dead letter to a file."""
    with ALERTS.open("a") as file:
        file.write(f"{letter.id} {letter.reason}\n")


@app.job(retry=Retry(max_attempts=1))
def fail(number: int) -> None:
    """Fail after a while."""
    work_for(0.002)
    say(f"fails {number}")
    raise RuntimeError(f"number {number} fails")


@app.job(at_most_once=True)
def charge(number: int, seconds: float) -> None:
    """Take a while, and never start a second time."""
    with recorded(number, aloud=True):
        work_for(seconds)


if __name__ == "__main__":
    logging.basicConfig(format="%(levelname)s %(message)s")
    app.run()
