"""Handlers under limits: by tenant, for a handler, for a queue, and in a time.

Mails and scans wait until the file `GATE` exists. So a test can see how many run at once, however slow the machine
is, and then let all of them end.
"""

from pathlib import Path

from mainspring import Concurrency, Rate
from mainspring.testing.polling import eventually
from tests.processes.apps.crashing import PatientMainspring
from tests.processes.run_log import recorded, work_for

app = PatientMainspring("sqlite:///jobs.db", threads=4)

MAILS_OF_A_TENANT = 2
MAILS = 5
SCANS = 3
CALLS = 20  # in a second, and of a tenant

GATE = "gate"  # in the working directory

app.queue("mail", concurrency=Concurrency(MAILS))


def wait_for_gate() -> None:
    eventually(Path(GATE).exists)


@app.job(queue="mail", concurrency=Concurrency(MAILS_OF_A_TENANT, by="tenant"))
def mail(tenant: str, number: int) -> None:
    """Count for its tenant and for its queue."""
    with recorded(f"mail-{tenant}/{number}", aloud=True):
        wait_for_gate()
        work_for(0.02)


@app.job(concurrency=Concurrency(SCANS))
def scan(number: int) -> None:
    """Count for all of its kind."""
    with recorded(f"scan/{number}", aloud=True):
        wait_for_gate()
        work_for(0.02)


@app.job(rate=Rate(CALLS, per=1, by="tenant"))
def call(tenant: str, number: int) -> None:
    """Use up a token of its tenant."""
    with recorded(f"call-{tenant}/{number}", aloud=True):
        pass


@app.job(concurrency=Concurrency(100, by="tenant"))
def visit(tenant: str, number: int) -> None:
    """Take turns with those of other tenants: the limit itself is out of reach."""
    with recorded(f"visit-{tenant}/{number}", aloud=True):
        work_for(0.005)
