"""Handlers under policies: steps of sequences, orders with a follow-up, one refresh of each key."""

from mainspring import Retry, Unique, current_job
from tests.processes.apps.crashing import PatientMainspring
from tests.processes.run_log import note, recorded, work_for

app = PatientMainspring("sqlite:///jobs.db", threads=4)

FAILING = 5  # every so many steps fail once
AT_ONCE = Retry(max_attempts=10, base=0.05, factor=1, jitter=0)


@app.job(retry=AT_ONCE)
def step(key: str, number: int) -> None:
    """Take a step of a sequence; some fail at their first attempt."""
    argument = f"{key}/{number}"
    note("start", argument, aloud=True)
    work_for(0.015)
    if number % FAILING == 0 and current_job().attempt == 1:
        note("fail", argument, aloud=True)
        raise RuntimeError(f"{argument} fails once")
    note("end", argument, aloud=True)


@app.job
def pack(number: int) -> None:
    """Follow an order."""
    with recorded(f"pack/{number}", aloud=True):
        work_for(0.005)


@app.job(then=pack)
def order(number: int) -> int:
    """Complete, and be followed."""
    with recorded(f"order/{number}", aloud=True):
        work_for(0.005)
    return number


@app.job(unique=Unique(by="key"))
def refresh(key: str) -> None:
    """Be alive once for each key."""
    with recorded(f"{key}/", aloud=True):
        work_for(0.02)
