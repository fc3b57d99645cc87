"""A serializer of one's own encodes arguments and results, and decodes them wherever jobs are shown."""

import json
import zlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from mainspring import Every, InvalidArguments, JobStatus, Mainspring, Retry, UnknownSerializer
from mainspring.jobs import JsonSerializer, MsgpackSerializer
from mainspring.testing.time_travel import TimeTravel
from tests.support import PATIENCE
from tests.unit.jobs import packed_handlers
from tests.unit.jobs.packed_handlers import Packed

START = datetime(2026, 1, 5, 12, tzinfo=UTC)


@dataclass
class Order:
    id: int
    total: Decimal
    lines: dict[int, str]


@pytest.fixture
def app() -> Mainspring:
    return Mainspring("memory://", serializer=Packed())


def test_arguments_and_results_are_encoded_by_it_and_restored_by_annotations(
    app: Mainspring, travel: TimeTravel
) -> None:
    got: list[Any] = []

    @app.job(name="ship")
    def ship(order: Order, when: datetime, keys: dict[int, tuple[int, str]], data: bytes) -> Order:
        got.extend((order, when, keys, data))
        return order

    order = Order(7, Decimal("9.99"), {1: "cup"})
    handle = ship.submit(order, START, {1: (2, "a")}, b"\x00\xff")
    travel.settle()
    assert got == [order, START, {1: (2, "a")}, b"\x00\xff"]
    record = app.manager().record(handle.id)
    assert (record.codec, record.status) == ("packed", JobStatus.COMPLETED)
    assert json.loads(zlib.decompress(record.payload))["order"] == {
        "id": 7,
        "total": "9.99",
        "lines": {"1": "cup"},
    }
    assert handle.result() == order
    info = app.get(handle.id)
    assert info.arguments["order"] == info.result == {"id": 7, "total": "9.99", "lines": {"1": "cup"}}
    assert info.warning is None


def test_jobs_are_listed_and_searched_by_their_arguments(app: Mainspring, travel: TimeTravel) -> None:
    @app.job(name="ship", search=("order_id",))
    def ship(order_id: int) -> None: ...

    ship.after(60).submit_many([(n,) for n in range(5)])
    assert {"order_id": 3} in [job.arguments for job in app.jobs()]
    assert [job.arguments for job in app.jobs(arguments={"order_id": 3})] == [{"order_id": 3}]
    assert [job.arguments for job in app.jobs(text="order_id=4")] == [{"order_id": 4}]


def test_wrong_arguments_are_refused_as_with_json(app: Mainspring) -> None:
    @app.job(name="ship")
    def ship(order_id: int, note="") -> None: ...  # type: ignore[no-untyped-def]

    with pytest.raises(InvalidArguments, match="parameter 'order_id'"):
        ship.submit("seven")  # type: ignore[arg-type]
    with pytest.raises(InvalidArguments, match=r"note is \(1, 2\) \(tuple\)"):
        ship.submit(7, (1, 2))


def test_follow_ups_get_results_and_bound_arguments(app: Mainspring, travel: TimeTravel) -> None:
    got: list[Any] = []

    @app.job(name="notify")
    def notify(total: Decimal, channel: str) -> None:
        got.append((total, channel))

    @app.job(name="pay", then=notify.bind(channel="mail"))
    def pay(order_id: int) -> Decimal:
        return Decimal("9.99")

    pay.submit(1)
    travel.settle()
    assert got == [(Decimal("9.99"), "mail")]


def test_dead_letters_are_edited_and_replayed(app: Mainspring, travel: TimeTravel) -> None:
    ran: list[int] = []

    @app.job(name="ship", retry=Retry(max_attempts=1))
    def ship(order_id: int) -> None:
        ran.append(order_id)
        if order_id < 0:
            raise ValueError("no such order")

    handle = ship.submit(-1)
    travel.settle()
    app.dead_letters.edit(handle.id, {"order_id": 5})
    app.dead_letters.replay(handle.id)
    travel.settle()
    assert ran == [-1, 5]


def test_schedules_show_their_arguments(app: Mainspring, travel: TimeTravel) -> None:
    ran: list[int] = []

    @app.job(name="report")
    def report(days: int = 1) -> None:
        ran.append(days)

    app.schedules.put("weekly", report, Every(timedelta(minutes=1)), arguments={"days": 7})
    assert app.schedules.get("weekly").arguments == app.schedules.list()[0].arguments == {"days": 7}
    travel.fast_forward(minutes=1)
    assert ran == [7]


