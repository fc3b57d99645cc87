"""A shop in containers: `python shop.py` takes orders, `mainspring run shop:app` sees to them.

Each order is packed in a moment, and called off after ten seconds if it is not paid. Two in three pay.
"""

from __future__ import annotations

import random
import signal
import socket
from datetime import timedelta
from threading import Event

from mainspring import Mainspring, Retry

app = Mainspring(grace=20)  # the store that MAINSPRING_URL names


@app.job(retry=Retry(max_attempts=4, base=1))
def pack(order: int) -> str:
    if random.random() < 0.1:
        raise ConnectionError("the label printer does not answer")
    return f"order {order} packed by {socket.gethostname()}"


@app.job
def call_off(order: int) -> str:
    return f"order {order} was not paid in time"


@app.every(timedelta(seconds=30))
def take_stock() -> dict[str, int]:
    return app.counts()


def sell(stop: Event) -> None:
    """Take an order every second."""
    order = 0
    while not stop.wait(1):
        order += 1
        timer = call_off.after(10).submit(order)
        pack.submit(order)
        is_paid = random.random() < 2 / 3 and timer.cancel()
        print(f"order {order}: {'paid' if is_paid else 'not paid yet'}", flush=True)


if __name__ == "__main__":
    stop = Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        sell(stop)
    except KeyboardInterrupt:
        pass
    finally:
        app.close()
