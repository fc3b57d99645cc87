"""A worker that is killed again and again, through no fault of its jobs: they are never quarantined."""

import logging
import sys

from mainspring import Mainspring
from mainspring.clock import Clock
from mainspring.engines.sqlite import SqliteEngine
from mainspring.jobs.engine import Engine
from tests.processes.run_log import recorded, say, work_for


class PatientMainspring(Mainspring):
    """An application whose engine puts every crash down to bad luck."""

    def make_engine(self, clock: Clock, *, read_only: bool = False) -> Engine:
        return SqliteEngine(self.url.removeprefix("sqlite:///"), clock=clock, max_crashes=1_000_000)


app = PatientMainspring("sqlite:///jobs.db")


@app.job
def work(number: int) -> None:
    """Take some milliseconds, so that a kill finds jobs in flight."""
    with recorded(number):
        work_for(0.002 + number % 7 / 1_000)


def submit_for_ever() -> None:
    """Submit jobs, some of them for later, and say the id of each when its submit has returned."""
    number = 0
    while True:
        number += 1
        say(f"submitted {work.after(number % 3 * 0.05).submit(number).id}")
        work_for(0.002)  # no faster than the workers, which also have to catch up after each kill


if __name__ == "__main__":
    logging.basicConfig(format="%(levelname)s %(message)s")
    if sys.argv[1] == "work":
        app.run()
    else:
        submit_for_ever()
