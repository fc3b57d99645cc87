"""A result that does not match the return annotation completes its job, with a warning in log and record."""

import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, NoReturn

import pytest

from mainspring import JobStatus, Mainspring
from mainspring.jobs.results import ResultType
from mainspring.jobs.serializers import JsonSerializer, MsgpackSerializer, Serializer
from mainspring.testing import time_travel
from mainspring.testing.time_travel import TimeTravel
from tests.support import PATIENCE
from tests.unit.jobs import process_handlers as work

INSTANT = datetime(2026, 1, 5, 12, tzinfo=UTC)


@pytest.fixture
def app() -> Mainspring:
    return Mainspring("memory://")


@pytest.fixture
def travel(app: Mainspring) -> Iterator[TimeTravel]:
    with time_travel(app, start=INSTANT) as travel:
        yield travel


def run(travel: TimeTravel, submit: Callable[[], Any]) -> Any:
    handle = submit()
    travel.settle()
    return handle


def test_a_wrong_result_completes_the_job_and_is_shown_in_its_record(
    app: Mainspring, travel: TimeTravel, caplog: pytest.LogCaptureFixture
) -> None:
    runs = []

    @app.job(name="count")
    def count() -> int:
        runs.append(1)
        return "seven"  # type: ignore[return-value]

    handle = run(travel, count.submit)
    info = app.get(handle.id)
    assert (info.status, info.result, info.error, runs) == (JobStatus.COMPLETED, "seven", None, [1])
    assert info.warning == (
        "the result does not match the return annotation int: the handler returned 'seven' (str); correct the "
        "annotation or the return value"
    )
    (record,) = [one for one in caplog.records if one.levelno >= logging.WARNING]
    assert record.getMessage() == f"job {handle.id} (count) completed in attempt 1, but {info.warning}"
    assert handle.result() == "seven"


def test_the_warning_is_logged_once_for_each_job_type(
    app: Mainspring, travel: TimeTravel, caplog: pytest.LogCaptureFixture
) -> None:
    @app.job
    def count() -> int:
        return None  # type: ignore[return-value]

    ids = count.submit_many([()] * 3)
    travel.settle()
    assert [one.levelno for one in caplog.records if "does not match" in one.message].count(logging.WARNING) == 1
    assert all("the handler returned None" in (app.get(job_id).warning or "") for job_id in ids)


def test_a_result_that_changes_in_the_store_is_a_warning_too(app: Mainspring, travel: TimeTravel) -> None:
    @app.job
    def total():  # type: ignore[no-untyped-def]
        return {"total": Decimal("9.99")}

    info = app.get(run(travel, total.submit).id)
    assert info.result == {"total": "9.99"}
    assert info.warning == (
        "the result changes in the store: the result['total'] is Decimal('9.99') (Decimal), and its readers get "
        "'9.99' (str); annotate the return type of the handler, or return plain data"
    )


def test_a_result_that_matches_leaves_no_warning_in_the_record(app: Mainspring, travel: TimeTravel) -> None:
    @app.job
    def right() -> int:
        return 7

    info = app.get(run(travel, right.submit).id)
    assert (info.result, info.warning) == (7, None)


def test_a_result_that_is_not_kept_is_not_checked(app: Mainspring, travel: TimeTravel) -> None:
    @app.job(keep_result=False)
    def count() -> int:
        return "seven"  # type: ignore[return-value]

    assert app.get(run(travel, count.submit).id).warning is None


def test_a_batch_is_checked_job_by_job(app: Mainspring, travel: TimeTravel) -> None:
    @app.job(batch=10)
    def double(numbers: list[int]) -> list[Any]:
        return [number * 2 if number else {number} for number in numbers]

    ids = double.submit_many([(0,), (1,)])
    travel.settle()
    assert [app.get(job_id).result for job_id in ids] == [[0], 2]
    assert [app.get(job_id).warning is None for job_id in ids] == [False, True]


@pytest.mark.long
def test_the_warning_of_a_child_process_reaches_the_record() -> None:
    with work.app.running():
        info_of = work.app.get
        wrong, missing, right = (
            job.submit() for job in (work.wrong_result, work.missing_result, work.right_result)
        )
        for handle in (wrong, missing, right):
            handle.wait(timeout=PATIENCE)
        assert "the handler returned 'seven' (str)" in (info_of(wrong.id).warning or "")
        assert "the handler returned None" in (info_of(missing.id).warning or "")
        assert (info_of(right.id).warning, info_of(right.id).result) == (None, 7)


# -- annotations and values


def warning(function: Callable[..., Any], value: Any, serializer: Serializer | None = None) -> str | None:
    chosen = serializer or JsonSerializer()
    return ResultType(function, is_batch=False).warning(value, chosen.encode(value), chosen)


def returns(annotation: Any) -> Callable[[], Any]:
    def handler() -> Any: ...

    handler.__annotations__["return"] = annotation
    return handler


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, 1),
        (float, 1),
        (float, 1.5),
        (str, "a"),
        (bytes, b"a"),
        (datetime, INSTANT),
        (timedelta, timedelta(1)),
        (list[int], [1]),
        (tuple[int, str], (1, "a")),
        (dict[int, str], {1: "a"}),
        (dict[str, Any], {"a": [1]}),
        (int | None, 1),
        (object, {"a": 1}),
        (NoReturn, 1),
        (Any, [1]),
    ],
)
def test_a_result_that_matches_has_no_warning(annotation: Any, value: Any) -> None:
    assert warning(returns(annotation), value) is None


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, "1"),
        (int, True),
        (int, 1.5),
        (float, "1"),
        (float, float("nan")),
        (str, INSTANT),
        (str, b"a"),
        (bool, 1),
        (list[int], ["a"]),
        (list[int], 1),
        (dict[str, Any], {"a": (1,)}),
        (datetime, "tomorrow"),
        (Any, (1, 2)),
        (object, {1}),
        (None, 1),
    ],
)
def test_a_result_that_does_not_match_has_a_warning(annotation: Any, value: Any) -> None:
    assert warning(returns(annotation), value) is not None


def test_a_result_that_msgpack_keeps_has_no_warning() -> None:
    assert warning(returns(Any), {"data": b"x"}, MsgpackSerializer()) is None


@pytest.mark.parametrize("annotation", [None, int | None, Any, object, str | None], ids=str)
def test_none_is_allowed_where_the_annotation_allows_it(annotation: Any) -> None:
    assert ResultType(returns(annotation), is_batch=False).none_warning is None


@pytest.mark.parametrize("annotation", [int, str, list[int], dict[str, int], datetime])
def test_none_has_a_warning_where_the_annotation_excludes_it(annotation: Any) -> None:
    assert ResultType(returns(annotation), is_batch=False).none_warning is not None
