"""A worker that says when its start and stop functions and its handlers run."""

import os

from mainspring import Mainspring
from tests.processes.run_log import say

app = Mainspring("sqlite:///jobs.db", grace=60)


@app.on_worker_start
def connect() -> None:
    say(f"connect in {os.getpid()}")


@app.on_worker_stop
def disconnect() -> None:
    say(f"disconnect in {os.getpid()}")


@app.job(execution="process")
def work(number: int) -> None:
    say(f"work {number} in {os.getpid()}")


if __name__ == "__main__":
    app.run()
