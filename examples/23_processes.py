"""A process of its own for a handler: killed at its timeout, killed by a cancel, and a crash is its own alone."""

import logging
import os
from contextlib import chdir
from tempfile import TemporaryDirectory
from threading import Event

from mainspring import EventKind, JobStatus, Mainspring, Retry, current_job

app = Mainspring("sqlite:///films.db", processes=2)


@app.job(execution="process")
def count_primes(below: int) -> int:  # uses a core of its own; the worker and its threads go on
    return sum(all(n % k for k in range(2, int(n**0.5) + 1)) for n in range(2, below))


@app.job(execution="process", timeout=0.2, retry=Retry(max_attempts=1))
def stuck() -> None:
    while True:  # it is never asked to stop: it is killed
        pass


@app.job(execution="process")
def fragile() -> str:
    if current_job().attempt == 1:
        os._exit(3)  # as a fault in a C extension would
    return "well, the second time"


@app.job(execution="process")
def endless() -> None:
    current_job().progress(1, note="under way")
    Event().wait()


# Processes are spawned and import this file again: what must run once belongs below.
if __name__ == "__main__":
    logging.getLogger("mainspring").setLevel(logging.CRITICAL)  # what fails below fails on purpose
    with TemporaryDirectory() as folder, chdir(folder), app, app.running():
        late, again = stuck.submit(), fragile.submit()  # side by side: there are two processes
        late.wait(timeout=20)
        print(f"stuck: {late.status()}, {str(late.info().error).splitlines()[0]}")
        assert late.info().timeouts == 1
        print(f"fragile: {again.result(timeout=20)}; crashes: {again.info().crashes}")
        print(f"  {again.info().history[0].error}")  # charged to this job alone; the third is its last
        print(f"primes: {count_primes.submit(20_000).result(timeout=20)}")

        events = app.events(timeout=20)
        long = endless.submit()
        next(event for event in events if event.kind is EventKind.PROGRESS)
        long.cancel()
        assert long.wait(timeout=20) is JobStatus.CANCELED
        print(f"endless: {long.info().error}")
