"""Submitting: durable when it returns, checked before anything is stored, honest about what was not."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from mainspring import (
    ArgumentsTooLarge,
    DuplicateJob,
    InvalidArguments,
    JobFunction,
    JobStatus,
    LimitExceeded,
    Mainspring,
    Priority,
)
from mainspring.jobs.submit_options import SubmitOptions

NOON = datetime(2030, 3, 1, 12, tzinfo=UTC)


# -- one job


def test_a_job_is_stored_when_submit_returns(app: Mainspring, cancel_order: JobFunction[..., None]) -> None:
    info = app.get(cancel_order.submit(42, reason="late").id)
    assert (info.status, info.arguments) == (JobStatus.PENDING, {"order_id": 42, "reason": "late"})


def test_a_job_is_due_at_once_by_default(cancel_order: JobFunction[..., None]) -> None:
    info = cancel_order.submit(42).info()
    assert info.due <= info.created


@pytest.mark.parametrize("delay", [1800, 1800.0, timedelta(minutes=30)])
def test_a_job_with_a_delay_is_due_that_long_after_its_submit(
    cancel_order: JobFunction[..., None], delay: timedelta | float
) -> None:
    info = cancel_order.after(delay).submit(42).info()
    assert timedelta() <= info.created + timedelta(minutes=30) - info.due < timedelta(seconds=5)


@pytest.mark.parametrize("zone", ["UTC", "Asia/Taipei", "America/New_York"])
def test_a_job_at_an_instant_is_due_then_in_any_zone(cancel_order: JobFunction[..., None], zone: str) -> None:
    assert cancel_order.at(NOON.astimezone(ZoneInfo(zone))).submit(42).info().due == NOON


def test_an_instant_in_the_past_is_kept_as_it_is(cancel_order: JobFunction[..., None]) -> None:
    assert cancel_order.at(datetime(2000, 1, 1, tzinfo=UTC)).submit(42).info().due.year == 2000


def test_options_are_stored_with_the_job(cancel_order: JobFunction[..., None]) -> None:
    info = cancel_order.options(queue="slow", priority=Priority.BEST_EFFORT, id="order-42").submit(42).info()
    assert (info.id, info.queue, info.priority) == ("order-42", "slow", Priority.BEST_EFFORT)


def test_the_options_of_the_handler_are_the_defaults(app: Mainspring) -> None:
    @app.job(queue="orders", priority=Priority.USER_BLOCKING)
    def handler() -> None: ...

    info = handler.submit().info()
    assert (info.queue, info.priority) == ("orders", Priority.USER_BLOCKING)


def test_the_lowest_priority_is_not_mistaken_for_none(app: Mainspring) -> None:
    @app.job(priority=Priority.USER_BLOCKING)
    def handler() -> None: ...

    assert handler.options(priority=Priority.BEST_EFFORT).submit().info().priority is Priority.BEST_EFFORT


def test_a_second_job_with_one_id_is_refused_and_names_the_first(cancel_order: JobFunction[..., None]) -> None:
    named = cancel_order.options(id="order-42")
    named.submit(42)
    with pytest.raises(DuplicateJob) as caught:
        named.submit(43)
    assert caught.value.existing_id == "order-42"


def test_a_refused_duplicate_changes_nothing(app: Mainspring, cancel_order: JobFunction[..., None]) -> None:
    cancel_order.options(id="order-42").submit(42)
    with pytest.raises(DuplicateJob):
        cancel_order.options(id="order-42", queue="other").submit(43)
    assert app.get("order-42").arguments == {"order_id": 42}
    assert app.counts()[JobStatus.PENDING] == 1


def test_arguments_that_do_not_fit_store_nothing(app: Mainspring, cancel_order: JobFunction[..., None]) -> None:
    with pytest.raises(InvalidArguments):
        cancel_order.submit("forty-two")
    assert app.counts()[JobStatus.PENDING] == 0


def test_arguments_that_are_too_large_are_refused_with_both_sizes(url: str) -> None:
    with Mainspring(url, max_payload=1_000) as app:

        @app.job
        def handler(text: str) -> None: ...

        handler.submit("x" * 900)
        with pytest.raises(ArgumentsTooLarge) as caught:
            handler.submit("x" * 1_000)
        assert caught.value.limit == 1_000
        assert caught.value.size > 1_000
        assert app.counts()[JobStatus.PENDING] == 1


def test_a_coroutine_submits_without_blocking(app: Mainspring, cancel_order: JobFunction[..., None]) -> None:
    async def main() -> list[str]:
        handles = await asyncio.gather(*(cancel_order.submit_async(number) for number in range(20)))
        return [handle.id for handle in handles]

    ids = asyncio.run(main())
    assert [app.get(job_id).arguments for job_id in ids] == [{"order_id": number} for number in range(20)]


def test_a_coroutine_is_told_of_a_duplicate(cancel_order: JobFunction[..., None]) -> None:
    cancel_order.options(id="order-42").submit(42)
    with pytest.raises(DuplicateJob):
        asyncio.run(cancel_order.options(id="order-42").submit_async(42))


def test_a_coroutine_is_told_of_wrong_arguments(cancel_order: JobFunction[..., None]) -> None:
    with pytest.raises(InvalidArguments):
        asyncio.run(cancel_order.submit_async("forty-two"))


# -- options


def test_a_variant_leaves_the_original_alone(cancel_order: JobFunction[..., None]) -> None:
    cancel_order.options(queue="slow", delay=60)
    info = cancel_order.submit(1).info()
    assert info.queue == "default"
    assert info.due <= info.created


def test_a_variant_can_be_used_again(cancel_order: JobFunction[..., None]) -> None:
    later = cancel_order.options(queue="slow")
    assert [later.submit(number).info().queue for number in range(3)] == ["slow"] * 3


def test_variants_of_variants_add_up(cancel_order: JobFunction[..., None]) -> None:
    info = cancel_order.options(queue="slow").options(priority=Priority.BEST_EFFORT).at(NOON).submit(1).info()
    assert (info.queue, info.priority, info.due) == ("slow", Priority.BEST_EFFORT, NOON)


def test_the_last_of_delay_and_instant_holds(cancel_order: JobFunction[..., None]) -> None:
    assert cancel_order.after(5).at(NOON).submit(1).info().due == NOON
    assert cancel_order.at(NOON).after(0).submit(1).info().due < NOON


def test_delay_and_instant_at_once_are_refused(cancel_order: JobFunction[..., None]) -> None:
    with pytest.raises(ValueError, match="give delay= or at=, not both"):
        cancel_order.options(delay=5, at=NOON)


@pytest.mark.parametrize(
    "options",
    [
        {"delay": -1},
        {"delay": timedelta(seconds=-1)},
        {"delay": float("nan")},
        {"delay": float("inf")},
        {"at": datetime(2030, 1, 1)},  # noqa: DTZ001 - naive on purpose
        {"id": ""},
        {"id": "a\nb"},
        {"queue": ""},
    ],
    ids=repr,
)
def test_options_that_make_no_sense_are_refused_by_name(
    app: Mainspring, cancel_order: JobFunction[..., None], options: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(options))} must"):
        cancel_order.options(**options).submit(42)
    assert app.counts()[JobStatus.PENDING] == 0


@pytest.mark.parametrize("delay", [1e12, 1e300, timedelta.max], ids=repr)
def test_a_delay_beyond_the_calendar_is_refused(
    app: Mainspring, cancel_order: JobFunction[..., None], delay: timedelta | float
) -> None:
    with pytest.raises(ValueError, match=r"delay|due"):
        cancel_order.after(delay).submit(42)
    assert app.counts()[JobStatus.PENDING] == 0


@pytest.mark.parametrize(
    "options", [{"delay": "5"}, {"at": 1_900_000_000}, {"id": 42}, {"queue": 7}, {"priority": 1}], ids=repr
)
def test_options_of_another_type_are_refused_by_name(
    cancel_order: JobFunction[..., None], options: dict[str, Any]
) -> None:
    with pytest.raises(TypeError, match=f"{next(iter(options))} must"):
        cancel_order.options(**options)


def test_a_very_long_id_is_refused(cancel_order: JobFunction[..., None]) -> None:
    with pytest.raises(LimitExceeded):
        cancel_order.options(id="x" * 1_000)


def test_options_that_are_not_given_are_the_handlers() -> None:
    assert SubmitOptions().changed() == SubmitOptions()
