"""Handlers that recur, by a cron and at intervals; each writes down which occurrence it is for."""

from datetime import UTC, datetime, timedelta

from mainspring import CatchUp, current_job
from tests.processes.apps.crashing import PatientMainspring
from tests.processes.run_log import recorded, work_for

app = PatientMainspring("sqlite:///jobs.db", threads=4)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ALL = CatchUp(10_000)


def serve(schedule: str) -> None:
    """Do the work of one occurrence."""
    due = (current_job().due - EPOCH) // timedelta(microseconds=1)
    with recorded(f"{schedule}/{due}", aloud=True):
        work_for(0.005)


@app.cron("* * * * * *", name="second", misfire=ALL, overlap="allow")
def second() -> None:
    """Run every second."""
    serve("second")


@app.every(0.5, name="half", misfire=ALL, overlap="queue")
def half() -> None:
    """Run twice a second, one after another."""
    serve("half")


@app.every(0.05, name="often", misfire=ALL, overlap="allow")
def often() -> None:
    """Run twenty times a second."""
    serve("often")
