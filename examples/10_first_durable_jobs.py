"""The first five minutes: jobs that outlive the process, in one SQLite file and without a server."""

from contextlib import chdir
from datetime import timedelta
from tempfile import TemporaryDirectory

from mainspring import JobStatus, Mainspring

app = Mainspring("sqlite:///shop.db")  # opened with the first use


@app.job
def price(item: str, *, pieces: int = 1) -> float:
    return len(item) * 1.5 * pieces


with TemporaryDirectory() as folder, chdir(folder), app:
    assert price("tea", pieces=2) == 9.0  # still a plain function

    now = price.submit("tea", pieces=2)  # stored, fsync and all, when this returns
    later = price.after(timedelta(milliseconds=300)).submit("coffee")
    assert now.status() is JobStatus.PENDING  # no worker runs yet: this may be a web process
    print(f"stored: {now.id} and {later.id}")

    with app.running():  # a worker, here in the same process; or `mainspring run module:app` in another one
        print(f"tea costs {now.result(timeout=10)}")
        print(f"coffee costs {later.result(timeout=10)}")

    assert app.counts()[JobStatus.COMPLETED] == 2
    for job in app.jobs():
        print(f"{job.type} {job.arguments}: {job.status}, {job.result}")
