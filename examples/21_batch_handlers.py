"""One call for all jobs that are due together: one insert of a hundred rows, and each row has its own fate."""

import logging
from contextlib import chdir
from tempfile import TemporaryDirectory

from mainspring import JobStatus, Mainspring, Retry, current_batch

logging.getLogger("mainspring").setLevel(logging.CRITICAL)  # the failure below is on purpose

app = Mainspring("sqlite:///search.db")
calls: list[int] = []


@app.job(batch=100, retry=Retry(max_attempts=1))
def index(documents: list[str]) -> list[int | ValueError]:  # each job carries one of them
    calls.append(len(documents))
    assert len(current_batch()) == len(documents)  # id, attempt, progress of each, in this order
    return [len(text) if text else ValueError("an empty document") for text in documents]


with TemporaryDirectory() as folder, chdir(folder), app:
    ids = index.submit_many([(f"document {number}",) for number in range(1_000)])
    one, empty = index.submit("a single one"), index.submit("")
    with app.running():
        app.queue("default").drain(timeout=10)

    print(f"{len(ids) + 2:,} jobs in {len(calls)} calls, the largest with {max(calls)}")
    assert sum(calls) == 1_002
    assert max(calls) <= 100
    assert one.result() == len("a single one")
    assert app.counts()[JobStatus.COMPLETED] == 1_001
    print(f"the empty one alone has failed: {str(empty.info().error).splitlines()[0]}")
    assert empty.status() is JobStatus.FAILED
