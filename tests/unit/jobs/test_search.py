"""Searching jobs by arguments, time and text."""

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

import pytest

from mainspring import JobFunction, Mainspring
from mainspring.jobs import search
from mainspring.jobs.search import OneOf
from mainspring.testing import time_travel

START = datetime(2026, 1, 5, 12, tzinfo=UTC)

Ping = JobFunction[[int, str], None]


@pytest.fixture
def ping(app: Mainspring) -> Ping:
    @app.job(name="shop.ping")
    def ping(number: int, note: str = "none") -> None: ...

    return ping


def ids(app: Mainspring, **filters: Any) -> list[str]:
    return [job.id for job in app.jobs(**filters)]


def test_jobs_are_found_by_their_arguments(app: Mainspring, ping: Ping) -> None:
    one, two = ping.submit(1, "x").id, ping.submit(2, "x").id
    assert ids(app, arguments={"number": 2}) == [two]
    assert ids(app, arguments={"note": "x"}) == [one, two]
    assert ids(app, arguments={"note": "x", "number": 1}) == [one]
    assert ids(app, arguments={"note": "x"}, type="ping", queue="default", status="pending") == [one, two]
    assert ids(app, arguments={"note": "x"}, queue="other") == []
    assert ids(app, arguments={"number": OneOf((2, "2"))}) == [two]
    assert ids(app, arguments={}) == [one, two]


def test_an_argument_that_was_left_to_its_default_does_not_match(app: Mainspring, ping: Ping) -> None:
    ping.options().submit(number=1)  # type: ignore[call-arg]
    assert ids(app, arguments={"note": "none"}) == []


def test_a_number_is_no_text_and_no_truth_value(app: Mainspring) -> None:
    @app.job(name="any")
    def anything(value: Any) -> None: ...

    values = [1, "1", True, 1.5, None, [1], {"a": 1}]
    found = {anything.submit(value).id: value for value in values}
    for value in values:
        assert [found[job.id] for job in app.jobs(arguments={"value": value})] == [value]
    assert [found[job.id] for job in app.jobs(arguments={"value": 1.0})] == [1]


class Color(Enum):
    RED = "red"


@pytest.mark.parametrize("serializer", ["json", "msgpack"])
def test_values_of_richer_types_are_found_by_their_stored_form(serializer: Any) -> None:
    app = Mainspring("memory://", serializer=serializer)

    @app.job(name="rich")
    def rich(price: Decimal, color: Color, day: date, at: datetime) -> None: ...

    with app:
        job = rich.submit(Decimal("9.90"), Color.RED, date(2026, 1, 5), START).id
        rich.submit(Decimal("9.91"), Color.RED, date(2026, 1, 6), START + timedelta(1))
        for name, value in {"price": Decimal("9.90"), "day": date(2026, 1, 5), "at": START}.items():
            assert ids(app, arguments={name: value}) == [job]
        assert ids(app, arguments={"price": "9.90", "color": "red"}) == [job]


def test_jobs_are_found_by_text(app: Mainspring, ping: Ping) -> None:
    one = ping.options(id="order-1").submit(1, "from Zürich").id
    two = ping.options(id="order-2").submit(77, "x").id
    assert ids(app, text="ORDER-1") == [one]
    assert ids(app, text="zürich") == [one]
    assert ids(app, text="77") == [two]
    assert ids(app, text="shop.") == [one, two]
    assert ids(app, text="shop.", arguments={"number": 77}) == [two]
    assert ids(app, text="nowhere") == []


def test_jobs_are_found_by_the_text_of_their_error() -> None:
    app = Mainspring("memory://")

    @app.job(name="pay", retry=None)
    def pay(order: int) -> None:
        raise ValueError(f"the card of order {order} is blocked")

    with time_travel(app, start=START) as travel:
        for order in (1, 2):
            pay.options(id=f"{order}").submit(order)
        travel.fast_forward(days=1)
        assert ids(app, status="failed", text="order 2 is blocked") == ["2"]


