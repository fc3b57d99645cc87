"""The waits between attempts."""

import dataclasses
import random
from datetime import timedelta
from typing import Any

import pytest

from mainspring import Cancel, Retry, Snooze
from mainspring.jobs.handler_options import DEFAULT_RETRY

SECOND = 1_000_000


def waits(policy: Retry, seed: int = 0) -> list[float | None]:
    """The waits after each attempt, in seconds, up to the one after which it gives up."""
    draw = random.Random(seed).random
    found: list[float | None] = []
    while not found or found[-1] is not None:
        delay = policy.delay_after(len(found) + 1, draw)
        found.append(None if delay is None else delay / SECOND)
    return found


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (Retry(max_attempts=6, base=2, factor=2, max_delay=32, jitter=0), [2, 4, 8, 16, 32, None]),
        (Retry(max_attempts=1), [None]),
        (Retry(max_attempts=2, jitter=0), [2, None]),
        (Retry(max_attempts=5, base=1, factor=3, max_delay=10, jitter=0), [1, 3, 9, 10, None]),
        (Retry(max_attempts=4, base=5, factor=1, jitter=0), [5, 5, 5, None]),
        (Retry(max_attempts=3, base=0), [0, 0, None]),
        (Retry(max_attempts=3, base=100, max_delay=32, jitter=0), [32, 32, None]),
        (Retry(max_attempts=3, base=0.5, factor=1.5, jitter=0), [0.5, 0.75, None]),
        (
            Retry(max_attempts=3, base=timedelta(minutes=1), max_delay=timedelta(hours=1), jitter=0),
            [60, 120, None],
        ),
    ],
    ids=str,
)
def test_waits_grow_up_to_their_limit_and_then_it_gives_up(policy: Retry, expected: list[float | None]) -> None:
    assert waits(policy) == expected


def test_a_wait_need_not_grow() -> None:
    assert waits(Retry(max_attempts=3, base=5, factor=1, jitter=0)) == [5, 5, None]


@pytest.mark.parametrize("policy", [Retry(), DEFAULT_RETRY], ids=["class", "handlers"])
def test_the_default_survives_an_outage_of_half_an_hour_and_begins_soon(policy: Retry) -> None:
    shortest = [policy.delay_after(used, lambda: 0) or 0 for used in range(1, policy.max_attempts)]
    assert sum(shortest) >= 1_800 * SECOND
    assert shortest[0] < (policy.delay_after(1, lambda: 1) or 0) <= 3 * SECOND


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (Retry(), "13 attempts, 2 s to 10 min apart"),
        (Retry(max_attempts=1), "one attempt"),
        (Retry(max_attempts=2, base=5), "2 attempts, 5 s apart"),
        (Retry(max_attempts=3, base=0.05, max_delay=90), "3 attempts, 50 ms to 100 ms apart"),
    ],
)
def test_a_policy_is_described_in_words(policy: Retry, words: str) -> None:
    assert str(policy) == words


def test_more_attempts_than_allowed_give_up_too() -> None:
    assert Retry(max_attempts=3).delay_after(7, random.random) is None


def test_a_thousand_attempts_do_not_overflow() -> None:
    policy = Retry(max_attempts=10_000, base=1, factor=10, max_delay=60, jitter=0)
    assert policy.delay_after(9_999, random.random) == 60 * SECOND


def test_jitter_stays_within_its_share() -> None:
    policy = Retry(max_attempts=2, base=10, jitter=0.1)
    found = [waits(policy, seed)[0] or 0 for seed in range(500)]
    assert 9 <= min(found) < 9.2
    assert 10.8 < max(found) <= 11


@pytest.mark.parametrize(("draw", "expected"), [(0.0, 8), (0.25, 9), (0.5, 10), (1.0, 12)])
def test_jitter_grows_with_the_random_number(draw: float, expected: int) -> None:
    assert Retry(base=10, jitter=0.2).delay_after(1, lambda: draw) == expected * SECOND


def test_full_jitter_never_waits_a_negative_time() -> None:
    policy = Retry(max_attempts=2, base=10, jitter=1)
    assert min(waits(policy, seed)[0] or 0 for seed in range(500)) >= 0


def test_without_jitter_chance_has_no_part() -> None:
    assert waits(Retry(jitter=0), seed=1) == waits(Retry(jitter=0), seed=2)


def test_a_policy_cannot_be_changed() -> None:
    policy = Retry()
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.max_attempts = 3  # type: ignore[misc]


