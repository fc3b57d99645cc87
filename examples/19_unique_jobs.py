"""At most one job for each key: a double click, a debounce, and a welcome that is sent once a day."""

from datetime import UTC, datetime, timedelta

from mainspring import DuplicateJob, JobStatus, Mainspring, Unique
from mainspring.testing import time_travel

app = Mainspring("memory://")
indexed: list[str] = []


@app.job(unique=Unique(by="order"))  # while one for this order waits or runs, a submit returns that one
def ship(order: int, note: str = "") -> None:
    pass


@app.job(unique=Unique(by="page", on_conflict="replace"))  # the last submit wins, and time starts anew
def index(page: str, text: str) -> None:
    indexed.append(f"{page}: {text}")


@app.job
def welcome(customer: str) -> None:
    pass


with time_travel(app, start=datetime(2026, 1, 5, 12, tzinfo=UTC)) as travel:
    app.queue("default").pause()
    first, second = ship.submit(42), ship.submit(42, note="clicked twice")
    print(f"two clicks, {app.counts(type='ship')[JobStatus.PENDING]} job")
    assert first.id == second.id
    assert ship.submit(43).id != first.id  # another order
    app.queue("default").resume()
    travel.settle()
    assert ship.submit(42).id != first.id  # the first one has completed: it prevents nothing

    for text in ("H", "Hel", "Hello"):  # a user types; index after two seconds without a key
        index.after(2).submit("home", text)
        travel.fast_forward(seconds=1)
    assert indexed == []
    travel.fast_forward(seconds=1)
    print(f"indexed once, with the latest text: {indexed}")
    assert indexed == ["home: Hello"]

    once_a_day = welcome.options(unique=Unique("ann", window=timedelta(days=1), on_conflict="raise"))
    once_a_day.submit("ann")
    travel.fast_forward(hours=23)
    try:
        once_a_day.submit("ann")
    except DuplicateJob as error:
        print(f"refused: {error}")  # error.existing_id has the id
    travel.fast_forward(hours=1)
    once_a_day.submit("ann")  # the day is over