def test_jobs_are_found_by_the_time_of_their_submission() -> None:
    app = Mainspring("memory://")

    @app.job(name="ping")
    def ping() -> None: ...

    with time_travel(app, start=START) as travel:
        for hour in range(5):
            ping.options(id=f"{hour}").submit()
            travel.fast_forward(hours=1)
        assert ids(app, since=timedelta(hours=2)) == ["3", "4"]  # five hours have passed
        assert ids(app, since=START + timedelta(hours=3)) == ["3", "4"]
        assert ids(app, until=START + timedelta(hours=3)) == ["0", "1", "2"]
        assert ids(app, since=timedelta(hours=4), until=timedelta(hours=2)) == ["1", "2"]
        assert ids(app, since=timedelta(hours=4), until=timedelta(hours=2), newest_first=True) == ["2", "1"]
        assert ids(app, since=timedelta(hours=4), text="2") == ["2"]


@pytest.mark.parametrize(
    ("filters", "problem"),
    [
        ({"since": 7200}, "since must be an aware datetime, or a timedelta before now, got 7200"),
        ({"until": datetime(2026, 1, 5)}, "until must be an aware datetime"),  # noqa: DTZ001 - a naive one is refused
        ({"arguments": ["number"]}, "arguments must be a dict such as {'order_id': 42}"),
        ({"text": 7}, "text must be a string to look for, got 7"),
        ({"arguments": {"number": object()}}, "a object cannot be stored"),
    ],
)
def test_a_filter_of_another_type_is_refused(app: Mainspring, filters: dict[str, Any], problem: str) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        app.jobs(**filters)
    assert problem in str(caught.value)


# -- the bounded scan


@pytest.fixture
def bounded(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Set how many jobs a search reads, in all and in one page."""

    def bound(most: int, page: int) -> None:
        monkeypatch.setattr(search, "MAX_SCANNED", most)
        monkeypatch.setattr(search, "SCAN_PAGE", page)

    return bound


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize(("most", "page"), [(1, 1), (4, 3), (6, 6), (7, 2), (100, 5), (100, 100)])
def test_pages_of_a_search_have_each_match_once_whatever_the_bounds(
    app: Mainspring,
    ping: Ping,
    bounded: Callable[[int, int], None],
    *,
    newest_first: bool,
    most: int,
    page: int,
) -> None:
    every = ping.submit_many([(number, "odd" if number % 2 else "even") for number in range(20)])
    expected = every[1::2][::-1] if newest_first else every[1::2]
    bounded(most, page)
    found: list[str] = []
    after: str | None = None
    for _ in range(100):
        part = app.jobs(arguments={"note": "odd"}, limit=3, after=after, newest_first=newest_first)
        assert part.scanned <= most
        assert len(part) == 3 or not part.is_complete or part.next is None
        found += [job.id for job in part]
        after = part.next
        if after is None:
            break
    assert found == expected


def test_a_search_that_stops_early_tells_how_far_it_went(
    app: Mainspring, ping: Ping, bounded: Callable[[int, int], None]
) -> None:
    every = ping.submit_many([(number, "x") for number in range(10)])
    bounded(4, 4)
    page = app.jobs(arguments={"number": 9})
    assert (list(page), page.is_complete, page.scanned) == ([], False, 4)
    assert page.reached == app.get(every[3]).created
    assert page.next is not None
    rest = app.jobs(arguments={"number": 9}, after=page.next)
    assert (list(rest), rest.is_complete) == ([], False)
    last = app.jobs(arguments={"number": 9}, after=rest.next)
    assert ([job.id for job in last], last.is_complete, last.next) == ([every[9]], True, None)


def test_a_list_without_a_search_is_complete(app: Mainspring, ping: Ping) -> None:
    ping.submit(1, "x")
    page = app.jobs()
    assert (page.is_complete, page.scanned, page.reached) == (True, 0, None)