def test_equal_policies_are_equal() -> None:
    assert Retry(max_attempts=3) == Retry(max_attempts=3)


@pytest.mark.parametrize(
    "options",
    [
        {"max_attempts": 0},
        {"max_attempts": -1},
        {"base": -1},
        {"base": float("nan")},
        {"max_delay": -1},
        {"max_delay": float("inf")},
        {"factor": 0.5},
        {"factor": float("nan")},
        {"factor": float("inf")},
        {"jitter": -0.1},
        {"jitter": 1.1},
        {"jitter": float("nan")},
    ],
    ids=str,
)
def test_values_that_make_no_sense_are_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(options))} must"):
        Retry(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"max_attempts": 2.5},
        {"max_attempts": "3"},
        {"max_attempts": True},
        {"base": "2"},
        {"max_delay": None},
        {"factor": "2"},
        {"jitter": "0.1"},
        {"give_up_on": [ValueError]},
        {"give_up_on": ValueError},
        {"give_up_on": ("ValueError",)},
        {"on": [ValueError]},
        {"on": ("ValueError",)},
    ],
    ids=str,
)
def test_values_of_another_type_are_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=f"^{next(iter(options))} must"):
        Retry(**options)


def test_a_refused_number_of_attempts_is_named_with_its_unit() -> None:
    with pytest.raises(ValueError, match="max_attempts must be a positive number of attempts, got 0"):
        Retry(max_attempts=0)


@pytest.mark.parametrize("kinds", [(), (ValueError,), (KeyboardInterrupt, OSError)])
def test_every_exception_class_may_be_given_up_on(kinds: tuple[type[BaseException], ...]) -> None:
    assert Retry(give_up_on=kinds).give_up_on == kinds


def test_other_classes_cannot_be_given_up_on() -> None:
    with pytest.raises(TypeError, match="give_up_on must be a tuple of exception classes"):
        Retry(give_up_on=(ValueError, int))  # type: ignore[arg-type]


def gives_up(policy: Retry, raised: type[BaseException], **options: bool) -> bool:
    return policy.gives_up(lambda kinds: issubclass(raised, kinds), **options)


@pytest.mark.parametrize(
    ("policy", "raised", "expected"),
    [
        (Retry(), ValueError, False),
        (Retry(give_up_on=(ValueError,)), ValueError, True),
        (Retry(give_up_on=(ValueError,)), KeyError, False),
        (Retry(on=(OSError,)), ConnectionError, False),
        (Retry(on=(OSError,)), ValueError, True),
        (Retry(on=(OSError,)), Retry.Later, False),
        (Retry(on=()), ValueError, True),
        (Retry(on=(OSError,), give_up_on=(ConnectionError,)), ConnectionError, True),
    ],
)
def test_exceptions_are_retried_or_given_up_on(
    policy: Retry, raised: type[BaseException], *, expected: bool
) -> None:
    assert gives_up(policy, raised) is expected


def test_after_a_timeout_only_the_exceptions_to_give_up_on_matter() -> None:
    policy = Retry(on=(OSError,), give_up_on=(KeyError,))
    assert not gives_up(policy, ValueError, has_timed_out=True)
    assert gives_up(policy, KeyError, has_timed_out=True)


@pytest.mark.parametrize("delay", [5, 0.5, timedelta(minutes=2)])
def test_a_snooze_carries_its_delay(delay: timedelta | float) -> None:
    snooze = Snooze(delay)
    assert snooze.delay == delay
    assert str(snooze) == f"snooze for {delay}"


@pytest.mark.parametrize("delay", [-1, float("nan")])
def test_a_snooze_refuses_an_impossible_delay_where_it_is_raised(delay: float) -> None:
    with pytest.raises(ValueError, match=r"^delay must"):
        Snooze(delay)


def test_a_cancel_carries_its_reason() -> None:
    cancel = Cancel("out of stock")
    assert (cancel.reason, str(cancel)) == ("out of stock", "out of stock")
    assert Cancel().reason == "canceled by its handler"


@pytest.mark.parametrize("delay", [5, 0.5, timedelta(minutes=2)])
def test_retry_later_carries_its_delay(delay: timedelta | float) -> None:
    later = Retry.Later(delay)
    assert later.delay == delay
    assert str(later) == f"retry after {delay}"


@pytest.mark.parametrize("delay", [-1, float("nan")])
def test_retry_later_refuses_an_impossible_delay_where_it_is_raised(delay: float) -> None:
    with pytest.raises(ValueError, match="delay must"):
        Retry.Later(delay)
