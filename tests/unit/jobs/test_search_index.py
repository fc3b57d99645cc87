"""`@app.job(search=...)`: jobs are found by an index, however they were made."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from mainspring import JobStatus, Mainspring, Retry, Unique
from mainspring.jobs import search
from mainspring.testing import TimeTravel, time_travel
from tests.unit.jobs.call_log import START

MANY = 40


@pytest.fixture(params=["json", "msgpack"])
def app(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Mainspring:
    """An application whose searches find nothing behind the first jobs, unless they use the index."""
    monkeypatch.setattr(search, "MAX_SCANNED", 5)
    return Mainspring("memory://", serializer=request.param)


def found(app: Mainspring, **arguments: Any) -> list[str]:
    page = app.jobs(arguments=arguments)
    assert page.is_complete
    assert page.next is None
    return [job.id for job in page]


def test_a_job_is_found_behind_many_others(app: Mainspring, travel: TimeTravel) -> None:
    @app.job(search=("order_id", "customer"))
    def pay(order_id: int, customer: str = "ann", note: str = "") -> None: ...

    ids = pay.after(60).submit_many([(number, f"customer {number % 20}") for number in range(MANY)])
    last = pay.after(60).submit(MANY).id
    assert found(app, order_id=MANY - 1) == [ids[-1]]
    assert found(app, order_id=MANY) == [last]
    assert found(app, customer="customer 3") == [ids[3], ids[23]]
    assert found(app, customer="customer 3", order_id=23) == [ids[23]]
    assert found(app, customer="ann") == []  # the default is not stored
    travel.fast_forward(hours=1)
    assert [job.status for job in app.jobs(arguments={"order_id": 3})] == [JobStatus.COMPLETED]
    assert not app.jobs(arguments={"note": "x"}).is_complete  # not indexed


def test_jobs_from_before_the_index_are_searched_one_by_one(
    app: Mainspring, travel: TimeTravel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pay(order_id: int) -> None: ...

    old = app.job(name="pay")(pay).after(60).submit(7).id
    new = app.job(name="pay", search="order_id")(pay)
    new.after(60).submit_many([(number,) for number in range(100, 100 + MANY)])
    latest = new.after(60).submit(7).id
    assert found(app, order_id=7) == [old, latest]


def test_numbers_and_texts_of_equal_value_are_told_apart(app: Mainspring, travel: TimeTravel) -> None:
    @app.job(search="value")
    def put(value: int | str | float) -> None: ...

    one, text, half = (put.after(60).submit(value).id for value in (1, "1", 1.5))
    whole = put.after(60).submit(1.0).id
    assert found(app, value=1) == found(app, value=1.0) == [one, whole]
    assert found(app, value="1") == [text]
    assert found(app, value=1.5) == [half]


def test_a_long_value_is_found(app: Mainspring, travel: TimeTravel) -> None:
    @app.job(search="text")
    def put(text: str) -> None: ...

    texts = ["x" * 5_000, "x" * 4_999 + "y"]
    ids = [put.after(60).submit(text).id for text in texts]
    assert [found(app, text=text) for text in texts] == [[job] for job in ids]


def test_jobs_of_schedules_and_follow_up_jobs_are_found(app: Mainspring, travel: TimeTravel) -> None:
    @app.job(search="order_id")
    def ship(order_id: int) -> None: ...

    @app.job(then=ship)
    def pay(order_id: int) -> int:
        return order_id

    @app.job(search="customer")
    def digest(customer: str) -> None: ...

    for number in range(MANY):
        pay.submit(number)
        app.schedules.put(f"digest {number}", digest, "0 13 * * *", arguments=(f"customer {number}",))
    travel.fast_forward(hours=2)
    (shipped,) = app.jobs(type=ship.name, arguments={"order_id": MANY - 1})
    assert shipped.status is JobStatus.COMPLETED
    (sent,) = app.jobs(type=digest.name, arguments={"customer": f"customer {MANY - 1}"})
    assert sent.schedule == f"digest {MANY - 1}"


def test_replays_and_edited_dead_letters_are_found_by_their_new_arguments(
    app: Mainspring, travel: TimeTravel
) -> None:
    @app.job(search="order_id", retry=Retry(max_attempts=1))
    def pay(order_id: int) -> None:
        raise ValueError("no")

    ids = pay.submit_many([(number,) for number in range(MANY)])
    travel.fast_forward(seconds=1)
    (copy,) = app.dead_letters.replay(ids[-1])
    assert found(app, order_id=MANY - 1) == [ids[-1], copy]
    (changed,) = app.dead_letters.replay(ids[-2], changes={"order_id": 1_000})
    assert found(app, order_id=1_000) == [changed]
    app.dead_letters.edit(ids[0], {"order_id": 2_000})
    assert found(app, order_id=2_000) == [ids[0]]
    assert found(app, order_id=0) == []


def test_a_job_that_was_replaced_is_found_by_its_new_arguments(app: Mainspring, travel: TimeTravel) -> None:
    @app.job(search="note", unique=Unique(by="order_id", on_conflict="replace"))
    def remind(order_id: int, note: str) -> None: ...

    remind.after(60).submit_many([(number, "x") for number in range(MANY)])
    job = remind.after(60).submit(3, "y").id
    assert found(app, note="y") == [job]


def test_a_parameter_that_the_handler_does_not_have_is_refused(app: Mainspring) -> None:
    with pytest.raises(ValueError, match="has no parameter 'oder_id'"):

        @app.job(search="oder_id")
        def pay(order_id: int) -> None: ...


def test_the_index_is_pruned_with_the_jobs(tmp_path: Path) -> None:
    app = Mainspring(f"sqlite:///{tmp_path}/jobs.db")

    @app.job(name="pay", search="order_id")
    def pay(order_id: int) -> None: ...

    @app.job(name="ping")
    def ping(number: int) -> None: ...

    def count(table: str) -> int:
        with app.manager().engine._database.reader() as connection:  # type: ignore[attr-defined]
            return int(connection.execute(f"SELECT count(*) FROM {table}").get)

    with time_travel(app, start=START) as travel:
        pay.submit_many([(number,) for number in range(MANY)])
        ping.submit_many([(number,) for number in range(MANY)])
        travel.fast_forward(minutes=1)
        assert (count("jobs"), count("search")) == (2 * MANY, MANY)
        travel.fast_forward(days=8)
        app.prune()
        assert (count("jobs"), count("search")) == (0, 0)
        assert app.jobs(arguments={"order_id": 3}, since=timedelta(days=30)) == []