@pytest.mark.long
def test_a_child_process_uses_the_serializer_of_its_application() -> None:
    with packed_handlers.app.running():
        handle = packed_handlers.double.submit(packed_handlers.Number(4))
        assert handle.result(timeout=PATIENCE) == packed_handlers.Number(8)
    packed_handlers.app.close()


# -- processes without the serializer


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/shop.db"


def register(app: Mainspring) -> Any:
    @app.job(name="ship")
    def ship(order_id: int) -> int:
        return order_id

    return ship


def test_a_worker_without_the_serializer_makes_a_dead_letter_that_says_so(url: str) -> None:
    with Mainspring(url, serializer=Packed()) as packing:
        job_id = register(packing).submit(1).id
    with Mainspring(url) as plain:
        register(plain)
        with plain.running():
            assert plain.handle(job_id).wait(timeout=PATIENCE) == JobStatus.FAILED
        info = plain.get(job_id)
        assert isinstance(info.arguments, bytes)
        assert "encoded by the serializer 'packed', and this process has only json, msgpack" in (info.error or "")
    with Mainspring(url, serializer=Packed()) as packing:
        register(packing)
        (replayed,) = packing.dead_letters.replay(job_id)
        with packing.running():
            assert packing.handle(replayed).result(timeout=PATIENCE) == 1


def test_a_result_of_an_unknown_serializer_is_an_error(url: str) -> None:
    with Mainspring(url, serializer=Packed()) as packing:
        ship = register(packing)
        with packing.running():
            job_id = ship.submit(1).id
            assert packing.handle(job_id).result(timeout=PATIENCE) == 1
    with Mainspring(url) as plain:
        with pytest.raises(UnknownSerializer, match="'packed'"):
            plain.handle(job_id).result(timeout=PATIENCE)
        register(plain)
        with pytest.raises(UnknownSerializer, match="'packed'"):
            plain.handle(job_id).result(timeout=PATIENCE)


def test_jobs_from_before_the_change_of_the_serializer_still_run(url: str) -> None:
    with Mainspring(url) as plain:
        job_id = register(plain).submit(1).id
    with Mainspring(url, serializer=Packed()) as packing:
        register(packing)
        assert packing.get(job_id).arguments == {"order_id": 1}
        with packing.running():
            assert packing.handle(job_id).result(timeout=PATIENCE) == 1


def test_data_that_the_serializer_cannot_decode_make_a_dead_letter(url: str) -> None:
    class Broken(Packed):
        def decode(self, data: bytes) -> Any:
            raise KeyError("the key was rotated")

    with Mainspring(url, serializer=Packed()) as packing:
        job_id = register(packing).submit(1).id
    with Mainspring(url, serializer=Broken()) as broken:
        register(broken)
        with broken.running():
            assert broken.handle(job_id).wait(timeout=PATIENCE) == JobStatus.FAILED
        assert "decode() of the serializer 'packed' failed for stored data: KeyError: 'the key was rotated'" in (
            broken.get(job_id).error or ""
        )
        assert isinstance(broken.get(job_id).arguments, bytes)


# -- what is accepted


def test_the_serializers_of_mainspring_may_be_given_as_objects() -> None:
    assert Mainspring("memory://", serializer=MsgpackSerializer()).serializer.name == "msgpack"
    assert Mainspring("memory://", serializer=JsonSerializer()).serializer.name == "json"


@pytest.mark.parametrize(
    ("serializer", "error", "text"),
    [
        ("pickle", ValueError, "one of json, msgpack, or a serializer of your own, got 'pickle'"),
        (Packed, TypeError, "an object with name, encode"),
        (object(), TypeError, "an object with name, encode"),
        (5, TypeError, "an object with name, encode"),
    ],
)
def test_anything_else_is_refused(serializer: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        Mainspring("memory://", serializer=serializer)


def test_a_serializer_may_not_have_the_name_of_another_format() -> None:
    class Impostor(Packed):
        name = "json"

    with pytest.raises(ValueError, match="'json' is the name of a serializer of Mainspring"):
        Mainspring("memory://", serializer=Impostor())


def test_encode_must_return_bytes() -> None:
    class Text(Packed):
        def encode(self, data: Any) -> Any:
            return json.dumps(data)

    app = Mainspring("memory://", serializer=Text())
    with pytest.raises(InvalidArguments, match=r"encode\(\) of the serializer 'packed' must return bytes"):
        register(app).submit(1)
