"""The application of most scenarios: jobs in the working directory, handlers that keep the run log."""

import asyncio
import os
import signal

from mainspring import Mainspring, current_job
from tests.processes.run_log import note, recorded, say, work_for

app = Mainspring("sqlite:///jobs.db", grace=float(os.environ.get("GRACE", "10")))


@app.job
def work(number: int, seconds: float = 0.0) -> int:
    """Take a while."""
    with recorded(number):
        work_for(seconds)
    return number


@app.job(at_most_once=True)
def charge(number: int, seconds: float = 0.0) -> int:
    """Take a while, and never start a second time."""
    with recorded(number, aloud=True):
        work_for(seconds)
    return number


@app.job
def speak(number: int, seconds: float = 0.0) -> int:
    """Take a while, and say so on stdout."""
    with recorded(number, aloud=True):
        work_for(seconds)
    return number


@app.job
async def wait(number: int) -> None:
    """Wait for ever, as a coroutine."""
    note("start", number, aloud=True)
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        note("cancelled", number, aloud=True)
        raise


@app.job
def attempt_until(token: int) -> None:
    """Hang until this is the run with that fencing token."""
    job = current_job()
    say(f"attempt {job.attempt} with token {job.fencing_token}")
    if job.fencing_token < token:
        work_for(1_000)


@app.job
def return_token(seconds: float) -> int:
    """Say and return under which fencing token it ran."""
    token = current_job().fencing_token
    say(f"begins with token {token}")
    work_for(seconds)
    return token


@app.job
def die(number: int) -> None:
    """Kill the worker that runs it."""
    with recorded(number):
        os.kill(os.getpid(), signal.SIGKILL)
