"""Assertions about what was submitted, and recording it without running anything."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from mainspring import InvalidArguments, JobFunction, JobStatus, Mainspring, Priority, Unique
from mainspring.testing import assert_submitted, inline, recording, refute_submitted, submitted, time_travel

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Color(Enum):
    RED = "red"


@dataclass
class Address:
    street: str
    zip_code: int


@pytest.fixture
def cancel_order(app: Mainspring) -> JobFunction[..., None]:
    @app.job(name="shop.cancel_order", queue="orders")
    def cancel_order(order_id: int, reason: str = "unpaid") -> None: ...

    return cancel_order


def complaint(call: Any, *args: Any, **kwargs: Any) -> list[str]:
    """The lines of what an assertion says when it fails."""
    with pytest.raises(AssertionError) as caught:
        call(*args, **kwargs)
    return str(caught.value).splitlines()


# -- arguments


def test_a_submitted_job_is_returned(app: Mainspring, cancel_order: JobFunction[..., None]) -> None:
    handle = cancel_order.submit(42)
    assert assert_submitted(cancel_order, 42) == handle.info()


def test_the_first_of_several_matches_is_returned(app: Mainspring, cancel_order: JobFunction[..., None]) -> None:
    first = cancel_order.submit(42)
    cancel_order.submit(42)
    assert assert_submitted(cancel_order, 42).id == first.id


@pytest.mark.parametrize("submit", [((42,), {}), ((42, "unpaid"), {}), ((), {"order_id": 42})])
@pytest.mark.parametrize("expect", [((42,), {}), ((42, "unpaid"), {}), ((42,), {"reason": "unpaid"})])
def test_by_place_by_name_or_by_default_is_all_the_same(
    app: Mainspring, cancel_order: JobFunction[..., None], submit: Any, expect: Any
) -> None:
    cancel_order.submit(*submit[0], **submit[1])
    assert_submitted(cancel_order, *expect[0], **expect[1])


def test_a_default_is_not_any_value(app: Mainspring, cancel_order: JobFunction[..., None]) -> None:
    cancel_order.submit(42, reason="fraud")
    refute_submitted(cancel_order, 42)
    assert_submitted(cancel_order, 42, "fraud")


def test_without_arguments_any_arguments_will_do(app: Mainspring, cancel_order: JobFunction[..., None]) -> None:
    refute_submitted(cancel_order)
    cancel_order.submit(42, reason="fraud")
    assert_submitted(cancel_order)


@pytest.mark.parametrize("wildcard", [..., ANY])
def test_wildcards_match_anything(app: Mainspring, cancel_order: JobFunction[..., None], wildcard: Any) -> None:
    cancel_order.submit(42, reason="fraud")
    assert_submitted(cancel_order, wildcard, "fraud")
    assert_submitted(cancel_order, 42, reason=wildcard)
    refute_submitted(cancel_order, wildcard, "unpaid")


def test_values_are_compared_as_the_handler_gets_them(app: Mainspring) -> None:
    @app.job
    def deliver(address: Address, at: datetime, color: Color, parts: list[int], extra: Any = None) -> None: ...

    deliver.submit(Address("Main Street", 12345), NOON, Color.RED, [1, 2], {"a": [1, 2]})
    assert_submitted(deliver, Address("Main Street", 12345), NOON, Color.RED, [1, 2], {"a": [1, 2]})
    assert_submitted(deliver, Address("Main Street", ANY), NOON, Color.RED, [1, ANY], extra={"a": ANY})
    refute_submitted(deliver, Address("Main Street", 99999), NOON, Color.RED, [1, 2], ...)
    refute_submitted(deliver, ..., NOON + timedelta(seconds=1), ..., ..., ...)


def test_extra_arguments_are_compared(app: Mainspring) -> None:
    @app.job
    def log(event: str, *numbers: int, **fields: str) -> None: ...

    log.submit("paid", 1, 2, by="card")
    assert_submitted(log, "paid", 1, 2, by="card")
    refute_submitted(log, "paid", 1, by="card")
    refute_submitted(log, "paid", 1, 2)


def test_jobs_of_batch_handlers_are_found_by_their_element(app: Mainspring) -> None:
    @app.job(batch=10)
    def ship(orders: list[int]) -> None: ...

    ship.submit(42)
    assert_submitted(ship, 42)
    refute_submitted(ship, 43)


def test_a_call_that_no_submit_would_take_is_refused(
    app: Mainspring, cancel_order: JobFunction[..., None]
) -> None:
    with pytest.raises(InvalidArguments, match="order_id"):
        assert_submitted(cancel_order, reason="fraud")
    with pytest.raises(InvalidArguments, match="resaon"):
        refute_submitted(cancel_order, 42, resaon="fraud")


def test_what_is_no_handler_is_refused() -> None:
    with pytest.raises(TypeError, match=r"@app\.job"):
        assert_submitted(print, 42)  # type: ignore[arg-type]


# -- options


def test_jobs_are_told_apart_by_queue_sequence_and_unique_key(
    app: Mainspring, cancel_order: JobFunction[..., None]
) -> None:
    cancel_order.options(queue="late", sequence="order-42", unique="key").submit(42)
    assert_submitted(cancel_order, 42, queue="late", sequence="order-42", unique="key")
    refute_submitted(cancel_order, 42, queue="orders")
    refute_submitted(cancel_order, 42, sequence="order-43")
    refute_submitted(cancel_order, 42, unique="other")
    refute_submitted(cancel_order, 42, unique=Unique("key", by="order_id"))


def test_a_unique_key_made_of_arguments_is_compared(app: Mainspring, cancel_order: JobFunction[..., None]) -> None:
    cancel_order.options(unique=Unique(by="order_id")).submit(42)
    assert_submitted(cancel_order, ..., unique=Unique(by="order_id"))
    refute_submitted(cancel_order, ..., unique=Unique(by="reason"))


def test_the_due_time_is_an_instant_or_a_delay(app: Mainspring, cancel_order: JobFunction[..., None]) -> None:
    with recording(app, start=NOON):
        cancel_order.after(timedelta(minutes=30)).submit(42)
        assert_submitted(cancel_order, 42, due=timedelta(minutes=30))
        assert_submitted(cancel_order, 42, due=1_800)
        assert_submitted(cancel_order, 42, due=NOON + timedelta(minutes=30))
        refute_submitted(cancel_order, 42, due=0)
        refute_submitted(cancel_order, 42, due=NOON)


def test_the_due_time_may_be_met_more_or_less(app: Mainspring, cancel_order: JobFunction[..., None]) -> None:
    with recording(app, start=NOON):
        cancel_order.after(1_800).submit(42)
        assert_submitted(cancel_order, 42, due=1_801)
        refute_submitted(cancel_order, 42, due=1_802)
        assert_submitted(cancel_order, 42, due=1_740, within=timedelta(minutes=1))
        refute_submitted(cancel_order, 42, due=1_800.5, within=0)


def test_options_may_be_given_as_to_a_submit(app: Mainspring, cancel_order: JobFunction[..., None]) -> None:
    variant = cancel_order.after(1_800).options(priority=Priority.USER_BLOCKING, id="order-42")
    cancel_order.submit(42)
    refute_submitted(variant, 42)
    variant.submit(42)
    assert assert_submitted(variant, 42).id == "order-42"
    refute_submitted(variant.options(priority=Priority.BEST_EFFORT), 42)
    refute_submitted(cancel_order.at(NOON), 42)


def test_a_due_time_is_given_once(app: Mainspring, cancel_order: JobFunction[..., None]) -> None:
    with pytest.raises(ValueError, match="not both"):
        assert_submitted(cancel_order.after(60), 42, due=60)


def test_an_option_that_is_a_parameter_too_is_refused(app: Mainspring) -> None:
    @app.job
    def move(queue: str, within: float = 1) -> None: ...

    move.submit("left", 5)
    assert_submitted(move, "left", 5)
    assert_submitted(move.options(queue="default"), "left", 5)
    with pytest.raises(TypeError, match="'queue' is a parameter"):
        assert_submitted(move, queue="left")
    with pytest.raises(TypeError, match="'within' is a parameter"):
        refute_submitted(move, "left", within=5)


def test_the_number_of_jobs_is_exact(app: Mainspring, cancel_order: JobFunction[..., None]) -> None:
    for order in (42, 42, 43):
        cancel_order.submit(order)
    assert_submitted(cancel_order, 42, times=2)
    assert_submitted(cancel_order, times=3)
    assert complaint(assert_submitted, cancel_order, 42, times=1)[0].endswith(
        "was not submitted once, but 2 times"
    )
    assert complaint(assert_submitted, cancel_order, 44, times=1)[0].endswith("was not submitted once")


def test_none_is_no_number_of_jobs_to_assert(app: Mainspring, cancel_order: JobFunction[..., None]) -> None:
    with pytest.raises(ValueError, match="refute_submitted"):
        assert_submitted(cancel_order, 42, times=0)


# -- what a failure says


def test_a_failure_lists_what_was_submitted_the_closest_first(
    app: Mainspring, cancel_order: JobFunction[..., None]
) -> None:
    ping = app.job(name="ping")(lambda: None)
    with recording(app, start=NOON):
        cancel_order.submit(41, reason="fraud")
        cancel_order.submit(41)
        ping.submit()
        lines = complaint(assert_submitted, cancel_order, 42)
    tail = "queue 'orders', due 2026-03-01 12:00:00+00:00, PENDING  <- order_id is 41, not 42"
    assert lines == [
        "shop.cancel_order(order_id=42) was not submitted",
        "submitted jobs, the closest match first:",
        f"  shop.cancel_order(order_id=41)  {tail}",
        f"  shop.cancel_order(order_id=41, reason='fraud')  {tail}; reason is 'fraud', not 'unpaid'",
        "jobs of other handlers: 1 of ping",
    ]


def test_a_failure_names_options_that_differ(app: Mainspring, cancel_order: JobFunction[..., None]) -> None:
    with recording(app, start=NOON):
        cancel_order.after(60).submit(42)
        lines = complaint(assert_submitted, cancel_order, 42, queue="late", due=0)
    assert (
        lines[0]
        == "shop.cancel_order(order_id=42) with queue 'late', due 0:00:00 after its submit was not submitted"
    )
    assert lines[2].endswith("<- queue is 'orders', not 'late'; due 0:01:00 after its submit, not 0:00:00")


def test_a_failure_says_if_nothing_was_submitted(app: Mainspring, cancel_order: JobFunction[..., None]) -> None:
    assert complaint(assert_submitted, cancel_order) == [
        "shop.cancel_order(any arguments) was not submitted",
        "no job was submitted at all",
    ]


def test_a_long_list_is_cut(app: Mainspring, cancel_order: JobFunction[..., None]) -> None:
    cancel_order.submit_many([(number,) for number in range(100, 130)])
    for lines in (complaint(assert_submitted, cancel_order, 42), complaint(refute_submitted, cancel_order)):
        assert lines[-1] == "  and 20 more"
        assert len(lines) <= 13


def test_a_refutation_lists_what_should_not_be_there(
    app: Mainspring, cancel_order: JobFunction[..., None]
) -> None:
    with recording(app, start=NOON):
        cancel_order.submit(42)
        assert complaint(refute_submitted, cancel_order, ...) == [
            "shop.cancel_order(order_id=...) was submitted, and should not have been:",
            "  shop.cancel_order(order_id=42)  queue 'orders', due 2026-03-01 12:00:00+00:00, PENDING",
        ]


# -- where


def test_jobs_count_in_every_state(app: Mainspring, cancel_order: JobFunction[..., None]) -> None:
    with inline(app):
        cancel_order.submit(42)
        assert assert_submitted(cancel_order, 42).status is JobStatus.COMPLETED
    with time_travel(app, start=NOON):
        cancel_order.after(60).submit(42).cancel()
        assert assert_submitted(cancel_order, 42).status is JobStatus.CANCELED


def test_all_jobs_of_a_handler_are_listed_in_order(app: Mainspring, cancel_order: JobFunction[..., None]) -> None:
    app.job(name="ping")(lambda: None).submit()
    ids = cancel_order.submit_many([(number,) for number in range(1_500)])
    assert [info.id for info in submitted(cancel_order)] == ids


# -- recording


def test_recorded_jobs_are_never_run(app: Mainspring) -> None:
    seen: list[int] = []
    job = app.job(name="note")(seen.append)
    with recording(app) as jobs:
        job.submit(1)
        job.after(60).submit(2)
        assert [info.status for info in jobs] == [JobStatus.PENDING, JobStatus.PENDING]
    assert seen == []


def test_a_recording_grows_with_every_submit(app: Mainspring, cancel_order: JobFunction[..., None]) -> None:
    with recording(app) as jobs:
        assert (len(jobs), list(jobs)) == (0, [])
        cancel_order.submit(42)
        cancel_order.submit(43)
        assert (len(jobs), repr(jobs)) == (2, "<Recording of 2 jobs>")
        assert jobs[0].arguments == {"order_id": 42}
        assert [info.arguments["order_id"] for info in jobs[-1:]] == [43]


def test_time_stands_still_while_submits_are_recorded(
    app: Mainspring, cancel_order: JobFunction[..., None]
) -> None:
    with recording(app, start=NOON) as jobs:
        handle = cancel_order.after(60).submit(42)
        assert (jobs.now, jobs[0].created, jobs[0].due) == (NOON, NOON, NOON + timedelta(minutes=1))
        with pytest.raises(TimeoutError):
            handle.wait()


def test_a_recording_neither_sees_nor_touches_the_real_store(tmp_path: Path) -> None:
    app = Mainspring(f"sqlite:///{tmp_path / 'orders.db'}")
    job = app.job(name="ping")(lambda: None)
    with recording(app):
        job.submit()
    assert list(tmp_path.iterdir()) == []
    with app, recording(app) as jobs:
        assert len(jobs) == 0


def test_policies_hold_for_recorded_submits(app: Mainspring, cancel_order: JobFunction[..., None]) -> None:
    with recording(app) as jobs:
        unique = cancel_order.options(unique="order-42")
        assert unique.submit(42) == unique.submit(42)
        assert len(jobs) == 1


def test_an_error_ends_a_recording(app: Mainspring, cancel_order: JobFunction[..., None]) -> None:
    with pytest.raises(ZeroDivisionError), recording(app):
        cancel_order.submit(1 // 0)
    cancel_order.submit(42)
    assert app.counts()[JobStatus.PENDING] == 1
