"""A worker with metrics, and with jobs of every state and outcome: metrics_worker.py FOLDER PORT.

It prints a line when it runs, and runs until its input ends.
"""

from __future__ import annotations

import sys
from datetime import timedelta

from prometheus_client import REGISTRY, start_http_server

from mainspring import Mainspring, Retry
from mainspring.monitoring import PrometheusCollector

app = Mainspring(f"sqlite:///{sys.argv[1]}/shop.db", threads=4)


@app.job(queue="mail")
def send(number: int) -> int:
    return number


@app.job(queue="mail", retry=Retry(max_attempts=2, base=0.01))
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


def main(port: int) -> None:
    REGISTRY.register(PrometheusCollector(app, store=True))
    server, thread = start_http_server(port, addr="127.0.0.1")
    app.queue("paused").pause()
    wait.submit()
    send.after(3600).submit(3)
    with app.running():
        print("running", flush=True)  # noqa: T201 - the test waits for this line
        sys.stdin.read()
    server.shutdown()
    thread.join()


if __name__ == "__main__":
    main(int(sys.argv[2]))
