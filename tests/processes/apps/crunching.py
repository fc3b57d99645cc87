"""Handlers that run in processes of their own.

As a program, it has no worker: it reads numbers of steps, computes so many, and says when. So a test can compare a
worker with what the machine itself can do at this moment.
"""

import os
import sys

from mainspring import Retry
from tests.processes.apps.crashing import PatientMainspring
from tests.processes.pipe_gates import meet, wait_at
from tests.processes.run_log import now_ns, recorded, say, work_for

app = PatientMainspring(
    "sqlite:///jobs.db",
    threads=2,
    processes=int(os.environ.get("PROCESSES", "2")),
    grace=float(os.environ.get("GRACE", "10")),
)

SOON = Retry(base=0.05, factor=1, jitter=0)


@app.job(execution="process", retry=SOON)
def hold(number: int) -> int:
    """Wait at the gate, and return in which process."""
    with recorded(f"hold/{number}", aloud=True):
        wait_at("gate")
    return os.getpid()


@app.job(execution="process", retry=SOON)
def come_together(number: int) -> int:
    """Meet the other one, and return in which process."""
    with recorded(f"come_together/{number}", aloud=True):
        meet("meeting", is_first=number == 0)
    return os.getpid()


@app.job(execution="process", retry=SOON)
def compute(number: int, rounds: int) -> int:
    """Keep a processor busy."""
    with recorded(f"compute/{number}", aloud=True):
        return crunch(rounds)


def crunch(rounds: int) -> int:
    """Compute something, in so many steps."""
    return sum(number * number % 7 for number in range(rounds))


@app.job(execution="process", retry=SOON)
def belong(number: int) -> None:
    """Write down to which worker its process belongs."""
    with recorded(f"{number}/{os.getppid()}", aloud=True):
        work_for(0.02)


if __name__ == "__main__":
    say("ready")
    for line in sys.stdin:
        begin = now_ns()
        crunch(int(line))
        say(f"computed {begin} {now_ns()}")
