"""The job manager without the application: three layers, each on a runner of your choice.

control     memory only; registers, decides, answers in microseconds and never waits for the others
io          owns the store; commits everything that has queued up as one transaction
execution   runs the handlers, which may be slow
"""

from contextlib import chdir, closing
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from threading import current_thread

from mainspring import JobStatus, ThreadPool
from mainspring.engines.sqlite import SqliteEngine
from mainspring.jobs import JobManager, JsonSerializer


@dataclass(frozen=True)
class Email:
    """What the handler gets, checked when it is submitted and again before it runs."""

    to: str
    subject: str


def send(email: Email) -> str:
    return f"{email.subject!r} to {email.to}, sent by {current_thread().name}"


with (
    TemporaryDirectory() as folder,
    chdir(folder),
    ThreadPool(workers=2, name="plumbing") as plumbing,
    ThreadPool(workers=4, name="mailers") as mailers,
    closing(SqliteEngine("mail.db")) as engine,
):
    manager = JobManager(
        control=plumbing.sequenced(name="control"),
        io=plumbing.sequenced(name="io"),
        execution=mailers,
        engine=engine,
        serializer=JsonSerializer(),
    )
    manager.register("email", send, queue="mail")

    first = manager.submit("email", (Email("ann@example.com", "Hello"),), id="job-1")
    later = manager.submit_delayed("email", {"email": Email("bob@example.com", "Offer")}, delay=3600)
    assert manager.cancel(later)
    print("before the start:", [(job.id[:8], str(job.status)) for job in manager.list(queue="mail")])

    manager.start()  # rescues what a dead process left behind, then takes what is due
    try:
        assert manager.wait(first, timeout=10) is JobStatus.COMPLETED
        print(manager.get(first).result)
    finally:
        manager.shutdown(grace=5)  # what runs may finish; the rest is handed back, and nothing is lost
