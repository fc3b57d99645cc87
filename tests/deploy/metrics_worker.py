"""An application whose worker has jobs of every state and outcome, for `mainspring run`."""

from __future__ import annotations

from datetime import timedelta

from mainspring import Mainspring, Retry

app = Mainspring(threads=4)


@app.job(queue="mail")
def send(number: int) -> int:
    return number


@app.job(queue="mail", retry=Retry(max_attempts=2, base=0.01, jitter=0))
def fail() -> None:
    raise ConnectionError("the provider is down")


@app.job(queue="paused")
def wait() -> None:
    pass


@app.every(timedelta(milliseconds=200))
def feed() -> None:
    """Keep all rates above zero."""
    send.submit(1)
    send.after(0.01).submit(2)
    fail.submit()


@app.on_worker_start
def prepare() -> None:
    """Pause a queue with a job, and submit a job for later."""
    app.queue("paused").pause()
    wait.submit()
    send.after(3600).submit(3)
