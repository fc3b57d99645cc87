"""Two releases of an application whose schedules differ: the environment says which one this is."""

import os
from datetime import UTC, datetime

from tests.processes.apps.crashing import PatientMainspring
from tests.processes.apps.scheduled import ALL, serve

app = PatientMainspring("sqlite:///jobs.db", threads=4)

START = datetime(2024, 1, 1, tzinfo=UTC)  # a whole number of all intervals after 1970
INTERVALS = {"old": {"often": 200_000, "seldom": 1_000_000}, "new": {"often": 300_000, "seldom": 2_000_000}}
"""Of each schedule in each release, in microseconds: occurrences are whole numbers of them after 1970."""
SELDOM = {"old": "* * * * * *", "new": "*/2 * * * * *"}

release = os.environ.get("RELEASE", "old")


@app.every(INTERVALS[release]["often"] / 1_000_000, name="often", start=START, misfire=ALL, overlap="allow")
def often() -> None:
    """Run a few times a second."""
    serve("often")


@app.cron(SELDOM[release], name="seldom", misfire=ALL, overlap="allow")
def seldom() -> None:
    """Run every second, or every other."""
    serve("seldom")
