"""Handlers that wait at gates, and tell how far they have come."""

from mainspring import Mainspring, current_job
from tests.processes.pipe_gates import wait_at
from tests.processes.run_log import recorded, work_for

app = Mainspring("sqlite:///jobs.db", threads=2, processes=1)


@app.job(queue="shop")
def sell(number: int) -> None:
    """Take long enough for a worker to fetch only a few more jobs than it has threads."""
    with recorded(f"sell/{number}", aloud=True):
        work_for(0.03)


@app.job(queue="shop")
def wrap(number: int) -> None:
    """Wait at the gate."""
    with recorded(f"wrap/{number}", aloud=True):
        wait_at("gate")


@app.job
def elsewhere(number: int) -> None:
    """Show that workers are at work, in another queue."""
    with recorded(f"elsewhere/{number}", aloud=True):
        pass


def read(pages: int) -> None:
    """Read some pages, wait at the gate, and read the others."""
    job = current_job()
    with recorded(f"read/{pages}", aloud=True):
        job.progress(3, pages, "before the gate")
        wait_at("gate")
        job.progress(pages, pages, "at the end")


read_in_a_thread = app.job(name="read_in_a_thread")(read)


@app.job(execution="process")
def read_in_a_process(pages: int) -> None:
    """Do the same in a process of its own."""
    read(pages)
