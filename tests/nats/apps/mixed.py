"""Jobs of many kinds on NATS: plain, retried, in sequences, under limits, unique; they keep the run log.

The address comes from the environment, so that each worker may have a way to the servers that can be cut.
"""

import os
import signal

from mainspring import Concurrency, Mainspring, Retry, Unique, current_job
from tests.processes.run_log import note, recorded, work_for

URL = "MAINSPRING_URL"
ATTEMPTS = 3  # of a job that is doomed
ADMITTED = 2  # calls of a tenant at once
AT_ONCE = Retry(max_attempts=10, base=0.05, factor=1, jitter=0)

app = Mainspring(os.environ.get(URL, "memory://"), threads=4)


@app.job
def plain(argument: str, seconds: float) -> None:
    """Take a while."""
    with recorded(argument, aloud=True):
        work_for(seconds)


@app.job(at_most_once=True)
def single(argument: str, seconds: float) -> None:
    """Take a while, and never start a second time."""
    with recorded(argument, aloud=True):
        work_for(seconds)


@app.job(retry=AT_ONCE)
def flawed(argument: str, seconds: float) -> None:
    """Fail at the first attempt."""
    note("start", argument, aloud=True)
    work_for(seconds)
    if current_job().attempt == 1:
        note("fail", argument, aloud=True)
        raise RuntimeError(f"{argument} fails once")
    note("end", argument, aloud=True)


@app.job
def step(argument: str, seconds: float) -> None:
    """Take a step of the sequence that it is submitted in."""
    with recorded(argument, aloud=True):
        work_for(seconds)


@app.job(concurrency=Concurrency(ADMITTED, by="tenant"))
def call(argument: str, seconds: float, tenant: str) -> None:
    """Count for its tenant."""
    with recorded(argument, aloud=True):
        work_for(seconds)


@app.job(unique=Unique(by="key"))
def refresh(argument: str, seconds: float, key: str) -> None:
    """Be alive once for each key."""
    with recorded(argument, aloud=True):
        work_for(seconds)


@app.job(retry=Retry(max_attempts=ATTEMPTS, base=0.2, factor=1, jitter=0))
def doomed(argument: str) -> None:
    """Fail every time."""
    with recorded(argument, aloud=True):
        raise RuntimeError(f"{argument} always fails")


@app.job
def deadly(argument: str) -> None:
    """Kill the worker that runs it."""
    with recorded(argument, aloud=True):
        os.kill(os.getpid(), signal.SIGKILL)
