"""Ten thousand jobs in one call, looked at page by page, and a bulk submit that stores all or nothing."""

from collections.abc import Iterator
from contextlib import chdir
from tempfile import TemporaryDirectory

from mainspring import InvalidArguments, JobInfo, JobStatus, Mainspring, SystemClock

LETTERS = 10_000

app = Mainspring("sqlite:///letters.db")
clock = SystemClock()


@app.job(queue="post", keep_result=False)
def send_letter(customer: int, subject: str = "News") -> None:
    pass


def all_jobs(status: JobStatus) -> Iterator[JobInfo]:
    """Go through all pages. A page is a list that knows where the next one begins."""
    page = app.jobs(status=status, queue="post", limit=1_000)
    yield from page
    while page.next is not None:
        page = app.jobs(status=status, queue="post", limit=1_000, after=page.next)
        yield from page


with TemporaryDirectory() as folder, chdir(folder), app:
    begin = clock.monotonic_ns()
    ids = send_letter.after(3600).submit_many({"customer": number} for number in range(LETTERS))
    seconds = (clock.monotonic_ns() - begin) / 1e9
    print(f"{len(ids):,} letters stored in {seconds:.2f} s")

    try:  # everything is checked before the first is stored
        send_letter.submit_many([(1, "Hello"), ("two", "Hello")])
    except InvalidArguments as error:
        print(f"nothing of it was stored: {error}")

    send_letter.submit_many(
        [(1, "First"), (2, "Second")], atomic=True
    )  # tuples of positional arguments; one transaction
    found = [job.arguments["customer"] for job in all_jobs(JobStatus.PENDING)]
    assert found == [*range(LETTERS), 1, 2]  # in the order of their submission
    print(
        f"{len(found):,} jobs found, page by page; counts: {app.counts(queue='post')[JobStatus.PENDING]:,} pending"
    )
