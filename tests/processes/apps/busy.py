"""A worker whose every thread computes without a pause, and beside them settles that are timed."""

import logging
import sys
import time
from pathlib import Path
from threading import Event, Thread

from mainspring.engines.sqlite import SqliteEngine
from mainspring.jobs.engine import Demand
from mainspring.jobs.io_layer import SETTLE, IoLayer
from mainspring.jobs.records import Outcome, OutcomeKind, WorkerInfo
from mainspring.runners import ThreadPool
from tests.processes.apps.jobs import app
from tests.processes.run_log import recorded, say

BATCH = 200
ROUNDS = 5
ENOUGH = "enough"
computing = Event()


@app.job(queue="busy")
def compute(number: int) -> int:
    """Keep the interpreter busy until there is a file that says so."""
    with recorded(number, aloud=True):
        computing.set()
        count = 0
        while not Path(ENOUGH).exists():
            for _ in range(1_000):
                count += sum(range(100))
    return count


@app.job
def spare(number: int) -> None:
    """Be taken and settled by hand."""


def time_settles() -> None:
    """Settle batches through an io layer, as the worker beside it does, and say how long each took."""
    computing.wait()
    engine = SqliteEngine("jobs.db")
    engine.open(lambda: None)
    with ThreadPool(1, name="timed-io") as pool:
        io = IoLayer(engine, pool)
        worker = engine.enroll(WorkerInfo("timed", 0, (spare.name,)))
        demand = Demand(types=(spare.name,), starts=BATCH, ahead=0)
        for _ in range(ROUNDS):
            spare.submit_many([(number,) for number in range(BATCH)])
            taken = engine.take(worker, [demand], lead=0, start_lead=0)
            outcomes = [Outcome(lease, OutcomeKind.COMPLETED) for lease in taken.leases]
            before = time.perf_counter()  # noqa: TID251 - this is what is measured
            accepted = io.call(SETTLE, outcomes, worker=worker)
            seconds = time.perf_counter() - before  # noqa: TID251 - this is what is measured
            say(f"settled {sum(accepted)} in {seconds * 1_000:.1f} ms")
        engine.leave(worker)
    engine.close()


if __name__ == "__main__":
    logging.basicConfig(format="%(levelname)s %(message)s")
    app.queues = ("busy",)  # all other jobs are for others
    if sys.argv[1:] == ["timed"]:
        Thread(target=time_settles).start()
    app.run()
