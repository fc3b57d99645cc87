"""A schedule on NATS, and jobs that say how late they are: their argument is when they are due."""

import os

from mainspring import Mainspring, current_job
from tests.nats.apps.mixed import URL
from tests.processes.apps.scheduled import ALL, EPOCH
from tests.processes.run_log import note, recorded

app = Mainspring(os.environ.get(URL, "memory://"), threads=8)


@app.cron("* * * * * *", name="second", misfire=ALL, overlap="allow")
def second() -> None:
    """Run every second."""
    with recorded(f"second/{(current_job().due - EPOCH).total_seconds():.0f}", aloud=True):
        pass


@app.job
def punctual(argument: str) -> None:
    """Write down that it started."""
    note("start", argument)
    note("end", argument)
